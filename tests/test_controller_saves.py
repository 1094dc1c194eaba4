"""One save of a trial is in flight, and what the trial reported is not lost."""

import os

import pytest
from virtual_cluster import (
    Cluster,
    Costs,
    Experiment,
    Faults,
    FunctionTrainable,
    InvariantViolation,
    Options,
    ScriptedScheduler,
    VirtualCluster,
    actor_death,
    saturating,
    task_error,
)
from virtual_cluster.core.runtime import Runtime

from ray.tune import CheckpointConfig
from ray.tune.schedulers import PopulationBasedTraining


def _checkpoint_dirs(trial):
    if not os.path.isdir(trial.path):
        return []
    return sorted(d for d in os.listdir(trial.path) if d.startswith("checkpoint_"))


def _registered_dirs(trial):
    manager = trial.run_metadata.checkpoint_manager
    return sorted(
        os.path.basename(result.checkpoint.path)
        for result in manager.best_checkpoint_results
    )


@pytest.mark.parametrize(
    "decision",
    [
        pytest.param("NOOP", marks=pytest.mark.fixes("save-in-flight")),
        pytest.param("CONTINUE", marks=pytest.mark.fixes("save-in-flight")),
        "PAUSE",
    ],
)
@pytest.mark.parametrize("reuse_actors", [False, True])
def test_pause_in_the_hook_with_a_checkpoint_due_saves_once(decision, reuse_actors):
    def decide(controller, trial, result):
        if result["training_iteration"] == 2:
            controller.pause_trial(trial)
            return decision
        return "CONTINUE"

    cluster = VirtualCluster(
        Experiment(
            ScriptedScheduler(decide, choose=lambda controller: None),
            num_samples=1,
            reuse_actors=reuse_actors,
            checkpoint_config=CheckpointConfig(checkpoint_frequency=1),
        ),
        Cluster(costs=Costs(save=0.5)),
    ).start()
    cluster.run_until(lambda: cluster.trials and cluster.trials[0].status == "PAUSED")
    [trial] = cluster.trials
    assert _checkpoint_dirs(trial) == _registered_dirs(trial)
    assert len(_checkpoint_dirs(trial)) == 2


@pytest.mark.fixes("save-in-flight")
def test_second_request_gets_the_save_in_flight():
    cluster = VirtualCluster(
        Experiment(num_samples=1), Cluster(costs=Costs(save=0.5))
    ).start()
    cluster.run_until(lambda: cluster.trials and cluster.trials[0].status == "RUNNING")
    [trial] = cluster.trials
    save = cluster.controller._schedule_trial_save
    first = cluster.call(save, trial)
    assert first is not None
    assert cluster.call(save, trial) is first
    assert cluster.in_flight(trial) == {"train": 1, "save": 1}


@pytest.mark.parametrize(
    "status",
    [
        pytest.param("PENDING", marks=pytest.mark.fixes("save-of-pending-trial")),
        "PAUSED",
        "TERMINATED",
    ],
)
def test_trial_that_does_not_run_has_nothing_to_save(status):
    cluster = VirtualCluster(
        Experiment(ScriptedScheduler(choose=lambda controller: None), num_samples=2),
        Cluster(slots=1),
    ).start()
    cluster.run_until(lambda: cluster.trials and cluster.trials[0].status == "RUNNING")
    trial = cluster.trials[1 if status == "PENDING" else 0]
    if status != "PENDING":
        cluster.pause_trial(trial, should_checkpoint=False)
    if status == "TERMINATED":
        cluster.stop_trial(trial)
    assert trial.status == status
    assert cluster.call(cluster.controller._schedule_trial_save, trial) is None
    assert not trial.is_saving


def _pbt(synch):
    return PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=2,
        hyperparam_mutations={"x": [0.1, 0.5, 0.9]},
        quantile_fraction=0.5,
        synch=synch,
    )


@pytest.mark.fixes("save-in-flight")
@pytest.mark.parametrize("synch", [False, True])
def test_population_based_training_saves_each_trial_once_at_a_time(synch):
    # The checkpoint that PBT asks for is due as well.
    cluster = VirtualCluster(
        Experiment(
            _pbt(synch),
            num_samples=4,
            checkpoint_config=CheckpointConfig(checkpoint_frequency=1),
            stop={"training_iteration": 8},
        ),
        Cluster(slots=4, costs=Costs(save=0.5, jitter=0.2)),
    )
    record = cluster.run(max_events=2000)
    assert record.statuses() == ["TERMINATED"] * 4


@pytest.mark.fixes("save-without-checkpoint")
@pytest.mark.parametrize("decision", ["CONTINUE", "PAUSE", "STOP"])
def test_save_that_yields_no_checkpoint_carries_out_the_decision(decision):
    cluster = VirtualCluster(
        Experiment(
            ScriptedScheduler(lambda *_: decision, choose=lambda controller: None),
            num_samples=1,
        )
    ).start()
    cluster.run_until(lambda: cluster.trials and cluster.trials[0].status == "RUNNING")
    [trial] = cluster.trials
    controller = cluster.controller
    controller._cached_trial_decisions[trial.trial_id] = decision
    cluster.call(controller._process_trial_save, trial, None)
    assert controller._cached_trial_decisions == {}
    assert controller._queued_trial_decisions == {trial.trial_id: decision}


