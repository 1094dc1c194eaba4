"""Schedulers rebuild their state from results where none was stored."""

import json
import math
from pathlib import Path

import pytest
from virtual_cluster import VirtualCluster
from virtual_cluster.workloads.searchers import RandomSearcher

from ray import tune
from ray.tune.execution import scheduler_state
from ray.tune.execution.scheduler_state import _creation_order, _read_results
from ray.tune.logger import JsonLoggerCallback
from ray.tune.schedulers import (
    ASHAScheduler,
    HyperBandForBOHB,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
    ResourceChangingScheduler,
)
from ray.tune.schedulers.pb2 import PB2

TIME = {"time_attr": "training_iteration"}

# The ids of the trials that were paused as the driver died.
PAUSED = set()


def _hyperband(max_t=9):
    return HyperBandScheduler(max_t=max_t, reduction_factor=3)


def _bohb():
    return HyperBandForBOHB(max_t=9, reduction_factor=3)


def _pbt(synch=False):
    return PopulationBasedTraining(
        perturbation_interval=2,
        hyperparam_mutations={"x": tune.uniform(0, 1)},
        quantile_fraction=0.5,
        synch=synch,
        **TIME,
    )


def _pb2():
    return PB2(
        perturbation_interval=2,
        hyperparam_bounds={"x": [0.0, 1.0]},
        quantile_fraction=0.5,
        **TIME,
    )


def _median():
    return MedianStoppingRule(
        grace_period=1, min_samples_required=2, hard_stop=False, **TIME
    )


def _cluster(make_scheduler, **kwargs):
    settings = {
        "num_samples": 8,
        "slots": 2,
        "stop": {"training_iteration": 9},
        "checkpoint_period": 0,
        "callbacks": lambda: [JsonLoggerCallback()],
        "quiet": True,
        "check": True,
        **kwargs,
    }
    if make_scheduler is _bohb:
        settings["search_alg"] = lambda: RandomSearcher(0)
    return VirtualCluster.of(make_scheduler, **settings).start()


def _die_without_scheduler_state(cluster, after):
    """Ends the driver after so many events. Returns False if the run is over before."""
    try:
        cluster.run_until(lambda: cluster.monitor.number >= after)
    except TimeoutError:
        return False
    cluster.call(cluster.controller.checkpoint, force=True, wait=True)
    PAUSED.clear()
    PAUSED.update(t.trial_id for t in cluster.trials if t.status == "PAUSED")
    return True


def _restore(cluster):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduler_state, "_find_scheduler_state", lambda folder: None)
        cluster.restart_driver()
    assert cluster.controller.resumed


def _brackets(scheduler):
    """What HyperBand knows of each bracket."""
    scheduler = getattr(scheduler, "_base_scheduler", scheduler)
    return [
        (
            b._n,
            b._r,
            b.filled(),
            {i: (e.time, e.value) for i, e in b._bracket.entries.items()},
            b._bracket.dropped_ids,
            {
                t.trial_id: (b.is_waiting(t), t in b.unpaused_trials())
                for t in b.current_trials()
                if t.trial_id in PAUSED
            },
        )
        for b in scheduler._brackets(lambda b: True)
    ]


def _rungs(scheduler):
    return [bracket._rungs for bracket in scheduler._brackets]


def _results(scheduler):
    return {
        trial_id: [(r["training_iteration"], r["score"]) for r in results]
        for trial_id, results in scheduler._results.items()
    }, scheduler._stopped_trials


def _scores(scheduler):
    """What PBT knows of the trials, at the time from which each goes on."""

    def time(trial, state):
        saved = trial.latest_checkpoint_result
        saved = saved.metrics["training_iteration"] if saved else 0
        return min(state.last_train_time, saved)

    return scheduler._next_perturbation_sync if scheduler._synch else None, {
        trial.trial_id: (state.last_score, time(trial, state))
        for trial, state in scheduler._trial_state.items()
        # One that has cloned another has the score of a time that it gave up.
        if not trial.is_finished() and "@perturbed" not in trial.experiment_tag
    }


SCHEDULERS = pytest.mark.parametrize(
    "make_scheduler, known",
    [
        pytest.param(_hyperband, _brackets, id="hyperband"),
        pytest.param(lambda: _hyperband(50), _brackets, id="hyperband-50"),
        pytest.param(_bohb, _brackets, id="bohb"),
        pytest.param(lambda: ASHAScheduler(max_t=9), _rungs, id="asha"),
        pytest.param(_median, _results, id="median"),
        pytest.param(_pbt, _scores, id="pbt"),
        pytest.param(lambda: _pbt(synch=True), _scores, id="pbt-synch"),
        pytest.param(
            lambda: ResourceChangingScheduler(_hyperband(), None),
            _brackets,
            id="resource-changing",
        ),
    ],
)


