"""A small stand-in for Tune's controller, and a referee who knows ASHAv2's rules.

The referee reads the rules as they stand and sorts and scans for each of them.
"""

import math
import random
import sys
from collections import Counter
from fractions import Fraction

from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler
from ray.tune.schedulers.asha_v2 import ASHAv2

CONTINUE, PAUSE, STOP = (
    TrialScheduler.CONTINUE,
    TrialScheduler.PAUSE,
    TrialScheduler.STOP,
)


def floor_of(number, eta):
    """``floor(number / eta)``, with `eta` as it was written, not as a float."""
    return math.floor(number / Fraction(str(eta)))


class Search:
    """Gives `total` trials, of which at most `max_live` live at a time."""

    learns_from_pauses = None

    def __init__(self, total, max_live=None, endless=False):
        self.total_samples = sys.maxsize if endless else total
        self.left = total
        self.max_live = max_live
        self.live = set()
        self.completed = {}

    def is_finished(self):
        return self.left <= 0

    def next_trial(self):
        if self.left <= 0 or (self.max_live and len(self.live) >= self.max_live):
            return None
        self.left -= 1
        trial = Trial("__fake", stub=True)
        self.live.add(trial.trial_id)
        return trial

    def on_trial_complete(self, trial_id):
        assert trial_id in self.live
        self.live.discard(trial_id)
        self.completed[trial_id] = self.completed.get(trial_id, 0) + 1