@pytest.mark.fixes("result-thrown-away")
def test_result_ahead_of_a_save_is_handled_first():
    # Another trial is paused while it trains; the save queues up behind its `train`.
    # Both have resolved when the driver looks.
    lost = []
    for seed in range(10):
        cluster = VirtualCluster(
            Experiment(
                ScriptedScheduler(choose=lambda controller: None), num_samples=1
            ),
            Cluster(costs=Costs(train=1, save=0.1)),
            options=Options(seed=seed, check=False),
        ).start()
        cluster.run_until(
            lambda: cluster.trials and cluster.trials[0].status == "RUNNING"
        )
        [trial] = cluster.trials
        cluster.pause_trial(trial)
        cluster.clock.advance_to(cluster.clock.now + 10)
        cluster.run_until(lambda: trial.status == "PAUSED")
        if cluster.record().results.get(trial.trial_id, []) == []:
            lost.append(seed)
    assert not lost


@pytest.mark.fixes("futures-kept")
def test_futures_are_released_when_they_are_handled():
    cluster = VirtualCluster(Experiment(num_samples=2), Cluster(slots=2)).start()
    cluster.run_until(lambda: sum(map(len, cluster.record().results.values())) > 100)
    kept = cluster.controller._actor_manager._tracked_actors_to_task_futures
    assert sum(len(futures) for futures in kept.values()) <= 2


@pytest.mark.fixes("request-keeps-tasks")
def test_request_that_is_given_back_takes_its_tasks_along():
    cluster = VirtualCluster(Experiment(num_samples=3), Cluster(slots=1)).start()
    cluster.run_until(lambda: cluster.trials and cluster.trials[0].status == "RUNNING")
    manager = cluster.controller._actor_manager
    for trial in list(cluster.trials)[1:]:
        cluster.stop_trial(trial)
    assert not manager._pending_actors_to_enqueued_actor_tasks


@pytest.mark.parametrize("reuse_actors", [False, True])
def test_failed_save_of_a_pause_counts_as_a_failure(reuse_actors):
    def decide(controller, trial, result):
        return "PAUSE" if result["training_iteration"] == 3 else "CONTINUE"

    cluster = VirtualCluster(
        Experiment(
            ScriptedScheduler(decide),
            num_samples=1,
            checkpoint_config=CheckpointConfig(checkpoint_frequency=1),
            max_failures=1,
            reuse_actors=reuse_actors,
            stop={"training_iteration": 5},
        ),
        faults=Faults([task_error("save", trial=0, nth=3)]),
    )
    record = cluster.run(max_events=200)
    [trial] = cluster.trials
    assert trial.num_failures == 1
    assert record.statuses() == ["TERMINATED"]
    assert trial.run_metadata.last_result["training_iteration"] == 5


@pytest.mark.fixes("failed-save-of-paused-trial")
@pytest.mark.parametrize("max_failures, end", [(0, "ERROR"), (1, "TERMINATED")])
def test_failed_save_of_a_trial_declared_paused_is_handled(max_failures, end):
    # A scheduler may set the status itself: `_set_trial_status` is open to it.
    def decide(controller, trial, result):
        if result["training_iteration"] == 2 and trial.num_failures == 0:
            controller.pause_trial(trial)
            controller._set_trial_status(trial, "PAUSED")
            return "NOOP"
        return "CONTINUE"

    cluster = VirtualCluster(
        Experiment(
            ScriptedScheduler(decide),
            num_samples=1,
            max_failures=max_failures,
            stop={"training_iteration": 4},
        ),
        Cluster(costs=Costs(save=2)),
        Faults([task_error("save", trial=0, nth=1)]),
        Options(ignore=["paused-holds-actor"]),
    )
    record = cluster.run(max_events=200)
    assert record.statuses() == [end]
    assert cluster.trials[0].num_failures == 1


@pytest.mark.fixes("checkpoint-overwritten")
@pytest.mark.parametrize("how", ["dropped", "actor died"])
def test_save_that_is_given_up_leaves_its_directory_alone(how):
    # It may be written to still, and what it has written would be mixed with the next.
    def decide(controller, trial, result):
        if result["training_iteration"] == 1 and not seen:
            seen.append(1)
            return "PAUSE"
        return "CONTINUE"

    seen = []
    cluster = VirtualCluster(
        Experiment(
            ScriptedScheduler(decide),
            num_samples=1,
            max_failures=1,
            stop={"training_iteration": 3},
            checkpoint_config=CheckpointConfig(checkpoint_at_end=True),
        ),
        Cluster(costs=Costs(save=2)),
        Faults([actor_death("save", trial=0, nth=1)] if how == "actor died" else []),
    ).start()
    cluster.run_until(lambda: cluster.trials and cluster.trials[0].is_saving)
    if how == "dropped":
        with cluster.active():
            cluster.controller.pause_trial(cluster.trials[0], should_checkpoint=False)
    record = cluster.run(max_events=200)
    assert record.statuses() == ["TERMINATED"]
    assert _registered_dirs(cluster.trials[0]) == ["checkpoint_000001"]


