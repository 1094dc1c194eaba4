"""Actors of paused trials: who gets them, and when they are released."""

import sys

import pytest
from virtual_cluster import (
    ClassTrainable,
    Cluster,
    Costs,
    Experiment,
    Faults,
    FunctionTrainable,
    Options,
    ScriptedScheduler,
    VirtualCluster,
    actor_death,
    task_error,
)

from ray import tune
from ray.air.execution._internal import TrackedActor
from ray.train._internal.session import _TrainingResult
from ray.tune import Checkpoint, CheckpointConfig
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler, PopulationBasedTraining
from ray.tune.utils.object_cache import _ObjectCache


def kinds(record, *wanted):
    return [event.kind for event in record.events if event.kind in wanted]


def waves(milestones, max_t, on_resume=None):
    """Runs all trials to each milestone in turn, and pauses them there."""

    def decide(controller, trial, result):
        if result["training_iteration"] >= max_t:
            return "STOP"
        return "PAUSE" if result["training_iteration"] in milestones else "CONTINUE"

    def choose(controller):
        trials = [t for t in controller.get_trials() if not t.is_finished()]
        trials.sort(key=lambda t: (t.run_metadata.last_result or {}).get("time", 0))
        for trial in trials:
            if trial.status == Trial.PENDING:
                return trial
        paused = [t for t in trials if t.status == Trial.PAUSED]
        if not paused:
            return None
        trial = min(
            paused, key=lambda t: t.run_metadata.last_result["training_iteration"]
        )
        if on_resume:
            on_resume(trial)
        return trial

    return ScriptedScheduler(decide, choose)


@pytest.mark.fixes("warm-actors-dropped")
@pytest.mark.parametrize("slots", [2, 3])
def test_actors_are_kept_for_trials_that_are_resumed_after_the_search(slots):
    record = VirtualCluster(
        Experiment(waves({1, 2}, max_t=3), num_samples=6, reuse_actors=True),
        Cluster(slots=slots),
    ).run(max_events=500)
    assert record.iterations() == [3] * 6
    assert len(kinds(record, "started")) == slots


@pytest.mark.fixes("reset-for-nothing")
@pytest.mark.parametrize("trainable", [ClassTrainable(), FunctionTrainable()])
def test_trial_that_is_resumed_at_once_is_not_reset(trainable):
    record = VirtualCluster(
        Experiment(
            waves({1, 2, 3}, max_t=4),
            num_samples=1,
            reuse_actors=True,
            trainable=trainable,
        )
    ).run(max_events=500)
    assert record.iterations() == [4]
    assert kinds(record, "started", "reset", "restore") == ["started"]


def test_trial_is_resumed_on_its_own_actor_if_that_is_there():
    # Two actors are idle. Trial 1 gets its own, though the other is idle for longer.
    cluster = VirtualCluster(
        Experiment(
            ScriptedScheduler(
                lambda controller, trial, result: (
                    "STOP" if result["training_iteration"] >= 2 else "PAUSE"
                ),
                choose=lambda controller: resumable(controller),
            ),
            num_samples=2,
            reuse_actors=True,
        ),
        Cluster(slots=2),
        options=Options(detect_hangs=False),
    )
    resume = []

    def resumable(controller):
        return next((t for t in resume if t.status == Trial.PAUSED), None)

    cluster.start()
    cluster.run_until(
        lambda: (
            len(cluster.trials) == 2
            and all(t.status == Trial.PAUSED for t in cluster.trials)
        )
    )
    assert cluster.controller._actor_cache.num_cached_objects == 2
    for trial in reversed(cluster.trials):
        resume[:] = [trial]
        cluster.run_until(trial.is_finished)
    assert not [e for e in cluster.monitor.events if e.kind in ("reset", "restore")]


