"""The virtual cluster notices what schedulers, searchers and loggers are not told."""

import contextlib
import sys
from types import SimpleNamespace

import pytest
from virtual_cluster import (
    Cluster,
    Costs,
    Experiment,
    Faults,
    FunctionTrainable,
    InvariantViolation,
    Options,
    PlannedScheduler,
    ScriptedScheduler,
    VirtualCluster,
    driver_death,
    hook_error,
    node_loss,
    task_error,
)
from virtual_cluster.explore.scenarios import loggers
from virtual_cluster.invariants.controller import FailureIsItsOwn
from virtual_cluster.workloads.searchers import RandomSearcher

from ray.tune.execution import tune_controller
from ray.tune.execution.tune_controller import TuneController
from ray.tune.logger import JsonLoggerCallback
from ray.tune.schedulers import (
    ASHAScheduler,
    FIFOScheduler,
    HyperBandScheduler,
    PopulationBasedTraining,
)
from ray.tune.search import SearchGenerator

ONE = {"training_iteration": 1}
TWO = {"training_iteration": 2}

ours = pytest.mark.skipif(
    not hasattr(TuneController, "_wind_down"), reason="Takes out what stock has not."
)


def pause(controller, trial, result):
    return "PAUSE" if result["training_iteration"] == 1 else "CONTINUE"


def notices(rule, cluster):
    with pytest.raises(InvariantViolation) as caught:
        cluster.run(max_events=500)
    assert caught.value.rule == rule


def test_notices_a_scheduler_that_is_not_told(monkeypatch):
    monkeypatch.setattr(TuneController, "_scheduler_alg", Deaf(), raising=False)
    cluster = VirtualCluster(Experiment(FIFOScheduler(), num_samples=1, stop=ONE))
    notices("scheduler-not-told", cluster)


class Deaf:
    """In a controller's class: its scheduler, less ``on_trial_complete``."""

    def __get__(self, controller, cls=None):
        return Muffled(controller.__dict__["_scheduler_alg"])

    def __set__(self, controller, value):
        controller.__dict__["_scheduler_alg"] = value


class Muffled:
    def __init__(self, scheduler):
        self._scheduler = scheduler

    def on_trial_complete(self, controller, trial, result):
        pass

    def __getattr__(self, name):
        return getattr(self._scheduler, name)


def test_notices_a_searcher_that_is_not_told(monkeypatch):
    monkeypatch.setattr(SearchGenerator, "on_trial_complete", lambda *_, **__: None)
    cluster = VirtualCluster(
        Experiment(
            FIFOScheduler(), num_samples=2, stop=ONE, search_alg=RandomSearcher()
        )
    )
    notices("searcher-not-told", cluster)


@ours
def test_notices_a_last_result_that_is_not_told(monkeypatch):
    monkeypatch.setattr(TuneController, "_mark_last_result_done", lambda *_: None)
    cluster = VirtualCluster(
        Experiment(HyperBandScheduler(max_t=9, reduction_factor=3), num_samples=9)
    )
    notices("last-result-open", cluster)


def test_notices_a_log_with_a_gap(monkeypatch):
    log = JsonLoggerCallback.log_trial_result

    def log_some(self, iteration, trial, result):
        if result["training_iteration"] != 2:
            log(self, iteration, trial, result)

    monkeypatch.setattr(JsonLoggerCallback, "log_trial_result", log_some)
    cluster = VirtualCluster(
        Experiment(
            ScriptedScheduler(pause),
            num_samples=2,
            stop={"training_iteration": 3},
            callbacks=loggers,
        )
    )
    notices("log-incomplete", cluster)


def test_notices_a_bracket_that_changes(monkeypatch):
    add = ASHAScheduler.on_trial_add

    def draw_again(self, controller, trial):
        add(self, controller, trial)
        if trial.num_failures:
            bracket = self._trial_info[trial.trial_id]
            others = [b for b in self._brackets if b is not bracket]
            self._trial_info[trial.trial_id] = others[0]

    monkeypatch.setattr(ASHAScheduler, "on_trial_add", draw_again)
    cluster = VirtualCluster(
        Experiment(
            ASHAScheduler(max_t=9, grace_period=1, reduction_factor=3, brackets=2),
            num_samples=1,
            max_failures=1,
        ),
        faults=Faults([task_error("train", trial=0, nth=1)]),
    )
    notices("bracket-changed", cluster)


