"""Tells a run in which nothing can happen any more from one that waits."""

import math
import os
from typing import Dict, Iterable, List, Optional

from ray.tune.experiment import Trial
from ray.tune.result import AUTO_RESULT_KEYS, DEBUG_METRICS, TRAINING_ITERATION

STALL_TIMEOUT_ENV_VAR = "TUNE_STALL_TIMEOUT_S"
_DEFAULT_TIMEOUT_S = 600.0
_WARN_AFTER_S = 60.0
_MAX_METRICS = 8


def _stall_timeout_from_env() -> float:
    """Return the time in seconds after which a stalled run ends, 0 for never.

    Raises:
        ValueError: If the environment variable is not a number of seconds.
    """
    value = os.environ.get(STALL_TIMEOUT_ENV_VAR, "")
    if not value.strip():
        return _DEFAULT_TIMEOUT_S
    try:
        timeout_s = float(value)
    except ValueError:
        timeout_s = math.nan
    if not 0 <= timeout_s < math.inf:
        raise ValueError(
            f"{STALL_TIMEOUT_ENV_VAR} must be a number of seconds, or 0 to wait "
            f"forever, got {value!r}."
        )
    return timeout_s


class _StallDetector:
    """Measures for how long no event could come.

    Args:
        timeout_s: Seconds after which a stalled run is to end, 0 for never.
        warn_after_s: Seconds after which the user is warned.
    """

    def __init__(self, timeout_s: float, warn_after_s: float = _WARN_AFTER_S):
        self._timeout_s = timeout_s
        self._warn_after_s = warn_after_s
        self._stalled_since: Optional[float] = None
        self._warned = False

    def reset(self) -> None:
        """Note that something happened, or that something is to come."""
        self._stalled_since = None
        self._warned = False

    def stalled_for(self, now: float) -> float:
        """Note that no event can come, and return for how many seconds by now.

        Args:
            now: Time in seconds, on a clock that never goes back.
        """
        if self._stalled_since is None:
            self._stalled_since = now
        return now - self._stalled_since

    def should_end(self, now: float) -> bool:
        """Whether the run has been stalled for so long that it is to end."""
        return bool(self._timeout_s) and self.stalled_for(now) >= self._timeout_s

    def should_warn(self, now: float) -> bool:
        """Whether to warn the user now; True once for each stall."""
        if self._warned or self.stalled_for(now) < self._warn_after_s:
            return False
        self._warned = True
        return True

    def end_in(self, now: float) -> Optional[float]:
        """Seconds until the run is to end, None if it never is."""
        return self._timeout_s - self.stalled_for(now) if self._timeout_s else None


def _describe_last_result(trial: Trial, metrics: Iterable[str]) -> str:
    # Not `trial.last_result`, which may wait for the actor.
    result = trial.run_metadata.last_result
    reported = {
        key: value
        for key, value in result.items()
        if key not in AUTO_RESULT_KEYS
        and key not in DEBUG_METRICS
        and isinstance(value, (int, float))
        and not isinstance(value, bool)
    }
    shown = {TRAINING_ITERATION: result.get(TRAINING_ITERATION)}
    for metric in [*metrics, *sorted(reported)]:
        if metric in result and len(shown) <= _MAX_METRICS:
            shown[metric] = result[metric]
    if shown[TRAINING_ITERATION] is None:
        del shown[TRAINING_ITERATION]
    return ", ".join(f"{k}={v}" for k, v in shown.items()) or "none"


def _describe_stall(
    trials: List[Trial],
    paused_by: Dict[str, str],
    scheduler: str,
    search_alg: str,
    metrics: Iterable[str] = (),
) -> str:
    """Say what stands still in a run in which no event can come any more.

    Args:
        trials: The unfinished trials.
        paused_by: Who paused them, by trial id.
        scheduler: Name of the scheduler.
        search_alg: Name of the search algorithm.
        metrics: Names of the metrics that the run is about.

    Returns:
        A text with a line for each trial.
    """
    if not trials:
        return (
            f"All trials are finished, but {search_alg} neither suggests another one "
            f"nor says that it is finished."
        )
    lines = [
        f"Nothing is in flight, no actor was asked for, {search_alg} suggests no trial "
        f"and {scheduler} chooses none that could start, but {len(trials)} trial(s) "
        f"are unfinished:"
    ]
    for trial in trials:
        by = ""
        if trial.status == Trial.PAUSED:
            by = f", paused by {paused_by.get(trial.trial_id, 'an earlier run')}"
        lines.append(
            f"- {trial}: {trial.status}{by}, last result: "
            f"{_describe_last_result(trial, metrics)}"
        )
    return "\n".join(lines)
