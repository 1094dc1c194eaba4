"""The virtual cluster does as Ray does, and says what it has seen."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from virtual_cluster import (
    Act,
    ClassTrainable,
    Cluster,
    Costs,
    Experiment,
    Faults,
    FunctionTrainable,
    InvariantViolation,
    MixedCurve,
    Options,
    PlannedScheduler,
    ScriptedScheduler,
    VirtualCluster,
    actor_death,
    driver_death,
    hook_error,
    node_loss,
    preempt,
    slow_task,
    storage_full,
    task_error,
)

from ray import tune
from ray.tune import Callback, CheckpointConfig
from ray.tune.schedulers import (
    ASHAScheduler,
    FIFOScheduler,
    PopulationBasedTraining,
)

EXACT = Costs(start=1, train=1, save=0.5, restore=0.25, reset=0.25, stop=0.125)


def kinds(record, trial_id):
    return [event.kind for event in record.events if event.trial == trial_id]


def test_run_to_the_end():
    record = VirtualCluster(
        Experiment(num_samples=3, stop={"training_iteration": 4}),
        Cluster(slots=2, costs=EXACT),
    ).run()
    assert record.statuses() == ["TERMINATED"] * 3
    assert record.iterations() == [4, 4, 4]
    # Two in parallel, then the third in the slot of the first that has stopped.
    assert record.time == 5 + 0.125 + 5
    assert all(len(results) == 4 for results in record.results.values())
    assert len(record.decisions) == 3 * 3  # the last results end by `stop`
    assert record.violation is None


def test_slots_are_respected():
    seen = []

    def watch(cluster, event):
        seen.append(cluster.resource_manager.num_acquired)

    VirtualCluster(
        Experiment(num_samples=6, stop={"training_iteration": 3}),
        Cluster(slots=3),
        options=Options(on_event=watch),
    ).run()
    assert max(seen) == 3


@pytest.mark.parametrize("reserve", [True, False])
def test_shapes_share_the_slots(reserve):
    def needs(config):
        return {"CPU": 3 if config["x"] > 0.5 else 1}

    held = []

    def watch(cluster, event):
        held.append(sum(node.used.get("CPU", 0) for node in cluster.nodes))

    record = VirtualCluster(
        Experiment(
            configs=[{"x": x} for x in (0.9, 0.1, 0.8, 0.2, 0.3)],
            resources=needs,
            stop={"training_iteration": 2},
        ),
        Cluster(slots=4, reserve=reserve),
        options=Options(on_event=watch),
    ).run()
    assert record.iterations() == [2] * 5
    assert max(held) == 4


def test_bundles_are_spread_over_nodes():
    record = VirtualCluster(
        Experiment(
            num_samples=2,
            resources=tune.PlacementGroupFactory([{"CPU": 1}, {"CPU": 2}]),
            stop={"training_iteration": 1},
        ),
        Cluster(nodes=[{"CPU": 1}, {"CPU": 2}], costs=EXACT),
    ).run()
    # Each trial takes both nodes.
    assert record.time == 2 * (1 + 1) + 0.125


@pytest.mark.parametrize("seed", range(3))
def test_same_seed_same_transcript(seed):
    def run():
        return VirtualCluster(
            Experiment(
                ASHAScheduler(max_t=8, grace_period=1, reduction_factor=2),
                num_samples=8,
                max_failures=2,
            ),
            Cluster(slots=3, costs=Costs(train=(0.5, 2.0), jitter=0.1), lag=(0.3, 1.0)),
            Faults([task_error("train", trial=2, nth=2), node_loss(after=20)]),
            Options(seed=seed),
        ).run()

    first, second = run(), run()
    assert first.transcript() == second.transcript()
    assert first.transcript().encode() == second.transcript().encode()


def test_other_seed_other_order():
    transcripts = {
        VirtualCluster(
            Experiment(num_samples=4, stop={"training_iteration": 3}),
            options=Options(seed=seed),
        )
        .run()
        .transcript()
        for seed in range(5)
    }
    assert len(transcripts) > 1


def test_same_run_in_another_process(tmp_path):
    program = (
        "import hashlib, sys\n"
        "from virtual_cluster.explore.draw import draw\n"
        "from virtual_cluster.explore.replay import run_scenario\n"
        "for seed in range(8):\n"
        "    outcome = run_scenario(draw(seed), full=True)\n"
        "    print(seed, outcome.rule, outcome.events, outcome.digest)\n"
    )
    outputs = []
    for hash_seed in ("1", "2"):
        environment = dict(os.environ, PYTHONHASHSEED=hash_seed)
        environment["PYTHONPATH"] = os.path.dirname(os.path.abspath(__file__))
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", program],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1]


def test_closing_leaves_nothing_on_disk():
    cluster = VirtualCluster(
        Experiment(
            num_samples=2,
            stop={"training_iteration": 2},
            checkpoint_config=CheckpointConfig(checkpoint_frequency=1),
        ),
        faults=Faults([driver_death(after=6)]),
    )
    path = Path(cluster.storage_path)
    cluster.run()
    assert any(path.rglob("checkpoint_*"))
    cluster.close()
    assert list(path.parent.glob(path.name + "*")) == []


def test_events_are_told_of_also_when_they_are_not_kept():
    def told(keep_events):
        events = []
        record = VirtualCluster(
            Experiment(num_samples=40, stop={"training_iteration": 9}),
            options=Options(
                keep_events=keep_events,
                on_event=lambda cluster, event: events.append(str(event)),
            ),
        ).run()
        return events, record

    kept, _ = told(True)
    assert len(kept) > 400
    not_kept, record = told(False)
    assert not_kept == kept
    assert len(record.events) <= 400


def test_global_generators_are_left_alone():
    import random

    import numpy as np

    random.seed(5)
    np.random.seed(5)
    expected = random.random(), np.random.rand()
    random.seed(5)
    np.random.seed(5)
    VirtualCluster(Experiment(num_samples=3, stop={"training_iteration": 2})).run()
    assert (random.random(), np.random.rand()) == expected


def test_modules_of_tune_are_left_as_they_were():
    import time

    import ray
    from ray.air.execution._internal import actor_manager
    from ray.tune.execution import tune_controller

    cluster = VirtualCluster(
        Experiment(num_samples=1, stop={"training_iteration": 1})
    ).start()
    with cluster.active():
        assert tune_controller.ray is not ray
        assert tune_controller.time is not time
    cluster.run()
    assert tune_controller.ray is ray and actor_manager.ray is ray
    assert tune_controller.time is time
    assert FIFOScheduler.on_trial_result.__module__.startswith("ray.")


# Faults


@pytest.mark.parametrize(
    "fault",
    [
        task_error("train", trial=0, nth=2),
        task_error("save", trial=0, nth=1),
        task_error("start", trial=0),
        actor_death("train", trial=0, nth=2),
        actor_death("save", trial=0, nth=1),
        actor_death("start", trial=0),
        preempt("train", trial=0, nth=2),
        node_loss(after=3, duration=4),
    ],
    ids=repr,
)
def test_trial_that_fails_once_is_retried(fault):
    record = VirtualCluster(
        Experiment(
            num_samples=2,
            max_failures=1,
            stop={"training_iteration": 4},
            checkpoint_config=CheckpointConfig(checkpoint_frequency=1),
        ),
        Cluster(slots=2, nodes=2),
        Faults([fault]),
    ).run()
    assert record.statuses() == ["TERMINATED"] * 2
    assert record.iterations() == [4, 4]
    assert record.faults_fired == [fault]


def test_fault_in_restore_and_in_stop():
    record = VirtualCluster(
        Experiment(
            num_samples=1,
            max_failures=2,
            stop={"training_iteration": 3},
            checkpoint_config=CheckpointConfig(checkpoint_frequency=1),
        ),
        Cluster(slots=1),
        Faults(
            [
                task_error("train", trial=0, nth=2),
                task_error("restore", trial=0, nth=1),
                actor_death("stop", trial=0, nth=3),
            ]
        ),
    ).run()
    assert record.statuses() == ["TERMINATED"]
    assert [e.detail[:6] for e in record.events if e.kind == "restore"] == [
        "FAILED",
        "",
    ]
    # It goes on from its checkpoint: no iteration is trained twice.
    iterations = [r["training_iteration"] for r in record.results["t_00000"]]
    assert iterations == [1, 2, 3]


def test_failure_without_checkpoint_starts_over():
    record = VirtualCluster(
        Experiment(num_samples=1, max_failures=1, stop={"training_iteration": 3}),
        faults=Faults([task_error("train", trial=0, nth=3)]),
    ).run()
    iterations = [r["training_iteration"] for r in record.results["t_00000"]]
    assert iterations == [1, 2, 1, 2, 3]


def test_failure_for_good():
    record = VirtualCluster(
        Experiment(num_samples=2, stop={"training_iteration": 3}),
        faults=Faults([task_error("train", trial=1, nth=2)]),
    ).run()
    assert record.statuses() == ["TERMINATED", "ERROR"]


def test_preemption_is_no_failure():
    record = VirtualCluster(
        Experiment(num_samples=1, stop={"training_iteration": 3}),
        faults=Faults([preempt("train", trial=0, nth=2)]),
    ).run()
    assert record.statuses() == ["TERMINATED"]


def test_slow_task():
    record = VirtualCluster(
        Experiment(num_samples=1, stop={"training_iteration": 2}),
        Cluster(costs=EXACT),
        Faults([slow_task("train", trial=0, nth=2, factor=20)]),
    ).run()
    assert record.time == 1 + 1 + 20


def test_storage_full():
    record = VirtualCluster(
        Experiment(
            num_samples=1,
            max_failures=3,
            stop={"training_iteration": 3},
            checkpoint_config=CheckpointConfig(checkpoint_frequency=1),
        ),
        faults=Faults([storage_full(after=2, duration=2)]),
    ).run()
    assert record.statuses() == ["TERMINATED"]
    assert any("No space left" in event.detail for event in record.events)


@pytest.mark.parametrize("after", range(1, 30, 3))
def test_driver_death_after_any_event(after):
    cluster = VirtualCluster(
        Experiment(
            FIFOScheduler,
            num_samples=4,
            stop={"training_iteration": 3},
            checkpoint_config=CheckpointConfig(checkpoint_frequency=1),
        ),
        Cluster(slots=2),
        Faults([driver_death(after=after)]),
    )
    record = cluster.run()
    assert cluster.num_restarts == 1
    assert record.statuses() == ["TERMINATED"] * 4
    assert record.iterations() == [3] * 4


def test_driver_death_with_an_old_snapshot():
    record = VirtualCluster(
        Experiment(
            FIFOScheduler,
            num_samples=3,
            stop={"training_iteration": 3},
            checkpoint_config=CheckpointConfig(checkpoint_frequency=1),
        ),
        Cluster(slots=1),
        Faults([driver_death(after=12, stale=6)]),
    ).run()
    # What was done since the snapshot is done again.
    done = [r["training_iteration"] for r in record.results["t_00001"]]
    assert len(done) > len(set(done))
    assert record.iterations() == [3] * 3


def test_resume_from_a_storage_path(tmp_path):
    def cluster(**kwargs):
        return VirtualCluster.of(
            num_samples=4,
            slots=1,
            stop={"training_iteration": 3},
            checkpoint_config=CheckpointConfig(checkpoint_frequency=1),
            storage_path=str(tmp_path / "storage"),
            checkpoint_period=0,
            **kwargs,
        )

    first = cluster()
    first.run_until(lambda: first.monitor.number == 15)
    second = cluster(resume=True)
    second.clock.advance_to(first.clock.now + 1)
    second.runtime.contents = first.runtime.contents
    record = second.run()
    assert record.iterations() == [3] * 4
    assert sum(map(len, record.results.values())) < 12


# Trainables


def test_function_ends_with_the_duplicate_marker():
    record = VirtualCluster(
        Experiment(
            num_samples=2, trainable=FunctionTrainable(length=3, checkpoint_every=2)
        )
    ).run()
    assert record.iterations() == [3, 3]
    assert record.results["t_00000"][-1]["training_iteration"] == 3
    assert [len(r) for r in record.results.values()] == [3, 3]
    assert all(trial.checkpoint is not None for trial in record.trials)


def test_function_has_no_checkpoint_before_it_reports_one():
    record = VirtualCluster(
        Experiment(
            num_samples=1, trainable=FunctionTrainable(length=3, checkpoint_every=0)
        )
    ).run()
    assert record.trials[0].checkpoint is None


def test_class_says_done_with_its_last_result():
    record = VirtualCluster(
        Experiment(num_samples=1, trainable=ClassTrainable(length=2))
    ).run()
    assert [r["done"] for r in record.results["t_00000"]] == [False, True]


def test_state_comes_back_with_a_checkpoint():
    def curve(config, iteration, state):
        state["sum"] = state.get("sum", 0) + iteration
        return {"score": state["sum"]}

    record = VirtualCluster(
        Experiment(
            num_samples=1,
            trainable=curve,
            max_failures=1,
            stop={"training_iteration": 4},
            checkpoint_config=CheckpointConfig(checkpoint_frequency=2),
        ),
        faults=Faults([task_error("train", trial=0, nth=4)]),
    ).run()
    assert record.results["t_00000"][-1]["score"] == 1 + 2 + 3 + 4


def test_checkpoints_are_deleted_as_num_to_keep_says():
    cluster = VirtualCluster(
        Experiment(
            num_samples=1,
            stop={"training_iteration": 5},
            checkpoint_config=CheckpointConfig(checkpoint_frequency=1, num_to_keep=2),
        )
    )
    record = cluster.run()
    folder = record.trials[0].path
    left = [name for name in os.listdir(folder) if name.startswith("checkpoint_")]
    assert len(left) == 2


def test_actors_are_reused():
    record = VirtualCluster(
        Experiment(num_samples=3, reuse_actors=True, stop={"training_iteration": 2}),
        Cluster(slots=1, costs=EXACT),
    ).run()
    assert [e.kind for e in record.events].count("reset") == 2
    assert record.time == 1 + 2 + 2 * (0.25 + 2)


def test_refused_reset():
    record = VirtualCluster(
        Experiment(
            num_samples=2,
            reuse_actors=True,
            trainable=ClassTrainable(length=1, resettable=False),
        ),
        Cluster(slots=1),
    ).run()
    assert record.statuses() == ["TERMINATED"] * 2
    assert [e.kind for e in record.events].count("reset") == 1


# Searchers, stoppers, callbacks


@pytest.mark.parametrize("limit", [0, 2])
def test_optuna(limit):
    optuna = pytest.importorskip("optuna")
    from ray.tune.search.optuna import OptunaSearch

    optuna.logging.set_verbosity(optuna.logging.ERROR)

    def run():
        return VirtualCluster(
            Experiment(
                search_alg=lambda: OptunaSearch(seed=3),
                num_samples=5,
                max_concurrent=limit,
                stop={"training_iteration": 2},
            ),
            Cluster(slots=3),
        ).run()

    first, second = run(), run()
    assert first.iterations() == [2] * 5
    assert [t.config for t in first.trials] == [t.config for t in second.trials]


def test_time_budget_is_virtual():
    record = VirtualCluster(
        Experiment(num_samples=2, time_budget_s=1000), Cluster(slots=1)
    ).run()
    assert 1000 <= record.time < 1010
    assert record.statuses()[0] == "TERMINATED"


def test_stopper_and_callbacks():
    seen = []

    class Watch(Callback):
        def on_trial_complete(self, iteration, trials, trial, **info):
            seen.append(trial.trial_id)

    record = VirtualCluster(
        Experiment(
            num_samples=2,
            stop=lambda trial_id, result: result["training_iteration"] >= 2,
            callbacks=[Watch()],
        )
    ).run()
    assert record.iterations() == [2, 2]
    assert sorted(seen) == ["t_00000", "t_00001"]


# Stepping and scripts


def test_step_by_step():
    cluster = VirtualCluster(
        Experiment(num_samples=1, stop={"training_iteration": 9}), Cluster(costs=EXACT)
    )
    assert [e.kind for e in cluster.step()][-1] == "status"
    trial = cluster.trials[0]
    assert trial.status == "RUNNING"
    assert cluster.in_flight(trial) == {"train": 1}
    cluster.run_until(lambda: trial.last_result.get("training_iteration") == 3)
    cluster.pause_trial(trial)
    assert cluster.in_flight(trial) == {"train": 1, "save": 1}
    cluster.stop_trial(trial)
    assert trial.status == "TERMINATED"


def test_scripted_scheduler_pauses_and_resumes():
    def decide(controller, trial, result):
        return "PAUSE" if result["training_iteration"] == 2 else "CONTINUE"

    record = VirtualCluster(
        Experiment(
            ScriptedScheduler(decide), num_samples=2, stop={"training_iteration": 3}
        ),
        Cluster(slots=1),
    ).run()
    assert record.iterations() == [3, 3]
    assert kinds(record, "t_00000").count("restore") == 1


def test_acts_from_outside():
    record = VirtualCluster(
        Experiment(num_samples=2, stop={"training_iteration": 4}),
        Cluster(slots=1),
        Faults(
            outside=[
                Act("event", 3, "pause_trial", 0),
                Act("event", 8, "stop_trial", 1),
            ]
        ),
    ).run()
    assert record.statuses() == ["TERMINATED"] * 2
    assert record.iterations()[0] == 4 and record.iterations()[1] < 4
    assert kinds(record, "t_00000").count("pause_trial") == 1


def test_run_until_says_what_happened_instead():
    cluster = VirtualCluster(Experiment(num_samples=1, stop={"training_iteration": 2}))
    with pytest.raises(TimeoutError, match="iteration 2"):
        cluster.run_until(lambda: False)


# Ways in which a run ends, and goes on


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
        Experiment(FIFOScheduler(), num_samples=3, stop={"training_iteration": 2}),
        Cluster(slots=1),
        Faults([hook_error(hook, 2)]),
    )
    record = cluster.run(max_events=100)
    assert cluster.num_restarts == 1
    assert record.statuses() == ["TERMINATED"] * 3


@pytest.mark.fixes("endless-stall")
def test_run_that_stalls_is_ended():
    paused = PlannedScheduler(acts=[], resumes=False)
    paused.on_trial_result = lambda *_: "PAUSE"
    cluster = VirtualCluster(
        Experiment(
            paused, num_samples=2, stop={"training_iteration": 2}, stall_timeout_s=20
        ),
        options=Options(may_stall=True),
    )
    assert cluster.run(max_events=100).statuses() == ["PAUSED"] * 2


@pytest.mark.fixes("failed-fast", "scheduler-not-told")
def test_run_that_failed_fast_is_restored():
    cluster = VirtualCluster(
        Experiment(
            FIFOScheduler(),
            num_samples=2,
            stop={"training_iteration": 2},
            fail_fast=True,
        ),
        Cluster(slots=1),
        Faults([task_error("train", trial=0, nth=1)], resume_after=1),
    )
    record = cluster.run(max_events=100)
    assert record.statuses() == ["TERMINATED"] * 2
    # The one that had failed is tried again, the other one had not started.
    assert record.iterations() == [2, 2]


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


@pytest.mark.fixes("moved-experiment")
def test_new_trials_follow_an_experiment_that_was_moved(monkeypatch):
    monkeypatch.setenv("TUNE_MAX_PENDING_TRIALS_PG", "2")
    cluster = VirtualCluster(
        Experiment(FIFOScheduler, num_samples=30, stop={"training_iteration": 2}),
        Cluster(slots=1),
        Faults([driver_death(after=4, moved=True)]),
    )
    record = cluster.run(max_events=1000)
    assert len(record.trials) == 30
    for trial in record.trials:
        assert trial.storage.storage_fs_path == cluster.storage_path


# What is said of an invariant that is broken


def test_ignored_rules_are_not_checked(monkeypatch):
    scheduler = PlannedScheduler([Act("result", 1, "noop")])
    cluster = VirtualCluster(
        Experiment(scheduler, num_samples=1, stop={"training_iteration": 2}),
        options=Options(ignore=["hang"]),
    )
    record = None
    try:
        record = cluster.run(max_events=50)
    except InvariantViolation as exc:
        # A hang cannot be ignored: the run could not go on.
        assert exc.rule in ("hang", "running-idle")
    assert record is None or record.violation is None


def test_violation_names_trial_and_last_events():
    never = ScriptedScheduler(lambda *_: "PAUSE", choose=lambda controller: None)
    with pytest.raises(InvariantViolation) as info:
        VirtualCluster(
            Experiment(never, num_samples=1, trainable=ClassTrainable(MixedCurve()))
        ).run()
    text = str(info.value)
    assert "t_00000" in text
    assert "train" in text and "save" in text and "PAUSE at iteration 1" in text


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