def test_trial_with_another_config_is_reset():
    def exploit(trial):
        trial.set_config({**trial.config, "x": 0.25})

    record = VirtualCluster(
        Experiment(
            waves({1}, max_t=2, on_resume=exploit), num_samples=1, reuse_actors=True
        )
    ).run(max_events=500)
    assert kinds(record, "started", "reset", "restore") == [
        "started",
        "reset",
        "restore",
    ]
    assert record.results[record.trials[0].trial_id][-1]["score"] < 0.25


def test_trial_with_another_checkpoint_is_reset():
    def exploit(trial):
        result = trial.latest_checkpoint_result
        trial.run_metadata.checkpoint_manager._latest_checkpoint_result = (
            _TrainingResult(checkpoint=result.checkpoint, metrics=dict(result.metrics))
        )

    record = VirtualCluster(
        Experiment(
            waves({1}, max_t=2, on_resume=exploit), num_samples=1, reuse_actors=True
        )
    ).run(max_events=500)
    assert kinds(record, "started", "reset", "restore") == [
        "started",
        "reset",
        "restore",
    ]


@pytest.mark.parametrize("reuse_actors", [False, True])
def test_reuse_does_not_change_what_a_trial_goes_on_from(reuse_actors):
    # It has a checkpoint of iteration 2 when it pauses at iteration 3.
    paused = []

    def decide(controller, trial, result):
        if result["training_iteration"] == 3 and not paused:
            paused.append(trial)
            return "PAUSE"
        return "STOP" if result["training_iteration"] == 4 else "CONTINUE"

    record = VirtualCluster(
        Experiment(
            ScriptedScheduler(decide),
            num_samples=1,
            reuse_actors=reuse_actors,
            trainable=FunctionTrainable(checkpoint_every=2),
        )
    ).run(max_events=500)
    iterations = [
        result["training_iteration"]
        for result in record.results[record.trials[0].trial_id]
    ]
    assert iterations == [1, 2, 3, 3, 4]


def test_idle_actors_are_released_when_no_trial_may_use_them():
    cluster = VirtualCluster(
        Experiment(waves({1}, max_t=20), num_samples=4, reuse_actors=True),
        Cluster(slots=2),
    ).start()
    cluster.run_until(lambda: sum(trial.is_finished() for trial in cluster.trials) == 3)
    (last,) = [trial for trial in cluster.trials if not trial.is_finished()]
    cluster.run_until(
        lambda: (
            last.status == Trial.RUNNING
            and not cluster.controller._actor_cache.num_cached_objects
            and cluster.controller._actor_manager.num_live_actors == 1
        )
    )
    assert not last.is_finished()


@pytest.mark.parametrize("reserve", [True, False])
def test_idle_actor_gives_way_to_a_trial_with_other_resources(reserve):
    # Trial 0 pauses, and only goes on when trial 1, which takes both CPUs, has ended.
    def decide(controller, trial, result):
        if result["training_iteration"] >= 2:
            return "STOP"
        return "PAUSE" if trial is controller.get_trials()[0] else "CONTINUE"

    def choose(controller):
        trials = controller.get_trials()
        if trials[-1].is_finished() and trials[0].status == Trial.PAUSED:
            return trials[0]
        return None

    record = VirtualCluster(
        Experiment(
            ScriptedScheduler(decide, choose),
            configs=[{"x": 1}, {"x": 2}],
            resources=lambda config: {"CPU": config["x"]},
            reuse_actors=True,
        ),
        Cluster(slots=2, reserve=reserve),
    ).run(max_events=200)
    assert record.iterations() == [2, 2]


@pytest.mark.parametrize("limit", [1, 2])
def test_idle_actors_stay_within_the_limit(limit):
    most = []

    def count(cluster, event):
        most.append(len(cluster.controller._actor_manager.live_actors))

    VirtualCluster(
        Experiment(
            waves({1, 2}, max_t=3),
            num_samples=6,
            max_concurrent=limit,
            reuse_actors=True,
        ),
        Cluster(slots=8),
        options=Options(on_event=count),
    ).run(max_events=500)
    assert max(most) <= limit


