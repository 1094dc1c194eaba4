"""Invariants of single schedulers.

They look at what a scheduler keeps, and say nothing where it keeps something else.
"""

from fractions import Fraction

from .duties import duties
from .population_checks import population_checks
from ray.tune.experiment import Trial
from ray.tune.schedulers import HyperBandScheduler


class HyperBandStranded:
    """No bracket of HyperBand waits for an event that cannot come.

    A bracket is processed when one of its trials reports or is removed. When all of
    its trials are paused at the milestone and none is to go on, nobody will ever wake
    them. The scheduler gets two steps of the controller to do so.
    """

    def __init__(self):
        self._suspect = {}

    def after_step(self, monitor, controller) -> None:
        scheduler = monitor.scheduler
        if type(scheduler) is not HyperBandScheduler:
            return
        try:
            brackets = [b for band in scheduler._hyperbands for b in band if b]
            suspects = {}
            for bracket in brackets:
                live = list(bracket._live_trials)
                if (
                    live
                    and all(trial.status == Trial.PAUSED for trial in live)
                    and not bracket.trials_to_unpause
                    and bracket.cur_iter_done()
                ):
                    suspects[id(bracket)] = len(bracket._all_trials), live
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

    Of the ``n`` results recorded at a milestone, the best ``floor(n / eta)`` may go on;
    a trial that failed or was stopped while it waited passes its place to the next.
    Exempt is the survivor, which goes on when nothing else is left to do, and a trial
    that somebody else had paused. Nothing is said of several brackets, and of what
    comes after a restore.
    """

    def __init__(self):
        self._off = False
        self._milestones = None
        self._records = {}  # milestone -> {trial id: (score, order)}
        self._promoted = {}
        self._gone = {}
        self._starting = {}  # trial id -> the milestone it was promoted from
        self._waits = {}  # the trials that the scheduler has paused

    def _is_on(self, monitor) -> bool:
        if self._off or type(monitor.scheduler).__name__ != "ASHAv2":
            return False
        if self._milestones is None:
            try:
                (bracket,) = monitor.scheduler._ladder.brackets
                self._milestones = [rung.milestone for rung in bracket.rungs]
                rung = bracket.rungs[0]
                self._eta = getattr(rung, "reduction_factor", None) or rung._eta
            except (AttributeError, IndexError, ValueError):
                self._off = True
                return False
            for milestone in self._milestones:
                self._records[milestone] = {}
                self._promoted[milestone] = set()
                self._gone[milestone] = set()
        return True

    def driver_died(self, monitor) -> None:
        self._off = True

    def on_result(self, monitor, trial, result) -> None:
        if not self._is_on(monitor):
            return
        scheduler = monitor.scheduler
        time = result.get(scheduler._time_attr)
        score = result.get(scheduler._metric)
        if time is None or score is None:
            return
        score = score if scheduler._mode == "max" else -score
        for milestone in self._milestones:
            if time < milestone:
                break
            record = self._records[milestone]
            if trial.trial_id not in record:
                record[trial.trial_id] = (score, len(record))

    def on_decision(self, monitor, trial, decision) -> None:
        if decision == "PAUSE" and self._is_on(monitor):
            self._waits[trial.trial_id] = True

    def _top(self, trial_id):
        tops = [m for m in self._milestones if trial_id in self._records[m]]
        return tops[-1] if tops else None

    def on_status(self, monitor, trial, before, status) -> None:
        trial_id = trial.trial_id
        if not self._is_on(monitor):
            return
        milestone = self._starting.pop(trial_id, None)
        if milestone is not None and status in (Trial.ERROR, Trial.TERMINATED):
            # It never went on: its place passes to the next.
            self._promoted[milestone].discard(trial_id)
            self._gone[milestone].add(trial_id)
        if trial_id not in self._waits:
            return
        milestone = self._top(trial_id)
        if milestone is None:
            return
        if status in (Trial.ERROR, Trial.TERMINATED):
            # While it waited, or was saving for that.
            self._gone[milestone].add(trial_id)
            return
        if before == Trial.ERROR:
            # It is tried again.
            self._gone[milestone].discard(trial_id)
            return
        if before != Trial.PAUSED or status != Trial.PENDING:
            return
        del self._waits[trial_id]
        self._starting[trial_id] = milestone
        record = self._records[milestone]
        ranked = sorted(
            (t for t in record if t not in self._gone[milestone]),
            key=lambda t: (_nan_last(record[t][0]), record[t][1]),
        )
        places = int(len(record) / Fraction(str(self._eta)))
        promoted = self._promoted[milestone]
        if trial_id in ranked[:places] and trial_id not in promoted:
            promoted.add(trial_id)
            return
        active = any(
            view.trial.status in (Trial.RUNNING, Trial.PENDING) and not view.stop
            for view in monitor._views.values()
            if view.trial is not None and view.trial is not trial
        )
        if active:
            monitor.broken(
                "promotion",
                f"a trial was promoted from milestone {milestone} as number "
                f"{ranked.index(trial_id) + 1 if trial_id in ranked else 0} of "
                f"{len(record)}, where {places} may be"
                + (", for the second time" if trial_id in promoted else ""),
                trial_id,
            )
        promoted.add(trial_id)


def _nan_last(score):
    return (1, 0) if score != score else (0, -score)


def checks():
    """Make the invariants of single schedulers.

    Returns:
        A list of objects with hooks of ``Monitor._tell``.
    """
    return [HyperBandStranded(), Promotions(), *duties(), *population_checks()]
