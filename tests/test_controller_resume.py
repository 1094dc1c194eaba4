"""What a resumed run does for trials that wait: pending, paused, and yet to come."""

import pytest
from virtual_cluster import ScriptedScheduler, VirtualCluster

from ray.tune import ResumeConfig
from ray.tune.execution.placement_groups import PlacementGroupFactory
from ray.tune.schedulers import (
    FIFOScheduler,
    HyperBandScheduler,
    PopulationBasedTraining,
    ResourceChangingScheduler,
)
from ray.tune.search import ConcurrencyLimiter, Searcher

RESUME = ResumeConfig.ResumeType


def _asha_v2():
    from ray.tune.schedulers import ASHAv2

    return ASHAv2(max_t=9, reduction_factor=3)


def _pbt(synch=False):
    return PopulationBasedTraining(
        perturbation_interval=2,
        hyperparam_mutations={"x": [0.1, 0.5, 0.9]},
        synch=synch,
    )


PAUSING = {
    "asha_v2": _asha_v2,
    "hyperband": lambda: HyperBandScheduler(max_t=9, reduction_factor=3),
    "pbt": _pbt,
    "synchronous pbt": lambda: _pbt(synch=True),
    "resource changing": lambda: ResourceChangingScheduler(_asha_v2()),
}


class _Steady(Searcher):
    """Suggests the same point for ever; raises when told of trials it does not know."""

    def __init__(self):
        super().__init__(metric="score", mode="max")
        self.live, self.completed = [], []

    def set_search_properties(self, metric, mode, config, **spec):
        return True

    def suggest(self, trial_id):
        self.live.append(trial_id)
        return {"x": 1}

    def on_trial_complete(self, trial_id, result=None, error=False):
        if trial_id in self.live:
            self.live.remove(trial_id)
            self.completed.append(trial_id)

    def save(self, checkpoint_path):
        with open(checkpoint_path, "w") as file:
            file.write(",".join(self.live))

    def restore(self, checkpoint_path):
        with open(checkpoint_path) as file:
            self.live = [name for name in file.read().split(",") if name]


def _interrupted(make_scheduler, storage_path, **kwargs):
    """Runs an experiment until trials are paused, and stores it."""
    cluster = _cluster(make_scheduler, storage_path, slots=4, **kwargs).start()
    cluster.run_until(
        lambda: any(trial.status == "PAUSED" for trial in cluster.trials), 200
    )
    cluster.call(cluster.controller.checkpoint, force=True, wait=True)
    return cluster


def _cluster(make_scheduler, storage_path, after=None, **kwargs):
    kwargs = {"num_samples": 6, "resources": {"CPU": 2}, **kwargs}
    cluster = VirtualCluster.of(
        make_scheduler,
        stop={"training_iteration": 9},
        storage_path=str(storage_path),
        checkpoint_period=0,
        resume=kwargs.pop("resume", after is not None),
        # It cannot know what was recorded before, and takes a bracket that the
        # search algorithm may yet fill for one that waits in vain.
        ignore=["promotion", "stranded"] if after is not None else (),
        **kwargs,
    )
    if after is not None:
        # What is in the checkpoints.
        cluster.runtime.contents.update(after.runtime.contents)
    return cluster


def _shape(trial):
    return trial.placement_group_factory.required_resources


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "name, search_alg",
    [
        *((name, None) for name in PAUSING),
        ("asha_v2", _Steady),
        ("hyperband", _Steady),
        ("resource changing", _Steady),
    ],
)
def test_other_resources_are_for_paused_trials_too(name, search_alg, tmp_path):
    second = _interrupted(PAUSING[name], tmp_path, search_alg=search_alg)
    # A second restore needs no word of the resources.
    for resources in ({"cpu": 1}, None):
        second = _cluster(
            PAUSING[name], tmp_path, second, slots=1, search_alg=search_alg
        ).start()
        if resources:
            second.call(second.controller.update_pending_trial_resources, resources)
            assert resources == {"cpu": 1}
        waiting = [t for t in second.trials if not t.is_finished()]
        assert {trial.status for trial in waiting} >= {"PAUSED"}
        assert all(_shape(trial).get("CPU") == 1 for trial in waiting)
        if resources:
            second.call(second.controller.checkpoint, force=True, wait=True)
    record = second.run(max_events=2000)
    assert record.statuses() == ["TERMINATED"] * 6


@pytest.mark.fixes("resumed-with-other-resources")
@pytest.mark.timeout(20)
def test_trials_yet_to_come_ask_for_the_other_resources(tmp_path):
    first = _cluster(FIFOScheduler, tmp_path, slots=2, search_alg=_Steady).start()
    first.run_until(lambda: len(first.trials) == 2)
    first.call(first.controller.checkpoint, force=True, wait=True)
    second = _cluster(
        FIFOScheduler, tmp_path, first, slots=1, search_alg=_Steady
    ).start()
    second.call(second.controller.update_pending_trial_resources, {"cpu": 1})
    record = second.run(max_events=500)
    assert record.statuses() == ["TERMINATED"] * 6


@pytest.mark.timeout(60)
@pytest.mark.parametrize("way", ["resources_per_trial", "with_resources"])
def test_resource_changing_scheduler_goes_by_the_other_resources(way, tmp_path):
    # What was planned for the cluster of before would never fit.
    def make():
        return ResourceChangingScheduler(_asha_v2())

    first = _interrupted(make, tmp_path, resources={"CPU": 1})
    resources = {"CPU": 2} if way == "with_resources" else {"CPU": 1}
    second = _cluster(make, tmp_path, first, slots=2, resources=resources).start()
    if way == "resources_per_trial":
        second.call(second.controller.update_pending_trial_resources, {"cpu": 2})
    assert second.scheduler.base_trial_resources == PlacementGroupFactory([{"CPU": 2}])
    record = second.run(max_events=2000)
    assert record.statuses() == ["TERMINATED"] * 6


