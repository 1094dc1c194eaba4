"""What a trainable does not implement: a reset, a save, a load. No trial is lost."""

import sys

import pytest
from virtual_cluster import (
    ClassTrainable,
    Cluster,
    Experiment,
    Faults,
    FunctionTrainable,
    Options,
    ScriptedScheduler,
    VirtualCluster,
    saturating,
    task_error,
)

from ray import tune
from ray.tune import CheckpointConfig
from ray.tune.experiment import Trial
from ray.tune.schedulers import (
    FIFOScheduler,
    HyperBandScheduler,
    PopulationBasedTraining,
)

REFUSING = {
    "returns nothing": ClassTrainable(resettable=False),
    "not implemented": ClassTrainable(bare=True),
    "raises": ClassTrainable(resettable=ValueError("no such layer")),
    "slow to return": FunctionTrainable(resettable=False),
}


def count(record, kind):
    return sum(event.kind == kind for event in record.events)


def warnings(caplog, *words):
    messages = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    return [m for m in messages if all(word in m for word in words)]


def asha_v2():
    from ray.tune.schedulers.asha_v2 import ASHAv2

    return ASHAv2(max_t=9, grace_period=1, reduction_factor=3)


# Resets


@pytest.mark.fixes("refused-reset")
@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("how", [how for how in REFUSING if how != "not implemented"])
def test_refused_reset_loses_no_trial(how, slots):
    record = VirtualCluster(
        Experiment(
            num_samples=8,
            reuse_actors=True,
            trainable=REFUSING[how],
            stop={"training_iteration": 2},
        ),
        Cluster(slots=slots),
        options=Options(quiet=True),
    ).run(max_events=500)
    assert record.iterations() == [2] * 8
    assert [trial.num_failures for trial in record.trials] == [0] * 8
    # No reset has worked, and it is not tried with each trial.
    assert 1 <= count(record, "reset") <= 2 + slots


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("how", [how for how in REFUSING if how != "not implemented"])
def test_refused_reset_loses_nothing_of_a_promoted_trial(how, slots):
    record = VirtualCluster(
        Experiment(
            asha_v2(), num_samples=9, reuse_actors=True, trainable=REFUSING[how]
        ),
        Cluster(slots=slots),
        options=Options(quiet=True),
    ).run(max_events=1000)
    assert record.statuses() == [Trial.TERMINATED] * 9
    assert max(record.iterations()) == 9
    for results in record.results.values():
        iterations = [result["training_iteration"] for result in results]
        assert iterations == list(range(1, len(iterations) + 1))


@pytest.mark.fixes("refused-reset")
def test_class_without_reset_config_is_never_reset(caplog):
    record = VirtualCluster(
        Experiment(
            num_samples=5,
            reuse_actors=True,
            trainable=ClassTrainable(bare=True),
            stop={"training_iteration": 2},
        ),
        Cluster(slots=2),
    ).run(max_events=500)
    assert record.iterations() == [2] * 5
    assert count(record, "reset") == 0
    assert count(record, "started") == 5
    (hint,) = warnings(caplog, "reset_config()")
    assert "bare_class" in hint and "return True" in hint


@pytest.mark.parametrize(
    "how, words",
    [
        ("returns nothing", ["reset_config()", "has not returned True"]),
        ("raises", ["reset_config()", "no such layer"]),
    ],
)
def test_hint_at_how_to_make_a_reset_work(how, words, caplog):
    VirtualCluster(
        Experiment(
            num_samples=6,
            reuse_actors=True,
            trainable=REFUSING[how],
            stop={"training_iteration": 1},
        ),
        Cluster(slots=1),
    ).run(max_events=500)
    (hint,) = warnings(caplog, "could not be reset")
    assert all(word in hint for word in words)
    assert "reuse_actors=False" in hint
    (end,) = warnings(caplog, "not reused any more")
    assert "virtual_class" in end


def test_hint_at_a_function_that_is_slow_to_return():
    from ray.tune.execution.actor_reuse import describe_refused_reset
    from ray.tune.trainable import wrap_function

    hint = describe_refused_reset("t", wrap_function(lambda config: None))
    assert "TUNE_FUNCTION_THREAD_TIMEOUT_S" in hint


