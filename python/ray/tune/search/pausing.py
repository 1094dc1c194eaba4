"""What a search algorithm is told of trials that pause and resume."""

import math
from functools import cached_property
from typing import TYPE_CHECKING, Dict, Optional, Set

from ray.tune.utils._result_values import as_number
from ray.tune.utils.util import flatten_dict

if TYPE_CHECKING:
    from ray.tune.search.search_algorithm import SearchAlgorithm


def notify_trial_pause(
    search_alg: "SearchAlgorithm", trial_id: str, result: Optional[Dict]
) -> None:
    """Tell a search algorithm that a trial was paused.

    Search algorithms need not subclass ``SearchAlgorithm``. One without the hook
    is not told.

    Args:
        search_alg: Search algorithm of the experiment.
        trial_id: Identifier of the paused trial.
        result: Last result that the trial reported, None if it has reported none.
    """
    hook = getattr(search_alg, "on_trial_pause", None)
    if hook:
        hook(trial_id, result=flatten_dict(result) if result else None)


def notify_trial_resume(search_alg: "SearchAlgorithm", trial_id: str) -> None:
    """Tell a search algorithm that a paused trial was resumed.

    Args:
        search_alg: Search algorithm of the experiment.
        trial_id: Identifier of the resumed trial.
    """
    hook = getattr(search_alg, "on_trial_resume", None)
    if hook:
        hook(trial_id)


def get_concurrency_limit(search_alg: "SearchAlgorithm") -> Optional[int]:
    """Return how many trials may hold resources at the same time.

    Args:
        search_alg: Search algorithm of the experiment. One that was written without
            regard to ``concurrency_limit`` is asked for the searcher that it wraps.

    Returns:
        The limit, or None if there is none.
    """
    while search_alg is not None:
        limit = getattr(search_alg, "concurrency_limit", None)
        if limit:
            return limit
        search_alg = getattr(search_alg, "searcher", None)
    return None


def learns_from_pauses(search_alg: "SearchAlgorithm") -> Optional[bool]:
    """Return whether a search algorithm learns from trials that are only paused.

    Args:
        search_alg: Search algorithm of the experiment, None if there is none.

    Returns:
        None if it learns from no trial whatsoever, as a random search. False if it
        does not say.
    """
    if search_alg is None:
        return None
    return getattr(search_alg, "learns_from_pauses", False)


def read_score(result: Optional[Dict], metric: str) -> Optional[float]:
    """Read what a model can learn from out of the result that a trial paused with.

    Args:
        result: Result of the trial.
        metric: Key of the objective.

    Returns:
        None if it is not there, or is not a finite number.
    """
    score = as_number((result or {}).get(metric))
    return float(score) if score is not None and math.isfinite(score) else None


class PausingLimit:
    """Mixin for a limit on concurrent trials that does not count paused trials.

    The class keeps the trials that count in ``live_trials``, how many of them have
    not finished in ``num_unfinished_live_trials``, and hands what it was told to
    ``searcher``. Paused trials are kept in ``paused_trials``. They take no place, but
    are not forgotten: the searcher learns how each of them ends. In a batch, what the
    searcher has yet to be told is kept in ``cached_results`` and ``cached_pauses``.
    """

    # Not in `__init__`: older pickles and saved states lack these.
    @cached_property
    def paused_trials(self) -> Set[str]:
        return set()

    @cached_property
    def cached_pauses(self) -> Dict:
        return {}

    @property
    def learns_from_pauses(self) -> Optional[bool]:
        return self.searcher.learns_from_pauses

    def on_trial_pause(self, trial_id: str, result: Optional[Dict] = None) -> None:
        """Free the place of a trial until it is resumed.

        Args:
            trial_id: Trial that was paused.
            result: Last result that it reported.
        """
        if trial_id in self.live_trials and trial_id not in self.cached_results:
            self.live_trials.remove(trial_id)
            self.paused_trials.add(trial_id)
            self.num_unfinished_live_trials -= 1
            if self.batch:
                self.cached_pauses[trial_id] = result
        if trial_id not in self.cached_pauses:
            self.searcher.on_trial_pause(trial_id, result=result)
        # A batch of which nothing runs any more is over: what it would wait for may
        # only be resumed after the next one.
        self._hand_on_finished_batch()

    def on_trial_resume(self, trial_id: str) -> None:
        """Count a trial again.

        The number of trials may pass the limit by this. No new trial is suggested
        until it is below the limit.

        Args:
            trial_id: Trial that was resumed.
        """
        if trial_id in self.paused_trials:
            self.paused_trials.remove(trial_id)
            self.live_trials.add(trial_id)
            self.num_unfinished_live_trials += 1
        if trial_id not in self.cached_pauses:
            self.searcher.on_trial_resume(trial_id)

    def _complete_paused_trial(
        self, trial_id: str, result: Optional[Dict], error: bool
    ) -> bool:
        """Hand on the end of a trial that ended while it was paused.

        Args:
            trial_id: Trial that ended.
            result: Last result of the trial.
            error: Whether the trial failed.

        Returns:
            False if the trial was not paused, and nothing was done.
        """
        if trial_id not in self.paused_trials:
            return False
        self.paused_trials.remove(trial_id)
        if self.batch:
            self.cached_results[trial_id] = (result, error)
            self._hand_on_finished_batch()
        else:
            self.searcher.on_trial_complete(trial_id, result=result, error=error)
        return True

    def _hand_on_finished_batch(self) -> None:
        """Update the searcher if no trial of the batch runs any more."""
        if self.num_unfinished_live_trials > 0:
            return
        paused, self.cached_pauses = self.cached_pauses, {}
        finished, self.cached_results = self.cached_results, {}
        for trial_id, result in paused.items():
            if trial_id not in finished:
                self.searcher.on_trial_pause(trial_id, result=result)
        for trial_id, (result, error) in finished.items():
            self.live_trials.discard(trial_id)
            self.searcher.on_trial_complete(trial_id, result=result, error=error)
