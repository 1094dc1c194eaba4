"""The invariants of populations and of reallocations notice what breaks them."""

import shutil
import sys
from types import SimpleNamespace

import pytest
from virtual_cluster import VirtualCluster
from virtual_cluster.explore import drawing
from virtual_cluster.invariants.populations import (
    Bounded,
    CheckpointsThere,
    OwnConfig,
    Reallocations,
    WithinSpace,
    _outside,
)
from virtual_cluster.workloads.populations import BOUNDS, SPACES, population, replay
from virtual_cluster.workloads.reallocations import Reallocating, Sizes, alternating
from virtual_cluster.workloads.schedulers import Act, PlannedScheduler

from ray.tune.experiment import Trial
from ray.tune.schedulers import PopulationBasedTrainingReplay


class Notes:
    """Stands in for a monitor."""

    def __init__(self, scheduler):
        self.scheduler = scheduler
        self.rules = []

    def broken(self, rule, what, trial=None):
        self.rules.append(rule)


def violation(scheduler, num_samples=2, iterations=6, **kwargs):
    record = VirtualCluster.of(
        scheduler,
        num_samples=num_samples,
        stop={"training_iteration": iterations},
        check=False,
        quiet=True,
        **kwargs,
    ).run(max_events=500)
    return record.violation and record.violation.rule


def pbt(**kwargs):
    return population(
        time_attr="training_iteration",
        perturbation_interval=2,
        quantile_fraction=0.5,
        **kwargs,
    )


def test_space_that_is_left():
    leave = lambda config: {**config, "x": 2.0}  # noqa: E731
    rule = violation(
        lambda: pbt(custom_explore_fn=leave, synch=True), ignore=("two-saves",)
    )
    assert rule == "outside-space"


@pytest.mark.parametrize(
    "space, config, outside",
    [
        ("x", {"x": 1.0}, ""),
        ("x", {"x": 1.01}, "x=1.01"),
        ("x", {}, "x is missing"),
        ("listed", {"x": 0.3, "layers": 4, "kind": "b"}, ""),
        ("listed", {"x": 0.3, "layers": 3, "kind": "b"}, "layers=3"),
        ("listed", {"x": 0.3, "layers": 4, "kind": "c"}, "kind='c'"),
        ("numbers", {"x": 0.75, "size": 8, "even": 8, "lr": 0.1}, ""),
        ("numbers", {"x": 0.7, "size": 8, "even": 8, "lr": 0.1}, "x=0.7"),
        ("numbers", {"x": 0.75, "size": 9, "even": 8, "lr": 0.1}, "size=9"),
        ("numbers", {"x": 0.75, "size": 1.5, "even": 8, "lr": 0.1}, "size=1.5"),
        ("numbers", {"x": 0.75, "size": 1, "even": 3, "lr": 0.1}, "even=3"),
        ("drawn", {"x": 5, "size": -1}, ""),
        (
            "nested",
            {"x": 0, "net": {"act": "tanh", "lr": 0.01, "opt": {"beta": 2}}},
            "net/opt/beta=2",
        ),
    ],
)
def test_what_is_outside_of_a_space(space, config, outside):
    assert _outside(config, SPACES[space], False) == outside


def test_what_is_outside_of_bounds():
    assert not _outside({"x": 1, "lr": 0.3, "size": 2}, BOUNDS["narrow"], True)
    outside = _outside({"x": 1, "lr": 0.3001, "size": 2}, BOUNDS["narrow"], True)
    assert outside == "lr=0.3001"


def test_work_without_bounds():
    trial = SimpleNamespace(trial_id="t", stopping_criterion={"training_iteration": 4})
    check, notes = Bounded(), Notes(pbt())
    for _ in range(10):
        check.on_result(notes, trial, {})
    assert not notes.rules
    check.on_result(notes, trial, {})
    assert notes.rules == ["unbounded"]
    # What a failure has undone is due again.
    check, notes = Bounded(), Notes(pbt())
    check.on_status(notes, trial, Trial.RUNNING, Trial.ERROR)
    for _ in range(20):
        check.on_result(notes, trial, {})
    assert not notes.rules


