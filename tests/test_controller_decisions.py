"""Decisions have an order, and belong to the actor that they were made for."""

import itertools

import pytest
from virtual_cluster import (
    ClassTrainable,
    Cluster,
    Costs,
    Experiment,
    FunctionTrainable,
    ScriptedScheduler,
    VirtualCluster,
    saturating,
    task_error,
)

from ray.tune import CheckpointConfig

_ORDER = ["NOOP", "CONTINUE", "PAUSE", "STOP"]
_OUTCOME = {
    "NOOP": "RUNNING",
    "CONTINUE": "RUNNING",
    "PAUSE": "PAUSED",
    "STOP": "TERMINATED",
}


def _stronger(first, second):
    return _ORDER[max(_ORDER.index(first), _ORDER.index(second))]


def _running_trial(decide, choose=lambda controller: None, **kwargs):
    """A cluster whose first trial runs, with its first iteration in flight."""
    kwargs = {"num_samples": 1, "slots": 1, "costs": Costs(save=0.5), **kwargs}
    cluster = VirtualCluster.of(ScriptedScheduler(decide, choose), **kwargs).start()
    cluster.run_until(lambda: cluster.trials and cluster.trials[0].status == "RUNNING")
    return cluster, cluster.trials[0]


def _saved(cluster, trial):
    return lambda: trial.has_checkpoint() and not trial.is_saving


def _pairs(wrong_on_stock):
    """All pairs of decisions; those in ``wrong_on_stock`` go wrong on stock."""
    return [
        pytest.param(
            *pair,
            marks=[pytest.mark.fixes("decision-order")]
            if pair in wrong_on_stock
            else [],
        )
        for pair in itertools.product(_ORDER, repeat=2)
    ]


@pytest.mark.parametrize(
    "cached, decision", _pairs(wrong_on_stock=[("STOP", "PAUSE"), ("NOOP", "CONTINUE")])
)
def test_stronger_of_cached_and_new_decision_wins(cached, decision):
    # A save is in flight behind the first iteration, and a decision waits for it.
    # The seed is one with which stock handles the two in order. The invariants would
    # object to decisions that nobody made.
    cluster, trial = _running_trial(lambda *_: decision, seed=1, check=False)
    cluster.call(cluster.controller._schedule_trial_save, trial)
    cluster.controller._cached_trial_decisions[trial.trial_id] = cached
    cluster.run_until(lambda: trial.run_metadata.last_result)
    assert cluster.controller._cached_trial_decisions == {
        trial.trial_id: _stronger(cached, decision)
    }
    cluster.run_until(_saved(cluster, trial))
    assert trial.status == _OUTCOME[_stronger(cached, decision)]
    if trial.status == "RUNNING" and _stronger(cached, decision) != "NOOP":
        assert cluster.in_flight(trial) == {"train": 1}


@pytest.mark.parametrize("first, second", _pairs(wrong_on_stock=[("NOOP", "CONTINUE")]))
def test_stronger_of_two_queued_decisions_wins(first, second):
    decisions = iter([first, second, "CONTINUE", "CONTINUE"])
    cluster, trial = _running_trial(lambda *_: next(decisions), check=False)
    # As two results of one batch.
    cluster.controller._queue_decision(trial, next(decisions))
    cluster.run_until(lambda: trial.run_metadata.last_result)
    expected = _stronger(first, second)
    if expected == "PAUSE":
        cluster.run_until(_saved(cluster, trial))
    assert trial.status == _OUTCOME[expected]
    if expected == "CONTINUE":
        assert cluster.in_flight(trial) == {"train": 1}
    assert cluster.controller._queued_trial_decisions == {}


@pytest.mark.parametrize("decision", ["NOOP", "CONTINUE"])
def test_cached_pause_survives_a_weaker_decision(decision):
    # This holds on stock, too.
    cluster, trial = _running_trial(lambda *_: decision, seed=1)
    cluster.pause_trial(trial)
    cluster.run_until(lambda: trial.status == "PAUSED")
    assert trial.run_metadata.last_result["training_iteration"] == 1
    assert cluster.in_flight(trial) == {}


@pytest.mark.fixes("decision-order")
@pytest.mark.parametrize("should_checkpoint", [True, False])
def test_outside_pause_does_not_replace_a_cached_stop(should_checkpoint):
    # The checkpoint of the result that stops the trial is being saved.
    cluster, trial = _running_trial(
        lambda *_: "STOP", checkpoint_config=CheckpointConfig(checkpoint_frequency=1)
    )
    cluster.run_until(lambda: trial.is_saving)
    assert cluster.controller._cached_trial_decisions == {trial.trial_id: "STOP"}
    cluster.pause_trial(trial, should_checkpoint=should_checkpoint)
    cluster.run_until(trial.is_finished)
    assert trial.status == "TERMINATED"
    assert trial.has_checkpoint()
    assert cluster.controller._cached_trial_decisions == {}