@ours
@pytest.mark.parametrize("times", [0, 2])
def test_notices_what_is_not_said_once(monkeypatch, times):
    def warn(self, topic, message):
        for _ in range(times):
            tune_controller.logger.warning(message)

    monkeypatch.setattr(TuneController, "_warn_once", warn)
    resumed = []

    def decide(controller, trial, result):
        if len(resumed) < 1 and result["training_iteration"] == 1:
            resumed.append(trial)
            return "PAUSE"
        return "CONTINUE"

    cluster = VirtualCluster(
        Experiment(
            ScriptedScheduler(decide),
            num_samples=2,
            trainable=FunctionTrainable(checkpoint_every=0),
            stop=TWO,
        )
    )
    notices("pause-unsaid", cluster)


def test_actors_of_paused_trials_are_kept():
    VirtualCluster(
        Experiment(
            ScriptedScheduler(pause), num_samples=2, stop=TWO, reuse_actors=True
        ),
        Cluster(slots=2),
    ).run(max_events=100)


def test_notices_actors_that_are_not_kept(monkeypatch):
    monkeypatch.setattr(
        TuneController, "_maybe_cache_trial_actor", lambda *_, **__: False
    )
    cluster = VirtualCluster(
        Experiment(
            ScriptedScheduler(pause), num_samples=2, stop=TWO, reuse_actors=True
        ),
        Cluster(slots=2),
    )
    notices("actor-wasted", cluster)


def test_notices_a_driver_that_waits_for_a_save():
    def decide(controller, trial, result):
        if result["training_iteration"] == 1:
            controller._schedule_trial_save(trial, result=result).resolve()
        return "CONTINUE"

    cluster = VirtualCluster(
        Experiment(ScriptedScheduler(decide), num_samples=1, stop=TWO),
        Cluster(costs=Costs(save=3)),
    )
    notices("driver-waits", cluster)


def test_notices_a_trial_that_starts_again():
    def choose(controller):
        trials = controller.get_trials()
        for trial in trials:
            if trial.status in ("PENDING", "PAUSED"):
                return trial
        return trials[0] if trials else None

    def decide(controller, trial, result):
        if result["training_iteration"] == 2 and trial.trial_id.endswith("1"):
            controller._set_trial_status(cluster.trials[0], "PENDING")
        return "CONTINUE"

    cluster = VirtualCluster(
        Experiment(
            ScriptedScheduler(decide, choose),
            num_samples=2,
            stop={"training_iteration": 3},
        ),
        Cluster(slots=1),
    )
    notices("restarted", cluster)


def test_blameless_failure_after_a_real_one(monkeypatch):
    # A failure of its own that was retried excuses no later one.
    check, notes = FailureIsItsOwn(), Notes()
    trial = SimpleNamespace(trial_id="t")
    actor = SimpleNamespace(died_at=None)
    train = SimpleNamespace(method="train", trial_id="t", seq=1, actor=actor)
    check.on_submit(notes, train)
    check.on_failure(notes, train)
    check.on_status(notes, trial, "RUNNING", "ERROR")
    assert not notes.rules
    actor = SimpleNamespace(died_at=3)
    reset = SimpleNamespace(method="reset", trial_id="t", seq=5, actor=actor)
    check.on_submit(notes, reset)
    check.on_failure(notes, reset)
    check.on_status(notes, trial, "RUNNING", "ERROR")
    assert notes.rules == ["failure-not-its-own"]


class Notes:
    """Stands in for a monitor."""

    def __init__(self):
        self.rules = []

    def broken(self, rule, what, trial=None):
        self.rules.append(rule)


