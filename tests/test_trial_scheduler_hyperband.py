"""HyperBand ends every run, and its brackets are what the paper says."""

import math
import pickle
import sys

import pytest
from virtual_cluster import (
    Costs,
    FunctionTrainable,
    VirtualCluster,
    actor_death,
    driver_death,
    task_error,
)
from virtual_cluster.explore.search import explore
from virtual_cluster.invariants import SAFETY
from virtual_cluster.workloads.searchers import RandomSearcher

from ray.tune.callback import Callback
from ray.tune.execution.placement_groups import PlacementGroupFactory
from ray.tune.experiment import Trial
from ray.tune.schedulers import (
    HyperBandForBOHB,
    HyperBandScheduler,
    ResourceChangingScheduler,
)

# Stock's BOHB waits for more trials already.
NEW_FOR_HYPERBAND = pytest.mark.parametrize(
    "cls",
    [
        pytest.param(HyperBandScheduler, marks=pytest.mark.fixes("ray#12536")),
        HyperBandForBOHB,
    ],
)
BOTH = pytest.mark.parametrize("cls", [HyperBandScheduler, HyperBandForBOHB])


def _cluster(scheduler, **kwargs):
    """A cluster on which only what keeps a run from its end is a violation."""
    kwargs.setdefault("quiet", True)
    kwargs.setdefault("ignore", SAFETY)
    if not isinstance(scheduler, HyperBandScheduler) or isinstance(
        scheduler, HyperBandForBOHB
    ):
        # Stock's BOHB works with no other kind of searcher.
        kwargs.setdefault("search_alg", lambda: RandomSearcher(0))
    return VirtualCluster.of(scheduler, **kwargs)


def _run(scheduler, max_events=20_000, **kwargs):
    cluster = _cluster(scheduler, **kwargs)
    try:
        return cluster.run(max_events=max_events)
    finally:
        cluster.close()


class _Searching:
    """A search algorithm that is at its end, or may give more trials."""

    def __init__(self, finished=False):
        self.finished = finished
        # What stock's BOHB tells of pauses.
        self.searcher = RandomSearcher(0)

    def is_finished(self):
        return self.finished


class _Controller:
    """What a scheduler needs of a controller; nothing runs."""

    def __init__(self, scheduler, num_trials, search_alg=None):
        self.scheduler = scheduler
        self.search_alg = search_alg or _Searching(finished=True)
        self.stopped = []
        self.trials = [
            Trial("trainable", trial_id=f"t{i}", stub=True) for i in range(num_trials)
        ]
        for trial in self.trials:
            scheduler.on_trial_add(self, trial)

    def get_trials(self):
        return self.trials

    def start(self, *trials):
        for trial in trials:
            trial.status = Trial.RUNNING

    def stop_trial(self, trial):
        self.stopped.append(trial)
        if trial.status in (Trial.PENDING, Trial.PAUSED):
            self.scheduler.on_trial_remove(self, trial)
        else:
            self.scheduler.on_trial_complete(self, trial, {})
        trial.status = Trial.TERMINATED

    def report(self, trial, time, score, pause=True):
        """Reports a result and carries out the decision, at once."""
        result = {"training_iteration": time, "score": score}
        decision = self.scheduler.on_trial_result(self, trial, result)
        if decision == "STOP":
            self.stop_trial(trial)
        elif decision == "PAUSE" and pause:
            trial.status = Trial.PAUSED
        return decision


def _scheduler(cls=HyperBandScheduler, **kwargs):
    kwargs = {"max_t": 9, "reduction_factor": 3, **kwargs}
    return cls(metric="score", mode="max", **kwargs)


def _bracket(scheduler, trial):
    return scheduler._trial_info[trial][0]


# Runs that did not end


@pytest.mark.fixes("ray#37605")
def test_two_trials_with_a_save_that_takes_some_time():
    record = _run(
        HyperBandScheduler(max_t=3, reduction_factor=3),
        num_samples=2,
        slots=2,
        costs=Costs(save=0.3),
    )
    assert record.statuses() == ["TERMINATED"] * 2
    assert record.iterations() == [3, 3]


