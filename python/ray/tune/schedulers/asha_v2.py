import logging
import math
import numbers
import pickle
import sys
from collections import deque
from typing import TYPE_CHECKING, Any, Deque, Dict, Optional, Set, Tuple, Union

import numpy as np

from ray.tune.experiment import Trial
from ray.tune.result import DEFAULT_METRIC
from ray.tune.schedulers._asha_promotion import (
    DEFERRED,
    EAGER,
    UNTOLD,
    Promotion,
    choose_promotion,
)
from ray.tune.schedulers._asha_rungs import Ladder
from ray.tune.schedulers.trial_scheduler import FIFOScheduler, TrialScheduler
from ray.tune.search.pausing import learns_from_pauses
from ray.tune.utils._result_values import read_result
from ray.util.annotations import PublicAPI

if TYPE_CHECKING:
    from ray.tune.execution.tune_controller import TuneController

logger = logging.getLogger(__name__)

_HOPELESS = "its rung has no promotion left for it"
_OVER = "its rung is over"
_DIVERGED = "it has no number for a result, and nothing else is left to do"

# How many running trials are looked at per decision for a pause by somebody else.
_LOOKS = 4


@PublicAPI(stability="alpha")
class ASHAv2(FIFOScheduler):
    """Asynchronous successive halving by promotion: trials pause and are resumed.

    A trial that reaches a milestone is paused, which saves a checkpoint and gives its
    resources back, and is resumed once it is among the best
    ``1 / reduction_factor`` of all results at that milestone. This is Algorithm 2 of
    Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020
    (https://arxiv.org/abs/1810.05934). ``ASHAScheduler`` has the same arguments but
    never pauses: it stops a trial, for good, that is worse than those before it, and
    lets every trial run on that comes early.

    Prefer it over ``ASHAScheduler`` where few trials run at a time, because one takes
    all of the hardware. Every trial has then been seen at a milestone before any goes
    on, and just the best share of them does. Where many slots run cheap trials, or a
    checkpoint costs more than the training between two milestones,
    ``ASHAScheduler`` is the better choice.

    The trainable has to save and load checkpoints. One without starts from scratch
    each time that it is resumed.

    Milestones are ``grace_period * reduction_factor**k`` below ``max_t``. A trial that
    reaches one and would be the next to run anyway goes on without a pause.

    A trial that can never be promoted any more is stopped, where the number of samples
    is known. But any of those that were promoted may still fail, so until a trial is
    complete each milestone keeps a reserve: of ``n`` trials that may be recorded there,
    at most ``n / reduction_factor + 32`` stay paused, the best. When nothing else is
    left to do and no trial is complete, the best paused trial at the highest milestone
    is promoted as a fallback, and then the next one, until one is: as long as no more
    than 32 trials fail that were promoted from a milestone, whichever they are, one
    that does not fail gets to ``max_t``. A trial is complete once it has got to
    ``max_t`` with a number for its metric. One that ends before, by itself or by
    ``stop=``, ends the reserve of the milestones below the last that it had reached,
    and leaves one trial there.

    Example:
        >>> from ray.tune.schedulers import ASHAv2
        >>> scheduler = ASHAv2(
        ...     metric="accuracy", mode="max", max_t=81, reduction_factor=3
        ... )

    Args:
        time_attr: The key of the results by which progress is measured. Any number
            that grows while a trial trains will do: ``"training_iteration"`` and
            ``"time_total_s"`` are always there, others are those that the trainable
            reports. Results without it are skipped.
        metric: The key of the results by which trials are compared. Results without
            it are skipped. None for that of ``tune.TuneConfig``, or, if that has just
            a mode, for the value reported without a key.
        mode: Whether the metric is to be minimized (``"min"``) or maximized
            (``"max"``). None for that of ``tune.TuneConfig``.
        max_t: The time, in units of ``time_attr``, at which a trial is complete.
        grace_period: The time, in units of ``time_attr``, of the first milestone.
        reduction_factor: The ratio between one milestone and the next, which is also
            how many trials there have to be for one to be promoted. It need not be
            an integer.
        brackets: The number of brackets. Bracket ``s`` has its first milestone ``s``
            steps higher. New trials are given to one at random, with a probability
            proportional to ``exp(number of its milestones)``.
        stop_last_trials: Whether to stop trials that have got to ``max_t``. If
            False, they run on until they end by themselves or by ``stop=``.
        promotion: What runs next in a free slot. ``"deferred"``: new trials first, so
            that all are seen at the first milestone, then promotions from the lowest
            milestone up. ``"eager"``, as in the paper: promotions from the highest
            milestone down, and a new trial when there is none. None: deferred for a
            search of known length without a time budget, eager for any other, and
            for a search algorithm that does not learn from trials which are only
            paused (``learns_from_pauses``).

    Raises:
        ValueError: If an argument is out of its range. Later, from ``fit()``, if
            ``promotion="deferred"`` is asked for and the search has no end
            (``num_samples=-1``), or if no metric or mode was given anywhere.
    """

    # A result after the one that pauses a trial would be trained for nothing.
    _supports_buffered_results = False
    # A state that was saved by a release before has none.
    _learns_from_pauses: Optional[bool] = None

    def __init__(
        self,
        time_attr: str = "training_iteration",
        metric: Optional[str] = None,
        mode: Optional[str] = None,
        max_t: Union[int, float] = 100,
        grace_period: Union[int, float] = 1,
        reduction_factor: float = 4,
        brackets: int = 1,
        stop_last_trials: bool = True,
        *,
        promotion: Optional[str] = None,
    ):
        if not isinstance(time_attr, str) or not time_attr:
            raise ValueError(
                f"time_attr must be a key of the results, got {time_attr!r}."
            )
        if metric is not None and (not isinstance(metric, str) or not metric):
            raise ValueError(
                f"metric must be a key of the results or None, got {metric!r}."
            )
        _check_mode(mode)
        max_t = _positive("max_t", max_t)
        grace_period = _positive("grace_period", grace_period)
        if grace_period > max_t:
            raise ValueError(
                f"grace_period must not be greater than max_t={max_t}, "
                f"got {grace_period}."
            )
        reduction_factor = _positive("reduction_factor", reduction_factor)
        if reduction_factor <= 1:
            raise ValueError(
                f"reduction_factor must be greater than 1, got {reduction_factor}."
            )
        if (
            not isinstance(brackets, numbers.Integral)
            or isinstance(brackets, bool)
            or brackets < 1
        ):
            raise ValueError(f"brackets must be an integer >= 1, got {brackets!r}.")
        if not isinstance(stop_last_trials, (bool, np.bool_)):
            raise ValueError(
                f"stop_last_trials must be True or False, got {stop_last_trials!r}."
            )
        if promotion not in (None, DEFERRED, EAGER):
            raise ValueError(
                f"promotion must be 'deferred', 'eager' or None, got {promotion!r}."
            )

        super().__init__()
        self._time_attr = time_attr
        self._metric = metric or None
        self._mode = mode
        self._max_t = max_t
        self._stop_last_trials = bool(stop_last_trials)
        self._promotion = promotion
        self._ladder = Ladder(grace_period, max_t, reduction_factor, int(brackets))

        # What the search was said to be, as far as anybody has.
        self._num_samples: Optional[int] = None
        self._endless = False
        self._time_budget: Any = None
        self._learns_from_pauses: Optional[bool] = None

        # Told to pause, but not seen paused.
        self._saving: Set[str] = set()
        # To be stopped, and why, once they are paused or report.
        self._doomed: Dict[str, str] = {}
        # Failed, and not added again for a retry by now.
        self._failed: Set[str] = set()
        # Restored, and not added again by now.
        self._unclaimed: Set[str] = set()
        self._warned: Set[str] = set()
        self._forget_trials()

    def _forget_trials(self):
        """Sets what is about trials at hand, and is no part of the saved state."""
        self._trials: Dict[str, Trial] = {}
        # In the order of their turn. May hold trials that are not pending any more.
        self._pending: Deque[str] = deque()
        # Neither pending nor waiting. May hold trials that have ended since.
        self._underway: Deque[str] = deque()
        self._is_underway: Set[str] = set()
        # The paused trial that was chosen last, until it is seen to run.
        self._chosen: Optional[str] = None
        self._is_sweeping = False

    def set_search_properties(
        self, metric: Optional[str], mode: Optional[str], **spec: Any
    ) -> bool:
        """Takes over what the user has said about the search.

        Args:
            metric: The key by which trials are compared.
            mode: ``"min"`` or ``"max"``.
            **spec: The public part of the experiment: ``num_samples`` and
                ``time_budget_s`` are made use of.

        Returns:
            False if the metric or mode was given to the scheduler already.

        Raises:
            ValueError: If the search has no end and promotions are deferred to it.
        """
        if (self._metric and metric) or (self._mode and mode):
            return False
        _check_mode(mode)
        num_samples = spec.get("num_samples")
        if _is_whole(num_samples):
            self._endless = num_samples < 0 or num_samples >= sys.maxsize
            self._num_samples = None if self._endless else int(num_samples)
            if self._endless and self._promotion == DEFERRED:
                raise ValueError(
                    "promotion='deferred' waits until all trials have reached a "
                    "milestone, but with num_samples=-1 there is always another one. "
                    "Use promotion='eager' or give num_samples."
                )
        self._time_budget = spec.get("time_budget_s") or None
        self._metric = self._metric or metric or None
        self._mode = self._mode or mode or None
        if self._metric is None and self._mode:
            # If only a mode was passed, use anonymous metric
            self._metric = DEFAULT_METRIC
        return True

    def on_trial_add(self, tune_controller: "TuneController", trial: Trial):
        """Draws a bracket for a trial, unless it is added again after a failure."""
        if not self._metric or not self._mode:
            raise ValueError(
                f"{type(self).__name__} needs a metric and a mode, got "
                f"metric={self._metric!r} and mode={self._mode!r}. Pass them to the "
                "scheduler or to `tune.TuneConfig()`."
            )
        trial_id = trial.trial_id
        self._settle_choice()
        self._failed.discard(trial_id)
        self._unclaimed.discard(trial_id)
        self._meet_search(tune_controller)
        if trial_id not in self._ladder:
            self._ladder.add(trial_id, self._draw_bracket())
        self._take(trial)

    def on_trial_result(
        self, tune_controller: "TuneController", trial: Trial, result: Dict
    ) -> str:
        """Records the result where it is due, and pauses, stops or goes on."""
        self._settle()
        trial_id = trial.trial_id
        if trial_id not in self._ladder:
            self.on_trial_add(tune_controller, trial)
        self._take_running(trial)

        seen = self._read(trial, result)
        if seen is not None and self._record(trial_id, *seen):
            # It is past the rung that had no hope for it.
            self._doomed.pop(trial_id, None)
        if trial_id in self._doomed:
            return self._stop_reporting(trial, self._doomed[trial_id])
        if seen is None:
            return TrialScheduler.CONTINUE
        time, score = seen
        ladder = self._ladder
        if time >= self._max_t:
            if not self._stop_last_trials:
                return TrialScheduler.CONTINUE
            logger.info(
                f"ASHAv2: trial {trial} is complete: it has got to max_t={self._max_t} "
                f"with {self._metric}={self._as_reported(score)}."
            )
            self._let_go(trial_id)
            return TrialScheduler.STOP
        if not ladder.is_due(trial_id, time):
            return TrialScheduler.CONTINUE

        # What would be if it paused?
        ladder.park(trial_id)
        reason = self._sweep(tune_controller, trial_id)
        if reason:
            return self._stop_reporting(trial, reason)
        standing = self._standing(trial_id)
        if self._would_run_next(tune_controller, trial_id):
            is_fallback = not ladder.rung_of(trial_id).holds_place(trial_id)
            ladder.promote(trial_id, is_fallback)
            self._set_underway(trial_id)
            how = ", as a fallback since nothing else is left to do"
            logger.info(
                f"ASHAv2: trial {trial} goes on past {standing}"
                f"{how if is_fallback else ''}."
            )
            return TrialScheduler.CONTINUE
        ladder.activate(trial_id)
        self._saving.add(trial_id)
        logger.info(f"ASHAv2: trial {trial} pauses at {standing}.")
        return TrialScheduler.PAUSE

    def on_trial_complete(
        self, tune_controller: "TuneController", trial: Trial, result: Dict
    ):
        """Records the result of a trial that ended by itself or was stopped."""
        self._settle()
        trial_id = trial.trial_id
        if trial_id not in self._ladder or self._ladder.is_gone(trial_id):
            self._let_go(trial_id)
            return
        seen = self._read(trial, result or {}, warn=False)
        # New if it was not seen before, because `stop=` or the trainable ended it.
        is_new = seen is not None and self._record(trial_id, *seen)
        self._let_go(trial_id, by_itself=is_new)
        if seen is not None and seen[1] is not None:
            self._ladder.end_by_itself(trial_id)

    def on_trial_error(self, tune_controller: "TuneController", trial: Trial):
        """Notes a failure, which is final unless the trial is added again."""
        self._settle()
        trial_id = trial.trial_id
        if trial_id in self._ladder and not self._ladder.is_gone(trial_id):
            self._saving.discard(trial_id)
            # Until then it holds rungs open.
            self._ladder.activate(trial_id)
            self._failed.add(trial_id)

    def on_trial_remove(self, tune_controller: "TuneController", trial: Trial):
        """Notes that a trial was stopped while it was pending or paused."""
        self._let_go(trial.trial_id)

    def choose_trial_to_run(self, tune_controller: "TuneController") -> Optional[Trial]:
        """Chooses the trial that runs next in a free slot.

        Asking commits to nothing: the same trial is returned until it is seen to run
        or a better one turns up.

        Args:
            tune_controller: The controller of the experiment.

        Returns:
            A pending trial, or a paused one to resume. None if there is none.
        """
        self._claim(tune_controller)
        self._settle()
        self._sweep(tune_controller)
        self._chosen = None

        paused = self._paused_by_others(_LOOKS)
        if paused is not None:
            return paused

        deferred = self._is_deferred(tune_controller)
        pending = self._first_pending()
        if deferred and pending is not None:
            return pending
        trial_id = self._ladder.next_promotion(lowest_first=deferred)
        if trial_id is None:
            if pending is not None:
                return pending
            paused = self._paused_by_others(len(self._underway))
            if paused is not None:
                return paused
            # The searcher gives none now, or the trial would be pending.
            trial_id = self._last_resort(tune_controller)
            if trial_id is None and not self._ladder.num_active:
                # It may wait for results that none of those will bring.
                self._doomed.update(dict.fromkeys(self._ladder.diverged(), _DIVERGED))
                self._stop_doomed(tune_controller, None)
        if trial_id is None:
            return None
        self._chosen = trial_id
        return self._trials[trial_id]

    def debug_string(self) -> str:
        """Returns the state of each rung, the results as the trials reported them."""
        ladder = self._ladder
        num_ended = len(ladder) - ladder.num_active - ladder.num_parked
        lines = [
            f"Using ASHAv2: {self._choose_promotion()}; {len(ladder)} trials = "
            f"{ladder.num_active} pending or running + {ladder.num_parked} paused + "
            f"{num_ended} ended; {ladder.num_finished} got to max_t={self._max_t}"
        ]
        for number, bracket in enumerate(ladder.brackets):
            lines.append(f"Bracket {number}: {bracket.num_trials} trials")
            for rung in bracket.rungs:
                counts = rung.counts
                line = (
                    f"  Milestone {rung.milestone:g}: {counts.recorded} recorded = "
                    f"{counts.paused} paused + {counts.promoted} promoted"
                )
                if counts.fallbacks:
                    line += f" ({counts.fallbacks} as a fallback)"
                line += f" + {counts.ended} ended"
                if counts.underway:
                    line += f" + {counts.underway} about to pause"
                lines.append(f"{line}; cutoff {self._as_reported(rung.cutoff)}")
        return "\n".join(lines)

    def save(self, checkpoint_path: str):
        """Saves the state of the scheduler, which names trials by their id."""
        with open(checkpoint_path, "wb") as f:
            pickle.dump(self.__getstate__(), f)

    def restore(self, checkpoint_path: str):
        """Restores what ``save`` has saved.

        The trials themselves are expected to be added again by ``on_trial_add``.
        """
        with open(checkpoint_path, "rb") as f:
            state = pickle.load(f)
        at_hand = self._trials
        self.__setstate__(state)
        for trial in list(at_hand.values()):
            self.on_trial_add(None, trial)

    def __getstate__(self) -> Dict:
        self._settle_choice()
        state = self.__dict__.copy()
        for name in (
            "_trials",
            "_pending",
            "_underway",
            "_is_underway",
            "_chosen",
            "_is_sweeping",
        ):
            state.pop(name, None)
        return state

    def __setstate__(self, state: Dict):
        self.__dict__.update(state)
        self._forget_trials()
        self._unclaimed = set(self._ladder.unfinished())

    # What is known about trials at hand.

    def _take(self, trial: Trial):
        """Takes a trial that was added, in whatever status."""
        trial_id = trial.trial_id
        if trial.is_finished():
            # Restored with the experiment.
            last = self._read(trial, trial.last_result or {}, warn=False)
            if last is not None and last[0] >= self._max_t:
                self._ladder.get_to_end(trial_id, is_number=last[1] is not None)
            self._let_go(trial_id)
            return
        self._trials[trial_id] = trial
        if trial.status == Trial.PAUSED:
            if self._ladder.is_gone(trial_id):
                self._ladder.activate(trial_id)
            if not self._ladder.is_parked(trial_id) and trial_id not in self._saving:
                self._set_underway(trial_id)
            return
        self._saving.discard(trial_id)
        self._ladder.activate(trial_id)
        if trial.status == Trial.PENDING:
            self._pending.append(trial_id)
        else:
            self._set_underway(trial_id)

    def _take_running(self, trial: Trial):
        """Takes a trial that reports, whatever was thought of it."""
        trial_id = trial.trial_id
        self._unclaimed.discard(trial_id)
        self._failed.discard(trial_id)
        self._trials[trial_id] = trial
        if trial_id == self._chosen:
            self._settle_choice(has_started=True)
        self._saving.discard(trial_id)
        if not self._ladder.is_active(trial_id):
            self._ladder.activate(trial_id)
        self._set_underway(trial_id)

    def _claim(self, tune_controller: "TuneController"):
        """Finds the trials of a restored state that were not added again."""
        if not self._unclaimed:
            return
        for trial in tune_controller.get_trials():
            if trial.trial_id in self._unclaimed:
                self._unclaimed.discard(trial.trial_id)
                self._take(trial)
        for trial_id in self._unclaimed:
            # They are no part of this experiment any more. Nobody waits for them.
            self._let_go(trial_id)
        self._unclaimed.clear()

    def _let_go(self, trial_id: str, by_itself: bool = False):
        """Forgets a trial that has ended, apart from its records."""
        self._trials.pop(trial_id, None)
        self._saving.discard(trial_id)
        self._doomed.pop(trial_id, None)
        self._failed.discard(trial_id)
        if self._chosen == trial_id:
            self._chosen = None
        if trial_id in self._ladder and not self._ladder.is_gone(trial_id):
            self._ladder.retire(trial_id, by_itself)

    def _settle(self):
        """Catches up with what has happened to trials without a word."""
        self._settle_choice()
        if self._failed:
            for trial_id in list(self._failed):
                self._let_go(trial_id)
        for trial_id in list(self._saving):
            trial = self._trials.get(trial_id)
            if trial is None or trial.status != Trial.PAUSED:
                continue
            self._saving.discard(trial_id)
            self._ladder.park(trial_id)
            self._warn_without_checkpoint(trial)

    def _settle_choice(self, has_started: bool = False):
        """Makes the promotion of the chosen trial final when it has started."""
        trial_id = self._chosen
        trial = self._trials.get(trial_id)
        if trial is None or (trial.status == Trial.PAUSED and not has_started):
            return
        self._chosen = None
        if not self._ladder.is_parked(trial_id):
            return
        standing = self._standing(trial_id)
        is_fallback = not self._ladder.rung_of(trial_id).holds_place(trial_id)
        self._ladder.promote(trial_id, is_fallback)
        how = ", as a fallback since nothing else is left to do" if is_fallback else ""
        logger.info(f"ASHAv2: trial {trial} is promoted from {standing}{how}.")
        if trial.status == Trial.PENDING:
            self._pending.append(trial_id)
        else:
            self._set_underway(trial_id)

    def _set_underway(self, trial_id: str):
        if trial_id not in self._is_underway:
            self._is_underway.add(trial_id)
            self._underway.append(trial_id)

    def _first_pending(self) -> Optional[Trial]:
        while self._pending:
            trial_id = self._pending[0]
            trial = self._trials.get(trial_id)
            if trial is not None and trial.status == Trial.PENDING:
                return trial
            self._pending.popleft()
            if trial is not None and self._ladder.is_active(trial_id):
                # Also if it has ended, which then is noticed there.
                self._set_underway(trial_id)
        return None

    def _paused_by_others(self, num_looks: int) -> Optional[Trial]:
        """Looks at some trials that should run for one that is paused.

        One that has ended with no word, such as a reset that failed, is let go.
        """
        for _ in range(min(num_looks, len(self._underway))):
            trial_id = self._underway[0]
            trial = self._trials.get(trial_id)
            if trial is not None and trial.is_finished():
                self._let_go(trial_id)
                trial = None
            if (
                trial is None
                or trial_id in self._saving
                or not self._ladder.is_active(trial_id)
            ):
                self._underway.popleft()
                self._is_underway.discard(trial_id)
            elif trial.status == Trial.PAUSED:
                return trial
            else:
                self._underway.rotate(-1)
        return None

    # What is known about the search.

    def _total(self, tune_controller: "TuneController") -> Optional[int]:
        """The number of samples, grid search included. None if it is not known."""
        total = tune_controller.search_alg.total_samples
        if _is_whole(total) and total > 0:
            self._endless = total >= sys.maxsize
            self._num_samples = None if self._endless else int(total)
        return self._num_samples

    def _is_search_finished(self, tune_controller: "TuneController") -> bool:
        return bool(tune_controller.search_alg.is_finished())

    def _num_unborn(self, tune_controller: "TuneController") -> Optional[int]:
        """How many trials may yet be added. None if the length was never known."""
        total = self._total(tune_controller)
        if total is None:
            return None
        if self._is_search_finished(tune_controller):
            return 0
        return total - len(self._ladder) if total >= len(self._ladder) else None

    def _is_deferred(self, tune_controller: "TuneController") -> bool:
        self._total(tune_controller)
        return self._choose_promotion().name == DEFERRED

    def _choose_promotion(self) -> Promotion:
        return choose_promotion(
            self._promotion,
            self._num_samples,
            self._endless,
            self._time_budget,
            self._learns_from_pauses,
        )

    def _meet_search(self, tune_controller: "TuneController"):
        """Notes what the search algorithm learns from."""
        search_alg = tune_controller.search_alg
        self._learns_from_pauses = learns_from_pauses(search_alg)
        if self._promotion == DEFERRED and self._learns_from_pauses is False:
            while hasattr(search_alg, "searcher"):
                search_alg = search_alg.searcher
            self._warn_once("untold", UNTOLD.format(name=type(search_alg).__name__))

    # Decisions.

    def _would_run_next(self, tune_controller: "TuneController", trial_id: str) -> bool:
        """Whether a trial, if it were paused now, would be resumed in its slot."""
        if self._paused_by_others(_LOOKS) is not None:
            return False
        deferred = self._is_deferred(tune_controller)
        has_new = self._first_pending() is not None or not self._is_search_finished(
            tune_controller
        )
        if deferred and has_new:
            return False
        next_id = self._ladder.next_promotion(lowest_first=deferred)
        if next_id is None and not has_new:
            next_id = self._last_resort(tune_controller)
        return next_id == trial_id

    def _last_resort(self, tune_controller: "TuneController") -> Optional[str]:
        """The trial that runs when nothing is pending, running or promotable."""
        if self._ladder.num_active:
            return None
        # If the search goes on, it waits for results that only a paused trial can give.
        return self._ladder.survivor(
            any_rung=not self._is_search_finished(tune_controller)
        )

    def _sweep(
        self, tune_controller: "TuneController", reporting: Optional[str] = None
    ) -> Optional[str]:
        """Stops the paused trials that wait in vain.

        Args:
            tune_controller: The controller.
            reporting: A trial that counts as paused but is not, since it reports.

        Returns:
            Why the reporting trial waits in vain, None if it does not.
        """
        if self._is_sweeping:
            return None
        self._is_sweeping = True
        verdict = None
        try:
            while True:
                unborn = self._num_unborn(tune_controller)
                if unborn is not None:
                    for trial_id in self._ladder.hopeless(unborn):
                        self._doomed[trial_id] = _HOPELESS
                if self._is_search_finished(tune_controller):
                    for trial_id in self._ladder.losers():
                        self._doomed.setdefault(trial_id, _OVER)
                verdict = verdict or self._doomed.get(reporting)
                if not self._stop_doomed(tune_controller, reporting):
                    return verdict
        finally:
            self._is_sweeping = False

    def _stop_doomed(
        self, tune_controller: "TuneController", reporting: Optional[str]
    ) -> bool:
        """Stops those that are paused. Returns whether that has changed anything."""
        changed = False
        for trial_id, reason in list(self._doomed.items()):
            if not self._ladder.is_parked(trial_id):
                continue  # It saves or is on its way back.
            trial = self._trials.get(trial_id)
            if trial_id == reporting:
                self._ladder.retire(trial_id)
                changed = True
            elif trial is not None:
                if trial.status != Trial.PAUSED:
                    continue
                standing = self._standing(trial_id)
                # First, so that no hook comes upon it again.
                self._let_go(trial_id)
                changed = True
                logger.info(
                    f"ASHAv2: trial {trial} is stopped at {standing}: {reason}."
                )
                tune_controller.stop_trial(trial)
        return changed

    def _stop_reporting(self, trial: Trial, reason: str) -> str:
        logger.info(
            f"ASHAv2: trial {trial} stops at {self._standing(trial.trial_id)}: "
            f"{reason}."
        )
        self._let_go(trial.trial_id)
        return TrialScheduler.STOP

    def _draw_bracket(self) -> int:
        sizes = np.array([len(bracket.rungs) for bracket in self._ladder.brackets])
        weights = np.exp(sizes - sizes.max())
        return int(np.random.choice(len(sizes), p=weights / weights.sum()))

    # Results.

    def _record(
        self, trial_id: str, time: Union[int, float], score: Optional[float]
    ) -> bool:
        """Records a result. Returns whether it is the first at a milestone."""
        is_new = self._ladder.record(trial_id, time, score)
        if time >= self._max_t:
            self._ladder.get_to_end(trial_id, is_number=score is not None)
        return is_new

    def _read(
        self, trial: Trial, result: Dict, warn: bool = True
    ) -> Optional[Tuple[Union[int, float], Optional[float]]]:
        """Reads time and score from a result. None if it has to be skipped."""
        for key in (self._time_attr, self._metric):
            if key not in result:
                if warn:
                    self._warn_once(
                        f"missing {key}",
                        f"Trial {trial} reported a result without {key!r}. ASHAv2 "
                        "skips such results, so the trial neither pauses nor stops "
                        f"by them. Report {key!r} with every result. (Said once.)",
                    )
                return None
        values = read_result(self, trial, result)
        if values is None:
            return None
        score = None if math.isnan(values.metric) else values.metric
        return values.time, self._signed(score)

    def _signed(self, value: Optional[float]) -> Optional[float]:
        return -value if self._mode == "min" and value is not None else value

    def _as_reported(self, score: Optional[float]) -> str:
        value = self._signed(score)
        return "none" if value is None else f"{value:g}"

    def _standing(self, trial_id: str) -> str:
        """Where a trial stands, for the log."""
        rung = self._ladder.rung_of(trial_id)
        if rung is None:
            return "no milestone"
        score = rung.score(trial_id)
        return (
            f"milestone {rung.milestone:g} with {self._metric}="
            f"{'nan' if score is None else self._as_reported(score)} "
            f"(cutoff of {len(rung)} recorded: {self._as_reported(rung.cutoff)})"
        )

    def _warn_without_checkpoint(self, trial: Trial):
        if trial.checkpoint is None:
            self._warn_once(
                "checkpoint",
                f"Trial {trial} was paused without a checkpoint, and WILL START FROM "
                "SCRATCH when it is resumed. ASHAv2 needs trainables that save and "
                "load checkpoints: pass `checkpoint=` to `tune.report()` and read "
                "`tune.get_checkpoint()` first, or implement `save_checkpoint()` and "
                "`load_checkpoint()`. Where that is impossible, use ASHAScheduler. "
                "(Said once, for the first such trial.)",
            )

    def _warn_once(self, key: str, message: str):
        if key not in self._warned:
            self._warned.add(key)
            logger.warning(message)


def _check_mode(mode: Optional[str]):
    if mode not in (None, "min", "max"):
        raise ValueError(f"mode must be 'min' or 'max', got {mode!r}.")


def _positive(name: str, value: Any) -> Union[int, float]:
    """Returns a positive, finite number as a Python number, or raises ValueError."""
    if (
        not isinstance(value, numbers.Real)
        or isinstance(value, (bool, np.bool_))
        or not math.isfinite(value)
        or value <= 0
    ):
        raise ValueError(f"{name} must be a positive, finite number, got {value!r}.")
    return int(value) if isinstance(value, numbers.Integral) else float(value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)