@pytest.mark.fixes("ray#57906")
def test_stop_of_a_saving_trial_is_not_left_behind():
    cluster, trial = _running_trial(
        lambda *_: "CONTINUE",
        checkpoint_config=CheckpointConfig(checkpoint_frequency=1),
    )
    cluster.run_until(lambda: trial.is_saving)
    cluster.stop_trial(trial)
    assert trial.status == "TERMINATED"
    assert cluster.controller._cached_trial_decisions == {}


@pytest.mark.fixes("ray#57906")
def test_paused_trial_does_not_wake_up_to_a_stale_stop():
    # Pausing without a checkpoint while a save is in flight ended the trial at
    # its next save.
    chosen = []
    cluster, trial = _running_trial(
        lambda *_: "CONTINUE",
        choose=lambda controller: chosen[0] if chosen else None,
        checkpoint_config=CheckpointConfig(checkpoint_frequency=1),
        stop={"training_iteration": 5},
    )
    cluster.run_until(lambda: trial.is_saving)
    cluster.pause_trial(trial, should_checkpoint=False)
    assert trial.status == "PAUSED"
    chosen.append(trial)
    cluster.run_until(lambda: trial.status == "RUNNING")
    chosen.clear()
    record = cluster.run()
    assert record.statuses() == ["TERMINATED"]
    assert trial.run_metadata.last_result["training_iteration"] == 5


@pytest.mark.fixes("queued-decision-survives-recovery")
def test_recovery_drops_queued_decisions():
    cluster, trial = _running_trial(
        lambda *_: "CONTINUE",
        faults=[task_error("train", trial=0, nth=1)],
        max_failures=1,
        stop={"training_iteration": 3},
    )
    cluster.controller._queued_trial_decisions[trial.trial_id] = "STOP"
    cluster.run_until(lambda: trial.num_failures == 1)
    assert cluster.controller._queued_trial_decisions == {}
    cluster.run()
    assert trial.run_metadata.last_result["training_iteration"] == 3


@pytest.mark.fixes("decisions-in-experiment-state")
def test_decisions_are_not_state_of_the_experiment():
    cluster, trial = _running_trial(
        lambda *_: "STOP", checkpoint_config=CheckpointConfig(checkpoint_frequency=1)
    )
    cluster.run_until(lambda: trial.is_saving)
    state = cluster.controller.__getstate__()
    assert cluster.controller._cached_trial_decisions
    assert not [key for key in state if "trial_decisions" in key]


def test_decisions_in_the_state_of_an_older_release_are_left_out():
    cluster, trial = _running_trial(lambda *_: "CONTINUE")
    state = {
        **cluster.controller.__getstate__(),
        "_cached_trial_decisions": {trial.trial_id: "STOP"},
        "_queued_trial_decisions": {trial.trial_id: "STOP"},
    }
    mappings = (
        cluster.controller._cached_trial_decisions,
        cluster.controller._queued_trial_decisions,
    )
    cluster.call(cluster.controller.__setstate__, state)
    assert cluster.controller._cached_trial_decisions is mappings[0]
    assert mappings == ({}, {})


@pytest.mark.fixes("two-trains-after-buffered-checkpoint")
def test_buffered_results_wait_for_a_save_that_one_of_them_asks_for():
    # The second result of a batch has a checkpoint.
    record = VirtualCluster(
        Experiment(
            ScriptedScheduler(),
            num_samples=1,
            trainable=FunctionTrainable(saturating, checkpoint_every=2),
            buffer_length=4,
            env={"TUNE_RESULT_BUFFER_MIN_TIME_S": "4"},
            stop={"training_iteration": 6},
        ),
        Cluster(slots=1, costs=Costs(train=0.01, save=0.5)),
    ).run(max_events=100)
    assert record.statuses() == ["TERMINATED"]


@pytest.mark.fixes("idle-after-none")
def test_scheduler_that_returns_no_decision_does_not_stall_its_trial():
    record = VirtualCluster(
        Experiment(
            ScriptedScheduler(lambda *_: None),
            num_samples=2,
            trainable=ClassTrainable(saturating),
            stop={"training_iteration": 3},
        ),
        Cluster(slots=1),
    ).run(max_events=100)
    assert record.statuses() == ["TERMINATED"] * 2


def test_invalid_decision_is_named_with_its_hook():
    from ray.tune import TuneError

    cluster = VirtualCluster(
        Experiment(ScriptedScheduler(lambda *_: "GO"), num_samples=1)
    )
    with pytest.raises(TuneError, match="Invalid decision: GO"):
        cluster.run(max_events=100)


if __name__ == "__main__":
    import sys

    sys.exit(pytest.main(["-v", __file__]))