def test_checkpoint_that_is_deleted():
    def delete(cluster, event):
        if event.kind == "status" and event.detail == "PAUSED":
            (trial,) = cluster.controller.get_trials()
            shutil.rmtree(trial.checkpoint.path, ignore_errors=True)

    acts = [Act("result", 2, "pause")]
    rule = violation(lambda: PlannedScheduler(acts), 1, on_event=delete)
    assert rule == "checkpoint-gone"


def test_checkpoint_that_was_gone_before_the_restore(tmp_path):
    checkpoint = SimpleNamespace(path=str(tmp_path / "gone"))
    trial = SimpleNamespace(trial_id="t", checkpoint=checkpoint)
    controller = SimpleNamespace(get_trials=lambda: [trial])
    result = SimpleNamespace(checkpoint=checkpoint)
    restore = SimpleNamespace(method="restore", trial_id="t", args=[result])
    check, notes = CheckpointsThere(), Notes(None)
    check.driver_died(notes)
    check.on_submit(notes, restore)
    check.after_step(notes, controller)
    check.on_submit(notes, restore)
    assert not notes.rules
    checkpoint.path += "_another"
    check.on_submit(notes, restore)
    assert notes.rules == ["checkpoint-gone"]


@pytest.mark.skipif(
    not hasattr(Trial, "hold_checkpoint"), reason="Only we hold checkpoints."
)
def test_hold_that_is_left():
    def hold(cluster, event):
        (trial,) = cluster.controller.get_trials()
        if event.kind == "save":
            trial.hold_checkpoint(trial.checkpoint, holder="somebody")

    acts = [Act("result", 2, "save")]
    assert violation(lambda: PlannedScheduler(acts), 1, on_event=hold) == "hold-left"


def test_actor_with_another_config():
    notes = Notes(None)
    trial = SimpleNamespace(trial_id="t", config={"x": 1})
    OwnConfig().on_first_train(notes, trial, SimpleNamespace(config={"x": 1}))
    assert not notes.rules
    OwnConfig().on_first_train(notes, trial, SimpleNamespace(config={"x": 2}))
    assert notes.rules == ["stale-config"]


def test_policy_that_is_not_followed(monkeypatch):
    def run():
        return violation(
            lambda: replay(changes=((2, 0.2), (4, 0.7))), 1, param_space={}
        )

    if hasattr(PopulationBasedTrainingReplay, "_apply_policy"):
        assert run() is None
    monkeypatch.setattr(
        PopulationBasedTrainingReplay, "on_trial_result", lambda *_: "CONTINUE"
    )
    assert run() == "policy"


class Forgetful(Reallocating):
    def set_trial_resources(self, trial, new_resources):
        return True


def test_reallocation_that_is_forgotten():
    # One CPU, then two: the second one is never given.
    scheduler = lambda: Forgetful(  # noqa: E731
        resources_allocation_function=Sizes(2, 1)
    )
    assert violation(scheduler, 1) == "reallocation-lost"


def test_trial_that_starves():
    scheduler = Reallocating(resources_allocation_function=alternating)
    check, notes = Reallocations(), Notes(scheduler)
    scheduler.is_resuming = lambda trial: True
    one, other = (SimpleNamespace(trial_id=i) for i in "ab")
    controller = SimpleNamespace(get_trials=lambda: [one, other])
    scheduler.due["a"] = Sizes(2)(None, None, {}, None)
    check.on_status(notes, one, Trial.RUNNING, Trial.PAUSED)
    for _ in range(5):
        check.after_step(notes, controller)
        assert not notes.rules
        check.on_status(notes, other, Trial.PENDING, Trial.RUNNING)
    check.after_step(notes, controller)
    assert notes.rules == ["starved"]


def test_checks_are_on():
    # Each where the scheduler is one that it is about.
    cluster = drawing.draw(3, "resources").cluster(quiet=True, faults=(), check=False)
    cluster.run()
    kinds = {type(check) for check in cluster.monitor.checks}
    assert Reallocations in kinds
    cluster = drawing.draw(3, "pbt").cluster(quiet=True, faults=(), check=False)
    cluster.run()
    kinds = {type(check) for check in cluster.monitor.checks}
    assert {WithinSpace, Bounded, CheckpointsThere} <= kinds
    assert Reallocations not in kinds
    (check,) = (c for c in cluster.monitor.checks if type(c) is Bounded)
    assert check._counts


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
