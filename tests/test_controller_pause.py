"""`pause_trial` may be called on any trial, in any status, from any hook."""

import itertools

import pytest
from virtual_cluster import (
    Cluster,
    Costs,
    Experiment,
    Faults,
    FunctionTrainable,
    Options,
    ScriptedScheduler,
    VirtualCluster,
    saturating,
    task_error,
)

from ray.tune import Callback, CheckpointConfig

_HOOKS = ["on_trial_add", "on_trial_result", "on_trial_complete", "on_trial_remove"]
_HOOKS += ["on_trial_error", "choose_trial_to_run", "callback"]


def _never(controller):
    return None


def _first_unfinished(controller):
    for trial in controller.get_trials():
        if trial.status in ("PENDING", "PAUSED"):
            return trial
    return None


def _cluster(decide=None, choose=_never, **kwargs):
    kwargs = {"num_samples": 1, "slots": 1, **kwargs}
    return VirtualCluster.of(ScriptedScheduler(decide, choose), **kwargs).start()


def _wait_for(cluster, status, index=0):
    cluster.run_until(
        lambda: len(cluster.trials) > index and cluster.trials[index].status == status
    )
    return cluster.trials[index]


def _holds_nothing(cluster, trial):
    controller = cluster.controller
    return (
        trial not in controller._trial_to_actor
        and trial not in controller._staged_trials
        and trial not in controller._resetting_trials
        and trial.trial_id not in controller._cached_trial_decisions
        and trial.trial_id not in controller._queued_trial_decisions
        and not trial.is_saving
        and not trial.is_restoring
    )


# Which combinations of the matrix go wrong on stock.
def _is_red(should_checkpoint, decision, frequency):
    if should_checkpoint:
        # A second save is in flight, unless the decision is the same pause.
        return frequency == 1 and decision != "PAUSE"
    # CONTINUE raises a KeyError; a checkpoint that is due is dropped; STOP leaves the
    # searcher without a result.
    return decision in ("CONTINUE", "STOP") or frequency == 1


def _matrix():
    for should_checkpoint, decision, frequency in itertools.product(
        [True, False], ["NOOP", "CONTINUE", "PAUSE", "STOP"], [0, 1]
    ):
        marks = []
        if _is_red(should_checkpoint, decision, frequency):
            marks.append(pytest.mark.fixes("pause-in-hook"))
        yield pytest.param(should_checkpoint, decision, frequency, marks=marks)


@pytest.mark.parametrize("reuse_actors", [False, True])
@pytest.mark.parametrize("should_checkpoint, decision, frequency", list(_matrix()))
def test_pause_in_on_trial_result(should_checkpoint, decision, frequency, reuse_actors):
    seen = []

    def decide(controller, trial, result):
        seen.append(result["training_iteration"])
        if seen == [1, 2]:
            controller.pause_trial(trial, should_checkpoint=should_checkpoint)
            return decision
        return "CONTINUE"

    cluster = _cluster(
        decide,
        _first_unfinished,
        checkpoint_config=CheckpointConfig(checkpoint_frequency=frequency),
        reuse_actors=reuse_actors,
        stop={"training_iteration": 4},
    )
    completed = []
    cluster.controller._search_alg.on_trial_complete = (
        lambda trial_id, result=None, error=False: completed.append(result)
    )
    record = cluster.run(max_events=100)
    [trial] = cluster.trials
    assert record.statuses() == ["TERMINATED"]
    last_iteration = trial.run_metadata.last_result["training_iteration"]
    if decision == "STOP":
        # A STOP returned by the hook that paused the trial ends it.
        assert last_iteration == 2
        assert seen == [1, 2]
    else:
        assert last_iteration == 4
        if should_checkpoint or frequency:
            assert seen == [1, 2, 3]
        else:
            # Nothing was saved, so it starts over.
            assert seen == [1, 2, 1, 2, 3]
    assert [result["training_iteration"] for result in completed] == [last_iteration]
    assert completed[0]["done"]


