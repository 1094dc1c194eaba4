"""Tells a run in which nothing can happen any more from one that waits."""

import math
import os
from typing import Dict, Iterable, List, Optional

from ray.tune.experiment import Trial
from ray.tune.result import AUTO_RESULT_KEYS, DEBUG_METRICS, TRAINING_ITERATION
from ray.tune.schedulers import TrialScheduler
from ray.tune.search import SearchAlgorithm
from ray.tune.stopper import CombinedStopper, Stopper, TimeoutStopper

STALL_TIMEOUT_ENV_VAR = "TUNE_STALL_TIMEOUT_S"
_DEFAULT_TIMEOUT_S = 600.0
_WARN_AFTER_S = 60.0
_MAX_METRICS = 8


def stall_timeout_from_env() -> Optional[float]:
    """Read after how many seconds the user wants a stalled run to end.

    Returns:
        The timeout in seconds, 0 for never, None if the user has not said.

    Raises:
        ValueError: If the environment variable is not a number of seconds.
    """
    value = os.environ.get(STALL_TIMEOUT_ENV_VAR, "")
    if not value.strip():
        return None
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


def _is_own(scheduler: TrialScheduler) -> bool:
    """Return whether a scheduler, and all that it wraps, are classes of Ray's."""
    wrapped = (v for v in vars(scheduler).values() if isinstance(v, TrialScheduler))
    return type(scheduler).__module__.startswith("ray.") and all(map(_is_own, wrapped))


def _goes_by_results(stopper: Stopper) -> bool:
    """Return whether a stopper ends no run without another result."""
    if isinstance(stopper, CombinedStopper):
        return all(map(_goes_by_results, stopper._stoppers))
    return type(stopper).__module__.startswith("ray.") and not isinstance(
        stopper, TimeoutStopper
    )


def name_search_alg(search_alg: SearchAlgorithm) -> str:
    """Name the class of a search algorithm as its user knows it.

    Args:
        search_alg: Search algorithm, which may wrap a searcher.

    Returns:
        The name of the class of the innermost searcher.
    """
    while getattr(search_alg, "searcher", None) is not None:
        search_alg = search_alg.searcher
    return type(search_alg).__name__


def find_wakers(
    search_alg: SearchAlgorithm, scheduler: TrialScheduler, stopper: Stopper
) -> List[str]:
    """Find out who might wake a run in which nothing happens.

    A search algorithm may wait for a person or a queue, and a scheduler or a stopper
    that a user wrote may go by a clock. Those of Tune act on results.

    Args:
        search_alg: Search algorithm of the run.
        scheduler: Its scheduler.
        stopper: Its stopper.

    Returns:
        The names of the classes, empty if there is nobody.
    """
    wakers = []
    if not search_alg.is_finished():
        wakers.append(name_search_alg(search_alg))
    if not _is_own(scheduler):
        wakers.append(type(scheduler).__name__)
    if not _goes_by_results(stopper):
        wakers.append(type(stopper).__name__)
    return wakers


class StallDetector:
    """Adds up for how long a run has waited for an event although none could come.

    Args:
        timeout_s: Seconds after which the user wants a stalled run to end, 0 for
            never. None: after 600 s if there is nobody who might wake it.
        warn_after_s: Seconds after which the user is warned for the first time. Each
            further warning takes twice as long.
    """

    def __init__(
        self, timeout_s: Optional[float] = None, warn_after_s: float = _WARN_AFTER_S
    ):
        self._timeout_s = timeout_s
        self._warn_after_s = warn_after_s
        self.reset()

    def reset(self) -> None:
        """Note that something happened, or that something is to come."""
        self._waited_s = 0.0
        self._warn_at_s = self._warn_after_s

    def add_wait(self, seconds: float) -> None:
        """Note that the run has waited although no event could come.

        Args:
            seconds: How long. Time that was spent elsewhere, as in a hook, is none.
        """
        self._waited_s += seconds

    def is_warning_due(self) -> bool:
        """Return whether the user is to be warned now."""
        return self._waited_s >= self._warn_at_s

    def on_warning(self) -> None:
        """Note that the user was warned."""
        self._warn_at_s = 2 * self._waited_s

    def ends_in(self, wakers: List[str]) -> Optional[float]:
        """Say in how many seconds the run is to end.

        Args:
            wakers: Who might wake it.

        Returns:
            The seconds, not above 0 if it is to end now. None: it is to wait.
        """
        timeout_s = self._timeout_s
        if timeout_s is None and not wakers:
            timeout_s = _DEFAULT_TIMEOUT_S
        return timeout_s - self._waited_s if timeout_s else None

    def describe_end(self, wakers: List[str]) -> str:
        """Say what becomes of the run if nothing happens.

        Args:
            wakers: Who might wake it.

        Returns:
            A sentence.
        """
        ends_in = self.ends_in(wakers)
        if ends_in is not None:
            return (
                f"It ends with an error in {ends_in:.0f} s ({STALL_TIMEOUT_ENV_VAR})."
            )
        if self._timeout_s is not None:
            return f"It waits forever, as {STALL_TIMEOUT_ENV_VAR} is 0."
        return (
            f"It goes on waiting, as {' or '.join(wakers)} may go on. Set the "
            f"environment variable {STALL_TIMEOUT_ENV_VAR} to the number of seconds "
            f"after which such a run is to end."
        )


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


def describe_stall(
    trials: List[Trial],
    paused_by: Dict[str, str],
    scheduler: str,
    search_alg: str,
    search_is_finished: bool,
    metrics: Iterable[str] = (),
) -> str:
    """Say what stands still in a run in which no event can come any more.

    Args:
        trials: All trials.
        paused_by: Who paused them in this run, by trial id.
        scheduler: Name of the scheduler.
        search_alg: Name of the search algorithm.
        search_is_finished: Whether the search algorithm is finished.
        metrics: Names of the metrics that the run is about.

    Returns:
        A text with a line for each unfinished trial.
    """
    unfinished = [trial for trial in trials if not trial.is_finished()]
    if not trials:
        so_far = "No trial exists yet: "
    elif not unfinished:
        so_far = f"All {len(trials)} trial(s) are finished, but "
    else:
        so_far = "Nothing is in flight, no actor was asked for, "
    if search_is_finished:
        searching = f"{search_alg} is finished"
    elif unfinished:
        searching = f"{search_alg} suggests no trial"
    else:
        searching = (
            f"{search_alg} suggests none{' other' if trials else ''}, and does not say "
            f"that it is finished"
        )
    if not unfinished:
        return f"{so_far}{searching}."
    lines = [
        f"{so_far}{searching}, and {scheduler} chooses none that could start, but "
        f"{len(unfinished)} trial(s) are unfinished:"
    ]
    for trial in unfinished:
        by = ""
        if trial.status == Trial.PAUSED:
            by = f", paused by {paused_by.get(trial.trial_id, 'an earlier run')}"
        lines.append(
            f"- {trial}: {trial.status}{by}, last result: "
            f"{_describe_last_result(trial, metrics)}"
        )
    return "\n".join(lines)
