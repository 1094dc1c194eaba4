"""The numbers of the directories that a trial's checkpoints are saved to."""

import copy

from ray.train._internal.storage import StorageContext, _exists_at_fs_path


def _skip_used_number(storage: StorageContext):
    """Pass over the next number if there is a directory with it already.

    A save that failed half way leaves one. What is saved to it afterwards would have
    files of both.

    Args:
        storage: The storage context of a trial that is about to be retried.
    """
    following = copy.copy(storage)
    following._update_checkpoint_index({})
    try:
        is_used = _exists_at_fs_path(
            following.storage_filesystem, following.checkpoint_fs_path
        )
    except OSError:
        is_used = True  # As well as anybody knows.
    if is_used:
        storage._update_checkpoint_index({})
