"""Invariants of single schedulers.

They look at what a scheduler keeps, and say nothing where it keeps something else.
"""

import math
from bisect import bisect_left, insort
from fractions import Fraction
from typing import List

from .controller import duties
from .populations import population_checks
from ray.tune.experiment import Trial
from ray.tune.schedulers import HyperBandScheduler, TrialScheduler


class HyperBandStranded:
    """No bracket of HyperBand waits for an event that cannot come.

    A bracket is processed when one of its trials reports or is removed. When all of
    its trials are paused at the milestone and none is to go on, nobody will ever wake
    them. The scheduler gets two steps of the controller to do so.
    """

    def __init__(self):
        self._suspect = {}
        self._awake = {}  # id of a bracket -> one of its trials that is not paused

    def after_step(self, monitor, controller) -> None:
        scheduler = monitor.scheduler
        try:
            brackets = [b for band in scheduler._hyperbands for b in band if b]
            suspects = {}
            for bracket in brackets:
                live = bracket._live_trials
                # Few brackets are looked through: one trial is enough.
                awake = self._awake.get(id(bracket))
                if awake in live and awake.status != Trial.PAUSED:
                    continue
                awake = next((t for t in live if t.status != Trial.PAUSED), None)
                self._awake[id(bracket)] = awake
                if (
                    live
                    and awake is None
                    and not bracket.trials_to_unpause
                    and bracket.cur_iter_done()
                ):
                    suspects[id(bracket)] = len(bracket._all_trials), list(live)
        except (AttributeError, KeyError, TypeError):
            return
        for key, (size, live) in suspects.items():
            if self._suspect.get(key, 0) < 2:
                continue
            monitor.broken(
                "stranded",
                f"the {len(live)} of {size} trials that are left in a bracket are "
                f"paused at its milestone, and none of them is to go on",
                live[0].trial_id,
            )
        self._suspect = {key: self._suspect.get(key, 0) + 1 for key in suspects}