def test_trial_whose_reset_was_refused_starts_on_a_new_actor_next():
    # Six wait, and another idle actor would do for them.
    record = VirtualCluster(
        Experiment(num_samples=8, reuse_actors=True, stop={"training_iteration": 1}),
        Cluster(slots=1),
        Faults([task_error("reset", trial=1)]),
        Options(quiet=True),
    ).run(max_events=500)
    starts = [e.trial for e in record.events if e.detail == Trial.RUNNING]
    assert starts == [trial.trial_id for trial in record.trials]
    # Others work, so that it goes on being tried.
    assert count(record, "started") == 2
    assert count(record, "reset") == 7


def test_resets_are_tried_as_long_as_some_work():
    from ray.tune.execution.actor_reuse import MAX_REFUSED_RESETS, ResetRecord

    record = ResetRecord()
    for _ in range(100):
        record.add(worked=False)
        record.add(worked=True)
        assert record.is_worthwhile
    for _ in range(MAX_REFUSED_RESETS):
        assert record.is_worthwhile
        record.add(worked=False)
    assert not record.is_worthwhile


def test_trial_stopped_or_paused_while_it_gets_a_new_actor():
    for method in ("stop_trial", "pause_trial"):
        cluster = VirtualCluster(
            Experiment(
                num_samples=3,
                reuse_actors=True,
                trainable=ClassTrainable(resettable=False),
                stop={"training_iteration": 2},
            ),
            Cluster(slots=1),
            options=Options(detect_hangs=False),
        ).start()
        cluster.run_until(lambda cluster=cluster: count(cluster.monitor, "reset") == 1)
        _, trial, _ = cluster.trials
        cluster.run_until(
            lambda cluster=cluster, trial=trial: (
                trial not in cluster.controller._resetting_trials
            )
        )
        assert trial.status == Trial.PENDING
        cluster.call(getattr(cluster.controller, method), trial)
        cluster.run_until(
            lambda cluster=cluster: all(t.is_finished() for t in cluster.trials)
        )


# Saves and loads


def waves(milestones, max_t):
    def decide(controller, trial, result):
        if result["training_iteration"] >= max_t:
            return "STOP"
        return "PAUSE" if result["training_iteration"] in milestones else "CONTINUE"

    return ScriptedScheduler(decide)


def pause_once(at, max_t):
    """Pauses each trial the first time that it gets to `at`."""
    paused = set()

    def decide(controller, trial, result):
        if result["training_iteration"] == at and trial.trial_id not in paused:
            paused.add(trial.trial_id)
            return "PAUSE"
        return "STOP" if result["training_iteration"] >= max_t else "CONTINUE"

    return ScriptedScheduler(decide)


@pytest.mark.fixes("pause-not-implemented")
@pytest.mark.parametrize("reuse_actors", [False, True])
def test_class_that_cannot_be_saved_starts_over_after_a_pause(reuse_actors, caplog):
    record = VirtualCluster(
        Experiment(
            pause_once(at=2, max_t=3),
            num_samples=3,
            reuse_actors=reuse_actors,
            trainable=ClassTrainable(bare=True),
        ),
        Cluster(slots=1),
    ).run(max_events=500)
    assert record.statuses() == [Trial.TERMINATED] * 3
    for results in record.results.values():
        iterations = [result["training_iteration"] for result in results]
        assert iterations == [1, 2, 1, 2, 3]
    (warning,) = warnings(caplog, "STARTS OVER")
    for name in ("ScriptedScheduler", "bare_class", "save_checkpoint()"):
        assert name in warning


