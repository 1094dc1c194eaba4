"""Writes what becomes of trials, and why, to the folder of the experiment.

The files ``decisions-0000.jsonl``, ``decisions-0001.jsonl``, ... have one JSON object a
line. ``python -m ray.tune.draw`` draws them.
"""

import json
import logging
import math
import numbers
import os
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

from ray.tune.experiment import Trial
from ray.tune.result import TRAINING_ITERATION

logger = logging.getLogger(__name__)

FILE_TMPL = "decisions-{:04d}.jsonl"
FILE_PATTERN = "decisions-*.jsonl"

# A file is closed at the first snapshot after it has this size, in bytes.
_MAX_FILE_BYTES = 128 * 1024
# The oldest files are deleted.
_MAX_FILES = 128


class DecisionLog:
    """The decisions about the trials of an experiment, as lines of JSON.

    A line has ``number``, ``time`` (seconds since the epoch), ``trial``, ``action`` and
    ``iteration``, and what else is known: ``why``, ``rung`` (the milestone), ``score``,
    ``cutoff``, ``bracket``, ``saving_s`` (from the decision to pause until the slot was
    free). The actions: ``start`` (with ``after``: "new", "pause",
    "failure" or "restore"), ``pause``, ``promote``, ``go_on`` (past a milestone, in
    place), ``exploit``, ``stop``, ``fail`` (``retry``: whether it is tried again),
    ``begin`` and ``restore`` (of the experiment).

    The files are uploaded with the state of the experiment, before it. A file that is
    closed is never written again. The lines of the last one are in the state, too: when
    the experiment is restored, the lines are those that there were when its state was
    stored, whatever became of the files.

    Args:
        get_folder: Returns where to write, when there is something; None for nowhere.
        header: What the first line says of the experiment.
    """

    def __init__(self, get_folder: Callable[[], Optional[str]], header: Dict[str, Any]):
        self._get_folder = get_folder
        self._is_given_up = False
        self._header = header
        self._number = 0
        self._file_number = 0
        self._lines: List[str] = []
        self._num_bytes = 0
        self._file = None
        # What is written before the next line, as nothing was by this run.
        self._opening: Optional[str] = "begin"
        # By trial id: what the scheduler has said of a decision that is carried out
        # later, and why the trial starts next.
        self._noted: Dict[str, Dict[str, Any]] = {}
        self._after: Dict[str, str] = {}
        self._listeners: List[Callable[[Trial, Dict[str, Any]], None]] = []

    def add_listener(self, listener: Callable[[Trial, Dict[str, Any]], None]) -> None:
        """Have somebody told of each line about a trial.

        Args:
            listener: Called with the trial and what is written.
        """
        self._listeners.append(listener)

    def note(self, trial: Trial, action: str, **details: Any) -> None:
        """Note what a scheduler says of its decision.

        Args:
            trial: The trial.
            action: ``go_on`` and ``exploit`` are written at once. Others are written
                when they are carried out.
            **details: ``why``, ``rung``, ``score``, ``cutoff``, ``bracket``.
        """
        details = {key: value for key, value in details.items() if value is not None}
        if action in ("go_on", "exploit"):
            self._write(action, trial, **details)
        else:
            noted = {"action": action, "noted_at": time.time(), **details}
            self._noted[trial.trial_id] = noted

    def on_status_change(
        self, trial: Trial, previous: str, why: Optional[str] = None
    ) -> None:
        """Write what has become of a trial.

        Args:
            trial: The trial, with its new status.
            previous: Its status before.
            why: Who has decided so, if the scheduler has said nothing.
        """
        trial_id, status = trial.trial_id, trial.status
        if status == Trial.RUNNING:
            after = self._after.pop(trial_id, None)
            if after is None:
                after = "restore" if trial.has_reported_at_least_once else "new"
            self._write("start", trial, after=after)
        elif status == Trial.PAUSED:
            self._write("pause", trial, **self._take(trial, "pause", why))
        elif status == Trial.PENDING and previous == Trial.PAUSED:
            self._after[trial_id] = "pause"
            self._write("promote", trial, **self._take(trial, "promote", why))
        elif status == Trial.PENDING:
            self._after[trial_id] = "failure"
            if previous == Trial.RUNNING:
                why = "its actor could not be used"
                self._write("fail", trial, retry=True, why=why)
        elif status == Trial.TERMINATED:
            self._write("stop", trial, **self._take(trial, "stop", why))
        elif status == Trial.ERROR:
            error = trial.temporary_state.error
            error = getattr(error, "cause", None) or error
            self._write(
                "fail",
                trial,
                retry=trial.should_recover(),
                **({} if error is None else {"why": type(error).__name__}),
            )
        if trial.is_finished():
            self._noted.pop(trial_id, None)
            self._after.pop(trial_id, None)

    def get_state(self) -> Dict[str, Any]:
        """Return the state to store with the experiment, and close a full file."""
        if self._num_bytes > _MAX_FILE_BYTES:
            self._close_file()
            self._file_number += 1
            self._lines, self._num_bytes = [], 0
            self._delete(self._file_number - _MAX_FILES)
        return {
            "number": self._number,
            "file_number": self._file_number,
            "lines": list(self._lines),
        }

    def set_state(self, state: Optional[Dict[str, Any]]) -> None:
        """Go on where the state of the experiment was stored.

        Args:
            state: What ``get_state`` has returned, None if there is none.
        """
        if state is None:
            return
        self._close_file()
        self._number = state["number"]
        self._file_number = state["file_number"]
        self._lines = list(state["lines"])
        self._num_bytes = sum(len(line) + 1 for line in self._lines)
        self._opening = "restore"

    def close(self) -> None:
        """Close the file."""
        self._close_file()

    def _take(self, trial: Trial, action: str, why: Optional[str]) -> Dict[str, Any]:
        noted = self._noted.pop(trial.trial_id, {})
        if noted.pop("action", None) != action:
            noted = {}
        noted_at = noted.pop("noted_at", None)
        if noted_at is not None and action == "pause":
            noted["saving_s"] = round(time.time() - noted_at, 3)
        if why is not None:
            noted.setdefault("why", why)
        return noted

    def _write(self, action: str, trial: Trial, **details: Any) -> None:
        if self._opening:
            self._append({"action": self._opening, **self._header})
            self._opening = None
        result = trial.last_result or {}
        score = result.get(self._header.get("metric"))
        if action != "start" and score is not None:
            details.setdefault("score", score)
        entry = {
            "action": action,
            "trial": trial.trial_id,
            "iteration": result.get(TRAINING_ITERATION, 0),
            **details,
        }
        self._append(entry)
        for listener in self._listeners:
            listener(trial, entry)

    def _append(self, entry: Dict[str, Any]) -> None:
        entry = {"number": self._number, "time": round(time.time(), 3), **entry}
        self._number += 1
        line = json.dumps(_as_json(entry), default=str)
        self._lines.append(line)
        self._num_bytes += len(line) + 1
        if self._is_given_up:
            return
        try:
            if self._file is None:
                self._open_file()
            else:
                self._file.write(f"{line}\n")
            if self._file is not None:
                self._file.flush()
        except OSError as e:
            logger.warning(f"The log of decisions is given up: {e}")
            self._close_file()
            self._is_given_up = True

    def _open_file(self) -> None:
        folder = self._get_folder()
        if folder is None:
            self._is_given_up = True
            return
        path = Path(folder, FILE_TMPL.format(self._file_number))
        path.parent.mkdir(parents=True, exist_ok=True)
        for other in path.parent.glob(FILE_PATTERN):
            if other.name > path.name:
                other.unlink()  # Of a run that the state does not know of.
        self._file = open(path, "w")
        self._file.write("".join(f"{line}\n" for line in self._lines))

    def _close_file(self) -> None:
        if self._file is not None:
            try:
                self._file.close()
            except OSError:  # It is told when a line is written.
                pass
            self._file = None

    def _delete(self, file_number: int) -> None:
        if file_number >= 0 and not self._is_given_up:
            path = Path(self._get_folder(), FILE_TMPL.format(file_number))
            try:
                os.truncate(path, 0)  # So that what was uploaded is replaced.
            except OSError:
                pass


def _as_json(value: Any) -> Any:
    """Replace what JSON has no words for, such as NaN, or a tensor of two elements."""
    if isinstance(value, dict):
        return {key: _as_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_json(item) for item in value]
    if value is None or isinstance(value, (str, bool)):
        return value
    try:
        number = float(value)
    except Exception:
        # Its `repr()` may fail, too, or be long.
        return type(value).__qualname__
    if not math.isfinite(number):
        return str(number)
    return int(value) if isinstance(value, numbers.Integral) else number
