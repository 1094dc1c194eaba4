"""Promotions obey section 6 of the design (rule 7 of its section 8)."""

from bisect import bisect_left, insort
from typing import Dict

from .private import (
    as_number,
    asha_bracket,
    asha_v2_bracket,
    asha_v2_rules,
    base_of,
    is_asha_v2,
)
from ray.tune.experiment import Trial
from ray.tune.schedulers import AsyncHyperBandScheduler


class Promotions:
    """ASHAv2 promotes what successive halving by promotion lets it promote.

    Of the ``n`` results recorded at a milestone of a bracket, the best ``floor(n /
    eta)`` may go on, by a resume or in place; what is not a number ranks below every
    number, and never goes on. A trial that failed or was stopped while it stood there
    passes its place to the next. A result counts from when the scheduler is told of it;
    of one that ends its trial that is when the trial ends. Exempt is the fallback
    promotion, when nothing else is left to do, and a trial that somebody else had
    paused. Nothing is said of what comes after a restore, for which results may be lost
    that are recorded here.
    """

    RULES = {"promotion": "Promotions obey section 6 of the design."}

    def __init__(self):
        self._has_died = False
        self._rules = None
        # A rung is (bracket, milestone).
        self._records = {}  # rung -> {trial id: rank, the best is the least}
        self._ranked = {}  # rung -> the ranks of those that have not left
        self._promoted = {}  # rung -> those that have gone on
        self._left = {}  # rung -> those that have ended where they stood
        # Trial id -> the rung in which it is recorded and has not gone on.
        self._stands = {}
        # Told to pause; neither resumed nor failed since, and no result since.
        self._waits = set()
        # Trial id -> the rung it was promoted from, while it is PENDING.
        self._starting = {}

    @staticmethod
    def applies(scheduler) -> bool:
        # Not below another one, which decides and resumes on its own.
        return is_asha_v2(scheduler)

    def _is_on(self, monitor) -> bool:
        if self._rules is None:
            self._rules = asha_v2_rules(monitor.scheduler)
            for bracket, milestones in enumerate(self._rules.milestones):
                for milestone in milestones:
                    rung = bracket, milestone
                    self._records[rung] = {}
                    self._ranked[rung] = []
                    self._promoted[rung] = set()
                    self._left[rung] = set()
        return not self._has_died

    def driver_died(self, monitor) -> None:
        self._has_died = True

    def _time(self, result):
        """The time of a result that counts, else None."""
        time = result.get(self._rules.time_attr)
        if self._rules.metric not in result or as_number(time) is None:
            return None
        return time

    def on_told(self, monitor, trial, result, has_ended) -> None:
        if not self._is_on(monitor):
            return
        trial_id, rules = trial.trial_id, self._rules
        if not has_ended:
            self._waits.discard(trial_id)
        time = self._time(result)
        is_new = False
        for rung in self._rungs(monitor, trial_id) if time is not None else ():
            if time < rung[1]:
                break
            record = self._records[rung]
            if trial_id in record:
                continue
            is_new = True
            if trial_id in self._stands:
                self._go_on(trial_id)
            score = as_number(result[rules.metric])
            if score is None:
                rank = 1, 0, len(record)
            else:
                rank = 0, -score if rules.mode == "max" else score, len(record)
            record[trial_id] = rank
            insort(self._ranked[rung], rank)
            self._stands[trial_id] = rung
        if time is not None and time >= rules.max_t:
            self._go_on(trial_id)
        if has_ended and is_new:
            # It ended on its own, and keeps its place.
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
            time, rung = self._time(result), self._stands[trial_id]
            if time is not None and time >= rung[1]:
                self._judge(monitor, trial, rung)
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
            for rung, left in self._left.items():
                if trial_id in left:
                    left.remove(trial_id)
                    insort(self._ranked[rung], self._records[rung][trial_id])
            return
        if (before, status) != (Trial.PAUSED, Trial.PENDING):
            return
        if trial_id not in self._waits:
            return  # Somebody else had paused it.
        self._waits.discard(trial_id)
        rung = self._top(monitor, trial_id)
        if rung is None:
            return
        self._judge(monitor, trial, rung)
        self._go_on(trial_id)
        self._starting[trial_id] = rung

    def _rungs(self, monitor, trial_id):
        """The rungs that are before a trial, from the lowest up."""
        brackets = self._rules.milestones
        bracket = 0
        if len(brackets) > 1:
            bracket = asha_v2_bracket(monitor.scheduler, trial_id)
        return [(bracket, milestone) for milestone in brackets[bracket]]

    def _top(self, monitor, trial_id):
        rungs = self._rungs(monitor, trial_id)
        tops = [rung for rung in rungs if trial_id in self._records[rung]]
        return tops[-1] if tops else None

    def _go_on(self, trial_id) -> None:
        rung = self._stands.pop(trial_id, None)
        if rung is not None:
            self._promoted[rung].add(trial_id)

    def _leave(self, trial_id) -> None:
        # Also one that was promoted, but never started.
        rung = self._starting.pop(trial_id, self._stands.get(trial_id))
        if rung is not None and trial_id not in self._left[rung]:
            self._left[rung].add(trial_id)
            ranked = self._ranked[rung]
            del ranked[bisect_left(ranked, self._records[rung][trial_id])]

    def _judge(self, monitor, trial, rung) -> None:
        trial_id = trial.trial_id
        record = self._records[rung]
        places = int(len(record) / self._rules.reduction_factor)
        rank = record[trial_id]
        number = bisect_left(self._ranked[rung], rank) + 1
        has_left = trial_id in self._left[rung]
        is_nan, is_second = rank[0], trial_id in self._promoted[rung]
        if number <= places and not (has_left or is_second or is_nan):
            return
        if not is_second and not is_nan and self._is_fallback(monitor, trial):
            return
        monitor.broken(
            "promotion",
            f"a trial was promoted from milestone {rung[1]} as number "
            f"{number} of {len(record)}, where {places} may be"
            + (", after it had ended" if has_left else "")
            + (", for the second time" if is_second else "")
            + (", with no number for a result" if is_nan else ""),
            trial_id,
        )

    def _is_fallback(self, monitor, trial) -> bool:
        """Whether nothing else is left to do, and none that waits is better."""
        waiting = [trial]
        for view in monitor.views.values():
            other = view.trial
            if other is None or other is trial:
                continue
            if other.status == Trial.PAUSED:
                waiting.append(other)
            elif not other.is_finished() and not view.stop:
                return False
        ranks = {}
        for other in waiting:
            rung = self._stands.get(other.trial_id)
            if rung is not None and other.trial_id not in self._left[rung]:
                ranks[other] = -rung[1], self._records[rung][other.trial_id]
        numbers = [other for other in ranks if not ranks[other][1][0]]
        return bool(numbers) and trial is min(numbers, key=ranks.get)


class BracketIsKept:
    """A trial stays in its bracket of ASHA, also when it is retried or restored."""

    RULES = {"bracket-changed": "A trial stays in its bracket of ASHA."}

    def __init__(self):
        self._brackets: Dict[str, int] = {}

    @staticmethod
    def applies(scheduler) -> bool:
        return isinstance(base_of(scheduler), AsyncHyperBandScheduler)

    def driver_died(self, monitor) -> None:
        for trial_id in set(self._brackets) - monitor.stored:
            del self._brackets[trial_id]

    def on_status(self, monitor, trial, before, status) -> None:
        if trial.is_finished() or not self.applies(monitor.scheduler):
            # An experiment may be restored with a scheduler of another class.
            return
        index = asha_bracket(base_of(monitor.scheduler), trial.trial_id)
        if index is None:
            return
        if self._brackets.setdefault(trial.trial_id, index) != index:
            monitor.broken(
                "bracket-changed",
                f"the trial was in bracket {self._brackets[trial.trial_id]}, and is in "
                f"bracket {index} now",
                trial.trial_id,
            )


INVARIANTS = (Promotions, BracketIsKept)