class Controller:
    """Runs trials like the real one, one result at a time, without any actors.

    Args:
        scheduler: The scheduler under test.
        curve: ``f(i, t)``, the metric of the i-th trial at time t.
        total: The number of trials.
        slots: How many run at a time.
        fails: ``{(i, t): n}``: the i-th trial fails the first n times that it is
            about to report t.
        retries: How often a failed trial is tried again.
        ends: ``{i: t}``: the i-th trial completes on its own at t.
        checkpoints: Whether a paused trial goes on where it was.
        prefetch: How many trials are pending at most.
        seed: Which of the running trials reports next; None for in turn.
    """

    def __init__(
        self,
        scheduler,
        curve=lambda i, t: i,
        total=9,
        slots=1,
        fails=None,
        retries=0,
        ends=None,
        checkpoints=True,
        prefetch=200,
        seed=None,
        search=None,
        step=1,
    ):
        self.scheduler = scheduler
        self.curve = curve
        self.search_alg = search or Search(total)
        self.slots = slots
        self.fails = dict(fails or {})
        self.retries = retries
        self.ends = ends or {}
        self.checkpoints = checkpoints
        self.prefetch = prefetch
        self.random = None if seed is None else random.Random(seed)
        self.step = step
        self.trials = []
        self.time = {}
        self.saved = {}
        self.failures = Counter()
        self.starts = Counter()
        self.num_results = 0
        self.order = []  # (i, t) as reported
        self.decisions = []  # (i, t, decision)
        self.stops = Counter()
        self.running = []
        self.referee = None

    def watch(self):
        """Has a referee look at everything that the scheduler decides."""
        ladder = self.scheduler._ladder
        first = ladder.brackets[0].rungs
        self.referee = Referee(
            self,
            lambda trial: ladder.bracket_of(trial.trial_id),
            first[0].milestone if first else ladder.max_t,
            ladder.max_t,
            first[0].reduction_factor if first else 2,
        )
        return self

    def get_trials(self):
        return self.trials

    def index(self, trial):
        return self.trials.index(trial)

    def stop_trial(self, trial):
        self.stops[trial.trial_id] += 1
        if trial.is_finished():
            return
        if trial.status == Trial.RUNNING:
            self.scheduler.on_trial_complete(
                self, trial, trial.run_metadata.last_result
            )
            self.running.remove(trial)
        else:
            if self.referee:
                self.referee.stopped_while_paused(trial)
            self.scheduler.on_trial_remove(self, trial)
        self.search_alg.on_trial_complete(trial.trial_id)
        trial.set_status(Trial.TERMINATED)

    def pause_trial(self, trial):
        trial.set_status(Trial.PAUSED)
        if trial in self.running:
            self.running.remove(trial)
        self.saved[trial.trial_id] = self.time.get(trial.trial_id, 0)

    def fill(self):
        has_new = False
        while sum(t.status == Trial.PENDING for t in self.trials) < self.prefetch:
            trial = self.search_alg.next_trial()
            if trial is None:
                break
            self.trials.append(trial)
            self.scheduler.on_trial_add(self, trial)
            has_new = True
        return has_new

    def start(self, trial):
        assert trial.status in (Trial.PENDING, Trial.PAUSED), trial.status
        was_paused = trial.status == Trial.PAUSED
        trial.set_status(Trial.RUNNING)
        self.starts[trial.trial_id] += 1
        saved = self.saved.get(trial.trial_id, 0) if self.checkpoints else 0
        self.time[trial.trial_id] = saved
        self.running.append(trial)
        if self.referee:
            self.referee.started(trial, was_paused)

    def start_all(self):
        while len(self.running) < self.slots:
            trial = self.scheduler.choose_trial_to_run(self)
            assert self.scheduler.choose_trial_to_run(self) is trial, "idempotent"
            if self.referee:
                self.referee.settle()
            if trial is None:
                assert not self.referee or self.referee.expected_next() is None
                break
            if self.referee:
                self.referee.chosen(trial)
            self.start(trial)

    def report(self, trial, t=None, value=None):
        """Has a running trial report; returns the decision."""
        i = self.index(trial)
        t = self.time[trial.trial_id] + self.step if t is None else t
        if self.fails.get((i, t), 0) > 0:
            self.fails[(i, t)] -= 1
            return self.fail(trial)
        self.time[trial.trial_id] = t
        value = self.curve(i, t) if value is None else value
        result = {"training_iteration": t, "acc": value}
        trial.run_metadata.last_result = result
        self.num_results += 1
        self.order.append((i, t))
        if self.referee:
            sign = -1 if self.scheduler._mode == "min" else 1
            score = None if value is None else sign * value
            self.referee.reported(trial, t, score)
        if t >= self.ends.get(i, math.inf):
            if self.referee:
                self.referee.ended_on_its_own(trial, score)
            self.stop_trial(trial)
            return "COMPLETE"
        decision = self.scheduler.on_trial_result(self, trial, dict(result))
        self.decisions.append((i, t, decision))
        if self.referee:
            self.referee.decided(trial, t, decision)
        if decision == PAUSE:
            self.pause_trial(trial)
        elif decision == STOP:
            self.stop_trial(trial)
        if self.referee:
            self.referee.settle()
        return decision

    def fail(self, trial):
        self.running.remove(trial)
        self.failures[trial.trial_id] += 1
        if self.failures[trial.trial_id] <= self.retries:
            trial.set_status(Trial.ERROR)
            self.scheduler.on_trial_error(self, trial)
            trial.set_status(Trial.PENDING)
            self.scheduler.on_trial_add(self, trial)
            return "RETRY"
        self.scheduler.on_trial_error(self, trial)
        self.search_alg.on_trial_complete(trial.trial_id)
        trial.set_status(Trial.ERROR)
        if self.referee:
            self.referee.failed_for_good(trial)
        return "ERROR"

    def run(self, max_results=100_000):
        """Runs to the end; a run that neither ends nor goes on fails the test."""
        while True:
            self.fill()
            self.start_all()
            if not self.running:
                if self.fill():
                    continue
                break
            k = self.random.randrange(len(self.running)) if self.random else 0
            self.report(self.running[k])
            assert self.num_results < max_results
        left = [(self.index(t), t.status) for t in self.trials if not t.is_finished()]
        assert not left, f"{left}\n{self.scheduler.debug_string()}"
        assert self.search_alg.is_finished()
        assert self.search_alg.completed == {t.trial_id: 1 for t in self.trials}
        check_sums(self.scheduler.debug_string(), len(self.trials))
        if self.referee:
            self.referee.at_the_end()
        return self

    def reached(self):
        return [self.time.get(t.trial_id, 0) for t in self.trials]

    def statuses(self):
        return [t.status for t in self.trials]


def check_sums(text, num_trials):
    """The numbers that `debug_string` shows have to add up."""
    total, parts = text.splitlines()[0].split("; ")[1].split(" = ")
    assert int(total.split()[0]) == num_trials
    assert sum(int(part.split()[0]) for part in parts.split(" + ")) == num_trials
    in_brackets = 0
    for line in text.splitlines()[1:]:
        if line.startswith("Bracket"):
            in_brackets += int(line.split(": ")[1].split()[0])
        else:
            recorded, parts = line.split(": ")[1].split("; ")[0].split(" = ")
            total = sum(int(part.split()[0]) for part in parts.split(" + "))
            assert total == int(recorded.split()[0]), line
    assert in_brackets == num_trials