@pytest.mark.parametrize("should_checkpoint", [True, False])
def test_running_trial_pauses(should_checkpoint):
    cluster = _cluster()
    trial = _wait_for(cluster, "RUNNING")
    cluster.pause_trial(trial, should_checkpoint=should_checkpoint)
    assert trial.status == ("RUNNING" if should_checkpoint else "PAUSED")
    cluster.run_until(lambda: trial.status == "PAUSED")
    assert _holds_nothing(cluster, trial)
    assert trial.has_checkpoint() == should_checkpoint


@pytest.mark.fixes("pause-pending")
@pytest.mark.parametrize("should_checkpoint", [True, False])
@pytest.mark.parametrize(
    "trainable", [None, FunctionTrainable(saturating)], ids=["class", "function"]
)
def test_pending_trial_gives_back_what_it_asked_for(should_checkpoint, trainable):
    # The first trial has the slot; the actor of the second is asked for.
    allowed = []
    cluster = _cluster(
        choose=lambda controller: allowed[0] if allowed else None,
        num_samples=2,
        trainable=trainable,
        stop={"training_iteration": 3},
    )
    _wait_for(cluster, "RUNNING")
    trial = cluster.trials[1]
    assert trial in cluster.controller._staged_trials
    cluster.pause_trial(trial, should_checkpoint=should_checkpoint)
    assert trial.status == "PAUSED"
    assert _holds_nothing(cluster, trial)
    assert cluster.controller._actor_manager.num_pending_actors == 0
    allowed.append(trial)
    record = cluster.run(max_events=100)
    assert record.statuses() == ["TERMINATED"] * 2
    assert trial.run_metadata.last_result["training_iteration"] == 3


@pytest.mark.fixes("pause-pending")
@pytest.mark.parametrize("should_checkpoint", [True, False])
def test_trial_that_has_asked_for_nothing_yet_pauses(should_checkpoint):
    added = []

    def on_add(controller, trial):
        controller.pause_trial(trial, should_checkpoint=should_checkpoint)
        added.append(trial.status)

    cluster = VirtualCluster(
        Experiment(
            ScriptedScheduler(choose=_first_unfinished, on_add=on_add),
            num_samples=3,
            stop={"training_iteration": 2},
        ),
        Cluster(slots=1),
    )
    record = cluster.run(max_events=100)
    assert added == ["PAUSED"] * 3
    assert record.statuses() == ["TERMINATED"] * 3


@pytest.mark.fixes("pause-while-starting")
@pytest.mark.parametrize("should_checkpoint", [True, False])
def test_trial_whose_actor_starts_pauses(should_checkpoint):
    cluster = _cluster(
        configs=[{"x": 0}, {"x": 1}],
        slots=2,
        costs=Costs(start=lambda config, iteration: 1 + 10 * config["x"]),
    )
    _wait_for(cluster, "RUNNING")
    trial = cluster.trials[1]
    assert trial.status == "PENDING"
    assert cluster.controller._actor_manager.num_live_actors == 2
    cluster.pause_trial(trial, should_checkpoint=should_checkpoint)
    assert trial.status == "PAUSED"
    assert _holds_nothing(cluster, trial)
    cluster.run_until(lambda: cluster.controller._actor_manager.num_live_actors == 1)


