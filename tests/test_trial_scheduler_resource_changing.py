"""Trials whose resources change: they are resumed, with every base scheduler."""

import pickle
import sys

import pytest
from virtual_cluster import (
    ClassTrainable,
    Costs,
    VirtualCluster,
    actor_death,
    driver_death,
    task_error,
)

from ray import tune
from ray.tune import PlacementGroupFactory
from ray.tune.experiment import Trial
from ray.tune.schedulers import (
    ASHAScheduler,
    FIFOScheduler,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
    ResourceChangingScheduler,
    TrialScheduler,
)
from ray.tune.schedulers.resource_changing_scheduler import (
    DistributeResources,
    DistributeResourcesToTopJob,
)

ONE = PlacementGroupFactory([{"CPU": 1}])
TWO = PlacementGroupFactory([{"CPU": 2}])


def pbt(synch):
    return PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=2,
        quantile_fraction=0.34,
        hyperparam_mutations={"x": tune.uniform(0, 1)},
        log_config=False,
        synch=synch,
    )


def asha_v2():
    from ray.tune.schedulers import ASHAv2

    return ASHAv2(max_t=9, grace_period=1, reduction_factor=3)


BASES = {
    "fifo": lambda: None,
    "asha": lambda: ASHAScheduler(max_t=9, grace_period=1, reduction_factor=3),
    "asha_v2": asha_v2,
    "median": lambda: MedianStoppingRule(grace_period=3, min_samples_required=2),
    "hyperband": lambda: HyperBandScheduler(max_t=9, reduction_factor=3),
    "pbt": lambda: pbt(False),
    "pbt_sync": lambda: pbt(True),
}


def every_second(controller, trial, result, scheduler):
    """Two CPUs in every second iteration, one in the others."""
    return TWO if result["training_iteration"] % 2 else ONE


def run(base=None, allocate=every_second, *, count=4, iterations=6, **kwargs):
    kwargs.setdefault("slots", 4)
    return VirtualCluster.of(
        lambda: ResourceChangingScheduler(base() if base else None, allocate),
        num_samples=count,
        trainable=ClassTrainable(lambda c, i: {"score": c["x"] * i}),
        stop={"training_iteration": iterations},
        resources={"CPU": 1},
        **kwargs,
    ).run(max_events=3000)


@pytest.mark.parametrize("name", list(BASES))
def test_over_every_base_scheduler(name):
    for seed in range(3):
        record = run(BASES[name], seed=seed, count=6, iterations=9)
        assert record.statuses() == ["TERMINATED"] * 6


@pytest.mark.fixes("rcs-resume")
def test_hyperband_does_not_leave_a_trial_behind():
    record = run(BASES["hyperband"], count=6, iterations=9)
    assert record.statuses() == ["TERMINATED"] * 6


@pytest.mark.parametrize("name", list(BASES))
@pytest.mark.parametrize("fault", [task_error, actor_death])
@pytest.mark.parametrize("method", ["train", "save", "restore"])
def test_failures(name, fault, method):
    for nth in (1, 2):
        record = run(
            BASES[name],
            count=5,
            iterations=9,
            faults=[fault(method, trial=1, nth=nth)],
            max_failures=1,
        )
        assert record.statuses() == ["TERMINATED"] * 5


@pytest.mark.parametrize("name", list(BASES))
def test_driver_death(name):
    for after in (6, 13, 25):
        record = run(
            BASES[name], count=4, iterations=9, faults=[driver_death(after=after)]
        )
        assert record.statuses() == ["TERMINATED"] * 4


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("fifo", marks=pytest.mark.fixes("rcs-starves")),
        pytest.param("asha", marks=pytest.mark.fixes("rcs-starves")),
        "pbt",
    ],
)
def test_paused_trial_comes_before_pending_ones(name):
    # The scheduler itself is asked: which trial runs next?
    scheduler = ResourceChangingScheduler(BASES[name](), every_second)
    scheduler.set_search_properties("score", "max")
    controller = FakeController(4)
    controller.add(scheduler, 6)
    first = controller.trials[0]
    controller.run(scheduler, first, 1, expected=TrialScheduler.PAUSE)
    assert scheduler.choose_trial_to_run(controller) is first
    assert first.placement_group_factory == TWO
    # Choosing is idempotent, and a trial that was resumed is not chosen again.
    assert scheduler.choose_trial_to_run(controller) is first
    first.status = Trial.PENDING
    assert scheduler.choose_trial_to_run(controller) is not None
    first.status = Trial.RUNNING
    assert scheduler.choose_trial_to_run(controller) in controller.trials[1:]