def test_actors_left_idle_are_stopped_at_the_end():
    cluster = VirtualCluster(
        Experiment(waves({1}, max_t=2), num_samples=4, reuse_actors=True),
        Cluster(slots=2),
    )
    record = cluster.run(max_events=500)
    assert record.controller._actor_manager.num_total_actors == 0
    assert record.controller._actor_cache.num_cached_objects == 0


def die_when_idle(cluster, trial):
    """Kill the actor that a paused trial has left behind."""
    tracked_actor = cluster.controller._idle_actors.paused_actors.get(trial)
    manager = cluster.controller._actor_manager
    actor, _ = manager._live_actors_to_ray_actors_resources[tracked_actor]
    cluster.runtime.kill(actor, "node is down")


@pytest.mark.parametrize("in_place", [True, False])
def test_paused_trial_survives_the_loss_of_its_idle_actor(in_place):
    go = []

    def decide(controller, trial, result):
        return "STOP" if result["training_iteration"] >= 3 else "PAUSE"

    def choose(controller):
        return next((t for t in go if t.status == Trial.PAUSED), None)

    cluster = VirtualCluster(
        Experiment(
            ScriptedScheduler(decide, choose),
            num_samples=1,
            reuse_actors=True,
            max_failures=0,
        ),
        options=Options(detect_hangs=False),
    ).start()
    cluster.run_until(
        lambda: cluster.trials and cluster.trials[0].status == Trial.PAUSED
    )
    (trial,) = cluster.trials
    die_when_idle(cluster, trial)
    if not in_place:
        trial.set_config({**trial.config, "x": 0.25})
    go.append(trial)
    cluster.run_until(trial.is_finished)
    assert trial.status == Trial.TERMINATED
    assert trial.run_metadata.last_result["training_iteration"] == 3
    assert trial.run_metadata.num_failures == 0


@pytest.mark.fixes("starting-actor-dropped")
@pytest.mark.parametrize("max_pending, length", [(None, 3), (1, 8)])
@pytest.mark.parametrize("reserve", [True, False])
def test_idle_actor_is_not_for_a_trial_whose_own_is_starting(
    reserve, max_pending, length
):
    # Trial 1 fails at once. Trial 2 gets its slot, where an actor takes long to start.
    # Trial 0 ends before, and leaves its actor for trial 3, which has no slot yet, or
    # which the search algorithm gives only when trial 2 has started.
    record = VirtualCluster(
        Experiment(
            ScriptedScheduler(choose=lambda controller: None),
            num_samples=4,
            reuse_actors=True,
            max_pending=max_pending,
            stop={"training_iteration": length},
        ),
        Cluster(slots=2, costs=Costs(start=10, train=2), reserve=reserve),
        Faults([task_error("train", trial=1, nth=1)]),
        Options(quiet=True),
    ).run(max_events=500)
    assert record.statuses().count(Trial.ERROR) == 1
    first, _, third, fourth = (trial.trial_id for trial in record.trials)
    resets = [event.trial for event in record.events if event.kind == "reset"]
    assert resets == [fourth]
    starts = [event.trial for event in record.events if event.kind == "started"]
    assert starts.count(third) == 1


def test_last_trial_takes_an_idle_actor_rather_than_wait_for_its_own():
    record = VirtualCluster(
        Experiment(
            ScriptedScheduler(choose=lambda controller: None),
            num_samples=3,
            reuse_actors=True,
            stop={"training_iteration": 3},
        ),
        Cluster(slots=2, costs=Costs(start=10, train=2)),
        Faults([task_error("train", trial=1, nth=1)]),
        Options(quiet=True),
    ).run(max_events=500)
    resets = [event.trial for event in record.events if event.kind == "reset"]
    assert resets == [record.trials[2].trial_id]


@pytest.mark.fixes("idle-actor-lost")
def test_actor_that_dies_during_a_reset_is_replaced():
    # No trial may fail. That the actor is gone is no fault of the trial.
    record = VirtualCluster(
        Experiment(waves({1, 2}, max_t=3), num_samples=3, reuse_actors=True),
        Cluster(slots=1),
        Faults([actor_death("reset", trial=1, nth=1)]),
        Options(quiet=True),
    ).run(max_events=500)
    assert record.iterations() == [3] * 3


