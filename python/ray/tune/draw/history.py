"""Makes slots, waits and rungs out of the lines of a log of decisions."""

import json
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Dict, Iterable, List, Optional, Tuple

import pyarrow.fs

from ray.train._internal.storage import _list_at_fs_path, get_fs_and_path

_PREFIX, _SUFFIX = "decisions-", ".jsonl"


@dataclass
class Span:
    """A time in which a trial has a slot, or waits for one.

    Attributes:
        trial: The trial.
        start: When it began, in seconds since the epoch.
        end: When it ended; None if it goes on.
        kind: ``new``, ``pause`` (resumed), ``failure`` (tried again) or ``restore``
            for a slot: why it was started. ``wait`` if it is paused.
        ended_by: ``pause``, ``stop``, ``fail``, ``retry``, ``lost`` (the driver has
            died), ``promote``; None if it goes on.
        slot: Number of the slot, None for a wait.
        text: What is known of its end.
    """

    trial: str
    start: float
    kind: str
    end: Optional[float] = None
    ended_by: Optional[str] = None
    slot: Optional[int] = None
    text: str = ""


@dataclass
class RungHistory:
    """What was recorded at a milestone.

    Attributes:
        bracket: Number of the bracket.
        milestone: The milestone.
        scores: The score that each trial had there; None if it is not a number.
        went_on: Trials that went past it.
        stopped: Trials that were stopped there.
        cutoff: The last one that was told.
    """

    bracket: int
    milestone: float
    scores: Dict[str, Optional[float]] = field(default_factory=dict)
    went_on: List[str] = field(default_factory=list)
    stopped: List[str] = field(default_factory=list)
    cutoff: Optional[float] = None


@dataclass
class History:
    """What has become of the trials of an experiment.

    Attributes:
        header: What the log says of the experiment.
        trials: The trials, in the order in which they were seen first.
        slots: Times in which a trial had a slot.
        waits: Times in which one was paused.
        rungs: By bracket and milestone.
        exploits: Time, trial and text of each.
        start: Time of the first line.
        end: Time of the last line.
        num_slots: How many trials had a slot at the same time.
        going_on: Whether a trial had a slot, or waited, at the last line.
        num_dropped: How many of the oldest lines are no longer kept.
        iterations: The last iteration of each trial.
        saving_s: Seconds from decisions to pause until the slot was free.
    """

    header: Dict[str, Any] = field(default_factory=dict)
    trials: List[str] = field(default_factory=list)
    slots: List[Span] = field(default_factory=list)
    waits: List[Span] = field(default_factory=list)
    rungs: Dict[Tuple[int, float], RungHistory] = field(default_factory=dict)
    exploits: List[Tuple[float, str, str]] = field(default_factory=list)
    start: float = 0.0
    end: float = 0.0
    num_slots: int = 0
    going_on: bool = False
    num_dropped: int = 0
    iterations: Dict[str, int] = field(default_factory=dict)
    saving_s: float = 0.0


def read_decisions(
    path: str, fs: Optional[pyarrow.fs.FileSystem] = None
) -> List[Dict[str, Any]]:
    """Read the log of decisions of an experiment.

    Args:
        path: The folder of the experiment, on a local disk or as a URI; or one file.
        fs: The file system that the path is on; None to tell by the path.

    Returns:
        The lines that belong together. A line that is cut, and files of an earlier run
        that the experiment was not restored to, are left out.

    Raises:
        FileNotFoundError: If there is no log.
    """
    fs, root = get_fs_and_path(path, storage_filesystem=fs)
    if fs.get_file_info(root).type == pyarrow.fs.FileType.File:
        paths = [root]
    else:
        names = sorted(
            name
            for name in _list_at_fs_path(fs, root)
            if PurePosixPath(name).name == name
            and name.startswith(_PREFIX)
            and name.endswith(_SUFFIX)
        )
        paths = [f"{root.rstrip('/')}/{name}" for name in names]
    if not paths:
        raise FileNotFoundError(
            f"There is no log of decisions in {path}. It should be the folder of an "
            f"experiment, with files {_PREFIX}*{_SUFFIX}; they are written by this "
            "build of Ray Tune, and stored with the state of the experiment, some "
            "seconds after its first trial has started."
        )
    entries: List[Dict[str, Any]] = []
    for file_path in paths:
        with fs.open_input_stream(file_path) as f:
            new = _parse(f.readall())
        if not new:
            continue
        if entries and (
            new[0]["number"] != entries[-1]["number"] + 1
            or new[0]["time"] < entries[-1]["time"]
        ):
            break
        entries += new
    return entries


def _parse(content: bytes) -> List[Dict[str, Any]]:
    entries = []
    for line in content.split(b"\n"):
        try:
            entry = json.loads(line)
        except ValueError:
            continue  # It is empty, or cut.
        if isinstance(entry, dict) and {"number", "time", "action"} <= entry.keys():
            entries.append(entry)
    return entries