@pytest.mark.fixes("checkpoint-overwritten")
def test_upload_that_fails_half_way_leaves_its_directory_alone(monkeypatch):
    # A function saves within `report`, so that it is its `train` that fails.
    persist, fails = Runtime._persist, [False, True, False, False]

    def fail_half_way(self, actor, progress):
        checkpoint = persist(self, actor, progress)
        if fails.pop(0):
            raise OSError("The upload failed.")
        return checkpoint

    monkeypatch.setattr(Runtime, "_persist", fail_half_way)
    cluster = VirtualCluster(
        Experiment(
            num_samples=1,
            trainable=FunctionTrainable(),
            max_failures=1,
            stop={"training_iteration": 3},
        )
    )
    assert cluster.run(max_events=100).iterations() == [3]
    numbers = [0, 2, 3]  # The second one was left behind.
    assert _registered_dirs(cluster.trials[0]) == [
        f"checkpoint_{number:06d}" for number in numbers
    ]


def test_retried_trial_saves_under_the_next_number():
    cluster = VirtualCluster(
        Experiment(
            num_samples=1,
            max_failures=1,
            stop={"training_iteration": 4},
            checkpoint_config=CheckpointConfig(checkpoint_frequency=1),
        ),
        faults=Faults([task_error("train", trial=0, nth=3)]),
    )
    cluster.run(max_events=100)
    assert len(_registered_dirs(cluster.trials[0])) == 4
    assert _registered_dirs(cluster.trials[0])[-1] == "checkpoint_000003"


@pytest.mark.fixes("checkpoint-overwritten")
def test_checkpoint_behind_a_pause_in_a_buffer_keeps_its_directory():
    # The actor is released at the first result; the third has brought a checkpoint.
    def decide(controller, trial, result):
        if result["training_iteration"] == 1 and not seen:
            seen.append(1)
            controller.pause_trial(trial, should_checkpoint=False)
            return "NOOP"
        return "CONTINUE"

    seen = []
    VirtualCluster(
        Experiment(
            ScriptedScheduler(decide),
            num_samples=1,
            trainable=FunctionTrainable(checkpoint_every=3),
            buffer_length=3,
            env={
                "TUNE_RESULT_BUFFER_MIN_TIME_S": "3",
                "TUNE_RESULT_BUFFER_MAX_TIME_S": "3",
            },
            stop={"training_iteration": 6},
        )
    ).run(max_events=100)


@pytest.mark.fixes("choice-still-saving")
@pytest.mark.parametrize("late", [False, True])
def test_trial_that_is_chosen_while_it_saves_registers_its_checkpoint_once(late):
    # The trial is chosen at once, while its pause still waits for the save; the actor
    # of a trial that has ended is free for reuse.
    def decide(controller, trial, result):
        if trial.trial_id.endswith("0") and result["training_iteration"] == 2:
            return "PAUSE"
        return "CONTINUE"

    def choose(controller):
        trials = controller.get_trials()
        return trials[0] if trials and not trials[0].is_finished() else None

    cluster = VirtualCluster(
        Experiment(
            ScriptedScheduler(decide, choose),
            num_samples=3,
            reuse_actors=True,
            stop={"training_iteration": 4},
        ),
        Cluster(slots=2, costs=Costs(save=5 if late else 0.5)),
    )
    record = cluster.run(max_events=300)
    assert record.statuses() == ["TERMINATED"] * 3
    for trial in cluster.trials:
        assert _checkpoint_dirs(trial) == _registered_dirs(trial)


@pytest.mark.fixes("buffer-arguments")
def test_buffered_results_before_a_pause_are_all_handled():
    def decide(controller, trial, result):
        return "PAUSE" if result["training_iteration"] == 2 else "CONTINUE"

    record = VirtualCluster(
        Experiment(
            ScriptedScheduler(decide),
            num_samples=1,
            trainable=FunctionTrainable(saturating, checkpoint_every=4),
            buffer_length=4,
            env={"TUNE_RESULT_BUFFER_MIN_TIME_S": "4"},
            stop={"training_iteration": 8},
        ),
        Cluster(costs=Costs(train=0.01)),
    ).run(max_events=100)
    [iterations] = [
        [result["training_iteration"] for result in results]
        for results in record.results.values()
    ]
    assert iterations == list(range(1, 9))


def test_two_saves_in_flight_would_be_noticed():
    # The invariant that these tests lean on can fail.
    def decide(controller, trial, result):
        trial.temporary_state.saving_to = None
        controller._schedule_trial_save(trial)
        trial.temporary_state.saving_to = None
        controller._schedule_trial_save(trial)
        return "CONTINUE"

    with pytest.raises(InvariantViolation, match="save"):
        VirtualCluster(Experiment(ScriptedScheduler(decide), num_samples=1)).run(
            max_events=50
        )


if __name__ == "__main__":
    import sys

    sys.exit(pytest.main(["-v", __file__]))
