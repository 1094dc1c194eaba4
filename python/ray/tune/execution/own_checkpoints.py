"""Tells whether a trainable goes on from a state of which Tune knows nothing."""

import numbers
import os
from pathlib import Path
from typing import Any, Dict, Iterator, Optional, Tuple

from ray.train import Checkpoint
from ray.tune.result import AUTO_RESULT_KEYS, DEBUG_METRICS, TRAINING_ITERATION
from ray.tune.utils import flatten_dict

# Where the callback of `ray.tune.integration.ray_train` puts the path.
_TRAIN_CHECKPOINT_PATH = "checkpoint_path"

# How many entries of a folder are looked at.
_MAX_ENTRIES = 2000

_NOT_COUNTERS = {*AUTO_RESULT_KEYS, *DEBUG_METRICS}


def keeps_own_state(
    config: Dict[str, Any], result: Optional[Dict[str, Any]], since: float
) -> bool:
    """Return whether a trial may go on from something else than its checkpoint.

    Args:
        config: Its config. A checkpoint in it, or a path at which something was
            written while the trial trained, may be where it keeps its state, and so
            may be a path that cannot be seen from here.
        result: Its last result. Ray Train puts the path of its own checkpoint there.
        since: When the trial started, in seconds since the epoch.

    Returns:
        True if it does.
    """
    if result and isinstance(result.get(_TRAIN_CHECKPOINT_PATH), str):
        return True
    return any(_may_hold_state(value, since) for value in _leaves(config))


def names_path(config: Dict[str, Any]) -> bool:
    """Return whether a config has a path, or a checkpoint, in it.

    Args:
        config: Config of a trial.

    Returns:
        True if one does.
    """
    return any(
        isinstance(value, Checkpoint) or _as_path(value) is not None
        for value in _leaves(config)
    )


def compare_counters(
    at_checkpoint: Dict[str, Any], lowest: Dict[str, float], result: Dict[str, Any]
) -> Tuple[Optional[str], Optional[str]]:
    """Find out by the counters of a trainable, such as its epoch, where it goes on.

    A counter is a metric that was an integer and rose evenly with the iterations.

    Args:
        at_checkpoint: The result with which the checkpoint was saved.
        lowest: The least value that each metric has had, by its flat name.
        result: The first result after the trial was resumed.

    Returns:
        A counter that goes on where the checkpoint was saved, and one that has begun
        anew. None for each if there is none.
    """
    at_checkpoint, result = flatten_dict(at_checkpoint), flatten_dict(result)
    goes_on = anew = None
    passed = at_checkpoint.get(TRAINING_ITERATION, 0) - 1
    for key, value in result.items():
        saved, first = at_checkpoint.get(key), lowest.get(key)
        if key in _NOT_COUNTERS or not all(map(_is_integer, (value, saved, first))):
            continue
        if passed > 0:
            step = (saved - first) / passed
        else:
            step = int(saved == first and first in (0, 1))
        if step <= 0 or step != int(step):
            continue
        if value == saved + step:
            goes_on = goes_on or key
        elif value == first and value < saved:
            anew = anew or key
    return goes_on, anew


def _is_integer(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return False
    return value == value and abs(value) != float("inf") and value == int(value)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for item in value.values():
            yield from _leaves(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _as_path(value: Any) -> Optional[str]:
    if isinstance(value, os.PathLike):
        return str(os.fspath(value))
    if not isinstance(value, str) or not value:
        return None
    if "://" in value or value.startswith(("/", "~", "\\\\")) or value[1:3] == ":\\":
        return value
    # The name of a model on a hub has a slash in it, too.
    return value if os.sep in value and os.path.exists(value) else None


def _may_hold_state(value: Any, since: float) -> bool:
    if isinstance(value, Checkpoint):
        return True
    path = _as_path(value)
    if path is None:
        return False
    path = os.path.expanduser(path)
    try:
        return not os.path.exists(path) or _was_written(Path(path), since)
    except OSError:
        return True


def _was_written(path: Path, since: float) -> bool:
    if path.stat().st_mtime >= since:
        return True
    seen = 0
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            seen += 1
            if seen > _MAX_ENTRIES:
                return False
            if os.stat(os.path.join(folder, name)).st_mtime >= since:
                return True
    return False
