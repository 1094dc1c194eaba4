"""Stores the snapshots of an experiment, and what its trials have logged."""

import contextlib
import json
import logging
import os
import pickletools
import shutil
import tempfile
import time
from pathlib import Path, PurePosixPath
from typing import Dict, List, NamedTuple, Optional, Set, Tuple

from ray.air._internal.storage_retries import retried
from ray.train._internal.storage import StorageContext
from ray.tune.execution.checkpoint_deletion import _CheckpointDeletions
from ray.tune.execution.snapshot_files import (
    STATE_FILE_TMPL,
    _changed_files,
    _files_below,
    _link_files,
    _read_file,
    _replace_file,
    _replace_local_file,
    _state_files_by_session,
    _write_file,
)
from ray.tune.execution.snapshot_manifest import (
    CONTROLLER_FILE,
    SNAPSHOTS_DIR,
    TRIALS_FILE,
    TUNER_FILE,
    _FileSum,
    _is_manifest,
    _Manifest,
    _manifest_name,
    _parse_snapshot_name,
    _snapshot_name,
)
from ray.tune.execution.snapshot_segments import (
    _latest_lines,
    _merge_segments,
    _num_to_merge,
    _Segment,
    _stock_trial_data,
    _write_segment,
)
from ray.tune.utils.serialization import TuneFunctionEncoder

logger = logging.getLogger(__name__)

# How often the files that other releases of Ray read are renewed, in seconds.
_COPY_PERIOD_S = 10.0


class _Snapshot:
    """A snapshot that is being written to the driver's disk.

    Args:
        root: The folder of all snapshots there.
        number: How many snapshots of the experiment were begun before.
        session: Identifies the run.
    """

    def __init__(self, root: Path, number: int, session: str):
        self.number = number
        self.session = session
        self.name = _snapshot_name(number, session)
        self.folder = root / self.name
        self.folder.mkdir(parents=True)
        self._root = root
        self.segment: Optional[_Segment] = None
        self.has_all_trials = False

    def write_trials(
        self, states: Dict[str, Tuple[str, str]], has_all_trials: bool
    ) -> None:
        """Write the states of the trials that have changed.

        Args:
            states: State and runtime metadata of each trial, both as JSON.
            has_all_trials: Whether these are all trials that there are.
        """
        self.has_all_trials = has_all_trials
        self.segment = _write_segment(self._root, f"{self.name}/{TRIALS_FILE}", states)

    def write_controller(self, state: Dict) -> None:
        """Write the state of the controller.

        Args:
            state: What is not a state of a trial, and the order of the trials.
        """
        content = json.dumps(state, cls=TuneFunctionEncoder)
        Path(self.folder, CONTROLLER_FILE).write_text(content)

    @property
    def states(self) -> List[str]:
        """The files of the search algorithm, the scheduler and the callbacks."""
        own = {CONTROLLER_FILE, TRIALS_FILE, TUNER_FILE}
        return sorted(
            path.relative_to(self._root).as_posix()
            for path in self.folder.rglob("*")
            if path.is_file() and path.name not in own
        )


class _Upload(NamedTuple):
    """An upload that was begun: links to the files, and when they were looked for."""

    outbox: Path
    begun_ns: int