@pytest.mark.fixes("save-in-flight")
@pytest.mark.parametrize("seed", range(3))
def test_saves_that_take_as_long_as_an_iteration(seed):
    record = _run(
        HyperBandScheduler(max_t=9, reduction_factor=3),
        num_samples=10,
        slots=4,
        seed=seed,
        costs=Costs(save=1.0, jitter=0.2),
    )
    assert record.statuses() == ["TERMINATED"] * 10
    # All 3 of the first bracket; 2 of 5; and 2 of one for 9, which is not filled.
    assert set(record.iterations()[:3]) == {9}
    assert sorted(record.iterations()[3:8]) == [3, 3, 3, 9, 9]


@pytest.mark.fixes("ray#6780")
def test_reduction_factor_at_which_milestones_collapse():
    record = _run(
        HyperBandScheduler(max_t=3, reduction_factor=1.5), num_samples=8, slots=4
    )
    assert record.statuses() == ["TERMINATED"] * 8
    assert max(record.iterations()) == 3


@pytest.mark.fixes("ray#9245")
def test_time_attr_that_skips_milestones():
    record = _run(
        HyperBandScheduler(time_attr="steps", max_t=27, reduction_factor=3),
        num_samples=12,
        slots=4,
        trainable=lambda config, i: {"score": config["x"], "steps": 7 * i},
    )
    assert record.statuses() == ["TERMINATED"] * 12
    assert max(record.iterations()) == 4  # 28 is past the end.


def _slow_winner(config, iteration):
    """The best one is late in the second rung, so that its peers wait for it."""
    return 20 if config["x"] == 16 / 17 and iteration > 1 else 1


@pytest.mark.fixes("hyperband-stranded-bracket")
@pytest.mark.parametrize("fault", [task_error, actor_death])
def test_failure_in_the_second_rung(fault):
    # Trials 8 to 16 are in the bracket with milestones 1, 3 and 9.
    record = _run(
        HyperBandScheduler(max_t=9, reduction_factor=3),
        configs=[{"x": i / 17} for i in range(17)],
        slots=17,
        faults=[fault("train", trial=16, nth=2)],
        costs=Costs(train=_slow_winner, save=0.1),
    )
    assert record.statuses().count("ERROR") == 1
    assert record.statuses().count("TERMINATED") == 16
    assert sorted(record.iterations()[8:16]) == [1] * 6 + [3, 9]


@pytest.mark.fixes("hyperband-stranded-bracket")
def test_trial_that_ends_by_itself_in_the_second_rung():
    record = _run(
        HyperBandScheduler(max_t=9, reduction_factor=3),
        configs=[{"x": i / 17} for i in range(17)],
        slots=17,
        trainable=FunctionTrainable(
            length=lambda config: 2 if config["x"] == 16 / 17 else 100
        ),
        costs=Costs(train=_slow_winner, save=0.1),
    )
    assert record.statuses() == ["TERMINATED"] * 17
    assert record.iterations()[16] == 2
    # Its peers went on without it.
    assert sorted(record.iterations()[8:16]) == [1] * 6 + [3, 9]


@pytest.mark.fixes("hyperband-last-outstanding")
@pytest.mark.parametrize("ends", ["fails", "finishes", "is stopped"])
def test_last_outstanding_trial_of_the_final_rung(ends):
    kwargs = {}
    if ends == "fails":
        kwargs["faults"] = [task_error("train", trial=2, nth=8)]
    elif ends == "finishes":
        kwargs["trainable"] = FunctionTrainable(
            length=lambda config: 8 if config["x"] == 2 else 100
        )
    cluster = _cluster(
        HyperBandScheduler(max_t=9, reduction_factor=3),
        configs=[{"x": 0}, {"x": 1}, {"x": 2}],
        slots=3,
        costs=Costs(train=lambda config, i: 1 + config["x"], save=0.1),
        **kwargs,
    )
    try:
        if ends == "is stopped":
            cluster.run_until(
                lambda: [t.status for t in cluster.trials].count(Trial.PAUSED) == 2
            )
            cluster.stop_trial(cluster.trials[2])
        record = cluster.run(max_events=500)
    finally:
        cluster.close()
    assert all(trial.is_finished() for trial in record.trials)
    assert record.iterations()[:2] == [9, 9]
    assert record.iterations()[2] < 9