@ours
def test_notices_a_failure_that_is_none_of_the_trials(monkeypatch):
    from ray.tune.execution.trial_slots import TrialSlots

    monkeypatch.setattr(TrialSlots, "has_lost_idle_actor", lambda *_: False)

    def choose(controller):
        # Nobody, for as long as the nodes are there.
        nodes = controller._actor_manager and cluster.nodes
        if all(node.up for node in nodes) and cluster.monitor.number < 5:
            return None
        return FIFOScheduler().choose_trial_to_run(controller)

    cluster = VirtualCluster(
        Experiment(
            ScriptedScheduler(pause, choose), num_samples=1, reuse_actors=True, stop=TWO
        ),
        Cluster(slots=2, nodes=2),
        Faults([node_loss(3, node=0), node_loss(3, node=1)]),
    )
    notices("failure-not-its-own", cluster)


@pytest.mark.fixes("buffer-length")
def test_buffers_are_as_long_as_they_may_be():
    VirtualCluster(
        Experiment(
            FIFOScheduler(),
            num_samples=1,
            stop={"training_iteration": 9},
            buffer_length=2,
            env={"TUNE_RESULT_BUFFER_MIN_TIME_S": "5"},
        )
    ).run(max_events=100)


@pytest.mark.fixes("hook-raises")
@pytest.mark.parametrize("hook", ["on_trial_result", "on_trial_complete"])
def test_run_goes_on_after_an_error_in_a_hook(hook):
    cluster = VirtualCluster(
        Experiment(FIFOScheduler(), num_samples=3, stop=TWO),
        Cluster(slots=1),
        Faults([hook_error(hook, 2)]),
    )
    record = cluster.run(max_events=100)
    assert cluster.num_restarts == 1
    assert record.statuses() == ["TERMINATED"] * 3


@ours
def test_notices_an_error_that_names_no_hook(monkeypatch):
    monkeypatch.setattr(TuneController, "_hook", lambda *_: contextlib.nullcontext())
    cluster = VirtualCluster(
        Experiment(FIFOScheduler(), num_samples=1, stop=TWO),
        faults=Faults([hook_error("on_trial_result", 1)]),
    )
    notices("hook-unnamed", cluster)


@ours
def test_notices_results_that_are_lost_with_an_error(monkeypatch):
    monkeypatch.setattr(TuneController, "_wind_down", lambda *_: None)
    cluster = VirtualCluster(
        Experiment(FIFOScheduler(), num_samples=1, stop={"training_iteration": 4}),
        faults=Faults([hook_error("on_trial_result", 2)]),
    )
    notices("result-lost", cluster)


@pytest.mark.fixes("endless-stall")
def test_run_that_stalls_is_ended():
    parked = PlannedScheduler(acts=[], resumes=False)
    parked.on_trial_result = pause
    cluster = VirtualCluster(
        Experiment(parked, num_samples=2, stop=TWO, stall_timeout_s=20),
        options=Options(may_stall=True),
    )
    assert cluster.run(max_events=100).statuses() == ["PAUSED"] * 2


@pytest.mark.fixes("failed-fast", "scheduler-not-told")
def test_run_that_failed_fast_is_restored():
    cluster = VirtualCluster(
        Experiment(FIFOScheduler(), num_samples=2, stop=TWO, fail_fast=True),
        Cluster(slots=1),
        Faults([task_error("train", trial=0, nth=1)], resume_after=1),
    )
    record = cluster.run(max_events=100)
    assert record.statuses() == ["TERMINATED"] * 2
    assert sorted(record.iterations()) == [0, 2]


@pytest.mark.parametrize("scheduler", [FIFOScheduler, PopulationBasedTraining])
def test_moved_experiment_is_restored(scheduler):
    arguments = {}
    if scheduler is PopulationBasedTraining:
        arguments = {
            "perturbation_interval": 1,
            "hyperparam_mutations": {"x": [0.1, 0.9]},
            "log_config": False,
        }
    cluster = VirtualCluster(
        Experiment(
            lambda: scheduler(**arguments),
            num_samples=4,
            stop={"training_iteration": 6},
        ),
        Cluster(slots=2, costs=Costs(save=0.1)),
        Faults([driver_death(after=12, moved=True)]),
    )
    before = cluster.storage_path
    record = cluster.run(max_events=500)
    assert cluster.storage_path != before
    assert record.statuses() == ["TERMINATED"] * 4


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
