"""Finds the newest state of an experiment that loads whole."""

import json
import logging
import pickletools
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path, PurePosixPath
from typing import Any, Callable, Dict, List, Optional, Tuple

import pyarrow.fs

from ray.tune.error import TuneError
from ray.tune.execution.snapshot_files import (
    STATE_FILE_TMPL,
    _files_below,
    _read_file,
    _state_files_by_session,
)
from ray.tune.execution.snapshot_manifest import (
    SNAPSHOTS_DIR,
    TUNER_FILE,
    _is_manifest,
    _Manifest,
    _manifest_name,
    _parse_snapshot_name,
    _snapshot_name,
)
from ray.tune.execution.snapshot_segments import _decode_lines
from ray.tune.utils.serialization import _loads_with_cloudpickle

logger = logging.getLogger(__name__)

_DATE = "%Y-%m-%d_%H-%M-%S"


class _NoExperimentState(ValueError):
    """Nothing was stored: the experiment has to begin."""


class _ExperimentStateUnreadable(TuneError):
    """State was found, but none that loads whole."""


class _NotWhole(Exception):
    """A state is passed over; says why."""


@dataclass
class _StoredState:
    """A state of an experiment that loads whole.

    Attributes:
        name: What it is called in messages.
        number: The number of the snapshot; -1 if it is of another release.
        session: Identifies the run that has written it.
        experiment_state: The states of the trials and of the controller, as in an
            ``experiment_state-*.json``.
        state_files: The files of the search algorithm, the scheduler and the
            callbacks: their content by name.
        passed_over: Newer ones that are not whole, with the reason.
    """

    name: str
    number: int
    session: str
    experiment_state: Dict[str, Any]
    state_files: Dict[str, bytes] = field(default_factory=dict)
    passed_over: List[str] = field(default_factory=list)

    def write_state_files(self, folder: Path) -> None:
        """Write the files of the search algorithm, the scheduler and the callbacks.

        Args:
            folder: Where to.
        """
        for name, content in self.state_files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


@dataclass(order=True)
class _Candidate:
    """A state that was stored, whole or not."""

    session: str
    number: int
    files: List[str] = field(compare=False)  # relative to the experiment's folder

    @property
    def name(self) -> str:
        if self.number < 0:
            return self.files[0]
        return f"snapshot {_snapshot_name(self.number, self.session)}"


