"""Stands in for Ray's helpers of tests, which no wheel has: what is used of them."""

import os
import tempfile
import uuid

from ray.train._internal.storage import StorageContext


class _Storage(StorageContext):
    """One that needs no Ray session."""

    def _get_session_path(self):
        return os.path.join(self.storage_fs_path, "session")


def mock_storage_context(exp_name=None, storage_path=None, **kwargs):
    """Make a storage context in a temporary folder."""
    return _Storage(
        storage_path=storage_path or tempfile.mkdtemp(prefix="storage-"),
        experiment_dir_name=exp_name or uuid.uuid4().hex,
        trial_dir_name="trial",
        **kwargs,
    )