@pytest.mark.fixes("hyperband-paused-by-others")
@BOTH
def test_trial_that_a_callback_pauses_is_resumed(cls):
    class Pausing(Callback):
        def on_trial_result(self, iteration, trials, trial, result, **info):
            if result["training_iteration"] == 2:
                cluster.controller.pause_trial(trial)

    cluster = _cluster(
        cls(max_t=9, reduction_factor=9.5),  # A single bracket, without halvings.
        num_samples=3,
        slots=3,
        callbacks=lambda: [Pausing()],
    )
    try:
        record = cluster.run(max_events=500)
    finally:
        cluster.close()
    assert record.iterations() == [9, 9, 9]


@pytest.mark.fixes("hyperband-paused-by-others")
@BOTH
def test_trial_that_is_paused_for_reallocation_is_resumed(cls):
    def allocate(tune_controller, trial, result, scheduler):
        if result["training_iteration"] == 2:
            return PlacementGroupFactory([{"CPU": 2}])

    record = _run(
        ResourceChangingScheduler(
            cls(max_t=9, reduction_factor=3), resources_allocation_function=allocate
        ),
        num_samples=8,
        slots=6,
    )
    assert record.statuses() == ["TERMINATED"] * 8
    assert max(record.iterations()) == 9


@pytest.mark.fixes("hyperband-restored")
@BOTH
def test_run_whose_driver_dies(cls, after=45):
    record = _run(
        cls(max_t=9, reduction_factor=3),
        num_samples=10,
        slots=2,
        faults=[driver_death(after=after)],
    )
    assert len(record.trials) == 10
    assert record.statuses() == ["TERMINATED"] * 10
    # It has gone on as if it had not stopped.
    undisturbed = _run(cls(max_t=9, reduction_factor=3), num_samples=10, slots=2)
    assert sorted(record.iterations()) == sorted(undisturbed.iterations())


# Results


@pytest.mark.fixes("hyperband-skips-results")
@BOTH
@pytest.mark.parametrize("missing", ["steps", "score"])
def test_result_without_time_attr_or_metric_is_skipped(cls, missing):
    def curve(config, i):
        result = {"score": config["x"], "steps": i}
        if i in (1, 3):  # Both are milestones.
            del result[missing]
        return result

    record = _run(
        cls(time_attr="steps", max_t=9, reduction_factor=3),
        num_samples=10,
        slots=4,
        trainable=curve,
        env={"TUNE_DISABLE_STRICT_METRIC_CHECKING": "1"},
    )
    assert record.statuses() == ["TERMINATED"] * 10
    # The results behind them count.
    assert set(record.iterations()) <= {2, 4, 9}


def test_missing_metric_is_still_an_error_by_default():
    with pytest.raises(Exception, match="did not include the specified metric"):
        _run(HyperBandScheduler(), trainable=lambda config, i: {"other": 1})


@pytest.mark.fixes("hyperband-nan")
@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("scores", [[1.0, math.nan], [-math.inf, math.nan]])
def test_nan_is_never_kept_over_a_score(mode, scores):
    scheduler = HyperBandScheduler(
        metric="score", mode=mode, max_t=2, reduction_factor=2
    )
    # The second bracket is one of two trials, of which one is kept.
    controller = _Controller(scheduler, 4)
    trials = controller.trials[2:]
    controller.start(*trials)
    for trial, score in zip(trials, scores, strict=True):
        controller.report(trial, 1, score)
    lost = trials[[math.isnan(score) for score in scores].index(True)]
    assert controller.stopped == [lost]


# Decisions are the bracket's, not of statuses


@pytest.mark.fixes("save-in-flight")
@BOTH
def test_trial_that_still_saves_is_dropped(cls):
    controller = _Controller(_scheduler(cls, max_t=3), 9)
    scheduler = controller.scheduler
    brackets = {}
    for trial in controller.trials:
        brackets.setdefault(_bracket(scheduler, trial), []).append(trial)
    (trials,) = [t for b, t in brackets.items() if b._r == 1][:1]
    assert len(trials) == 3
    controller.start(*trials)
    # The first two are told to pause, and save for it.
    assert controller.report(trials[0], 1, 5, pause=False) == "PAUSE"
    assert controller.report(trials[1], 1, 1, pause=False) == "PAUSE"
    controller.report(trials[2], 1, 3)
    assert sorted(controller.stopped, key=str) == [trials[1], trials[2]]
    bracket = _bracket(scheduler, trials[0])
    assert bracket.trials_to_unpause == {trials[0]}
    # It is not chosen before it is paused.
    assert scheduler.choose_trial_to_run(controller) is not trials[0]
    trials[0].status = Trial.PAUSED
    assert scheduler.choose_trial_to_run(controller) is trials[0]