def asha(**kwargs):
    kwargs = {
        "metric": "acc",
        "mode": "max",
        "max_t": 81,
        "reduction_factor": 3,
    } | kwargs
    reserve = kwargs.pop("reserve", None)
    scheduler = ASHAv2(**kwargs)
    if reserve is not None:
        scheduler._ladder.reserve = reserve
    return scheduler


class Referee:
    """Sees to it that a scheduler keeps to the rules.

    Args:
        controller: The controller that runs the trials.
        bracket_of: ``f(trial)``, the number of the bracket that a trial is in.
    """

    def __init__(self, controller, bracket_of, grace_period, max_t, eta):
        self.controller = controller
        self.bracket_of = bracket_of
        self.max_t = max_t
        self.eta = eta
        self.grace_period = grace_period
        self.order = {}  # (trial, milestone) -> when it was recorded
        self.records = {}  # (bracket, milestone) -> {trial: score}, in order
        self.promoted = {}  # (bracket, milestone) -> trials
        self.retired = set()  # (trial, milestone): was stopped or failed while waiting
        self.finished = set()  # reached max_t
        self.complete_at = -math.inf
        self.on_its_own = set()
        self.stopped = []
        self.checks = Counter()

    def milestones(self, trial):
        at, k = [], self.bracket_of(trial)
        while self.grace_period * self.eta**k < self.max_t:
            at.append(self.grace_period * self.eta**k)
            k += 1
        return at

    def rung(self, trial, milestone):
        return self.records.setdefault((self.bracket_of(trial), milestone), {})

    def gone_on(self, trial, milestone):
        return self.promoted.setdefault((self.bracket_of(trial), milestone), set())

    def level(self, trial):
        """The highest milestone at which the trial is recorded; 0 if at none."""
        return max(
            (m for m in self.milestones(trial) if trial in self.rung(trial, m)),
            default=0,
        )

    def reported(self, trial, time, score):
        is_new = False
        for milestone in self.milestones(trial):
            rung = self.rung(trial, milestone)
            if time >= milestone and trial not in rung:
                level = self.level(trial)
                if level:
                    self.gone_on(trial, level).add(trial)
                rung[trial] = score
                self.order[trial, milestone] = len(self.order)
                is_new = True
        if time >= self.max_t:
            self.finished.add(trial)
            if not is_nan(score):
                self.complete_at = math.inf
            level = self.level(trial)
            if level:
                self.gone_on(trial, level).add(trial)
        return is_new

    def ended_on_its_own(self, trial, score):
        self.on_its_own.add(trial)
        if not is_nan(score) and self.level(trial):
            self.complete_at = max(self.complete_at, self.level(trial))

    def waits(self, trial):
        """Whether it stands at a milestone, with a number, and was not promoted."""
        level = self.level(trial)
        return (
            level > 0
            and trial not in self.gone_on(trial, level)
            and not is_nan(self.rung(trial, level)[trial])
            and not trial.is_finished()
        )

    def ranking(self, trial, milestone):
        rung = self.rung(trial, milestone)
        order = list(rung)
        candidates = [
            t
            for t in order
            if not is_nan(rung[t]) and (t, milestone) not in self.retired
        ]
        return sorted(candidates, key=lambda t: (-rung[t], order.index(t)))

    def is_promotable(self, trial):
        level = self.level(trial)
        places = floor_of(len(self.rung(trial, level)), self.eta) if level else 0
        return self.waits(trial) and trial in self.ranking(trial, level)[:places]

    def paused(self, reporting=None):
        return [
            t
            for t in self.controller.trials
            if (t.status == Trial.PAUSED or t is reporting) and self.waits(t)
        ]

    def sort_key(self, trial):
        level = self.level(trial)
        rank = self.ranking(trial, level).index(trial)
        return level, self.bracket_of(trial), rank

    def next_by_rule(self, deferred, reporting=None):
        """What the rules promote next among those that are paused."""
        promotable = [t for t in self.paused(reporting) if self.is_promotable(t)]
        if not promotable:
            return None
        pick = min if deferred else max
        level = pick(self.level(t) for t in promotable)
        return min((t for t in promotable if self.level(t) == level), key=self.sort_key)

    def fallback(self, reporting=None):
        paused = self.paused(reporting)
        busy = any(
            t.status in (Trial.RUNNING, Trial.PENDING)
            for t in self.controller.trials
            if t is not reporting
        )
        if busy or not paused:
            return None
        level = max(map(self.level, paused))
        if level < self.complete_at and self.controller.search_alg.is_finished():
            return None
        best = [t for t in paused if self.level(t) == level]
        return max(best, key=lambda t: (self.rung(t, level)[t], -self.order[t, level]))

    def expected_next(self, reporting=None):
        """What would run next in a free slot: a trial, "new", or None."""
        deferred = self.controller.scheduler._is_deferred()
        new = any(t.status == Trial.PENDING for t in self.controller.trials) or (
            # A reporting trial cannot know whether the searcher has one.
            reporting and not self.controller.search_alg.is_finished()
        )
        if deferred and new:
            return "new"
        trial = self.next_by_rule(deferred, reporting)
        if trial is None and new:
            return "new"
        return trial or self.fallback(reporting)

    def decided(self, trial, time, decision):
        level = self.level(trial)
        is_due = level and time >= level and trial not in self.gone_on(trial, level)
        if time >= self.max_t:
            stops = self.controller.scheduler._stop_last_trials
            assert decision == (STOP if stops else CONTINUE)
            self.checks["max_t"] += 1
        elif not is_due:
            # Or it has fallen behind for good on its way back to its rung.
            assert decision == CONTINUE or decision == STOP and self.is_lost(trial)
        elif decision == STOP:
            assert self.is_lost(trial)
            self.retired.add((trial, level))
            self.checks["stop"] += 1
        else:
            runs_next = self.expected_next(reporting=trial) is trial
            assert decision == (CONTINUE if runs_next else PAUSE)
            if decision == CONTINUE:
                self.gone_on(trial, level).add(trial)
            self.checks[decision] += 1

    def chosen(self, trial):
        expected = self.expected_next()
        if expected == "new":
            assert trial.status == Trial.PENDING
        else:
            assert trial is expected, (trial, expected)

    def started(self, trial, was_paused):
        if was_paused:
            self.gone_on(trial, self.level(trial)).add(trial)
            self.checks["resume"] += 1

    def stopped_while_paused(self, trial):
        """By the scheduler, in a hook or when asked for a choice."""
        self.stopped.append(trial)

    def settle(self):
        """Judges the stops when all that led to them is done."""
        for trial in self.stopped:
            assert self.is_lost(trial), self.controller.scheduler.debug_string()
        for trial in self.stopped:
            self.retired.add((trial, self.level(trial)))
            self.checks["stop paused"] += 1
        self.stopped = []

    def failed_for_good(self, trial):
        level = self.level(trial)
        if level and trial not in self.gone_on(trial, level):
            self.retired.add((trial, level))

    def num_below(self, trial, level):
        """How many that have been added may still come to a rung."""
        mates = [
            t
            for t in self.controller.trials
            if self.bracket_of(t) == self.bracket_of(trial)
            and self.level(t) < level
            and not t.is_finished()
        ]
        return sum(t.status != Trial.PAUSED or self.waits(t) for t in mates)

    def is_lost(self, trial):
        """Whether nothing can come of a trial that waits."""
        level = self.level(trial)
        rung, ranking = self.rung(trial, level), self.ranking(trial, level)
        nan = is_nan(rung[trial])
        search = self.controller.search_alg
        if search.is_finished():
            remaining = 0
        elif 0 < search.total_samples < sys.maxsize:
            remaining = search.left
        else:
            # A searcher may wait for results that only numbers can bring.
            return nan and not any(
                t.status in (Trial.RUNNING, Trial.PENDING)
                for t in self.controller.trials
            )
        most = len(rung) + self.num_below(trial, level) + remaining
        limit = floor_of(most, self.eta) + self.reserve(level)
        return nan or ranking.index(trial) >= limit

    def reserve(self, level):
        if level < self.complete_at:
            return 0
        reserve = self.controller.scheduler._ladder.reserve
        return min(1, reserve) if level == self.complete_at else reserve

    def at_the_end(self):
        if self.complete_at == math.inf:
            return
        # Nobody reached max_t: there must be a good reason for each.
        for trial in self.controller.trials:
            level = self.level(trial)
            assert (
                trial.status == Trial.ERROR
                or trial in self.on_its_own
                or level == 0
                or is_nan(self.rung(trial, level)[trial])
                or (trial, level) in self.retired
            ), trial


def is_nan(score):
    return score is None or math.isnan(score)