class FakeController:
    """Trials, and how many CPUs there are."""

    search_alg = None

    def __init__(self, cpus):
        self.trials = []
        self._cpus = cpus
        self._resource_updater = self

    def get_num_cpus(self):
        return self._cpus

    def get_num_gpus(self):
        return 0

    def get_trials(self):
        return list(self.trials)

    def get_live_trials(self):
        return {t for t in self.trials if t.status != Trial.TERMINATED}

    def add(self, scheduler, count):
        for i in range(count):
            trial = Trial("stub", stub=True, trial_id=f"t{i}", config={"x": i})
            trial.placement_group_factory = ONE
            self.trials.append(trial)
            scheduler.on_trial_add(self, trial)

    def run(self, scheduler, trial, iteration, *, expected, **result):
        trial.status = Trial.RUNNING
        result = {"training_iteration": iteration, "score": 1.0, **result}
        trial.run_metadata.last_result = result
        assert scheduler.on_trial_result(self, trial, result) == expected
        if expected == TrialScheduler.PAUSE:
            trial.status = Trial.PAUSED


@pytest.mark.fixes("rcs-two-at-once")
def test_two_reallocations_due_at_once():
    scheduler = ResourceChangingScheduler(None, every_second)
    controller = FakeController(8)
    controller.add(scheduler, 3)
    for trial in controller.trials:
        controller.run(scheduler, trial, 1, expected=TrialScheduler.PAUSE)
    scheduler.choose_trial_to_run(controller)
    assert [t.placement_group_factory for t in controller.trials] == [TWO] * 3


@pytest.mark.fixes("rcs-starves")
def test_trials_are_resumed_in_the_order_they_were_paused():
    scheduler = ResourceChangingScheduler(None, every_second)
    controller = FakeController(8)
    controller.add(scheduler, 4)
    order = [controller.trials[i] for i in (2, 0, 1)]
    for trial in order:
        controller.run(scheduler, trial, 1, expected=TrialScheduler.PAUSE)
    chosen = []
    for _ in order:
        chosen.append(scheduler.choose_trial_to_run(controller))
        chosen[-1].status = Trial.PENDING
    assert chosen == order


def test_trial_paused_by_the_base_scheduler_is_left_to_it():
    class Pauses(FIFOScheduler):
        def on_trial_result(self, tune_controller, trial, result):
            return TrialScheduler.PAUSE

        def choose_trial_to_run(self, tune_controller):
            return None

    scheduler = ResourceChangingScheduler(Pauses(), every_second)
    controller = FakeController(8)
    controller.add(scheduler, 1)
    controller.run(scheduler, controller.trials[0], 1, expected=TrialScheduler.PAUSE)
    assert scheduler.choose_trial_to_run(controller) is None


@pytest.mark.fixes("rcs-base-pauses")
def test_reallocation_over_a_base_scheduler_that_pauses_every_time():
    class Pauses(FIFOScheduler):
        def on_trial_result(self, tune_controller, trial, result):
            return TrialScheduler.PAUSE

    scheduler = ResourceChangingScheduler(Pauses(), every_second)
    controller = FakeController(8)
    controller.add(scheduler, 1)
    (trial,) = controller.trials
    controller.run(scheduler, trial, 1, expected=TrialScheduler.PAUSE)
    scheduler.choose_trial_to_run(controller)
    assert trial.placement_group_factory == TWO


@pytest.mark.fixes("rcs-error")
def test_reallocation_goes_when_the_trial_fails():
    scheduler = ResourceChangingScheduler(None, every_second)
    controller = FakeController(8)
    controller.add(scheduler, 1)
    (trial,) = controller.trials
    controller.run(scheduler, trial, 1, expected=TrialScheduler.PAUSE)
    # It fails in the save for its pause: its new actor has the resources it had.
    scheduler.on_trial_error(controller, trial)
    trial.status = Trial.PENDING
    scheduler.on_trial_add(controller, trial)
    scheduler.choose_trial_to_run(controller)
    assert trial.placement_group_factory == ONE


@pytest.mark.fixes("rcs-paused-count")
def test_paused_trials_hold_nothing():
    scheduler = ResourceChangingScheduler(None, DistributeResources())
    controller = FakeController(4)
    controller.add(scheduler, 6)
    for trial, status in zip(
        controller.trials[1:],
        [Trial.PAUSED, Trial.PAUSED, Trial.ERROR, Trial.PAUSED, Trial.PAUSED],
        strict=True,
    ):
        trial.status = status
    controller.run(scheduler, controller.trials[0], 2, expected=TrialScheduler.PAUSE)
    scheduler.choose_trial_to_run(controller)
    assert controller.trials[0].placement_group_factory.required_resources["CPU"] == 4


@pytest.mark.fixes("rcs-promised")
def test_what_is_promised_is_not_given_away_twice():
    def greedy(controller, trial, result, scheduler):
        return allocate(controller, trial, result, scheduler)

    allocate = DistributeResourcesToTopJob(metric="score", mode="max")
    scheduler = ResourceChangingScheduler(None, greedy)
    controller = FakeController(4)
    controller.add(scheduler, 2)
    first, second = controller.trials
    second.status = Trial.RUNNING
    controller.run(scheduler, first, 2, expected=TrialScheduler.PAUSE)
    first.status = Trial.RUNNING  # it is still being saved
    controller.run(scheduler, second, 2, expected=TrialScheduler.CONTINUE, score=2.0)