def _with_unpaused(cls, num_trials=20):
    """A controller, and trials that have been unpaused, with others pending."""
    controller = _Controller(_scheduler(cls), num_trials)
    scheduler = controller.scheduler
    bracket = next(b for b in scheduler._hyperbands[0] if b._r == 1)
    trials = bracket.current_trials()
    assert len(trials) == 9
    controller.start(*trials)
    for score, trial in enumerate(trials):
        controller.report(trial, 1, score)
    assert bracket.trials_to_unpause == set(trials[6:8])
    assert trials[8].status == Trial.RUNNING
    return controller, bracket, trials[6:8]


@pytest.mark.fixes("hyperband-unpaused-first")
@BOTH
def test_unpaused_trials_come_before_all_that_are_pending(cls):
    controller, bracket, unpaused = _with_unpaused(cls, 40)
    scheduler = controller.scheduler
    assert any(trial.status == Trial.PENDING for trial in controller.trials)
    chosen = scheduler.choose_trial_to_run(controller)
    assert chosen in unpaused
    for _ in range(3):
        assert scheduler.choose_trial_to_run(controller) is chosen
    # It waits for its actor; the other one is next.
    chosen.status = Trial.PENDING
    assert scheduler.choose_trial_to_run(controller) in unpaused
    chosen.status = Trial.RUNNING
    assert scheduler.choose_trial_to_run(controller) in set(unpaused) - {chosen}
    assert chosen not in bracket.trials_to_unpause


@pytest.mark.fixes("hyperband-unpaused-set")
@BOTH
@pytest.mark.parametrize("how", ["removed", "ended", "failed", "retried", "started"])
def test_trial_leaves_the_set_of_unpaused_ones(cls, how):
    controller, bracket, (trial, other) = _with_unpaused(cls)
    scheduler = controller.scheduler
    if how == "removed":
        controller.stop_trial(trial)
    elif how == "ended":
        trial.status = Trial.RUNNING
        scheduler.on_trial_complete(controller, trial, {})
        trial.status = Trial.TERMINATED
    elif how == "failed":
        trial.status = Trial.RUNNING
        scheduler.on_trial_error(controller, trial)
        trial.status = Trial.ERROR
    elif how == "retried":
        trial.status = Trial.ERROR
        scheduler.on_trial_error(controller, trial)
        trial.status = Trial.PENDING
        scheduler.on_trial_add(controller, trial)
    else:
        assert scheduler.choose_trial_to_run(controller) is trial
        trial.status = Trial.RUNNING
        scheduler.choose_trial_to_run(controller)
    assert bracket.trials_to_unpause == {other}


@pytest.mark.fixes("hyperband-retry")
@BOTH
def test_retried_trial_keeps_its_bracket(cls):
    controller = _Controller(_scheduler(cls), 17)
    scheduler, trial = controller.scheduler, controller.trials[0]
    before = _bracket(scheduler, trial)
    controller.start(trial)
    trial.status = Trial.ERROR
    scheduler.on_trial_error(controller, trial)
    trial.status = Trial.PENDING
    scheduler.on_trial_add(controller, trial)
    assert _bracket(scheduler, trial) is before
    assert trial in before.current_trials()


@pytest.mark.fixes("hyperband-retry")
def test_bracket_waits_for_a_trial_that_is_retried():
    controller = _Controller(_scheduler(), 8)
    scheduler, trials = controller.scheduler, controller.trials[3:]
    controller.start(*trials)
    for trial in trials[:-1]:
        controller.report(trial, 3, 1)
    last = trials[-1]
    last.status = Trial.ERROR
    scheduler.on_trial_error(controller, last)
    last.status = Trial.PENDING
    scheduler.on_trial_add(controller, last)
    assert not controller.stopped
    last.status = Trial.RUNNING
    assert controller.report(last, 3, 100) == "CONTINUE"
    assert len(controller.stopped) == 3