def test_trial_that_has_lost_its_idle_actor_is_next():
    # There are six that have not started yet.
    record = VirtualCluster(
        Experiment(
            ScriptedScheduler(
                lambda controller, trial, result: (
                    "STOP" if result["training_iteration"] >= 2 else "PAUSE"
                ),
                choose=lambda controller: next(
                    (t for t in controller.get_trials() if t.status == Trial.PAUSED),
                    None,
                ),
            ),
            num_samples=8,
            reuse_actors=True,
        ),
        Cluster(slots=1),
        Faults([actor_death("reset", trial=1, nth=1)]),
        Options(quiet=True),
    ).run(max_events=500)
    assert record.iterations() == [2] * 8
    running = [e.trial for e in record.events if e.detail == Trial.RUNNING]
    assert running[2] == record.trials[1].trial_id


def test_actor_that_dies_while_it_trains_counts_as_a_failure():
    record = VirtualCluster(
        Experiment(waves({1}, max_t=3), num_samples=1, reuse_actors=True),
        faults=Faults([actor_death("train", trial=0, nth=3)]),
        options=Options(quiet=True),
    ).run(max_events=500)
    assert record.statuses() == [Trial.ERROR]


@pytest.mark.parametrize("trainable", [ClassTrainable, FunctionTrainable])
def test_trial_that_a_callback_pauses_at_its_start_goes_on_from_its_checkpoint(
    trainable,
):
    # Its actor was another trial's, and is reset, but not restored by then.
    starts = []

    class PausesSecondStart(tune.Callback):
        def on_trial_start(self, iteration, trials, trial, **info):
            if trial.trial_id.endswith("0"):
                starts.append(trial)
                if len(starts) == 2:
                    cluster.controller.pause_trial(trial)

    paused = set()

    def decide(controller, trial, result):
        if result["training_iteration"] == 2 and trial.trial_id not in paused:
            paused.add(trial.trial_id)
            return "PAUSE"
        return "CONTINUE"

    cluster = VirtualCluster(
        Experiment(
            ScriptedScheduler(decide),
            num_samples=2,
            trainable=trainable(),
            callbacks=lambda: [PausesSecondStart()],
            reuse_actors=True,
            stop={"training_iteration": 4},
        ),
        Cluster(slots=1),
    )
    record = cluster.run(max_events=200)
    assert len(starts) == 3
    for results in record.results.values():
        assert [r["training_iteration"] for r in results] == [1, 2, 3, 4]


@pytest.mark.fixes("saved-twice")
def test_checkpoint_that_is_registered_twice_is_not_deleted(tmp_path):
    # A function trainable that is asked to save again, before it has trained on,
    # hands out the checkpoint that it has reported before.
    path = tmp_path / "checkpoint_000000"
    path.mkdir()
    (path / "state").write_text("3")
    trial = make_trial(tmp_path, CheckpointConfig(num_to_keep=1))
    for _ in range(2):
        trial.on_checkpoint(
            _TrainingResult(
                checkpoint=Checkpoint.from_directory(str(path)),
                metrics={"training_iteration": 3},
            )
        )
    assert (path / "state").read_text() == "3"
    assert trial.checkpoint.path == str(path)
    # The next one takes its place.
    after = tmp_path / "checkpoint_000001"
    after.mkdir()
    trial.on_checkpoint(
        _TrainingResult(
            checkpoint=Checkpoint.from_directory(str(after)),
            metrics={"training_iteration": 4},
        )
    )
    assert not path.exists()


def make_trial(tmp_path, checkpoint_config=None, trainable="virtual_class"):
    from ray.train._internal.storage import StorageContext

    storage = StorageContext(storage_path=str(tmp_path), experiment_dir_name="e")
    return Trial(
        trainable, storage=storage, checkpoint_config=checkpoint_config, stub=True
    )


def function(config):
    pass


