"""Every failure is handled once, and a run that ends with an error is restorable."""

import pytest
from virtual_cluster import (
    ClassTrainable,
    Cluster,
    Costs,
    Experiment,
    Faults,
    Options,
    ScriptedScheduler,
    VirtualCluster,
    actor_death,
    saturating,
    task_error,
)
from virtual_cluster.workloads.searchers import RandomSearcher

from ray.tune import Callback, CheckpointConfig, TuneError
from ray.tune.search import BasicVariantGenerator, Searcher


class _Told(Callback):
    """Notes what callbacks, the scheduler and the search algorithm are told."""

    def __init__(self):
        self.callbacks, self.scheduler, self.search_alg = [], [], []

    def on_trial_error(self, iteration, trials, trial, **info):
        self.callbacks.append(trial.trial_id)

    def make_scheduler(self, **kwargs):
        return ScriptedScheduler(
            on_error=lambda controller, trial: self.scheduler.append(trial.trial_id),
            **kwargs,
        )

    def watch(self, cluster):
        complete = cluster.controller._search_alg.on_trial_complete

        def on_trial_complete(trial_id, result=None, error=False):
            if error:
                self.search_alg.append(trial_id)
            return complete(trial_id, result=result, error=error)

        cluster.controller._search_alg.on_trial_complete = on_trial_complete


@pytest.mark.fixes("reset-failure-untold")
@pytest.mark.parametrize("max_failures", [0, 2])
def test_refused_reset_is_told_like_any_failure_where_it_is_one(max_failures):
    told = _Told()
    cluster = VirtualCluster(
        Experiment(
            told.make_scheduler(),
            num_samples=2,
            trainable=ClassTrainable(saturating, resettable=False),
            callbacks=lambda: [told],
            reuse_actors=True,
            max_failures=max_failures,
            stop={"training_iteration": 2},
        ),
        Cluster(slots=1),
    ).start()
    told.watch(cluster)
    cluster.controller._fail_on_refused_reset = True  # as of tune.run_experiments()
    record = cluster.run(max_events=100)
    assert record.statuses() == ["TERMINATED", "ERROR"]
    failed = cluster.trials[1].trial_id
    assert told.scheduler == told.search_alg == told.callbacks == [failed]
    with open(cluster.trials[1].error_file) as error_file:
        assert "requires reset_config() to be implemented" in error_file.read()


@pytest.mark.fixes("reset-failure-untold")
def test_trainable_that_is_not_registered_is_told_like_any_failure():
    told = _Told()
    cluster = VirtualCluster(
        Experiment(told.make_scheduler(), num_samples=1, callbacks=lambda: [told])
    ).start()
    told.watch(cluster)
    cluster.call(cluster.controller._update_trial_queue)
    [trial] = cluster.trials
    trial.get_trainable_cls = lambda: None
    record = cluster.run(max_events=100)
    assert record.statuses() == ["ERROR"]
    assert told.scheduler == told.search_alg == told.callbacks == [trial.trial_id]


@pytest.mark.fixes("reset-not-retried")
@pytest.mark.parametrize("fault", [task_error, actor_death])
def test_reset_that_raises_is_no_failure_of_the_trial(fault):
    cluster = VirtualCluster(
        Experiment(
            ScriptedScheduler(),
            num_samples=2,
            reuse_actors=True,
            stop={"training_iteration": 2},
        ),
        Cluster(slots=1),
        Faults([fault("reset", trial=1)]),
    )
    record = cluster.run(max_events=100)
    assert record.statuses() == ["TERMINATED"] * 2
    assert [trial.num_failures for trial in cluster.trials] == [0, 0]


@pytest.mark.parametrize("reuse_actors", [False, True])
@pytest.mark.parametrize("fault", [task_error, actor_death])
@pytest.mark.parametrize("method", ["start", "train", "save", "restore"])
def test_failure_is_counted_once(method, fault, reuse_actors):
    if (method, fault) == ("start", task_error):
        fault = actor_death
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
            reuse_actors=reuse_actors,
            max_failures=1,
            stop={"training_iteration": 4},
        ),
        Cluster(slots=1),
        Faults([fault(method, trial=0)]),
    )
    record = cluster.run(max_events=200)
    assert record.statuses() == ["TERMINATED"] * 2
    assert sum(trial.num_failures for trial in cluster.trials) == 1


