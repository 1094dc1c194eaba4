"""Storage of a virtual experiment: real directories, synced without threads."""

import os
import shutil

from . import observe
from ray.train._internal.storage import StorageContext
from ray.train._internal.syncer import Syncer
from ray.tune.experiment import Experiment


class VirtualSyncer(Syncer):
    """Copies what changed, at once, in the driver's thread.

    Args:
        full: Set to True while the storage is full; then nothing is copied and
            ``wait`` raises, as the background syncer of Tune does.
    """

    def __init__(self):
        super().__init__()
        self.full = False
        self._failed = False

    def sync_up(self, local_dir, remote_dir, exclude=None) -> bool:
        self._failed = self.full
        if not self.full:
            _copy_changed(local_dir, remote_dir)
            monitor = observe.current()
            if monitor is not None:
                monitor.on_synced()
        return True

    def sync_down(self, remote_dir, local_dir, exclude=None) -> bool:
        _copy_changed(remote_dir, local_dir)
        return True

    def delete(self, remote_dir) -> bool:
        shutil.rmtree(remote_dir, ignore_errors=True)
        return True

    def wait(self, timeout=None):
        if self._failed:
            self._failed = False
            raise OSError(28, "No space left on device (virtual storage)")


def _copy_changed(source: str, target: str) -> None:
    os.makedirs(target, exist_ok=True)
    for entry in os.scandir(source):
        into = os.path.join(target, entry.name)
        if entry.is_dir():
            _copy_changed(entry.path, into)
        else:
            shutil.copyfile(entry.path, into)


class VirtualStorage(StorageContext):
    """A storage context that needs no Ray session directory."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.syncer = VirtualSyncer()

    # Tune asks for these several times per event; plain strings are much cheaper than
    # paths.

    def _get_session_path(self) -> str:
        return f"{self.storage_fs_path}/.session"

    @property
    def experiment_fs_path(self) -> str:
        return f"{self.storage_fs_path}/{self.experiment_dir_name}"

    @property
    def experiment_driver_staging_path(self) -> str:
        return f"{self._get_session_path()}/driver_artifacts"

    @property
    def trial_fs_path(self) -> str:
        if self.trial_dir_name is None:
            raise RuntimeError("The trial has no directory yet.")
        return f"{self.experiment_fs_path}/{self.trial_dir_name}"

    @property
    def trial_driver_staging_path(self) -> str:
        if self.trial_dir_name is None:
            raise RuntimeError("The trial has no directory yet.")
        return f"{self.experiment_driver_staging_path}/{self.trial_dir_name}"


class VirtualExperiment(Experiment):
    """An experiment whose trials use :class:`VirtualStorage`."""

    _storage_context_cls = VirtualStorage