@pytest.mark.parametrize(
    "mode", ["min", pytest.param("max", marks=pytest.mark.fixes("rcs-top-job"))]
)
def test_trial_without_a_score_is_not_the_top_job(mode):
    for score in ({}, {"score": float("nan")}):
        allocate = DistributeResourcesToTopJob(metric="score", mode=mode)
        scheduler = ResourceChangingScheduler(None, allocate)
        controller = FakeController(4)
        controller.add(scheduler, 2)
        for trial in controller.trials:
            trial.status = Trial.RUNNING
        controller.trials[1].run_metadata.last_result = {"filler": 1, **score}
        controller.run(
            scheduler, controller.trials[0], 2, expected=TrialScheduler.PAUSE
        )


@pytest.mark.fixes("rcs-dict")
def test_resources_as_a_dict():
    scheduler = ResourceChangingScheduler(
        None, lambda controller, trial, result, scheduler: {"CPU": 2}
    )
    controller = FakeController(4)
    controller.add(scheduler, 1)
    (trial,) = controller.trials
    controller.run(scheduler, trial, 1, expected=TrialScheduler.PAUSE)
    assert scheduler.choose_trial_to_run(controller) is trial
    assert trial.placement_group_factory.required_resources["CPU"] == 2
    # It has them.
    controller.run(scheduler, trial, 2, expected=TrialScheduler.CONTINUE)


@pytest.mark.fixes("rcs-method")
def test_allocation_by_a_bound_method():
    class Allocator:
        def allocate(self, controller, trial, result, scheduler):
            return TWO

    scheduler = ResourceChangingScheduler(None, Allocator().allocate)
    controller = FakeController(4)
    controller.add(scheduler, 1)
    controller.run(scheduler, controller.trials[0], 1, expected=TrialScheduler.PAUSE)


@pytest.mark.fixes("rcs-hooks")
def test_passes_everything_through():
    class Base(FIFOScheduler):
        _supports_buffered_results = False
        metric = "from a property"

        def set_search_properties(self, metric, mode):  # as custom ones of old
            self.properties = metric, mode
            return True

    base = Base()
    scheduler = ResourceChangingScheduler(base, None)
    assert not scheduler.supports_buffered_results
    assert scheduler.metric == "from a property"
    assert scheduler.set_search_properties("score", "max", total_num_samples=3)
    assert base.properties == ("score", "max")
    assert base.debug_string() in scheduler.debug_string()


def test_hooks_of_the_base_scheduler_are_called():
    calls = []

    class Base(FIFOScheduler):
        def on_trial_error(self, tune_controller, trial):
            calls.append("error")

        def on_trial_remove(self, tune_controller, trial):
            calls.append("remove")

        def on_trial_complete(self, tune_controller, trial, result):
            calls.append("complete")

    scheduler = ResourceChangingScheduler(Base(), None)
    controller = FakeController(4)
    controller.add(scheduler, 1)
    (trial,) = controller.trials
    scheduler.on_trial_error(controller, trial)
    scheduler.on_trial_remove(controller, trial)
    scheduler.on_trial_complete(controller, trial, {})
    assert calls == ["error", "remove", "complete"]


@pytest.mark.fixes("rcs-restore")
def test_save_and_restore(tmp_path):
    def make():
        # Neither function nor trials can be pickled.
        return ResourceChangingScheduler(
            ASHAScheduler(max_t=9), lambda *args: every_second(*args)
        )

    scheduler = make()
    scheduler.set_search_properties("score", "max")
    controller = FakeController(8)
    controller.add(scheduler, 2)
    for trial in controller.trials:
        controller.run(scheduler, trial, 1, expected=TrialScheduler.PAUSE)
    path = str(tmp_path / "state")
    scheduler.save(path)
    state = pickle.loads((tmp_path / "state").read_bytes())
    assert set(state["_trials_to_reallocate"]) == {"t0", "t1"}

    restored = make()
    restored.restore(path)
    others = FakeController(8)
    others.add(restored, 2)
    for trial in others.trials:
        trial.status = Trial.PAUSED
    assert restored.choose_trial_to_run(others) is others.trials[0]
    assert [t.placement_group_factory for t in others.trials] == [TWO, TWO]


def test_distribute_resources_over_a_virtual_cluster():
    for seed in range(4):
        record = run(
            None,
            DistributeResources(),
            count=3,
            slots=7,
            seed=seed,
            costs=Costs(train=(0.5, 2.0), save=(0.1, 3.0)),
        )
        assert record.iterations() == [6] * 3
        assert any(
            t.placement_group_factory.required_resources["CPU"] > 1
            for t in record.trials
        )


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