@SCHEDULERS
@pytest.mark.parametrize("after", [3, 17, 31, 45])
def test_state_is_what_it_was_when_the_driver_died(make_scheduler, known, after):
    cluster = _cluster(make_scheduler)
    assert _die_without_scheduler_state(cluster, after)
    before = known(cluster.scheduler)
    _restore(cluster)
    cluster.call(cluster.scheduler.choose_trial_to_run, cluster.controller._wrapped())
    assert known(cluster.scheduler) == before


@SCHEDULERS
def test_run_goes_on_to_its_end_from_any_event(make_scheduler, known):
    for after in range(5, 200, 17):
        cluster = _cluster(make_scheduler)
        if not _die_without_scheduler_state(cluster, after):
            assert after > 50
            break
        _restore(cluster)
        record = cluster.run(max_events=2000)
        assert record.statuses() == ["TERMINATED"] * 8
        cluster.close()


def test_pb2_keeps_the_data_of_its_model():
    cluster = _cluster(_pb2, num_samples=4)
    assert _die_without_scheduler_state(cluster, 30)

    def rows():
        columns = ["Trial", "Time", "x", "Reward"]
        return sorted(map(tuple, cluster.scheduler.data[columns].values.tolist()))

    before = rows()
    assert len(before) > 4
    _restore(cluster)
    assert rows() == before
    assert cluster.run(max_events=2000).statuses() == ["TERMINATED"] * 4


def test_run_whose_resources_were_changed_goes_on():
    def grow(controller, trial, result, scheduler):
        return tune.PlacementGroupFactory([{"CPU": 2}])

    cluster = _cluster(
        lambda: ResourceChangingScheduler(None, grow),
        num_samples=3,
        slots=4,
        # FIFO, the base, says nothing of what it paused.
        ignore=["restored-pause"],
    )
    assert _die_without_scheduler_state(cluster, 12)
    _restore(cluster)
    first = tune.PlacementGroupFactory([{"CPU": 1}])
    assert cluster.scheduler.base_trial_resources == first
    assert cluster.run(max_events=2000).statuses() == ["TERMINATED"] * 3


def test_asha_with_several_brackets_says_that_it_draws_them_again(caplog):
    cluster = _cluster(
        lambda: ASHAScheduler(max_t=9, brackets=2),
        quiet=False,
        ignore=["bracket-changed"],
    )
    assert _die_without_scheduler_state(cluster, 12)
    _restore(cluster)
    assert "Brackets are drawn again" in caplog.text
    assert cluster.run(max_events=2000).statuses() == ["TERMINATED"] * 8


def test_run_without_logs_goes_on_with_the_last_results():
    cluster = _cluster(_hyperband, callbacks=None)
    assert _die_without_scheduler_state(cluster, 40)
    before = _brackets(cluster.scheduler)
    _restore(cluster)
    cluster.call(cluster.scheduler.choose_trial_to_run, cluster.controller._wrapped())
    assert [b[:2] for b in _brackets(cluster.scheduler)] == [b[:2] for b in before]
    assert cluster.run(max_events=2000).statuses() == ["TERMINATED"] * 8


class _Log:
    """A trial with a log on storage."""

    def __init__(self, folder, lines, last_result):
        import pyarrow.fs

        self.path = str(folder)
        Path(folder, "result.json").write_text("\n".join(lines))
        filesystem = pyarrow.fs.LocalFileSystem()
        self.storage = type("", (), {"storage_filesystem": filesystem})
        self.run_metadata = type("", (), {"last_result": last_result})


def test_line_that_is_cut_is_skipped_and_the_last_result_is_added(tmp_path):
    first = {"training_iteration": 1, "a": {"b": math.inf}}
    last = {"training_iteration": 2, "a": {"b": 2}}
    trial = _Log(tmp_path, [json.dumps(first), json.dumps(last)[:12]], last)
    assert [r["a/b"] for r in _read_results(trial)] == [math.inf, 2]
    trial = _Log(tmp_path, [json.dumps(first), json.dumps(last)], last)
    assert [r["a/b"] for r in _read_results(trial)] == [math.inf, 2]


def test_trials_are_in_the_order_of_their_creation():
    def trial(tag):
        return type("_Trial", (), {"experiment_tag": tag})()

    tags = ["10_x=1", "2@perturbed[x=3]", "0", "1_x=2"]
    trials = [trial(tag) for tag in tags]
    ordered = [t.experiment_tag for t in _creation_order(trials)]
    assert ordered == ["0", "1_x=2", "2@perturbed[x=3]", "10_x=1"]
    unnumbered = [*trials, trial("mine")]
    assert _creation_order(unnumbered) == unnumbered


if __name__ == "__main__":
    import sys

    sys.exit(pytest.main(["-v", __file__]))