@pytest.mark.fixes("choice-still-saving")
@pytest.mark.parametrize("seed", range(3))
def test_trial_that_is_chosen_while_it_saves_starts_later(seed):
    def choose(controller):
        trials = [trial for trial in controller.get_trials() if trial.is_saving]
        return (
            trials[0] if trials else ScriptedScheduler().choose_trial_to_run(controller)
        )

    record = VirtualCluster(
        Experiment(
            ScriptedScheduler(
                lambda controller, trial, result: (
                    "PAUSE" if result["training_iteration"] % 2 else "CONTINUE"
                ),
                choose,
            ),
            num_samples=4,
            reuse_actors=True,
            stop={"training_iteration": 4},
        ),
        Cluster(slots=2, costs=Costs(save=3)),
        options=Options(seed=seed),
    ).run(max_events=500)
    assert record.statuses() == ["TERMINATED"] * 4


@pytest.mark.fixes("finished-trial-chosen")
def test_trial_that_is_finished_is_not_started_again():
    def choose(controller):
        trials = controller.get_trials()
        return trials[0] if trials else None

    record = VirtualCluster(
        Experiment(
            ScriptedScheduler(choose=choose),
            num_samples=2,
            stop={"training_iteration": 2},
        ),
        Cluster(slots=1),
    ).run(max_events=100)
    assert record.statuses() == ["TERMINATED"] * 2


# Hooks that raise


class _Searcher(Searcher):
    """Suggests up to four trials, and does as it is told in a hook."""

    def __init__(self, hooks):
        super().__init__(metric="score", mode="max")
        self.hooks, self.count = hooks, 0

    def set_search_properties(self, metric, mode, config, **spec):
        return True

    def _do(self, hook):
        if hook in self.hooks:
            raise ArithmeticError("what a pity")

    def suggest(self, trial_id):
        self.count += 1
        if self.count == 4:
            self._do("next_trial")
        return {"x": 1} if self.count <= 4 else Searcher.FINISHED

    def on_trial_result(self, trial_id, result):
        if result["training_iteration"] == 3:
            self._do("on_trial_result")

    def on_trial_complete(self, trial_id, result=None, error=False):
        self._do("on_trial_complete")

    def save(self, checkpoint_path):
        with open(checkpoint_path, "w") as checkpoint_file:
            checkpoint_file.write(str(self.count))

    def restore(self, checkpoint_path):
        with open(checkpoint_path) as checkpoint_file:
            self.count = int(checkpoint_file.read())


def _raising_scheduler(hook):
    def hit(name, when=True):
        if hook == name and when:
            raise ArithmeticError("what a pity")

    def decide(controller, trial, result):
        third = result["training_iteration"] == 3
        hit("on_trial_result", third and trial.trial_id.endswith("2"))
        return "CONTINUE"

    def choose(controller):
        trials = controller.get_trials()
        hit("choose_trial_to_run", any(t.last_result.get("score") for t in trials))
        return ScriptedScheduler().choose_trial_to_run(controller)

    return ScriptedScheduler(
        decide,
        choose,
        on_add=lambda c, trial: hit("on_trial_add", trial.trial_id.endswith("3")),
        on_complete=lambda c, trial, result: hit("on_trial_complete"),
        on_remove=lambda c, trial: hit("on_trial_remove"),
        on_error=lambda c, trial: hit("on_trial_error"),
    )


_SCHEDULER_HOOKS = [
    "choose_trial_to_run",
    "on_trial_add",
    "on_trial_complete",
    "on_trial_error",
    "on_trial_remove",
    "on_trial_result",
]
_SEARCHER_HOOKS = ["next_trial", "on_trial_complete", "on_trial_result"]


def _run_into_hook(owner, hook):
    is_scheduler = owner == "scheduler"
    # Whoever raised does not do so again in the run that is restored.
    schedulers = [_raising_scheduler(hook if is_scheduler else None)]
    searchers = [None if is_scheduler else _Searcher({hook})]
    cluster = VirtualCluster(
        Experiment(
            lambda: schedulers.pop() if schedulers else ScriptedScheduler(),
            search_alg=lambda: (
                searchers.pop()
                if searchers
                else None
                if is_scheduler
                else _Searcher(())
            ),
            num_samples=4,
            checkpoint_config=CheckpointConfig(checkpoint_frequency=2),
            checkpoint_period=1e9,
            stop={"training_iteration": 6},
        ),
        Cluster(slots=3, costs=Costs(save=5)),
        Faults(
            [task_error("train", trial=1, nth=3)] if hook == "on_trial_error" else []
        ),
        Options(check=False),
    ).start()
    if hook == "on_trial_remove":
        cluster.run_until(lambda: cluster.trials and cluster.trials[0].is_saving)
        cluster.controller.request_stop_experiment()
    with pytest.raises(Exception) as info:
        cluster.run(max_events=200)
    return cluster, info.value