def _pausing_once():
    """Pauses every trial at its first result; resumes them when nothing else runs."""
    return ScriptedScheduler(
        lambda controller, trial, result: (
            "PAUSE" if result["training_iteration"] == 1 else "CONTINUE"
        )
    )


class _Stored(ScriptedScheduler):
    """As above, and its state is stored: restored trials stay paused."""

    def __init__(self):
        super().__init__(_pausing_once()._decide)

    def save(self, checkpoint_path):
        open(checkpoint_path, "w").close()

    def restore(self, checkpoint_path):
        pass


@pytest.mark.timeout(20)
@pytest.mark.parametrize("make_scheduler", [_Stored, _pausing_once])
def test_unmeetable_request_of_a_resumed_trial_is_named(
    make_scheduler, tmp_path, caplog
):
    first = _interrupted(make_scheduler, tmp_path, num_samples=2)
    caplog.clear()
    second = _cluster(
        make_scheduler, tmp_path, first, num_samples=2, slots=1, detect_hangs=False
    ).start()
    waiting = [trial for trial in second.trials if not trial.is_finished()]
    for _ in range(200):
        second.step()
    [warning, *_] = [r.message for r in caplog.records if "asked for" in r.message]
    assert "asked for 2 CPUs and 0 GPUs" in warning
    assert "only has 1 CPUs and 0 GPUs" in warning
    assert any(str(trial) in warning for trial in waiting)
    if make_scheduler is _pausing_once:
        assert all(str(trial) in warning for trial in waiting)


@pytest.mark.fixes("finished-trial-asked-for-resources")
@pytest.mark.timeout(20)
@pytest.mark.parametrize("resource", ["CPU", "tpu"])
def test_unmeetable_request_names_the_trial_that_made_it(resource, caplog):
    def request(config):
        return {"CPU": 1} if config["x"] == 1 else {"CPU": 1, resource: 8}

    cluster = VirtualCluster.of(
        num_samples=2,
        configs=[{"x": 1}, {"x": 2}],
        slots=1,
        resources=request,
        stop={"training_iteration": 2},
        detect_hangs=False,
    ).start()
    for _ in range(200):
        cluster.step()
    finished, waiting = cluster.trials
    assert finished.is_finished()
    [warning, *_] = [r.message for r in caplog.records if "asked for" in r.message]
    assert str(waiting) in warning and str(finished) not in warning
    assert f"8 {resource}" in warning


@pytest.mark.timeout(20)
def test_search_algorithm_that_gives_no_trial_for_a_minute_does_no_harm(caplog):
    class Slow(_Steady):
        asked = 0

        def suggest(self, trial_id):
            self.asked += 1
            return super().suggest(trial_id) if self.asked > 100 else None

    record = VirtualCluster.of(
        search_alg=Slow(),
        num_samples=1,
        stop={"training_iteration": 2},
        detect_hangs=False,
    ).run(max_events=50)
    assert record.statuses() == ["TERMINATED"]
    assert "asked for" not in caplog.text


@pytest.mark.fixes("insufficient-resources-after-a-run")
@pytest.mark.timeout(20)
def test_time_in_which_trials_ran_is_no_time_without_trials(caplog):
    paused_at = []

    def decide(controller, trial, result):
        if result["training_iteration"] not in (1, 100):
            return "CONTINUE"
        paused_at.append(cluster.clock.now)
        return "PAUSE"

    def choose(controller):
        [trial] = controller.get_trials()
        waited = not paused_at or cluster.clock.now > paused_at[-1] + 10
        return trial if waited and trial.status in ("PENDING", "PAUSED") else None

    cluster = VirtualCluster.of(
        ScriptedScheduler(decide, choose),
        slots=1,
        stop={"training_iteration": 110},
        detect_hangs=False,
    )
    assert cluster.run().statuses() == ["TERMINATED"]
    assert len(paused_at) == 2
    assert "No trial is running" not in caplog.text


@pytest.mark.fixes("skipped-trials-keep-their-place")
@pytest.mark.timeout(20)
@pytest.mark.parametrize("unfinished", [RESUME.SKIP, RESUME.RESTART])
def test_trials_that_are_not_resumed_take_no_place(unfinished, tmp_path):
    def limited():
        return ConcurrencyLimiter(_Steady(), max_concurrent=2)

    first = _cluster(FIFOScheduler, tmp_path, slots=4, search_alg=limited).start()
    first.run_until(lambda: first.monitor.number >= 6)
    assert len(first.trials) == 2
    first.call(first.controller.checkpoint, force=True, wait=True)
    second = _cluster(
        FIFOScheduler,
        tmp_path,
        first,
        slots=4,
        search_alg=limited,
        resume=ResumeConfig(unfinished=unfinished),
    )
    record = second.run(max_events=500)
    assert record.statuses() == ["TERMINATED"] * 6


@pytest.mark.timeout(20)
def test_paused_trials_that_are_pending_after_a_restore_take_their_places(tmp_path):
    # The scheduler keeps no state, so that nobody else would resume them.
    def limited():
        return ConcurrencyLimiter(_Steady(), max_concurrent=2)

    kwargs = {"search_alg": limited, "num_samples": 8, "max_concurrent": 2}
    first = _interrupted(_pausing_once, tmp_path, **kwargs)
    second = _cluster(_pausing_once, tmp_path, first, slots=8, **kwargs)
    record = second.run(max_events=500)
    assert record.statuses() == ["TERMINATED"] * 8


if __name__ == "__main__":
    import sys

    sys.exit(pytest.main(["-v", __file__]))