SCHEDULERS = {
    "ASHAv2": asha_v2,
    "HyperBand": lambda: HyperBandScheduler(max_t=9, reduction_factor=3),
    "PBT": lambda: PopulationBasedTraining(
        perturbation_interval=2, hyperparam_mutations={"x": [0.1, 0.5]}
    ),
    "synchronous PBT": lambda: PopulationBasedTraining(
        perturbation_interval=2, hyperparam_mutations={"x": [0.1]}, synch=True
    ),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=[pytest.mark.fixes("pause-not-implemented")] * (name != "ASHAv2"),
        )
        for name in SCHEDULERS
    ],
)
def test_class_that_cannot_be_saved_is_warned_of_before_it_trains(name, caplog):
    told = []

    def curve(config, iteration):
        told.append(len(warnings(caplog, "STARTS OVER", "bare_class")))
        return saturating(config, iteration)

    record = VirtualCluster(
        Experiment(
            SCHEDULERS[name](),
            num_samples=6,
            trainable=ClassTrainable(curve, bare=True),
            # Of synchronous PBT, none would ever get past the first meeting.
            stop={"time_total_s": 12, "training_iteration": 9},
            env={"TUNE_DISABLE_STRICT_METRIC_CHECKING": "1"},
        ),
        Cluster(slots=2),
        options=Options(may_stall=name == "synchronous PBT", check=False),
    ).run(max_events=2000)
    assert Trial.ERROR not in record.statuses()
    assert set(told) == {1}


@pytest.mark.fixes("pause-not-implemented")
def test_result_that_is_in_flight_counts_before_the_pause():
    cluster = VirtualCluster(
        Experiment(
            FIFOScheduler(),
            num_samples=1,
            trainable=ClassTrainable(bare=True),
            stop={"training_iteration": 3},
        )
    ).start()
    cluster.run_until(lambda: cluster.trials and cluster.in_flight(cluster.trials[0]))
    (trial,) = cluster.trials
    cluster.run_until(lambda: trial.status == Trial.RUNNING)
    cluster.pause_trial(trial)
    cluster.run_until(lambda: trial.status == Trial.PAUSED)
    assert trial.run_metadata.last_result["training_iteration"] == 1
    cluster.run_until(trial.is_finished)
    assert trial.status == Trial.TERMINATED


def test_checkpoints_that_were_asked_for_are_an_error_where_there_can_be_none():
    record = VirtualCluster(
        Experiment(
            num_samples=1,
            trainable=ClassTrainable(bare=True),
            checkpoint_config=CheckpointConfig(checkpoint_frequency=1),
            stop={"training_iteration": 3},
        ),
        options=Options(quiet=True),
    ).run(max_events=100)
    assert record.statuses() == [Trial.ERROR]


def test_checkpoint_that_cannot_be_loaded_is_not_restored(monkeypatch):
    from ray.tune.execution import trainable_support
    from ray.tune.execution.trainable_support import TrainableSupport

    monkeypatch.setattr(
        trainable_support,
        "get_trainable_support",
        lambda cls: TrainableSupport(reset=True, save=True, load=False),
    )
    record = VirtualCluster(
        Experiment(
            pause_once(at=2, max_t=3),
            num_samples=1,
            checkpoint_config=CheckpointConfig(checkpoint_frequency=1),
        ),
        options=Options(ignore=["resume-point"]),
    ).run(max_events=100)
    (results,) = record.results.values()
    iterations = [result["training_iteration"] for result in results]
    assert iterations == [1, 2, 1, 2, 3]
    assert count(record, "restore") == 0


def test_support_of_a_trainable():
    from ray.tune.execution.trainable_support import get_trainable_support
    from ray.tune.trainable import wrap_function

    class Bare(tune.Trainable):
        pass

    class Saves(Bare):
        def save_checkpoint(self, checkpoint_dir):
            pass

    class Whole(Saves):
        def load_checkpoint(self, checkpoint):
            pass

        def reset_config(self, new_config):
            return True

    def what(cls):
        support = get_trainable_support(cls)
        return support.reset, support.save, support.load, support.pause

    assert what(Bare) == (False, False, False, False)
    assert what(Saves) == (False, True, False, False)
    # Nothing is known of what is no class, such as the trainable of a stub.
    for whole in (Whole, wrap_function(lambda config: None), None, "PPO"):
        assert what(whole) == (True, True, True, True)


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