def hint_for(monkeypatch, tmp_path, trainable, scheduler):
    from ray.tune.execution.actor_reuse import get_reuse_hint

    trial = make_trial(tmp_path)
    monkeypatch.setattr(trial, "get_trainable_cls", lambda: trainable)
    return get_reuse_hint(trial, scheduler)


def test_hint_at_actor_reuse(monkeypatch, tmp_path):
    from ray.tune.trainable import wrap_function

    wrapped = wrap_function(function)
    hint = hint_for(monkeypatch, tmp_path, wrapped, FIFOScheduler())
    assert "reuse_actors=True" in hint and "FIFOScheduler" in hint
    # tune.run warns of PBT on its own; ResourceChangingScheduler forbids reuse.
    for trainable, scheduler in (
        (tune.Trainable, FIFOScheduler()),
        (None, FIFOScheduler()),
        (wrapped, PopulationBasedTraining(hyperparam_mutations={"x": [1]})),
        (wrapped, tune.schedulers.ResourceChangingScheduler()),
    ):
        assert hint_for(monkeypatch, tmp_path, trainable, scheduler) is None


@pytest.mark.parametrize("reuse_actors", [False, True])
def test_hint_at_actor_reuse_is_given_once(reuse_actors, caplog, monkeypatch):
    from ray.tune.execution import pause_advice

    monkeypatch.setattr(pause_advice, "get_reuse_hint", lambda *args: "A hint.")
    VirtualCluster(
        Experiment(waves({1, 2}, max_t=3), num_samples=3, reuse_actors=reuse_actors)
    ).run(max_events=500)
    hints = [r for r in caplog.records if r.getMessage() == "A hint."]
    assert len(hints) == (0 if reuse_actors else 1)


def test_object_cache_keeps_spare_objects():
    cache = _ObjectCache(may_keep_one=True)
    assert cache.cache_object("A", 1, spare=2)
    assert cache.cache_object("A", 2, spare=2)
    assert not cache.cache_object("A", 3, spare=2)
    assert not cache.cache_object("B", 4)
    assert list(cache.flush_cached_objects(spare=lambda key: 2)) == []
    # Even if everything else has to go.
    assert list(cache.flush_cached_objects(force_all=True, spare=lambda key: 1)) == [1]
    assert list(cache.flush_cached_objects()) == []  # one may be kept
    assert list(cache.flush_cached_objects(may_keep_one=False)) == [2]
    assert cache.num_cached_objects == 0


def test_object_cache_hands_out_the_preferred_object():
    cache = _ObjectCache(may_keep_one=True)
    for obj in (1, 2, 3):
        cache.cache_object("A", obj, spare=3)
    assert cache.pop_cached_object("A", preferred=2) == 2
    assert cache.pop_cached_object("A", preferred=7) == 1
    assert cache.pop_cached_object("A") == 3
    assert cache.pop_cached_object("A") is None


def test_paused_actors_forget(tmp_path):
    from ray.tune.execution.paused_actors import PausedActors

    paused, trial = PausedActors(), make_trial(tmp_path)
    actor, other = TrackedActor(1), TrackedActor(2)
    paused.add(trial, actor)
    assert paused.get(trial) is None  # it has no checkpoint
    trial.run_metadata.last_result = {"training_iteration": 1}
    trial.run_metadata.checkpoint_manager._latest_checkpoint_result = _TrainingResult(
        checkpoint=Checkpoint.from_directory(str(tmp_path)),
        metrics={"training_iteration": 1},
    )
    paused.add(trial, actor)
    assert paused.get(trial) == actor
    assert not paused.use(trial, other)
    assert paused.use(trial, actor)
    assert not paused.use(trial, actor)
    paused.add(trial, actor)
    paused.discard(actor)
    assert paused.get(trial) is None
    paused.add(trial, actor)
    paused.forget(trial)
    assert not paused.use(trial, actor)
    # Its second pause counts.
    paused.add(trial, actor)
    paused.add(trial, other)
    paused.discard(actor)
    assert paused.get(trial) == other


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