@pytest.mark.fixes("hyperband-retry")
def test_trial_that_was_dropped_is_not_taken_back():
    controller = _Controller(_scheduler(), 8)
    scheduler, trials = controller.scheduler, controller.trials[3:]
    controller.start(*trials)
    for score, trial in enumerate(trials[:-1]):
        controller.report(trial, 3, score + 1)
    # Stopped, but the save that this waits for fails, and it is retried.
    last = trials[-1]
    result = {"training_iteration": 3, "score": 0}
    assert scheduler.on_trial_result(controller, last, result) == "STOP"
    last.status = Trial.ERROR
    scheduler.on_trial_error(controller, last)
    last.status = Trial.PENDING
    scheduler.on_trial_add(controller, last)
    last.status = Trial.RUNNING
    result = {"training_iteration": 1, "score": 0}
    assert scheduler.on_trial_result(controller, last, result) == "STOP"


# How many trials a bracket is for


@pytest.mark.fixes("ray#12536")
@pytest.mark.parametrize("limit", [1, 2, 4])
@pytest.mark.parametrize("searcher", [False, True])
def test_concurrency_limit_does_not_shrink_brackets(limit, searcher):
    # A band of 3, 5 and 9 trials.
    record = _run(
        HyperBandScheduler(max_t=9, reduction_factor=3),
        num_samples=17,
        slots=4,
        max_concurrent=limit,
        search_alg=(lambda: RandomSearcher(0)) if searcher else None,
    )
    iterations = record.iterations()
    assert sorted(iterations) == [1] * 6 + [3] * 5 + [9] * 6


@NEW_FOR_HYPERBAND
def test_bracket_waits_until_it_is_filled(cls):
    search_alg = _Searching()
    controller = _Controller(_scheduler(cls, max_t=3), 0, search_alg)
    scheduler = controller.scheduler
    trials = [Trial("trainable", trial_id=str(i), stub=True) for i in range(5)]
    if cls is HyperBandScheduler:
        for trial in trials[:2]:  # The bracket without halvings.
            scheduler.on_trial_add(controller, trial)
        trials = trials[2:]
    for i, trial in enumerate(trials[:2]):
        scheduler.on_trial_add(controller, trial)
        controller.start(trial)
        assert controller.report(trial, 1, i) == "PAUSE"
    assert not controller.stopped
    # No other can come.
    search_alg.finished = True
    controller.trials = trials[:2]
    for _ in range(2):
        assert scheduler.choose_trial_to_run(controller) is trials[1]
    assert controller.stopped == trials[:1]


@pytest.mark.parametrize("finished", [False, True])
@NEW_FOR_HYPERBAND
def test_bracket_that_cannot_be_filled_goes_on(cls, finished):
    search_alg = _Searching()
    controller = _Controller(_scheduler(cls, reduction_factor=9, max_t=9), 0)
    controller.search_alg = search_alg
    scheduler = controller.scheduler
    trials = [Trial("trainable", trial_id=str(i), stub=True) for i in range(6)]
    controller.trials = trials
    for trial in trials:
        scheduler.on_trial_add(controller, trial)
    bracket = next(b for b in scheduler._hyperbands[0] if b._r == 1)
    waiting = bracket.current_trials()
    assert not bracket.filled()
    for i, trial in enumerate(waiting):
        controller.start(trial)
        controller.report(trial, 1, i)
    others = [trial for trial in trials if trial not in waiting]
    for trial in others:
        controller.start(trial)
    search_alg.finished = finished
    if not finished and others:
        # There is something to do, and it may give more.
        assert scheduler.choose_trial_to_run(controller) is None
        for trial in others:
            controller.report(trial, 9, 0)
    chosen = scheduler.choose_trial_to_run(controller)
    assert chosen is waiting[-1]
    assert len(bracket.current_trials()) == 1
    # It has closed if the searcher was only silent: a new trial starts a new one.
    late = Trial("trainable", trial_id="late", stub=True)
    scheduler.on_trial_add(controller, late)
    assert late not in bracket.current_trials()


@pytest.mark.parametrize("eta", [1, 0.5, 0, -1])
def test_reduction_factor_that_reduces_nothing_is_refused(eta):
    with pytest.raises(ValueError, match="reduction_factor"):
        HyperBandScheduler(reduction_factor=eta)


