"""When a checkpoint may be deleted: no stored snapshot names it any more."""

import logging
import threading
from collections import Counter
from typing import Callable, Dict, Iterable, List, Set

import pyarrow.fs

from ray.train import Checkpoint

logger = logging.getLogger(__name__)

# How often it is tried to delete a checkpoint, at one snapshot each.
_MAX_ATTEMPTS = 10


def _delete_fs_path(fs: pyarrow.fs.FileSystem, fs_path: str) -> None:
    # The training loop may wait for it: it makes one attempt, and asks nothing twice.
    if fs.get_file_info(fs_path).is_file:
        fs.delete_file(fs_path)
    else:
        fs.delete_dir(fs_path)


def _delete_checkpoint(checkpoint: Checkpoint) -> None:
    """Delete a checkpoint on storage, if it is there."""
    try:
        _delete_fs_path(fs=checkpoint.filesystem, fs_path=checkpoint.path)
    except FileNotFoundError:
        # E.g. the run was restored from a state that is older than the deletion.
        logger.debug(f"{checkpoint} is gone already")


class _CheckpointDeletions:
    """Keeps checkpoints until no stored snapshot of the experiment names them.

    A snapshot that is about to be stored is told the checkpoints that the trials have
    at that moment. What one of them, or an earlier one that is still stored, has named
    is deleted later; what none has named is deleted at once. Where that fails, it is
    tried again whenever a snapshot has been stored. The thread that stores snapshots
    may call this one, too.

    Args:
        delete: Deletes a checkpoint.
    """

    def __init__(self, delete: Callable[[Checkpoint], None] = _delete_checkpoint):
        self._delete = delete
        self._lock = threading.Lock()
        # What the last snapshot names, by trial, and how many of them name it.
        self._named_by_trial: Dict[str, Set[str]] = {}
        self._num_naming: Dict[str, int] = {}
        # The first snapshot that does not name a checkpoint that others have named.
        self._first_without: Dict[str, int] = {}
        self._waiting: Dict[str, Checkpoint] = {}
        self._failed: Dict[str, Checkpoint] = {}
        self._num_failures: Dict[str, int] = Counter()

    def __len__(self) -> int:
        return len(self._waiting)

    def request(self, checkpoint: Checkpoint) -> None:
        """Delete a checkpoint as soon as no stored snapshot names it.

        Args:
            checkpoint: The checkpoint.
        """
        path = checkpoint.path
        with self._lock:
            if path in self._num_naming or path in self._first_without:
                self._waiting[path] = checkpoint
                return
        self._try_to_delete(checkpoint)

    def _try_to_delete(self, checkpoint: Checkpoint) -> None:
        path = checkpoint.path
        try:
            self._delete(checkpoint)
        except Exception as e:
            error = f"{checkpoint} could not be deleted: {type(e).__name__}: {e}"
            with self._lock:
                self._num_failures[path] += 1
                if self._num_failures[path] < _MAX_ATTEMPTS:
                    self._failed[path] = checkpoint
                    if self._num_failures[path] == 1:
                        logger.warning(f"{error}. It is tried again later.")
                    return
            logger.warning(f"{error}. It is left on storage, and nothing names it.")
        with self._lock:
            self._num_failures.pop(path, None)

    def on_snapshot(self, number: int, trial_id: str, paths: Iterable[str]) -> None:
        """Note that a snapshot to be stored names these checkpoints of a trial.

        Args:
            number: The number of the snapshot.
            trial_id: The trial.
            paths: The paths of its checkpoints.
        """
        named = set(paths)
        with self._lock:
            before = self._named_by_trial.get(trial_id, set())
            for path in named - before:
                self._num_naming[path] = self._num_naming.get(path, 0) + 1
                self._first_without.pop(path, None)
            for path in before - named:
                self._num_naming[path] -= 1
                if not self._num_naming[path]:
                    del self._num_naming[path]
                    self._first_without[path] = number
            if named:
                self._named_by_trial[trial_id] = named
            else:
                self._named_by_trial.pop(trial_id, None)

    def is_held_up(self, newest: int, oldest: int) -> bool:
        """Return whether a checkpoint waits only for old snapshots to go.

        Args:
            newest: The number of the newest snapshot that is stored.
            oldest: The number of the oldest one.

        Returns:
            Whether some would be deleted if only the newest snapshot were stored.
        """
        with self._lock:
            return any(
                oldest < self._first_without.get(path, oldest) <= newest
                for path in self._waiting
            )

    def delete_unnamed(self, oldest: int) -> None:
        """Delete the checkpoints that no stored snapshot names any more.

        What could not be deleted before is tried again.

        Args:
            oldest: The number of the oldest snapshot that is stored.
        """
        with self._lock:
            failed, self._failed = list(self._failed.values()), {}
            gone = [p for p, number in self._first_without.items() if number <= oldest]
            for path in gone:
                del self._first_without[path]
            checkpoints: List[Checkpoint] = [
                self._waiting.pop(path) for path in gone if path in self._waiting
            ]
        for checkpoint in failed + checkpoints:
            self._try_to_delete(checkpoint)
