"""Keeps the checkpoints of a trial that another trial is about to load.

``num_to_keep`` says how many checkpoints a trial keeps for itself. It knows nothing of
a trial that waits to be restored from one of them, as the trials of population based
training do, so that one stays on storage until it is let go.
"""

import copy
from typing import Callable, Dict, Optional

from ray.train import Checkpoint
from ray.train._internal.checkpoint_manager import _CheckpointManager
from ray.train._internal.session import _TrainingResult
from ray.tune.execution.checkpoint_deletion import _delete_checkpoint


class _CheckpointHolds:
    """Who holds which checkpoint of one trial.

    A holder is a string (a trial id, or the name of a scheduler) and holds at most one
    checkpoint of the trial.
    """

    def __init__(self):
        self._paths: Dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._paths)

    def __contains__(self, checkpoint: Optional[Checkpoint]) -> bool:
        return checkpoint is not None and checkpoint.path in self._paths.values()

    def hold(self, holder: str, checkpoint: Checkpoint) -> bool:
        """Keep a checkpoint, in place of the one that this holder held before.

        Args:
            holder: Who is about to load it.
            checkpoint: The checkpoint.

        Returns:
            Whether another one was let go for it.
        """
        before = self._paths.get(holder)
        self._paths[holder] = checkpoint.path
        return before not in (None, checkpoint.path)

    def release(self, holder: str) -> bool:
        """Let go of what a holder held.

        Args:
            holder: Who is done.

        Returns:
            Whether there was anything to let go.
        """
        return self._paths.pop(holder, None) is not None


def _register_checkpoint(
    manager: _CheckpointManager,
    result: _TrainingResult,
    holds: _CheckpointHolds,
    delete: Callable[[Checkpoint], None] = _delete_checkpoint,
) -> None:
    """Register a checkpoint with a trial's manager, and delete none that is held.

    Args:
        manager: The trial's checkpoint manager.
        result: The checkpoint, with its metrics.
        holds: The checkpoints of the trial that have to stay.
        delete: Deletes a checkpoint.
    """
    # The manager's own way to do it, but for what it deletes: it would fail halfway on
    # one that is gone already, and the next checkpoint would overwrite this one.
    config = manager._checkpoint_config
    manager._checkpoint_config = copy.copy(config)
    manager._checkpoint_config.num_to_keep = None
    try:
        manager.register_checkpoint(result)
    finally:
        manager._checkpoint_config = config
    _prune_checkpoints(manager, holds, delete)


def _prune_checkpoints(
    manager: _CheckpointManager,
    holds: _CheckpointHolds,
    delete: Callable[[Checkpoint], None] = _delete_checkpoint,
) -> None:
    """Delete the checkpoints beyond ``num_to_keep``, as far as nobody holds them.

    Args:
        manager: The trial's checkpoint manager.
        holds: The checkpoints of the trial that have to stay.
        delete: Deletes a checkpoint.
    """
    num_to_keep = manager.checkpoint_config.num_to_keep
    if num_to_keep is None:
        return
    latest = manager.latest_checkpoint_result
    latest_path = latest.checkpoint.path if latest else None
    surplus = [
        r
        for r in manager._checkpoint_results[:-num_to_keep]
        if r.checkpoint not in holds and r.checkpoint.path != latest_path
    ]
    if not surplus:
        return
    # Forget them before they are deleted.
    manager._checkpoint_results = [
        r for r in manager._checkpoint_results if not any(r is s for s in surplus)
    ]
    for r in surplus:
        delete(r.checkpoint)