class _StoredStates:
    """What is stored of an experiment.

    Args:
        fs: The file system.
        path: The folder of the experiment.
    """

    def __init__(self, fs: pyarrow.fs.FileSystem, path: str):
        self._fs = fs
        self._path = path
        sizes = _files_below(fs, Path(path, SNAPSHOTS_DIR).as_posix())
        self._sizes = {f"{SNAPSHOTS_DIR}/{p}": size for p, size in sizes.items()}
        root_files = _files_below(fs, path, recursive=False)
        self._sizes.update(root_files)
        self._candidates = self._find_candidates(list(sizes), list(root_files))

    def _find_candidates(
        self, snapshot_files: List[str], root_files: List[str]
    ) -> List[_Candidate]:
        found: Dict[str, List[str]] = {}
        for path in sorted(snapshot_files):
            name = PurePosixPath(path).parts[0]
            if _parse_snapshot_name(name) and not name.endswith(".tmp"):
                name = _snapshot_name(*_parse_snapshot_name(name))
                found.setdefault(name, []).append(f"{SNAPSHOTS_DIR}/{path}")
        candidates = []
        newest_marked = max(
            (name for name in found if self._manifest_path(name) in self._sizes),
            default=None,
        )
        for name, files in found.items():
            number, session = _parse_snapshot_name(name)
            is_marked = self._manifest_path(name) in self._sizes
            if not is_marked and newest_marked is not None and name < newest_marked:
                continue  # Parts of it belong to a later one.
            candidates.append(_Candidate(session, number, files))
        for session, names in _state_files_by_session(root_files).items():
            candidates.append(_Candidate(session, -1, names))
        if [c.number for c in candidates] == [0] and newest_marked is None:
            # The very first snapshot was begun, and nothing had happened before.
            return []
        return sorted(candidates, reverse=True)

    def _manifest_path(self, name: str) -> str:
        return f"{SNAPSHOTS_DIR}/{_manifest_name(name)}"

    def __bool__(self) -> bool:
        return bool(self._candidates)

    @property
    def highest_number(self) -> int:
        return max((c.number for c in self._candidates), default=-1)

    def _read(self, path: str) -> bytes:
        try:
            return _read_file(self._fs, Path(self._path, path).as_posix())
        except FileNotFoundError as e:
            raise _NotWhole(f"{path} is missing") from e

    def _load_manifest(self, candidate: _Candidate) -> _Manifest:
        number, session = candidate.number, candidate.session
        path = next(filter(_is_manifest, candidate.files), None)
        if path is None:
            raise _NotWhole("it was not completed: it has no manifest")
        try:
            manifest = _Manifest.loads(self._read(path))
        except (ValueError, KeyError, TypeError) as e:
            raise _NotWhole(f"{path} {e}") from e
        if (manifest.number, manifest.session) != (number, session):
            raise _NotWhole(f"{path} is the manifest of {manifest.name}")
        for member, file_sum in manifest.sums.items():
            size = self._sizes.get(f"{SNAPSHOTS_DIR}/{member}")
            if size is None:
                raise _NotWhole(f"{SNAPSHOTS_DIR}/{member} is missing")
            if size != file_sum.size:
                raise _NotWhole(
                    f"{SNAPSHOTS_DIR}/{member} has {size} bytes instead of "
                    f"{file_sum.size}"
                )
        return manifest

    def _read_member(self, manifest: _Manifest, path: str) -> bytes:
        content = self._read(f"{SNAPSHOTS_DIR}/{path}")
        reason = manifest.sums[path].why_not(content)
        if reason:
            raise _NotWhole(f"{SNAPSHOTS_DIR}/{path} {reason}")
        return content

    def _load_snapshot(self, candidate: _Candidate) -> _StoredState:
        manifest = self._load_manifest(candidate)
        state = _loads_with_cloudpickle(
            self._read_member(manifest, manifest.controller)
        )
        trials: Dict[str, Tuple[str, str]] = {}
        for path in manifest.segments:
            trials.update(_decode_lines(self._read_member(manifest, path)))
        state["trial_data"] = [trials[i] for i in state["trial_order"]]
        files = {
            PurePosixPath(*PurePosixPath(path).parts[1:]).as_posix(): (
                self._read_member(manifest, path)
            )
            for path in manifest.states
        }
        return _StoredState(
            candidate.name, manifest.number, manifest.session, state, files
        )

    def _load_files(self, candidate: _Candidate) -> _StoredState:
        """Load a state from the files of other releases of Ray."""
        name, *others = candidate.files
        content = self._read(name)
        try:
            json.loads(content)
        except ValueError as e:
            raise _NotWhole(f"{name} is cut: {len(content)} bytes") from e
        state = _loads_with_cloudpickle(content)
        if not {"trial_data", "runner_data"} <= set(state):
            raise _NotWhole(f"{name} lacks the states of the trials")
        files = {other: self._read(other) for other in others}
        for other, content in files.items():
            if not content or content[:1] == b"\x80" and not _is_pickle(content):
                raise _NotWhole(f"{other} is cut: {len(content)} bytes")
        return _StoredState(candidate.name, -1, candidate.session, state, files)

    def load_newest(self) -> _StoredState:
        """Load the newest state that is whole.

        Returns:
            The state.

        Raises:
            _NoExperimentState: If nothing was stored.
            _ExperimentStateUnreadable: If nothing that was stored is whole.
        """
        return self._first_whole(
            lambda c: self._load_snapshot(c) if c.number >= 0 else self._load_files(c)
        )

    def _first_whole(self, load: Callable[[_Candidate], Any]) -> Any:
        if not self._candidates:
            pattern = STATE_FILE_TMPL.format("*")
            raise _NoExperimentState(
                f"No state of an experiment was found in '{self._path}' (neither "
                f"'{SNAPSHOTS_DIR}' nor a file of the form '{pattern}'). This is "
                f"expected if you are launching a new experiment."
            )
        passed_over = []
        for candidate in self._candidates:
            try:
                found = load(candidate)
            except _NotWhole as e:
                passed_over.append(f"{candidate.name}: {e}")
                continue
            found.passed_over = passed_over
            return found
        listed = "\n".join(f"- {reason}" for reason in passed_over)
        raise _ExperimentStateUnreadable(
            f"The state of the experiment in '{self._path}' cannot be loaded:\n"
            f"{listed}\n"
            f"Nothing was changed. Restore these files from a copy. To begin the "
            f"experiment anew instead, choose another name or folder for it."
        )

    def load_tuner(self) -> Optional[bytes]:
        """Load the copy of ``tuner.pkl`` in the newest snapshot that is whole.

        Returns:
            Its content; None if there is no such copy.
        """
        for candidate in self._candidates:
            if candidate.number < 0:
                continue
            try:
                manifest = self._load_manifest(candidate)
                if manifest.tuner:
                    return self._read_member(manifest, manifest.tuner)
            except _NotWhole as e:
                logger.debug(f"{candidate}: {e}")
        return None


def _following_session(before: str, now: str) -> str:
    """Return a session string that comes after an earlier one.

    Session strings are dates, and the newest state of other releases is the one with
    the latest. A clock may have been set back, or be that of another time zone.

    Args:
        before: That of the run that is restored.
        now: That of the moment.

    Returns:
        That of the moment, or the next after ``before``.
    """
    if now > before:
        return now
    try:
        return (datetime.strptime(before, _DATE) + timedelta(seconds=1)).strftime(_DATE)
    except ValueError:
        return f"{before}_1"


def _is_pickle(content: bytes) -> bool:
    """Return whether a content is a whole pickle, without unpickling it."""
    try:
        for _ in pickletools.genops(content):
            pass
    except Exception:
        return False
    return True


def _load_tuner_file(fs: pyarrow.fs.FileSystem, path: str) -> bytes:
    """Load ``tuner.pkl``, or its copy where it is damaged.

    Args:
        fs: The file system.
        path: The folder of the experiment.

    Returns:
        The content of the file.

    Raises:
        FileNotFoundError: If there is neither.
        TuneError: If it is damaged, and there is no copy.
    """
    tuner_path = Path(path, TUNER_FILE).as_posix()
    try:
        content = _read_file(fs, tuner_path)
    except FileNotFoundError:
        content = None
    copy = _StoredStates(fs, path).load_tuner()
    if content is not None and _is_pickle(content):
        if copy is not None and copy != content:
            logger.warning(
                f"'{tuner_path}' was written by a Tuner that has stored no state. The "
                f"experiment is restored as the Tuner has set it up that has."
            )
            return copy
        return content
    what = "is missing" if content is None else f"is cut ({len(content)} bytes)"
    if copy is None:
        if content is None:
            raise FileNotFoundError(f"'{tuner_path}' is missing")
        raise TuneError(
            f"'{tuner_path}' {what}, and no snapshot has a copy of it. Nothing was "
            f"changed. Restore the file from a copy, or go on with the experiment by "
            f"tune.run(..., resume=True) with the same arguments as before."
        )
    logger.warning(f"'{tuner_path}' {what}: its copy in the newest snapshot is used.")
    return copy
