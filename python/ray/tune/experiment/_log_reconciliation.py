"""Brings the logs of a restored trial to where the trial goes on from.

What a trial logged after its last checkpoint is trained again when the experiment is
restored. The rows would be there twice, the last of them perhaps only in part.
"""

import csv
import json
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Dict, List, NamedTuple, Optional

import pyarrow.fs

from ray.air.constants import EXPR_PROGRESS_FILE, EXPR_RESULT_FILE, TRAINING_ITERATION
from ray.train._internal.storage import _exists_at_fs_path

if TYPE_CHECKING:
    from ray.tune.experiment import Trial

logger = logging.getLogger(__name__)

_SINCE_RESTORE = "iterations_since_restore"


class _Row(NamedTuple):
    """A result in a log, and the size of the log up to its end, in bytes."""

    result: Dict
    end: int

    def number(self, key: str) -> Optional[int]:
        try:
            return int(self.result[key])
        except (KeyError, TypeError, ValueError):
            return None


def _read_json_rows(content: bytes) -> List[_Row]:
    rows, end = [], 0
    for line in content.split(b"\n")[:-1]:  # What comes after the last one is cut.
        end += len(line) + 1
        try:
            result = json.loads(line)
        except ValueError:
            break
        rows.append(_Row(result if isinstance(result, dict) else {}, end))
    return rows


def _read_csv_rows(content: bytes) -> List[_Row]:
    """Read the rows of a CSV file; the first is the header, which has no result."""
    lines = content.splitlines(keepends=True)
    text = [line.decode(errors="replace") for line in lines]
    reader = csv.reader(text, strict=True)
    rows: List[_Row] = []
    header: List[str] = []
    end = num_lines = 0
    try:
        for record in reader:
            end += sum(map(len, lines[num_lines : reader.line_num]))
            num_lines = reader.line_num
            is_whole = text[num_lines - 1].endswith("\n")
            if not is_whole or header and len(record) != len(header):
                break
            rows.append(_Row(dict(zip(header, record, strict=False)), end))
            header = header or record
    except csv.Error:
        pass
    return rows


_READERS = {EXPR_RESULT_FILE: _read_json_rows, EXPR_PROGRESS_FILE: _read_csv_rows}


def _num_to_keep(rows: List[_Row], iteration: int, is_own: bool) -> int:
    """Decide how many rows of a log were logged before a trial goes on.

    Args:
        rows: The rows.
        iteration: The iteration that the trial goes on from; 0 if it starts over.
        is_own: Whether it goes on from what it has saved itself. If not, it goes on
            from a checkpoint of another trial, and keeps what it has logged before.

    Returns:
        The number of rows.
    """
    iterations = [row.number(TRAINING_ITERATION) for row in rows]
    if not is_own:
        starts = [i for i, row in enumerate(rows) if row.number(_SINCE_RESTORE) == 1]
        if starts and iterations[starts[-1]] == iteration + 1:
            return starts[-1]
        return len(rows)
    for i in reversed(range(len(rows))):
        if iterations[i] == iteration:
            return i + 1
    for i, number in enumerate(iterations):
        if number is not None and number > iteration:
            return i
    return len(rows)


def _reconcile_logs(trial: "Trial", goes_on: bool) -> None:
    """Cut off the logs of a restored trial where it goes on, so that it repeats no row.

    Args:
        trial: The trial.
        goes_on: Whether it is about to start, from its checkpoint if it has one. If
            not, it has ended, with its last result.
    """
    checkpoint = trial.latest_checkpoint_result
    if goes_on:
        iteration = checkpoint.metrics.get(TRAINING_ITERATION, 0) if checkpoint else 0
    else:
        iteration = trial.run_metadata.last_result.get(TRAINING_ITERATION, 0)
    is_own = not (goes_on and checkpoint) or (
        Path(trial.storage.trial_fs_path) in Path(checkpoint.checkpoint.path).parents
    )
    for name, read_rows in _READERS.items():
        try:
            if iteration:
                _fetch_log(trial, name)
            _cut_log(Path(trial.local_path, name), read_rows, iteration, is_own)
        except OSError:
            logger.exception(f"The log {name} of trial {trial} cannot be reconciled.")


def _cut_log(path: Path, read_rows, iteration: int, is_own: bool) -> None:
    if not path.exists():
        return
    rows = read_rows(path.read_bytes())
    num_headers = int(read_rows is _read_csv_rows)
    num_kept = num_headers + _num_to_keep(rows[num_headers:], iteration, is_own)
    end = rows[num_kept - 1].end if 0 < num_kept <= len(rows) else 0
    if end < path.stat().st_size:
        os.truncate(path, end)


def _fetch_log(trial: "Trial", name: str) -> None:
    """Download a log, where the trial was restored on another machine."""
    local_path = Path(trial.local_path, name)
    if local_path.exists():
        return
    fs = trial.storage.storage_filesystem
    remote_path = Path(trial.storage.trial_fs_path, name).as_posix()
    if _exists_at_fs_path(fs, remote_path):
        pyarrow.fs.copy_files(remote_path, local_path.as_posix(), source_filesystem=fs)


def _csv_header(path: Path) -> List[str]:
    """Read the names of the columns of a CSV file."""
    with open(path, newline="") as f:
        return next(csv.reader(f), [])