class Promotions:
    """ASHAv2 promotes what successive halving by promotion lets it promote.

    Of the ``n`` results recorded at a milestone, the best ``floor(n / eta)`` may go on,
    by a resume or in place; NaN and None rank below every number, and never go on. A
    trial that failed or was stopped while it stood there passes its place to the next.
    A result counts from when the scheduler is told of it; of one that ends its trial
    that is when the trial ends. Exempt is the survivor, which goes on when nothing
    else is left to do, and a trial that somebody else had paused. Nothing is said of
    several brackets, and of what comes after a restore.
    """

    def __init__(self):
        self._off = False
        self._milestones = None
        self._records = {}  # milestone -> {trial id: rank, the best is the least}
        self._ranked = {}  # milestone -> the ranks of those that have not left
        self._promoted = {}  # milestone -> those that have gone on
        self._left = {}  # milestone -> those that have ended where they stood
        # Trial id -> the milestone at which it is recorded and has not gone on.
        self._stands = {}
        # Told to pause; neither resumed nor failed since, and no result since.
        self._waits = set()
        # Trial id -> the milestone it was promoted from, while it is PENDING.
        self._starting = {}

    def _is_on(self, monitor) -> bool:
        if self._off:
            return False
        if self._milestones is None:
            scheduler = monitor.scheduler
            try:
                (bracket,) = scheduler._ladder.brackets
                self._milestones = [rung.milestone for rung in bracket.rungs]
                eta = bracket.rungs[0].reduction_factor
                self._eta = Fraction(str(eta))
            except (AttributeError, IndexError, ValueError):
                self._off = True
                return False
            for milestone in self._milestones:
                self._records[milestone] = {}
                self._ranked[milestone] = []
                self._promoted[milestone] = set()
                self._left[milestone] = set()
        return True

    def driver_died(self, monitor) -> None:
        self._off = True

    def _time(self, monitor, result):
        """The time of a result that counts, else None."""
        scheduler = monitor.scheduler
        time = result.get(scheduler._time_attr)
        if scheduler._metric not in result or _is_nan(time):
            return None
        return time

    def on_told(self, monitor, trial, result, has_ended) -> None:
        if not self._is_on(monitor):
            return
        trial_id, scheduler = trial.trial_id, monitor.scheduler
        if not has_ended:
            self._waits.discard(trial_id)
        time = self._time(monitor, result)
        is_new = False
        for milestone in self._milestones if time is not None else ():
            if time < milestone:
                break
            record = self._records[milestone]
            if trial_id in record:
                continue
            is_new = True
            if trial_id in self._stands:
                self._go_on(trial_id)
            score = result[scheduler._metric]
            if _is_nan(score):
                rank = 1, 0, len(record)
            else:
                score = -score if scheduler._mode == "max" else score
                rank = 0, score, len(record)
            record[trial_id] = rank
            insort(self._ranked[milestone], rank)
            self._stands[trial_id] = milestone
        if time is not None and time >= scheduler._max_t:
            self._go_on(trial_id)
        if has_ended and is_new:
            # It ended by itself, and keeps its place.
            self._stands.pop(trial_id, None)
        elif has_ended:
            self._leave(trial_id)

    def on_decision(self, monitor, trial, result, decision) -> None:
        if not self._is_on(monitor):
            return
        trial_id = trial.trial_id
        if decision == "PAUSE":
            self._waits.add(trial_id)
        elif decision == "STOP":
            self._leave(trial_id)
        elif trial_id in self._stands:
            time, milestone = self._time(monitor, result), self._stands[trial_id]
            if time is not None and time >= milestone:
                self._judge(monitor, trial, milestone)
                self._go_on(trial_id)

    def on_status(self, monitor, trial, before, status) -> None:
        if not self._is_on(monitor):
            return
        trial_id = trial.trial_id
        if status in (Trial.ERROR, Trial.TERMINATED):
            # One that fails has to pause anew, if it is tried again.
            self._waits.discard(trial_id)
            self._leave(trial_id)
            return
        self._starting.pop(trial_id, None)
        if before == Trial.ERROR:
            # It is tried again.
            for milestone, left in self._left.items():
                if trial_id in left:
                    left.remove(trial_id)
                    rank = self._records[milestone][trial_id]
                    insort(self._ranked[milestone], rank)
            return
        if (before, status) != (Trial.PAUSED, Trial.PENDING):
            return
        if trial_id not in self._waits:
            return  # Somebody else had paused it.
        self._waits.discard(trial_id)
        milestone = self._top(trial_id)
        if milestone is None:
            return
        self._judge(monitor, trial, milestone)
        self._go_on(trial_id)
        self._starting[trial_id] = milestone

    def _top(self, trial_id):
        tops = [m for m in self._milestones if trial_id in self._records[m]]
        return tops[-1] if tops else None

    def _go_on(self, trial_id) -> None:
        milestone = self._stands.pop(trial_id, None)
        if milestone is not None:
            self._promoted[milestone].add(trial_id)

    def _leave(self, trial_id) -> None:
        # Also one that was promoted, but never started.
        milestone = self._starting.pop(trial_id, self._stands.get(trial_id))
        if milestone is not None and trial_id not in self._left[milestone]:
            self._left[milestone].add(trial_id)
            ranked = self._ranked[milestone]
            del ranked[bisect_left(ranked, self._records[milestone][trial_id])]

    def _judge(self, monitor, trial, milestone) -> None:
        trial_id = trial.trial_id
        record = self._records[milestone]
        places = int(len(record) / self._eta)
        rank = record[trial_id]
        number = bisect_left(self._ranked[milestone], rank) + 1
        has_left = trial_id in self._left[milestone]
        is_nan, is_second = rank[0], trial_id in self._promoted[milestone]
        if number <= places and not (has_left or is_second or is_nan):
            return
        if not is_second and not is_nan and self._survives(monitor, trial):
            return
        monitor.broken(
            "promotion",
            f"a trial was promoted from milestone {milestone} as number "
            f"{number} of {len(record)}, where {places} may be"
            + (", after it had ended" if has_left else "")
            + (", for the second time" if is_second else "")
            + (", with no number for a result" if is_nan else ""),
            trial_id,
        )

    def _survives(self, monitor, trial) -> bool:
        """Whether nothing else is left to do, and none that waits is better."""
        waiting = [trial]
        for view in monitor._views.values():
            other = view.trial
            if other is None or other is trial:
                continue
            if other.status == Trial.PAUSED:
                waiting.append(other)
            elif not other.is_finished() and not view.stop:
                return False
        ranks = {}
        for other in waiting:
            milestone = self._stands.get(other.trial_id)
            if milestone is not None and other.trial_id not in self._left[milestone]:
                ranks[other] = -milestone, self._records[milestone][other.trial_id]
        numbers = [other for other in ranks if not ranks[other][1][0]]
        return bool(numbers) and trial is min(numbers, key=ranks.get)


def _is_nan(value) -> bool:
    """Whether a value is no number, as NaN and None are."""
    try:
        return value is None or math.isnan(value)
    except Exception:  # A tensor raises a RuntimeError, 10**400 an OverflowError.
        return True


def checks(scheduler: TrialScheduler) -> List:
    """Make the invariants that go beyond the controller's own.

    Args:
        scheduler: The scheduler that is used.

    Returns:
        A list of objects that have some of the hooks in ``invariants.HOOKS``.
    """
    found = [*duties(), *population_checks(scheduler)]
    if type(scheduler) is HyperBandScheduler:
        found.append(HyperBandStranded())
    if any(cls.__name__ == "ASHAv2" for cls in type(scheduler).__mro__):
        found.append(Promotions())
    return found