@pytest.mark.fixes("hyperband-below-one-unit")
def test_max_t_below_one_unit():
    # E.g. of hours.
    record = _run(
        HyperBandScheduler(time_attr="hours", max_t=0.5),
        num_samples=2,
        trainable=lambda config, i: {"score": 1, "hours": i / 8},
    )
    assert record.iterations() == [4, 4]


# Save and restore


def _restored(cls, controller):
    """The scheduler as it comes out of its state, and other trials of the same ids."""
    state = controller.scheduler.__getstate__()
    assert b"ray.tune.experiment.trial" not in pickle.dumps(state)
    scheduler = _scheduler(cls)
    scheduler.__setstate__(pickle.loads(pickle.dumps(state)))
    trials = [
        Trial("trainable", trial_id=trial.trial_id, stub=True)
        for trial in controller.trials
    ]
    for new, old in zip(trials, controller.trials, strict=True):
        # A running trial starts over from its checkpoint.
        new.status = Trial.PENDING if old.status == Trial.RUNNING else old.status
    return scheduler, trials


@pytest.mark.fixes("hyperband-restored")
@BOTH
@pytest.mark.parametrize("paused", [True, False])
def test_state_names_trials_by_id(cls, paused, tmp_path):
    controller, bracket, unpaused = _with_unpaused(cls, 20)
    path = str(tmp_path / "scheduler")
    controller.scheduler.save(path)
    scheduler, trials = _restored(cls, controller)
    scheduler = _scheduler(cls)
    scheduler.restore(path)
    if not paused:
        # Stock's controller makes all of them pending.
        for trial in trials:
            if trial.status == Trial.PAUSED:
                trial.status = Trial.PENDING
    for trial in reversed(trials):
        scheduler.on_trial_add(controller, trial)
    controller.trials = trials
    restored = scheduler._hyperbands[0][
        controller.scheduler._hyperbands[0].index(bracket)
    ]
    ids = {trial.trial_id for trial in unpaused}
    assert {trial.trial_id for trial in restored.trials_to_unpause} == ids
    assert [t.trial_id for t in restored.current_trials()] == [
        t.trial_id for t in bracket.current_trials()
    ]
    assert scheduler.choose_trial_to_run(controller).trial_id in ids
    assert scheduler.state() == controller.scheduler.state()


@BOTH
def test_trial_that_is_missing_after_restore_does_not_hold_its_bracket(cls, caplog):
    controller = _Controller(_scheduler(cls), 17)
    bracket = next(b for b in controller.scheduler._hyperbands[0] if b._r == 1)
    ids = [trial.trial_id for trial in bracket.current_trials()]
    for trial in bracket.current_trials()[:-1]:
        controller.start(trial)
        controller.report(trial, 1, 1)
    scheduler, trials = _restored(cls, controller)
    controller.scheduler = scheduler
    controller.trials = [trial for trial in trials if trial.trial_id != ids[-1]]
    for trial in controller.trials:
        scheduler.on_trial_add(controller, trial)
    assert scheduler.choose_trial_to_run(controller).trial_id in ids
    assert f"Trial {ids[-1]} is in the restored state" in caplog.text
    assert len(controller.stopped) == 5


@pytest.mark.fixes("hyperband-restored")
@BOTH
def test_finished_trial_of_an_unknown_run_holds_no_bracket(cls):
    scheduler = _scheduler(cls)
    controller = _Controller(scheduler, 0)
    finished = Trial("trainable", trial_id="f", stub=True)
    finished.status = Trial.TERMINATED
    scheduler.on_trial_add(controller, finished)
    trial = Trial("trainable", trial_id="t", stub=True)
    scheduler.on_trial_add(controller, trial)
    assert finished not in _bracket(scheduler, trial).current_trials()


# Everything at once


@pytest.mark.hang
@pytest.mark.fixes("hyperband-sweep")
@pytest.mark.timeout(240)
def test_runs_with_brackets_of_every_size_end():
    report = explore(
        120, ["hyperband-sizes"], max_runs=80, states=False, until=lambda finding: True
    )
    messages = [finding.outcome.message for finding in report.findings.values()]
    assert not messages, messages[0]


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