def as_number(value: Any) -> Optional[float]:
    """Return a finite number, None for anything else.

    Args:
        value: Value of a line.

    Returns:
        The number, or None.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value)


def make_history(entries: Iterable[Dict[str, Any]]) -> History:
    """Make out what has become of the trials.

    Args:
        entries: Lines of a log, in order.

    Returns:
        The history.
    """
    maker = _Maker()
    for entry in entries:
        maker.add(entry)
    return maker.finish()


class _Maker:
    def __init__(self):
        self._history = History()
        self._seen: Dict[str, None] = {}
        self._running: Dict[str, Span] = {}
        self._waiting: Dict[str, Span] = {}
        self._first = True

    def add(self, entry: Dict[str, Any]) -> None:
        history, action = self._history, entry["action"]
        if self._first:
            self._first = False
            history.start = entry["time"]
            history.num_dropped = entry["number"]
        history.end = max(history.end, entry["time"])
        if action in ("begin", "restore"):
            history.header = entry
            for trial in list(self._running):
                self._end_slot(trial, entry, "lost")
            return
        trial = entry.get("trial")
        if trial is None:
            return
        self._seen.setdefault(trial)
        iteration = entry.get("iteration", 0)
        history.iterations[trial] = max(iteration, history.iterations.get(trial, 0))
        history.saving_s += entry.get("saving_s", 0.0)
        if action == "start":
            self._end_slot(trial, entry, "lost")
            self._end_wait(trial, entry, "promote")
            kind = entry.get("after", "new")
            self._running[trial] = Span(trial, entry["time"], kind)
        elif action == "pause":
            self._end_slot(trial, entry, "pause")
            self._waiting[trial] = Span(trial, entry["time"], "wait")
        elif action == "promote":
            self._end_wait(trial, entry, "promote")
        elif action in ("stop", "fail"):
            ended_by = "retry" if entry.get("retry") else action
            self._end_slot(trial, entry, ended_by)
            self._end_wait(trial, entry, ended_by)
        elif action == "exploit":
            history.exploits.append((entry["time"], trial, entry.get("why", "")))
        self._note_rung(entry, trial, action)

    def finish(self) -> History:
        history = self._history
        history.trials = list(self._seen)
        history.going_on = bool(self._running or self._waiting)
        history.slots += self._running.values()
        history.waits += self._waiting.values()
        history.num_slots = _assign_slots(history.slots)
        return history

    def _end_slot(self, trial: str, entry: Dict[str, Any], ended_by: str) -> None:
        self._end(self._running, self._history.slots, trial, entry, ended_by)

    def _end_wait(self, trial: str, entry: Dict[str, Any], ended_by: str) -> None:
        self._end(self._waiting, self._history.waits, trial, entry, ended_by)

    @staticmethod
    def _end(open_spans, done, trial, entry, ended_by) -> None:
        span = open_spans.pop(trial, None)
        if span is None:
            return
        span.end, span.ended_by = entry["time"], ended_by
        span.text = describe(entry)
        done.append(span)

    def _note_rung(self, entry: Dict[str, Any], trial: str, action: str) -> None:
        milestone = as_number(entry.get("rung"))
        if milestone is None:
            return
        key = (entry.get("bracket") or 0, milestone)
        rung = self._history.rungs.setdefault(key, RungHistory(*key))
        rung.scores.setdefault(trial, as_number(entry.get("score")))
        cutoff = as_number(entry.get("cutoff"))
        rung.cutoff = rung.cutoff if cutoff is None else cutoff
        if action in ("promote", "go_on") and trial not in rung.went_on:
            rung.went_on.append(trial)
        elif action == "stop" and trial not in rung.stopped:
            rung.stopped.append(trial)


def describe(entry: Dict[str, Any]) -> str:
    """Return what a line says, in words.

    Args:
        entry: A line.

    Returns:
        A sentence.
    """
    parts = [entry["action"].replace("_", " ")]
    if "iteration" in entry:
        parts[0] += f" at iteration {entry['iteration']}"
    if entry["action"] == "restore":
        parts[0] = "the experiment was restored"
    for key in ("rung", "score", "cutoff"):
        if entry.get(key) is not None:
            value = as_number(entry[key])
            parts.append(f"{key} {entry[key] if value is None else f'{value:.6g}'}")
    if entry.get("why"):
        parts.append(str(entry["why"]))
    return ", ".join(parts)


def _assign_slots(spans: List[Span]) -> int:
    """Give each span the lowest slot that is free. Return how many there are."""
    free_at: List[float] = []
    for span in sorted(spans, key=lambda span: span.start):
        for slot, free in enumerate(free_at):
            if free <= span.start:
                break
        else:
            slot = len(free_at)
            free_at.append(0.0)
        span.slot = slot
        free_at[slot] = float("inf") if span.end is None else span.end
    return len(free_at)
