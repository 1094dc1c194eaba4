import logging
import math
import pickle
import sys
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Tuple, Union

import numpy as np

from ray.tune.experiment import Trial
from ray.tune.result import DEFAULT_METRIC
from ray.tune.schedulers._asha_arguments import (
    check_flag,
    check_key,
    check_mode,
    is_integer,
    positive_integer,
    positive_number,
)
from ray.tune.schedulers._asha_ladder import Ladder, TrialState
from ray.tune.schedulers._asha_promotion import (
    DEFERRED,
    EAGER,
    UNTOLD,
    Promotion,
    choose_promotion,
)
from ray.tune.schedulers._decision_notes import note_decision
from ray.tune.schedulers.trial_scheduler import FIFOScheduler, TrialScheduler
from ray.tune.search.pausing import learns_from_pauses
from ray.tune.utils import flatten_dict
from ray.tune.utils._result_values import read_result
from ray.util.annotations import PublicAPI

if TYPE_CHECKING:
    from ray.tune.execution.tune_controller import TuneController

logger = logging.getLogger(__name__)

_UNPROMOTABLE = "no promotion is left for it"
_DIVERGED = "its result is not a number, and nothing else is left to do"
_FALLBACK = "as a fallback since nothing else is left to do"

# How many running trials are looked at per decision for a pause by somebody else.
_LOOKS = 8


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
    that does not fail reaches ``max_t``. A trial is complete once it has reached
    ``max_t`` with a number for its metric. One that ends before, on its own or by
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
        stop_last_trials: Whether to stop trials that have reached ``max_t``. If
            False, they run on until they end on their own or by ``stop=``.
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

    _argument_attributes = {
        "time_attr": "_time_attr",
        "metric": "_metric",
        "mode": "_mode",
        "max_t": "_max_t",
        "grace_period": "_grace_period",
        "reduction_factor": "_reduction_factor",
        "brackets": "_num_brackets",
        "stop_last_trials": "_stop_last_trials",
        "promotion": "_promotion",
    }
    _changeable_arguments = frozenset(("max_t", "stop_last_trials", "promotion"))

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
        check_key("time_attr", time_attr)
        if metric is not None:
            check_key("metric", metric, wanted="a key of the results or None")
        check_mode(mode)
        max_t = positive_number("max_t", max_t)
        grace_period = positive_number("grace_period", grace_period)
        if grace_period > max_t:
            raise ValueError(
                f"grace_period must not be greater than max_t={max_t}, "
                f"got {grace_period}."
            )
        reduction_factor = positive_number("reduction_factor", reduction_factor)
        if reduction_factor <= 1:
            raise ValueError(
                f"reduction_factor must be greater than 1, got {reduction_factor}."
            )
        brackets = positive_integer("brackets", brackets)
        stop_last_trials = check_flag("stop_last_trials", stop_last_trials)
        if promotion not in (None, DEFERRED, EAGER):
            raise ValueError(
                f"promotion must be 'deferred', 'eager' or None, got {promotion!r}."
            )

        super().__init__()
        self._time_attr = time_attr
        self._metric = metric
        self._mode = mode
        self._max_t = max_t
        self._grace_period = grace_period
        self._reduction_factor = reduction_factor
        self._num_brackets = brackets
        self._stop_last_trials = stop_last_trials
        self._promotion = promotion
        self._ladder = Ladder(grace_period, max_t, reduction_factor, brackets)

        # What the search was said to be, as far as anybody has.
        self._num_samples: Optional[int] = None
        self._endless = False
        self._time_budget: Any = None
        self._learns_from_pauses: Optional[bool] = None

        self._warned: frozenset = frozenset()
        # The trials that have not ended. No part of the saved state.
        self._trials: Dict[str, Trial] = {}
        # The paused trial that was chosen last, until it is seen to run.
        self._chosen: Optional[str] = None

    def set_search_properties(
        self, metric: Optional[str], mode: Optional[str], **spec: Any
    ) -> bool:
        """Take over what the user has said about the search.

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
        check_mode(mode)
        num_samples = spec.get("num_samples")
        if is_integer(num_samples):
            self._note_num_samples(num_samples)
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
        """Draw a bracket for a trial, unless it is added again after a failure."""
        if not self._metric or not self._mode:
            raise ValueError(
                f"{type(self).__name__} needs a metric and a mode, got "
                f"metric={self._metric!r} and mode={self._mode!r}. Pass them to the "
                "scheduler or to `tune.TuneConfig()`."
            )
        self._reconcile_choice()
        self._meet_search(tune_controller)
        if trial.trial_id not in self._ladder:
            self._ladder.add(trial.trial_id, self._draw_bracket())
        self._register(trial)

    def on_trial_result(
        self, tune_controller: "TuneController", trial: Trial, result: Dict
    ) -> str:
        """Record the result where it is due, and pause, stop or go on."""
        self._reconcile(tune_controller)
        trial_id, ladder = trial.trial_id, self._ladder
        if trial_id not in ladder:
            self.on_trial_add(tune_controller, trial)
        self._note_report(trial)

        values = self._read(trial, result)
        if values is None:
            return TrialScheduler.CONTINUE
        time, score = values
        ladder.record(trial_id, time, score)
        if time >= self._max_t:
            if not self._stop_last_trials:
                return TrialScheduler.CONTINUE
            logger.info(
                f"ASHAv2: trial {trial} is complete: it has reached "
                f"max_t={self._max_t} with "
                f"{self._metric}={self._as_reported(score)}."
            )
            ladder.stop_at_max_t(trial_id)
            self._end(trial_id)
            return TrialScheduler.STOP
        is_due = ladder.is_due(trial_id, time)
        if is_due:
            self._stop_unpromotable(tune_controller)
        if ladder.is_unpromotable(trial_id):
            # Also on the way back to its milestone, after a retry.
            self._log_decision(trial, "stops at", _UNPROMOTABLE)
            self._note_decision(tune_controller, trial, "stop", _UNPROMOTABLE)
            self._end(trial_id)
            return TrialScheduler.STOP
        if not is_due:
            return TrialScheduler.CONTINUE
        if self._would_run_next(tune_controller, trial_id):
            is_fallback = ladder.promote(trial_id)
            why = _FALLBACK if is_fallback else ""
            self._log_decision(trial, "goes on past", why)
            self._note_decision(tune_controller, trial, "go_on", why)
            return TrialScheduler.CONTINUE
        ladder.move(trial_id, TrialState.SAVING)
        self._log_decision(trial, "pauses at")
        self._note_decision(tune_controller, trial, "pause")
        return TrialScheduler.PAUSE

    def on_trial_complete(
        self, tune_controller: "TuneController", trial: Trial, result: Dict
    ):
        """Record the result of a trial that ended on its own or was stopped."""
        self._reconcile(tune_controller)
        trial_id = trial.trial_id
        if trial_id in self._ladder and not self._ladder.has_ended(trial_id):
            # New if it was not seen before, because `stop=` or the trainable ended it.
            values = self._read(trial, result or {}, warn=False)
            if values is not None:
                self._ladder.complete(trial_id, *values)
        self._end(trial_id)

    def on_trial_error(self, tune_controller: "TuneController", trial: Trial):
        """Note a failure, which is final unless the trial is added again."""
        self._reconcile(tune_controller)
        trial_id = trial.trial_id
        if trial_id in self._ladder and not self._ladder.has_ended(trial_id):
            # Until then it may come to the rungs above it.
            self._ladder.move(trial_id, TrialState.FAILED)

    def on_trial_remove(self, tune_controller: "TuneController", trial: Trial):
        """Note that a trial was stopped while it was pending or paused."""
        self._end(trial.trial_id)

    def choose_trial_to_run(self, tune_controller: "TuneController") -> Optional[Trial]:
        """Choose the trial that runs next in a free slot.

        Asking commits to nothing: the same trial is returned until it is seen to run
        or a better one turns up. Trials that wait in vain are stopped.

        Args:
            tune_controller: The controller of the experiment.

        Returns:
            A pending trial, or a paused one to resume. None if there is none.
        """
        self._reconcile_restored(tune_controller)
        self._stop_over(tune_controller)
        self._reconcile(tune_controller)
        self._reconcile_running(_LOOKS)
        self._stop_unpromotable(tune_controller)
        self._chosen = None

        trial_id = self._next_to_start(tune_controller)
        if trial_id is None:
            self._reconcile_running(self._ladder.num_in_state(TrialState.RUNNING))
            trial_id = self._ladder.first_in_state(TrialState.INTERRUPTED)
        if trial_id is None:
            # The searcher gives none now, or the trial would be pending. If the search
            # goes on, it waits for results that only a paused trial can give.
            trial_id = self._ladder.next_fallback(
                any_rung=not self._is_search_finished(tune_controller)
            )
        if trial_id is None:
            if not self._ladder.num_reporting:
                # The searcher may wait for results that none of those will bring.
                self._stop_paused(
                    tune_controller, self._ladder.paused_nans(), _DIVERGED
                )
            return None
        if self._ladder.is_paused(trial_id):
            self._chosen = trial_id
            self._note_decision(tune_controller, self._trials[trial_id], "promote")
        return self._trials[trial_id]

    def debug_string(self) -> str:
        """Return the state of each rung, the results as the trials reported them."""
        ladder = self._ladder
        lines = [
            f"Using ASHAv2: {self._choose_promotion()}; {len(ladder)} trials = "
            f"{ladder.num_reporting} pending or running + {ladder.num_paused} paused + "
            f"{ladder.num_ended} ended; {ladder.num_reached_max_t} reached "
            f"max_t={self._max_t}"
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
                if counts.pausing:
                    line += f" + {counts.pausing} about to pause"
                lines.append(f"{line}; cutoff {self._as_reported(rung.cutoff)}")
        return "\n".join(lines)

    def save(self, checkpoint_path: str):
        """Save the state of the scheduler, which names trials by their id."""
        self._reconcile_choice()
        with open(checkpoint_path, "wb") as f:
            pickle.dump(self.__getstate__(), f)

    def restore(self, checkpoint_path: str):
        """Restore what ``save`` has saved.

        The trials themselves are expected to be added again by ``on_trial_add``.
        """
        with open(checkpoint_path, "rb") as f:
            state = pickle.load(f)
        at_hand = self._trials
        # What was said of the run that begins now.
        promotion, time_budget = self._promotion, self._time_budget
        self.__setstate__(state)
        self._promotion = promotion or self._promotion
        self._time_budget = time_budget
        for trial in at_hand.values():
            if trial.trial_id not in self._ladder:
                self._ladder.add(trial.trial_id, self._draw_bracket())
            self._register(trial)

    def change_arguments(self, arguments: Dict[str, Any]):
        """Go on with another ``max_t``, and so with other milestones.

        Args:
            arguments: Those that differ, by name; all of them may.
        """
        super().change_arguments(arguments)
        if self._max_t != self._ladder.max_t:
            self._ladder.change_max_t(self._max_t)

    def goes_on(self, trial: Trial) -> bool:
        """Return whether a trial goes on that had reached a ``max_t`` which was less.

        Args:
            trial: A trial that has ended.

        Returns:
            Whether it does: it was stopped there, and not for good by now.
        """
        stopped_at = self._ladder.stopped_at(trial.trial_id)
        if stopped_at is None or trial.status != Trial.TERMINATED:
            return False
        last = self._read_last(trial)
        if last is None or self._stop_last_trials and last[0] >= self._max_t:
            return False
        if trial.checkpoint is None:
            logger.warning(
                f"Trial {trial} has reached max_t={stopped_at}, and stays there, since "
                "it has no checkpoint to go on from."
            )
            return False
        return True

    def restore_from_results(
        self, trials: List[Trial], get_results: Callable[[Trial], List[Dict]]
    ) -> bool:
        """Record what trials have reported to another scheduler.

        Brackets are drawn, and trials that have ended stay so.

        Args:
            trials: Trials of the experiment in the order of their creation.
            get_results: Returns the results of a trial, in their order.

        Returns:
            True: paused trials stay paused.
        """
        for trial in trials:
            self._ladder.add(trial.trial_id, self._draw_bracket())
            for result in get_results(trial):
                values = self._read(trial, result, warn=False)
                if values is not None:
                    self._ladder.record(trial.trial_id, *values)
            if trial.status == Trial.PAUSED and self._is_at_rung(trial.trial_id):
                self._ladder.move(trial.trial_id, TrialState.PAUSED)
        return True

    def __getstate__(self) -> Dict:
        return {**self.__dict__, "_trials": {}, "_chosen": None}

    def __setstate__(self, state: Dict):
        self.__dict__.update(state)

    # What happens to trials without a hook being called.

    def _register(self, trial: Trial):
        """Take in a trial that was added, in whatever status."""
        trial_id, ladder = trial.trial_id, self._ladder
        # News only if it was restored with the experiment, and arguments are others.
        last = self._read_last(trial)
        if last is not None:
            ladder.record(trial_id, *last)
        if trial.is_finished():
            self._trials.pop(trial_id, None)
            ladder.end(trial_id)
            return
        self._trials[trial_id] = trial
        if last is not None and last[0] >= self._max_t and self._stop_last_trials:
            ladder.move(trial_id, TrialState.OVER)
            return
        if trial.status == Trial.PAUSED and self._is_at_rung(trial_id):
            if ladder.has_ended(trial_id):
                # It had reached a `max_t` which is a milestone now.
                ladder.move(trial_id, TrialState.PAUSED)
            if ladder.state_of(trial_id) in (TrialState.PAUSED, TrialState.SAVING):
                return
        ladder.move(trial_id, _state_by_status(trial))
        # Restored trials are added in the order of their turn.
        ladder.requeue(trial_id)

    def _is_at_rung(self, trial_id: str) -> bool:
        rung = self._ladder.rung_of(trial_id)
        return rung is not None and rung.waits(trial_id)

    def _note_report(self, trial: Trial):
        """Note that a trial runs, whatever was thought of it."""
        trial_id = trial.trial_id
        self._trials[trial_id] = trial
        if trial_id == self._chosen:
            self._reconcile_choice(has_started=True)
        self._ladder.move(trial_id, TrialState.RUNNING)

    def _reconcile(self, tune_controller: "TuneController"):
        """Make what is known of trials and of the search agree with what there is."""
        ladder = self._ladder
        total = tune_controller.search_alg.total_samples
        if is_integer(total) and total > 0:
            # With a grid search, and with a resumed run, it differs from what was told.
            self._note_num_samples(total)
        self._reconcile_choice()
        for trial_id in ladder.in_state(TrialState.FAILED):
            # It was not added again.
            self._end(trial_id)
        for trial_id in ladder.in_state(TrialState.SAVING):
            trial = self._trials.get(trial_id)
            if trial is not None and trial.status == Trial.PAUSED:
                ladder.move(trial_id, TrialState.PAUSED)
        for trial_id in ladder.in_state(TrialState.INTERRUPTED):
            self._reconcile_status(trial_id)
        while True:
            trial_id = ladder.first_in_state(TrialState.PENDING)
            if trial_id is None or not self._reconcile_status(trial_id):
                return

    def _reconcile_restored(self, tune_controller: "TuneController"):
        """Find the trials of a restored state that were not added again."""
        if len(self._trials) + self._ladder.num_ended == len(self._ladder):
            return
        lost = self._ladder.unfinished()
        lost = dict.fromkeys(t for t in lost if t not in self._trials)
        for trial in tune_controller.get_trials():
            if trial.trial_id in lost:
                del lost[trial.trial_id]
                self._register(trial)
        for trial_id in lost:
            # They are no part of this experiment any more. Nobody waits for them.
            self._end(trial_id)

    def _reconcile_choice(self, has_started: bool = False):
        """Make the promotion of the chosen trial final when it has started."""
        trial = self._trials.get(self._chosen)
        if trial is None or (trial.status == Trial.PAUSED and not has_started):
            return
        trial_id, self._chosen = self._chosen, None
        if self._ladder.is_paused(trial_id):
            state = _state_by_status(trial)
            if state not in (TrialState.PENDING, TrialState.RUNNING):
                state = TrialState.RUNNING
            is_fallback = self._ladder.promote(trial_id, state)
            self._log_decision(
                trial, "is promoted from", _FALLBACK if is_fallback else ""
            )

    def _reconcile_running(self, num_looks: int):
        """Look at some trials that should run for one that was paused or has ended."""
        num_running = self._ladder.num_in_state(TrialState.RUNNING)
        for _ in range(min(num_looks, num_running)):
            trial_id = self._ladder.first_in_state(TrialState.RUNNING)
            self._ladder.requeue(trial_id)
            self._reconcile_status(trial_id)

    def _reconcile_status(self, trial_id: str) -> bool:
        """Let the state of a trial follow its status. Return whether it changed."""
        trial = self._trials.get(trial_id)
        if trial is None:
            # Of a restored state, and not added again by now.
            return False
        if trial.is_finished():
            # No hook was called: a reset that failed, for example.
            self._end(trial_id)
            return True
        state = _state_by_status(trial)
        if state is self._ladder.state_of(trial_id):
            return False
        self._ladder.move(trial_id, state)
        return True

    def _end(self, trial_id: str):
        """Forget a trial that has ended, apart from its records."""
        self._trials.pop(trial_id, None)
        if self._chosen == trial_id:
            self._chosen = None
        if trial_id in self._ladder and not self._ladder.has_ended(trial_id):
            self._ladder.end(trial_id)

    # What is known about the search.

    def _note_num_samples(self, num_samples: int):
        self._endless = num_samples < 0 or num_samples >= sys.maxsize
        self._num_samples = None if self._endless else int(num_samples)

    def _is_search_finished(self, tune_controller: "TuneController") -> bool:
        return bool(tune_controller.search_alg.is_finished())

    def _remaining_samples(self, tune_controller: "TuneController") -> Optional[int]:
        """Return how many trials may yet be added, None if that is not known."""
        if self._is_search_finished(tune_controller):
            return 0
        if self._num_samples is None or self._num_samples < len(self._ladder):
            return None
        return self._num_samples - len(self._ladder)

    def _is_deferred(self) -> bool:
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
        """Note what the search algorithm learns from."""
        search_alg = tune_controller.search_alg
        self._learns_from_pauses = learns_from_pauses(search_alg)
        if self._promotion == DEFERRED and self._learns_from_pauses is False:
            while hasattr(search_alg, "searcher"):
                search_alg = search_alg.searcher
            self._warn_once("untold", UNTOLD.format(name=type(search_alg).__name__))

    # Decisions.

    def _next_to_start(self, tune_controller: "TuneController") -> Optional[str]:
        """Return what runs in a free slot, but for a fallback promotion."""
        ladder, deferred = self._ladder, self._is_deferred()
        interrupted = ladder.first_in_state(TrialState.INTERRUPTED)
        if interrupted is not None:
            return interrupted
        pending = ladder.first_in_state(TrialState.PENDING)
        if deferred and pending is not None:
            return pending
        promotable = ladder.next_promotion(lowest_first=deferred)
        return pending if promotable is None else promotable

    def _would_run_next(self, tune_controller: "TuneController", trial_id: str) -> bool:
        """Return whether a trial, if it paused now, would be resumed in its slot."""
        ladder, deferred = self._ladder, self._is_deferred()
        if ladder.first_in_state(TrialState.INTERRUPTED) is not None:
            return False
        is_finished = self._is_search_finished(tune_controller)
        has_new = not is_finished or (
            ladder.first_in_state(TrialState.PENDING) is not None
        )
        if deferred and has_new:
            return False
        next_id = ladder.next_promotion(lowest_first=deferred, pausing=trial_id)
        if next_id is None and not has_new:
            next_id = ladder.next_fallback(any_rung=not is_finished, pausing=trial_id)
        return next_id == trial_id

    def _stop_unpromotable(self, tune_controller: "TuneController"):
        """Stop the paused trials that wait in vain."""
        while True:
            self._ladder.expect(self._remaining_samples(tune_controller))
            # With those that are gone, others may wait in vain.
            if not self._stop_paused(
                tune_controller, self._ladder.unpromotable(), _UNPROMOTABLE
            ):
                return

    def _stop_over(self, tune_controller: "TuneController"):
        """Stop the trials that are past a ``max_t`` that was lowered."""
        for trial_id in self._ladder.in_state(TrialState.OVER):
            trial = self._trials.get(trial_id)
            if trial is not None and trial.status in (Trial.PAUSED, Trial.PENDING):
                logger.info(
                    f"ASHAv2: trial {trial} is complete: it is past "
                    f"max_t={self._max_t}."
                )
                self._ladder.stop_at_max_t(trial_id)
                self._end(trial_id)
                tune_controller.stop_trial(trial)

    def _stop_paused(
        self, tune_controller: "TuneController", trial_ids: Any, reason: str
    ) -> bool:
        """Stop paused trials. Return whether there were any."""
        stopped = False
        for trial_id in trial_ids:
            trial = self._trials.get(trial_id)
            if (
                trial is not None
                and trial.status == Trial.PAUSED
                and self._ladder.is_paused(trial_id)
            ):
                self._log_decision(trial, "is stopped at", reason)
                self._note_decision(tune_controller, trial, "stop", reason)
                # First, so that no hook comes upon it again.
                self._end(trial_id)
                tune_controller.stop_trial(trial)
                stopped = True
        return stopped

    def _draw_bracket(self) -> int:
        sizes = np.array([len(bracket.rungs) for bracket in self._ladder.brackets])
        weights = np.exp(sizes - sizes.max())
        return int(np.random.choice(len(sizes), p=weights / weights.sum()))

    # Results and messages.

    def _read(
        self, trial: Trial, result: Dict, warn: bool = True
    ) -> Optional[Tuple[Union[int, float], Optional[float]]]:
        """Read time and score from a result. None if it has to be skipped."""
        for key in (self._time_attr, self._metric):
            if key not in result:
                if warn:
                    self._warn_once(
                        f"missing {key}",
                        f"Trial {trial} reported a result without {key!r}. ASHAv2 "
                        "skips such results, so the trial neither pauses nor stops "
                        f"by them. Report {key!r} with every result. (Logged once.)",
                    )
                return None
        values = read_result(self, trial, result)
        if values is None:
            return None
        score = None if math.isnan(values.metric) else values.metric
        return values.time, self._signed(score)

    def _read_last(
        self, trial: Trial
    ) -> Optional[Tuple[Union[int, float], Optional[float]]]:
        return self._read(trial, flatten_dict(trial.last_result or {}), warn=False)

    def _signed(self, value: Optional[float]) -> Optional[float]:
        return -value if self._mode == "min" and value is not None else value

    def _as_reported(self, score: Optional[float]) -> str:
        value = self._signed(score)
        return "none" if value is None else f"{value:g}"

    def _log_decision(self, trial: Trial, what: str, why: str = ""):
        """Log one line for a decision about a trial that stands at a milestone."""
        if not logger.isEnabledFor(logging.INFO):
            return
        rung = self._ladder.rung_of(trial.trial_id)
        score = rung.score(trial.trial_id)
        logger.info(
            f"ASHAv2: trial {trial} {what} milestone {rung.milestone:g} with "
            f"{self._metric}={'nan' if score is None else self._as_reported(score)} "
            f"(cutoff of {len(rung)} recorded: {self._as_reported(rung.cutoff)})"
            f"{', ' if why == _FALLBACK else ': ' if why else ''}{why}."
        )

    def _note_decision(
        self,
        tune_controller: "TuneController",
        trial: Trial,
        action: str,
        why: Optional[str] = None,
    ):
        """Have a decision about a trial that stands at a milestone written to disk."""
        rung = self._ladder.rung_of(trial.trial_id)
        note_decision(
            tune_controller,
            trial,
            action,
            why=why or None,
            rung=rung.milestone,
            score=self._signed(rung.score(trial.trial_id)),
            cutoff=self._signed(rung.cutoff),
            bracket=self._ladder.bracket_of(trial.trial_id),
        )

    def _warn_once(self, key: str, message: str):
        if key not in self._warned:
            self._warned |= {key}
            logger.warning(message)


def _state_by_status(trial: Trial) -> TrialState:
    """Return what an unfinished trial does by its status."""
    if trial.status == Trial.PENDING:
        return TrialState.PENDING
    if trial.status == Trial.PAUSED:
        return TrialState.INTERRUPTED
    return TrialState.RUNNING
