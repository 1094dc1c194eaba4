"""The states of trials in a snapshot: only those that changed are written.

Each snapshot adds one segment: a file with the states of the trials that have changed
since the one before, one trial a line. Segments are merged as in a log-structured
merge tree: a new one takes up those before it for as long as they are not at least
twice as large. So there are few of them, and a state is written only a few times more
than it changes, however many trials there are.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Iterable, Iterator, List, Tuple

# Segments that are smaller together are written as one: there is nothing to gain.
_SMALL_BYTES = 1 << 20


@dataclass
class _Segment:
    """One file with states of trials.

    Attributes:
        path: Its path, relative to the folder of all snapshots.
        trial_ids: Whose states they are, in the order of the lines.
        num_bytes: The size of the file.
    """

    path: str
    trial_ids: List[str]
    num_bytes: int


def _num_to_merge(sizes: List[int], new: int, small: int = _SMALL_BYTES) -> int:
    """Decide how many segments a new one takes up.

    Args:
        sizes: The sizes of the segments that there are, oldest first.
        new: The size of the new one.
        small: All are merged if they are not larger than this together.

    Returns:
        How many of the last segments to merge with the new one.
    """
    if sum(sizes) + new <= small:
        return len(sizes)
    count = 0
    while count < len(sizes) and sizes[-1 - count] < 2 * new:
        new += sizes[-1 - count]
        count += 1
    return count


def _encode_line(trial_id: str, state: Tuple[str, str]) -> bytes:
    return (json.dumps([trial_id, *state]) + "\n").encode()


def _write_segment(
    root: Path, path: str, states: Dict[str, Tuple[str, str]]
) -> _Segment:
    """Write the states of trials to a file.

    Args:
        root: The folder of all snapshots.
        path: Where to write, relative to the folder.
        states: State and runtime metadata of each trial, both as JSON.

    Returns:
        The segment.
    """
    content = b"".join(_encode_line(*item) for item in states.items())
    Path(root, path).write_bytes(content)
    return _Segment(path, list(states), len(content))


def _latest_lines(root: Path, segments: Iterable[_Segment]) -> Dict[str, bytes]:
    """Read the latest state of each trial, as the line that was written."""
    lines: Dict[str, bytes] = {}
    for segment in segments:
        content = Path(root, segment.path).read_bytes().split(b"\n")
        lines.update(zip(segment.trial_ids, content, strict=False))
    return lines


def _merge_segments(root: Path, segments: List[_Segment], path: str) -> _Segment:
    """Write the latest states of several segments to one.

    Args:
        root: The folder of all snapshots.
        segments: The segments, oldest first.
        path: Where to write, relative to the folder; may be that of one of them.

    Returns:
        The merged segment.
    """
    lines = _latest_lines(root, segments)
    content = b"".join(line + b"\n" for line in lines.values())
    Path(root, path).write_bytes(content)
    return _Segment(path, list(lines), len(content))


def _decode_lines(content: bytes) -> Iterator[Tuple[str, Tuple[str, str]]]:
    """Read a segment.

    Args:
        content: The content of its file.

    Yields:
        Tuple[str, Tuple[str, str]]: The id of a trial, with its state and runtime
            metadata.
    """
    for line in content.split(b"\n"):
        if line:
            trial_id, state, metadata = json.loads(line)
            yield trial_id, (state, metadata)


def _stock_trial_data(lines: Dict[str, bytes], order: List[str]) -> bytes:
    """Compose the trial states as other releases of Ray write them.

    Args:
        lines: The line of each trial.
        order: The ids of the trials.

    Returns:
        A JSON list.
    """
    return (
        b"["
        + b", ".join(
            # The id is left out.
            b"[" + lines[trial_id][len(json.dumps(trial_id)) + 3 :]
            for trial_id in order
        )
        + b"]"
    )
