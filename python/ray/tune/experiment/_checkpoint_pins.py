"""Pins the checkpoints of a trial that another trial is about to load.

``num_to_keep`` says how many checkpoints a trial keeps for itself. It knows nothing of
a trial that waits to be restored from one of them, as the trials of population based
training do, so that one stays on storage until it is unpinned.
"""

from typing import Dict, Optional

from ray.train import Checkpoint


class CheckpointPins:
    """Who has pinned which checkpoint of one trial.

    A pin is named by a string (a trial id, or the name of a scheduler), and each name
    pins at most one checkpoint of the trial.
    """

    def __init__(self):
        self._paths: Dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._paths)

    def __contains__(self, checkpoint: Optional[Checkpoint]) -> bool:
        return checkpoint is not None and checkpoint.path in self._paths.values()

    def pin(self, pinned_by: str, checkpoint: Checkpoint) -> bool:
        """Keep a checkpoint, in place of the one that was pinned by this name before.

        Args:
            pinned_by: Who is about to load it.
            checkpoint: The checkpoint.

        Returns:
            Whether another one was unpinned for it.
        """
        before = self._paths.get(pinned_by)
        self._paths[pinned_by] = checkpoint.path
        return before not in (None, checkpoint.path)

    def unpin(self, pinned_by: str) -> bool:
        """Remove a pin.

        Args:
            pinned_by: Who does not need the checkpoint any more.

        Returns:
            Whether there was such a pin.
        """
        return self._paths.pop(pinned_by, None) is not None