@pytest.mark.fixes("hook-error")
@pytest.mark.parametrize(
    "owner, hook",
    [("scheduler", hook) for hook in _SCHEDULER_HOOKS]
    + [("searcher", hook) for hook in _SEARCHER_HOOKS],
)
def test_error_in_a_hook_is_named_and_the_run_restorable(owner, hook, caplog):
    cluster, error = _run_into_hook(owner, hook)
    assert type(error) is ArithmeticError
    assert str(error) == "what a pity"
    name = "ScriptedScheduler" if owner == "scheduler" else "SearchGenerator"
    # Others may do so as the run winds down.
    said, *_ = [r.message for r in caplog.records if "raised an error" in r.message]
    assert said.startswith(f"`{name}.{hook}` raised an error")
    assert said.endswith(": ArithmeticError: what a pity")
    if hook not in ("choose_trial_to_run", "next_trial"):
        assert "for trial virtual_class_" in said
    # What was in progress is registered, and everything is in the state that was saved.
    assert not any(trial.is_saving for trial in cluster.trials)
    before = {trial.trial_id: _progress(trial) for trial in cluster.trials}
    cluster.restart_driver()
    assert cluster.controller.resumed
    assert {trial.trial_id: _progress(trial) for trial in cluster.trials} == before
    cluster.run(max_events=500)
    assert len(cluster.trials) >= 3
    for trial in cluster.trials:
        assert trial.is_finished()
        if trial.status != "ERROR" and hook != "on_trial_remove":
            assert trial.run_metadata.last_result["training_iteration"] >= 6


def _progress(trial):
    checkpoint = trial.latest_checkpoint_result
    return (
        trial.run_metadata.last_result.get("training_iteration", 0),
        checkpoint.metrics["training_iteration"] if checkpoint else 0,
    )


@pytest.mark.fixes("hook-error")
def test_checkpoint_under_way_is_registered_when_a_hook_raises():
    def decide(controller, trial, result):
        if trial.trial_id.endswith("1") and result["training_iteration"] == 3:
            raise ArithmeticError("what a pity")
        return "CONTINUE"

    cluster = VirtualCluster(
        Experiment(ScriptedScheduler(decide), num_samples=2, checkpoint_period=1e9),
        Cluster(slots=2, costs=Costs(save=7)),
        options=Options(check=False),
    ).start()
    cluster.run_until(lambda: cluster.monitor.number > 2)
    saving, raising = cluster.trials
    cluster.call(cluster.controller._schedule_trial_save, saving)
    with pytest.raises(ArithmeticError):
        cluster.run(max_events=100)
    assert _progress(raising) == (2, 0)
    iteration, saved_iteration = _progress(saving)
    assert saved_iteration == iteration > 0
    cluster.restart_driver()
    saved = {trial.trial_id: _progress(trial)[1] for trial in cluster.trials}
    assert saved == {saving.trial_id: saved_iteration, raising.trial_id: 0}


@pytest.mark.fixes("callback-raises")
@pytest.mark.parametrize("who", ["callback", "searcher"])
def test_result_is_kept_when_who_comes_after_the_scheduler_raises(who):
    # Else the scheduler would know of a result that its trial has not.
    class Raises(Callback):
        def on_trial_result(self, iteration, trials, trial, result, **info):
            if result["training_iteration"] == 2:
                raise ArithmeticError("what a pity")

    class RaisingSearcher(RandomSearcher):
        def on_trial_result(self, trial_id, result):
            if result["training_iteration"] == 2:
                raise ArithmeticError("what a pity")

    cluster = VirtualCluster(
        Experiment(
            num_samples=1,
            stop={"training_iteration": 3},
            callbacks=lambda: [Raises()] if who == "callback" else [],
            search_alg=RaisingSearcher if who == "searcher" else None,
        ),
        options=Options(check=False),
    )
    with pytest.raises(Exception, match="what a pity"):
        cluster.run(max_events=100)
    cluster.restart_driver()
    [trial] = cluster.trials
    assert trial.last_result["training_iteration"] == 2


def test_original_error_is_raised_with_fail_fast_raise():
    def decide(controller, trial, result):
        raise ArithmeticError("what a pity")

    cluster = VirtualCluster(
        Experiment(ScriptedScheduler(decide), num_samples=1, fail_fast="raise"),
        options=Options(check=False),
    )
    with pytest.raises(ArithmeticError, match="what a pity"):
        cluster.run(max_events=50)


def test_strict_metric_checking_stays():
    cluster = VirtualCluster(
        Experiment(
            search_alg=BasicVariantGenerator(),
            num_samples=1,
            trainable=lambda config, iteration: {"loss": 1},
        ),
        options=Options(check=False),
    )
    with pytest.raises(TuneError, match="did not include the specified metric"):
        cluster.run(max_events=50)


if __name__ == "__main__":
    import sys

    sys.exit(pytest.main(["-v", __file__]))