@pytest.mark.parametrize(
    "trainable_class, should_checkpoint",
    [
        pytest.param(True, True, marks=pytest.mark.fixes("pause-while-restoring")),
        pytest.param(False, True, marks=pytest.mark.fixes("pause-while-restoring")),
        pytest.param(False, False, marks=pytest.mark.fixes("pause-while-restoring")),
        (True, False),
    ],
)
def test_trial_that_is_being_restored_pauses(should_checkpoint, trainable_class):
    allowed = []
    cluster = _cluster(
        choose=lambda controller: allowed[0] if allowed else None,
        trainable=None if trainable_class else FunctionTrainable(saturating),
        costs=Costs(restore=10),
        stop={"training_iteration": 3},
    )
    trial = _wait_for(cluster, "RUNNING")
    cluster.pause_trial(trial)
    cluster.run_until(lambda: trial.status == "PAUSED")
    allowed.append(trial)
    cluster.run_until(lambda: trial.is_restoring)
    allowed.clear()
    cluster.pause_trial(trial, should_checkpoint=should_checkpoint)
    cluster.run_until(lambda: trial.status == "PAUSED")
    assert _holds_nothing(cluster, trial)
    assert trial.checkpoint is not None
    allowed.append(trial)
    record = cluster.run(max_events=100)
    [iterations] = [
        [result["training_iteration"] for result in results]
        for results in record.results.values()
    ]
    assert iterations == [1, 2, 3]


@pytest.mark.fixes("pause-while-resetting")
@pytest.mark.parametrize("should_checkpoint", [True, False])
def test_trial_whose_actor_is_being_reset_pauses(should_checkpoint):
    # A second trial runs meanwhile.
    cluster = _cluster(
        lambda controller, trial, result: (
            "STOP" if trial.trial_id.endswith("0") else "CONTINUE"
        ),
        num_samples=3,
        slots=2,
        costs=Costs(reset=10),
        reuse_actors=True,
    )
    cluster.run_until(lambda: bool(cluster.controller._resetting_trials))
    [trial] = cluster.controller._resetting_trials
    cluster.pause_trial(trial, should_checkpoint=should_checkpoint)
    assert trial.status == "PAUSED"
    assert _holds_nothing(cluster, trial)
    cluster.run_until(lambda: cluster.controller._actor_manager.num_live_actors == 1)


@pytest.mark.parametrize("status", ["PAUSED", "TERMINATED", "ERROR"])
@pytest.mark.parametrize("should_checkpoint", [True, False])
def test_trial_that_does_not_run_ignores_a_pause(status, should_checkpoint):
    def curve(config, iteration):
        if status == "ERROR":
            raise RuntimeError("no")
        return {"score": 1}

    cluster = _cluster(
        lambda controller, trial, result: "STOP" if status == "TERMINATED" else "PAUSE",
        num_samples=2,
        trainable=curve,
        slots=2,
    )
    trial = _wait_for(cluster, status)
    cluster.pause_trial(trial, should_checkpoint=should_checkpoint)
    assert trial.status == status
    assert _holds_nothing(cluster, trial)


