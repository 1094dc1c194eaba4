"""What makes a snapshot of an experiment whole.

A snapshot is a set of files that belong together: the states of the trials, the
controller, the search algorithm, the scheduler and the callbacks, and the ``Tuner``.
They lie in the folder ``experiment_snapshots`` of the experiment, under names that are
never used again. A snapshot counts as soon as its manifest is there, which is written
last and names each file with its size and checksum. So nothing depends on whether the
storage renames files atomically.

The files of the state that other releases of Ray read lie in the experiment's folder
itself, under the names that they have there. They are a copy of a whole snapshot, and
are as old as the last one in which all trials were written.
"""

import json
import zlib
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Dict, List, Optional, Tuple

SNAPSHOTS_DIR = "experiment_snapshots"
TUNER_FILE = "tuner.pkl"
# In the folder of one snapshot: the state of the controller, and those of trials.
CONTROLLER_FILE = "controller.json"
TRIALS_FILE = "trials.jsonl"

_FORMAT = 1
_MANIFEST_SUFFIX = ".manifest.json"


def _snapshot_name(number: int, session: str) -> str:
    """Name a snapshot, so that names sort by age.

    Args:
        number: How many snapshots of the experiment were begun before.
        session: Identifies the run, as in the names of the other state files.

    Returns:
        The name of its folder.
    """
    return f"{number:08d}_{session}"


def _parse_snapshot_name(name: str) -> Optional[Tuple[int, str]]:
    """Split the name of a snapshot, or of its manifest.

    Args:
        name: The name of a file or folder.

    Returns:
        The number and the session; None if it is another name.
    """
    number, _, session = name.removesuffix(_MANIFEST_SUFFIX).partition("_")
    if not (number.isdigit() and session):
        return None
    return int(number), session


def _manifest_name(name: str) -> str:
    return name + _MANIFEST_SUFFIX


def _is_manifest(name: str) -> bool:
    return name.endswith(_MANIFEST_SUFFIX)


@dataclass(frozen=True)
class _FileSum:
    """What a file has to be like to be the one that was written."""

    size: int
    crc32: int

    @classmethod
    def of(cls, content: bytes) -> "_FileSum":
        return cls(len(content), zlib.crc32(content))

    def why_not(self, content: bytes) -> Optional[str]:
        """Say why a content is not the one that was written; None if it is."""
        if len(content) != self.size:
            return f"has {len(content)} bytes instead of {self.size}"
        if zlib.crc32(content) != self.crc32:
            return "has another content than was written"
        return None


@dataclass
class _Manifest:
    """The files of one snapshot. All paths are relative to ``experiment_snapshots``.

    Attributes:
        number: How many snapshots of the experiment were begun before.
        session: Identifies the run that has written it.
        controller: The file with the state of the controller.
        segments: The files with the states of trials, oldest first: a trial's state is
            the last one.
        states: The files of the search algorithm, the scheduler and the callbacks.
        tuner: The copy of the experiment's ``tuner.pkl``, if there is one.
        sums: Size and checksum of each of these files.
    """

    number: int
    session: str
    controller: str
    segments: List[str]
    states: List[str]
    tuner: Optional[str] = None
    sums: Dict[str, _FileSum] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return _snapshot_name(self.number, self.session)

    @property
    def files(self) -> List[str]:
        tuner = [self.tuner] if self.tuner else []
        return [self.controller, *self.segments, *self.states, *tuner]

    def dumps(self) -> bytes:
        """Return the content of the manifest's file."""
        document = {
            "format": _FORMAT,
            "number": self.number,
            "session": self.session,
            "controller": self.controller,
            "segments": self.segments,
            "states": self.states,
            "tuner": self.tuner,
            "files": {p: [s.size, s.crc32] for p, s in self.sums.items()},
        }
        return json.dumps(document, indent=1).encode()

    @classmethod
    def loads(cls, content: bytes) -> "_Manifest":
        """Read the content of a manifest's file.

        Args:
            content: The content.

        Returns:
            The manifest.

        Raises:
            ValueError: If it is cut, or of a later format.
        """
        try:
            document = json.loads(content)
        except ValueError as e:
            raise ValueError(f"is no complete JSON ({len(content)} bytes)") from e
        if not isinstance(document, dict) or document.get("format") != _FORMAT:
            raise ValueError("has a format that this release does not know")
        manifest = cls(
            number=document["number"],
            session=document["session"],
            controller=document["controller"],
            segments=document["segments"],
            states=document["states"],
            tuner=document["tuner"],
            sums={p: _FileSum(*s) for p, s in document["files"].items()},
        )
        for path in manifest.files:
            # It is joined with the folder's path: it must not lead out of it.
            pure = PurePosixPath(path)
            if pure.is_absolute() or ".." in pure.parts or path not in manifest.sums:
                raise ValueError(f"names {path!r}, which is no file of a snapshot")
        return manifest