class _SnapshotStorage:
    """Stores snapshots so that there is a whole one at every moment.

    The driver writes a snapshot to its disk (:meth:`begin`). What trials have logged is
    uploaded before the snapshot that knows of it (:meth:`upload_logs`). :meth:`store`
    uploads the snapshot and may run in another thread.

    Args:
        storage: The storage of the experiment.
        deletions: The checkpoints that wait until no snapshot names them.
    """

    def __init__(self, storage: StorageContext, deletions: _CheckpointDeletions):
        self._storage = storage
        self._deletions = deletions
        # Set when the states of all trials have to be written again.
        self.needs_all_trials = True
        self._next_number: Optional[int] = None
        # What is in the folder of snapshots on the storage.
        self._remote: Set[str] = set()
        self._kept: List[_Manifest] = []
        self._segments: List[_Segment] = []
        self._sums: Dict[str, _FileSum] = {}
        self._tuner: Optional[str] = None
        self._uploaded_until_ns = 0
        # E.g. as the last upload has failed, or is an earlier run's
        self._looks_everywhere = True
        self._last_copy_time: Optional[float] = None

    @property
    def _fs(self):
        return self._storage.storage_filesystem

    @property
    def _staging(self) -> Path:
        return Path(self._storage.experiment_driver_staging_path)

    @property
    def _local_root(self) -> Path:
        return self._staging / SNAPSHOTS_DIR

    def _remote_path(self, *parts: str) -> str:
        return Path(self._storage.experiment_fs_path, *parts).as_posix()

    def begin(self, session: str) -> _Snapshot:
        """Begin a snapshot on the driver's disk.

        Args:
            session: Identifies the run.

        Returns:
            The snapshot.
        """
        if self._next_number is None:
            self._look_at_storage()
        snapshot = _Snapshot(self._local_root, self._next_number, session)
        self._next_number += 1
        return snapshot

    def discard(self, snapshot: _Snapshot) -> None:
        """Drop a snapshot that could not be completed.

        Args:
            snapshot: The snapshot.
        """
        shutil.rmtree(snapshot.folder, ignore_errors=True)

    def _look_at_storage(self) -> None:
        """Find what earlier runs of the experiment have stored."""
        self._remote = set(_files_below(self._fs, self._remote_path(SNAPSHOTS_DIR)))
        known = [
            _parse_snapshot_name(PurePosixPath(path).parts[0]) for path in self._remote
        ]
        self._next_number = max((k[0] + 1 for k in known if k), default=0)
        manifests = sorted(filter(_is_manifest, self._remote))
        for path in manifests[-2:]:
            try:
                content = _read_file(self._fs, self._remote_path(SNAPSHOTS_DIR, path))
                self._kept.append(_Manifest.loads(content))
            except ValueError as e:
                logger.debug(f"{path} {e}")
        # Names are never used again, not even on this disk.
        shutil.rmtree(self._local_root, ignore_errors=True)

    def upload_logs(
        self, changed_folders: Set[str], other_folders: Set[str], in_full: bool
    ) -> _Upload:
        """Begin to upload what was written to the driver's staging folder.

        Args:
            changed_folders: Folders of trials that may have logged something since the
                last call.
            other_folders: Folders of trials that have not.
            in_full: If True, all folders are looked through.

        Returns:
            The upload, which :meth:`store` waits for.
        """
        skip = {SNAPSHOTS_DIR, TUNER_FILE}
        if not (in_full or self._looks_everywhere):
            skip |= other_folders - changed_folders
        # Until it has been uploaded, it may be lost.
        self._looks_everywhere = True
        self._staging.mkdir(parents=True, exist_ok=True)
        for names in _state_files_by_session(os.listdir(self._staging)).values():
            skip.update(names)  # They are written to the storage themselves.
        outbox = Path(tempfile.mkdtemp(prefix=".upload-", dir=self._staging.parent))
        upload = _Upload(outbox, begun_ns=outbox.stat().st_mtime_ns)
        files = _changed_files(self._staging, self._uploaded_until_ns, skip)
        _link_files(files, self._staging, outbox)
        for folder in changed_folders:
            (outbox / folder).mkdir(exist_ok=True)
        self._storage.syncer.sync_up(
            outbox.as_posix(), self._storage.experiment_fs_path
        )
        return upload

    def store(
        self, snapshots: List[_Snapshot], upload: _Upload, in_full: bool = False
    ) -> None:
        """Store a snapshot when all that it counts on is stored.

        Args:
            snapshots: Those that were written since the last call, oldest first.
            upload: What was begun to be uploaded before.
            in_full: If True, nothing is left for later: the state is written as other
                releases read it, too, and only this snapshot is kept, and the
                checkpoints that it names.
        """
        try:
            try:
                self._storage.syncer.wait()
            finally:
                shutil.rmtree(upload.outbox, ignore_errors=True)
            # What was written since it has begun is looked at again.
            self._uploaded_until_ns = upload.begun_ns
            self._looks_everywhere = False
            if snapshots:
                manifest = self._complete(snapshots, in_full)
                self._mark(manifest)
                if len(self._segments) == 1:
                    self._copy_for_others(manifest, in_full)
                self._drop_old(in_full)
        except BaseException:
            # Parts of it may be lost.
            self.needs_all_trials = True
            raise

    def _complete(self, snapshots: List[_Snapshot], merge_all: bool) -> _Manifest:
        """Merge the segments, upload what is new, and compose the manifest."""
        snapshot = snapshots[-1]
        for written in snapshots:
            self._add_segment(written)
        if merge_all and len(self._segments) > 1:
            self._merge_last(len(self._segments), f"{snapshot.name}/all-{TRIALS_FILE}")
        tuner = self._copy_of_tuner(snapshot)
        manifest = _Manifest(
            snapshot.number,
            snapshot.session,
            controller=f"{snapshot.name}/{CONTROLLER_FILE}",
            segments=[s.path for s in self._segments],
            states=snapshot.states,
            tuner=tuner,
        )
        for path in manifest.files:
            if path not in self._remote:
                content = Path(self._local_root, path).read_bytes()
                _write_file(self._fs, self._remote_path(SNAPSHOTS_DIR, path), content)
                self._remote.add(path)
                self._sums[path] = _FileSum.of(content)
        self._sums = {p: s for p, s in self._sums.items() if p in set(manifest.files)}
        manifest.sums = dict(self._sums)
        return manifest

    def _add_segment(self, snapshot: _Snapshot) -> None:
        segment = snapshot.segment
        if snapshot.has_all_trials:
            self._segments = [segment]
        elif segment.trial_ids:
            sizes = [s.num_bytes for s in self._segments]
            self._segments.append(segment)
            count = _num_to_merge(sizes, segment.num_bytes)
            if count:
                self._merge_last(count + 1, segment.path)

    def _merge_last(self, count: int, path: str) -> None:
        merged = _merge_segments(self._local_root, self._segments[-count:], path)
        self._segments[-count:] = [merged]

    def _copy_of_tuner(self, snapshot: _Snapshot) -> Optional[str]:
        """Put a copy of ``tuner.pkl``, if there is one, into the first snapshot."""
        if self._tuner is None:
            path = self._remote_path(TUNER_FILE)
            known = self._kept[-1] if self._kept else None
            try:
                content = _read_file(self._fs, path)
                list(pickletools.genops(content))
            except FileNotFoundError:
                return None
            except ValueError:
                # It is cut: the ``Tuner`` was restored from the copy.
                if known is None or known.tuner is None:
                    return None
                content = _read_file(
                    self._fs, self._remote_path(SNAPSHOTS_DIR, known.tuner)
                )
                _replace_file(self._fs, path, content)
            Path(snapshot.folder, TUNER_FILE).write_bytes(content)
            self._tuner = f"{snapshot.name}/{TUNER_FILE}"
        return self._tuner

    def _mark(self, manifest: _Manifest) -> None:
        name = _manifest_name(manifest.name)
        _replace_file(
            self._fs, self._remote_path(SNAPSHOTS_DIR, name), manifest.dumps()
        )
        self._remote.add(name)
        self._kept.append(manifest)

    def _copy_for_others(self, manifest: _Manifest, in_full: bool) -> None:
        """Write the state as other releases of Ray read it."""
        now = time.monotonic()
        if (
            not in_full
            and not self._deletions
            and self._last_copy_time is not None
            and now - self._last_copy_time < _COPY_PERIOD_S
        ):
            return
        controller = json.loads(Path(self._local_root, manifest.controller).read_text())
        lines = _latest_lines(self._local_root, self._segments)
        order = [i for i in controller.pop("trial_order") if i in lines]
        state = (
            b'{"trial_data": '
            + _stock_trial_data(lines, order)
            + b", "
            + json.dumps(controller).encode()[1:]
        )
        files = {
            PurePosixPath(path).name: Path(self._local_root, path).read_bytes()
            for path in manifest.states
            if len(PurePosixPath(path).parts) == 2
        }
        # The one by which others find the rest comes last.
        files[STATE_FILE_TMPL.format(manifest.session)] = state
        for name, content in files.items():
            _replace_local_file(self._staging / name, content)
            _replace_file(self._fs, self._remote_path(name), content)
        if self._last_copy_time is None:
            self._drop_old_copies()
        self._last_copy_time = now

    def _drop_old_copies(self) -> None:
        """Delete the state of runs before the last one, in the form of others."""
        names = _files_below(self._fs, self._remote_path(), recursive=False)
        by_session = _state_files_by_session(names)
        for session in sorted(by_session)[:-2]:
            for name in by_session[session]:
                with contextlib.suppress(FileNotFoundError):
                    retried(self._fs.delete_file)(self._remote_path(name))

    def _drop_old(self, in_full: bool) -> None:
        """Delete snapshots and checkpoints that are not needed any more."""
        newest = self._kept[-1].number
        num_kept = 2
        if len(self._kept) > 1 and self._deletions.is_held_up(
            newest=newest, oldest=self._kept[-2].number
        ):
            num_kept = 1
        if in_full:
            num_kept = 1
        self._kept = self._kept[-num_kept:]
        kept = {_manifest_name(manifest.name) for manifest in self._kept}
        kept.update(path for manifest in self._kept for path in manifest.files)
        kept_folders = {PurePosixPath(path).parts[0] for path in kept}

        surplus = self._remote - kept
        # A manifest goes before what it names.
        for path in sorted(surplus, key=lambda path: not _is_manifest(path)):
            folder = PurePosixPath(path).parts[0]
            if path not in self._remote:
                continue
            if folder == path or folder in kept_folders:
                delete, gone = self._fs.delete_file, {path}
            else:
                delete, path = self._fs.delete_dir, folder
                gone = {p for p in surplus if p.startswith(f"{folder}/")}
            with contextlib.suppress(FileNotFoundError):
                retried(delete)(self._remote_path(SNAPSHOTS_DIR, path))
            self._remote -= gone
        self._drop_local(kept, newest)
        self._deletions.delete_unnamed(oldest=self._kept[0].number)

    def _drop_local(self, kept: Set[str], newest: int) -> None:
        for folder in os.scandir(self._local_root):
            parsed = _parse_snapshot_name(folder.name)
            if not parsed or parsed[0] > newest:
                continue
            needed = {p for p in kept if p.startswith(f"{folder.name}/")}
            if not needed:
                shutil.rmtree(folder.path, ignore_errors=True)
                continue
            for entry in os.scandir(folder.path):
                path = f"{folder.name}/{entry.name}"
                if entry.is_file() and path not in needed:
                    os.unlink(entry.path)
