"""Scheduler, searcher and callbacks are told when the experiment is stopped."""

from collections import Counter

import pytest
from virtual_cluster import (
    Cluster,
    Costs,
    Experiment,
    ScriptedScheduler,
    VirtualCluster,
    task_error,
)

from ray.tune import Callback
from ray.tune.stopper import Stopper


class _StopAll(Stopper):
    def __init__(self, after):
        self.after, self.results = after, 0

    def __call__(self, trial_id, result):
        self.results += 1
        return False

    def stop_all(self):
        return self.results >= self.after


class _Completed(Callback):
    def __init__(self, told):
        self.told = told

    def on_trial_complete(self, iteration, trials, trial, **info):
        self.told["callback", trial.trial_id] += 1


def _cluster(told, **kwargs):
    def decide(controller, trial, result):
        paused = trial.trial_id.endswith("1")
        return "PAUSE" if paused else "CONTINUE"

    def tell(hook):
        def on(controller, trial, *args):
            told[hook, trial.trial_id] += 1
            told["status", hook, trial.status] += 1

        return on

    kwargs = {"num_samples": 4, "slots": 2, **kwargs}
    cluster = VirtualCluster.of(
        ScriptedScheduler(
            decide,
            choose=lambda controller: None,
            on_complete=tell("on_trial_complete"),
            on_remove=tell("on_trial_remove"),
        ),
        callbacks=lambda: [_Completed(told)],
        **kwargs,
    ).start()

    def complete(trial_id, result=None, error=False):
        told["search_alg", trial_id] += 1

    cluster.controller._search_alg.on_trial_complete = complete
    return cluster


def _until_all_statuses(cluster):
    cluster.run_until(
        lambda: (
            [trial.status for trial in cluster.trials]
            == ["RUNNING", "PAUSED", "RUNNING", "PENDING"]
        )
    )


@pytest.mark.fixes("stop-all-untold")
@pytest.mark.parametrize("way", ["request", "stopper", "fail_fast"])
@pytest.mark.parametrize("reuse_actors", [False, True])
def test_everyone_is_told_once_when_the_experiment_stops(way, reuse_actors):
    told = Counter()
    cluster = _cluster(
        told,
        stop=_StopAll(after=8) if way == "stopper" else None,
        fail_fast=way == "fail_fast",
        faults=[task_error("train", trial=2, nth=3)] if way == "fail_fast" else [],
        reuse_actors=reuse_actors,
    )
    _until_all_statuses(cluster)
    if way == "request":
        cluster.controller.request_stop_experiment()
    statuses = cluster.run(max_events=100).statuses()
    failed = way == "fail_fast"
    assert statuses == ["TERMINATED"] * 2 + ["ERROR" if failed else "TERMINATED"] + [
        "TERMINATED"
    ]
    for number, trial in enumerate(cluster.trials):
        assert told["search_alg", trial.trial_id] == 1
        if failed and number == 2:
            continue
        assert told["callback", trial.trial_id] == 1
        if number in (0, 2):
            assert told["on_trial_complete", trial.trial_id] == 1
            assert told["on_trial_remove", trial.trial_id] == 0
        else:
            assert told["on_trial_complete", trial.trial_id] == 0
            assert told["on_trial_remove", trial.trial_id] == 1
    assert {k[2] for k in told if k[:2] == ("status", "on_trial_remove")} == {
        "PAUSED",
        "PENDING",
    }


def test_nothing_starts_once_the_experiment_is_stopped():
    # The scheduler would resume a trial as soon as another one ends.
    chosen = []

    def on_complete(controller, trial, result):
        chosen.extend(t for t in controller.get_trials() if t.status == "PAUSED")

    cluster = VirtualCluster(
        Experiment(
            ScriptedScheduler(
                lambda controller, trial, result: (
                    "PAUSE" if trial.trial_id.endswith("0") else "CONTINUE"
                ),
                choose=lambda controller: chosen[0] if chosen else None,
                on_complete=on_complete,
            ),
            num_samples=2,
        ),
        Cluster(slots=1),
    ).start()
    cluster.run_until(
        lambda: [trial.status for trial in cluster.trials] == ["PAUSED", "RUNNING"]
    )
    cluster.controller.request_stop_experiment()
    cluster.call(cluster.controller._stop_experiment_if_needed)
    assert [trial.status for trial in cluster.trials] == ["TERMINATED"] * 2
    # Whatever the scheduler may want by now.
    cluster.call(cluster.controller._maybe_add_actors)
    assert not cluster.controller._actor_manager.pending_actors


@pytest.mark.fixes("stop-all-untold")
def test_hook_that_stops_other_trials_does_not_make_them_end_twice():
    told = Counter()

    def on_complete(controller, trial, result):
        told[trial.trial_id] += 1
        for other in list(controller.get_trials()):
            if other is not trial:
                controller.stop_trial(other)

    def on_remove(controller, trial):
        told[trial.trial_id] += 1

    cluster = VirtualCluster(
        Experiment(
            ScriptedScheduler(on_complete=on_complete, on_remove=on_remove),
            num_samples=4,
        ),
        Cluster(slots=1),
    ).start()
    cluster.run_until(lambda: cluster.trials and cluster.trials[0].status == "RUNNING")
    cluster.controller.request_stop_experiment()
    cluster.run(max_events=50)
    assert sorted(told.values()) == [1] * 4


@pytest.mark.timeout(20)
def test_no_export_blocks_the_end():
    cluster = VirtualCluster(
        Experiment(num_samples=1), Cluster(costs=Costs(train=1e6))
    ).start()
    cluster.run_until(lambda: cluster.trials and cluster.trials[0].status == "RUNNING")
    cluster.trials[0].export_formats = ["model"]
    cluster.controller.request_stop_experiment()
    before = cluster.clock.now
    cluster.call(cluster.controller._stop_experiment_if_needed)
    assert cluster.clock.now == before
    assert cluster.trials[0].status == "TERMINATED"


if __name__ == "__main__":
    import sys

    sys.exit(pytest.main(["-v", __file__]))