@pytest.mark.fixes("pause-from-any-hook")
@pytest.mark.parametrize("reuse_actors", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_pause_of_any_trial_from_any_hook(reuse_actors, seed):
    # Every hook pauses every trial once, with and without a checkpoint.
    done = set()

    def pause_all(hook, controller):
        for trial in list(controller.get_trials()):
            for should_checkpoint in (True, False):
                key = (hook, trial.trial_id, should_checkpoint)
                if key not in done:
                    done.add(key)
                    controller.pause_trial(trial, should_checkpoint=should_checkpoint)
                    break

    class PausingCallback(Callback):
        def on_trial_start(self, iteration, trials, trial, **info):
            pause_all("callback", cluster.controller)

    def decide(controller, trial, result):
        pause_all("on_trial_result", controller)
        return "CONTINUE"

    def choose(controller):
        pause_all("choose_trial_to_run", controller)
        return _first_unfinished(controller)

    def curve(config, iteration, state):
        state["n"] = state.get("n", 0) + 1
        return {"score": state["n"]}

    scheduler = ScriptedScheduler(
        decide,
        choose,
        on_add=lambda controller, trial: pause_all("on_trial_add", controller),
        on_complete=lambda controller, trial, result: pause_all(
            "on_trial_complete", controller
        ),
        on_remove=lambda controller, trial: pause_all("on_trial_remove", controller),
        on_error=lambda controller, trial: pause_all("on_trial_error", controller),
    )
    cluster = VirtualCluster(
        Experiment(
            scheduler,
            num_samples=4,
            trainable=curve,
            callbacks=lambda: [PausingCallback()],
            max_failures=1,
            reuse_actors=reuse_actors,
            stop={"training_iteration": 4},
        ),
        Cluster(slots=2),
        Faults([task_error("train", trial=1, nth=2)]),
        Options(seed=seed),
    )
    record = cluster.run(max_events=1000)
    assert record.statuses() == ["TERMINATED"] * 4


@pytest.mark.fixes("stopped-while-paused")
@pytest.mark.parametrize("export", [False, True])
def test_trial_stopped_while_paused_tells_its_last_result(export):
    cluster = _cluster(lambda controller, trial, result: "PAUSE")
    trial = _wait_for(cluster, "PAUSED")
    if export:
        trial.export_formats = ["model"]
    completed = []
    cluster.controller._search_alg.on_trial_complete = (
        lambda trial_id, result=None, error=False: completed.append((result, error))
    )
    cluster.stop_trial(trial)
    assert trial.status == "TERMINATED"
    assert trial.last_result["done"]
    [(result, error)] = completed
    assert not error
    assert result["training_iteration"] == 1
    assert result["done"]
    # The checkpoint's metrics are those that it was saved with.
    assert not trial.latest_checkpoint_result.metrics.get("done")


@pytest.mark.fixes("stopped-while-paused")
def test_trial_stopped_while_paused_is_written_to_the_experiment_state():
    cluster = _cluster(lambda controller, trial, result: "PAUSE")
    trial = _wait_for(cluster, "PAUSED")
    cluster.call(cluster.controller._get_trial_checkpoints)
    cluster.stop_trial(trial)
    [(state, _)] = cluster.call(cluster.controller._get_trial_checkpoints).values()
    assert '"status": "TERMINATED"' in state


@pytest.mark.fixes("stopped-in-own-hook")
def test_trial_that_a_hook_stops_tells_the_result_at_hand():
    def decide(controller, trial, result):
        if result["training_iteration"] == 2:
            controller.stop_trial(trial)
        return "CONTINUE"

    cluster = _cluster(decide)
    completed = []
    cluster.controller._search_alg.on_trial_complete = (
        lambda trial_id, result=None, error=False: completed.append(result)
    )
    record = cluster.run(max_events=100)
    assert record.statuses() == ["TERMINATED"]
    assert [result["training_iteration"] for result in completed] == [2]


@pytest.mark.fixes("stopped-while-staged")
def test_trial_stopped_while_it_waits_gives_back_what_it_asked_for():
    cluster = _cluster(num_samples=2)
    _wait_for(cluster, "RUNNING")
    trial = cluster.trials[1]
    cluster.stop_trial(trial)
    assert trial.status == "TERMINATED"
    assert _holds_nothing(cluster, trial)
    assert cluster.controller._actor_cache.total_max_objects == 0


@pytest.mark.fixes("pause-without-checkpoint")
def test_pause_without_a_checkpoint_is_said_once(caplog):
    cluster = _cluster(
        lambda controller, trial, result: (
            "PAUSE" if result["training_iteration"] % 2 else "CONTINUE"
        ),
        _first_unfinished,
        num_samples=2,
        slots=2,
        trainable=FunctionTrainable(saturating, checkpoint_every=0),
        ignore=["resume-point"],
    )
    _wait_for(cluster, "PAUSED", index=1)
    cluster.run_until(lambda: cluster.monitor.number > 30)
    said = [r for r in caplog.records if "has never reported a checkpoint" in r.message]
    assert len(said) == 1
    assert "virtual_function_t_0000" in said[0].message
    assert "tune.get_checkpoint()" in said[0].message


def test_pause_with_a_checkpoint_is_not_remarked_upon(caplog):
    cluster = _cluster(lambda controller, trial, result: "PAUSE")
    _wait_for(cluster, "PAUSED")
    assert "checkpoint" not in caplog.text


if __name__ == "__main__":
    import sys

    sys.exit(pytest.main(["-v", __file__]))
