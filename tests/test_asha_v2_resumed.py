"""A run of ASHAv2 that is resumed with other arguments, or was begun without it."""

import pickle
import sys

import pytest
from virtual_cluster import ClassTrainable, VirtualCluster
from virtual_cluster.workloads.names import checkpoints
from virtual_cluster.workloads.searchers import RandomSearcher

from ray import tune
from ray.tune.experiment import Trial
from ray.tune.schedulers import (
    ASHAv2,
    AsyncHyperBandScheduler,
    FIFOScheduler,
    ResourceChangingScheduler,
)
from ray.tune.search import BasicVariantGenerator, ConcurrencyLimiter
from ray.tune.search.optuna import OptunaSearch

EVERY_EPOCH = checkpoints(frequency=1)


def score(config, iteration):
    return {"score": config["x"]}


def begin(scheduler, resumed_with, events=None, **settings):
    """Begin a run with one scheduler, and resume it with another.

    Args:
        scheduler: The first one.
        resumed_with: The second one.
        events: After how many events the driver dies. None: at the end.
        **settings: Settings of the virtual cluster.

    Returns:
        The cluster, and how far each trial was.
    """
    schedulers = [resumed_with, scheduler]
    cluster = VirtualCluster.of(
        lambda: schedulers.pop(),
        **{
            "trainable": ClassTrainable(score),
            "param_space": {"x": tune.grid_search([i / 9 for i in range(9)])},
            "slots": 2,
            "checkpoint_config": EVERY_EPOCH,
            "checkpoint_period": 0,
            # A searcher hears of the end of a trial once, also if it goes on.
            "ignore": ["searcher-not-told"],
            **settings,
        },
    ).start()
    cluster.run_until(
        lambda: (
            cluster.controller.is_finished()
            if events is None
            else cluster.monitor.number >= events
        )
    )
    cluster.call(cluster.controller.checkpoint, force=True, wait=True)
    before = iterations(cluster)
    cluster.restart_driver()
    assert cluster.controller.resumed
    return cluster, before


def iterations(cluster):
    return [
        (t.run_metadata.last_result or {}).get("training_iteration", 0)
        for t in cluster.trials
    ]


def rungs(scheduler):
    [bracket] = scheduler._ladder.brackets
    return {rung.milestone: rung.counts for rung in bracket.rungs}


@pytest.mark.parametrize(
    "first, second, named",
    [
        ({"reduction_factor": 3}, {"reduction_factor": 4}, "reduction_factor=3|4"),
        ({"grace_period": 1}, {"grace_period": 2}, "grace_period=1|2"),
        ({"brackets": 1}, {"brackets": 2}, "brackets=1|2"),
        ({}, {"time_attr": "t"}, "time_attr='training_iteration'|'t'"),
        ({"metric": "score"}, {"metric": "other"}, "metric='score'|'other'"),
        ({"mode": "max"}, {"mode": "min"}, "mode='max'|'min'"),
    ],
)
@pytest.mark.parametrize("wrapped", [False, True])
def test_argument_that_cannot_change_is_refused(first, second, named, wrapped):
    own = {"metric": "score", "mode": "max"}
    schedulers = [ASHAv2(max_t=9, **{**own, **given}) for given in (first, second)]
    if wrapped:
        schedulers = [ResourceChangingScheduler(s, None) for s in schedulers]
    before, now = named.split("|")
    name = before.split("=")[0]
    with pytest.raises(ValueError) as error:
        begin(
            *schedulers,
            events=12,
            metric=None,
            mode=None,
        )
    assert f"begun with {before}, and is resumed with {name}={now}." in str(error.value)
    assert f"Resume the run with {before}, or begin another one." in str(error.value)


@pytest.mark.parametrize("promotion", ["deferred", "eager"])
@pytest.mark.parametrize("events", [3, 12, 25, 40, 60])
def test_greater_max_t_in_the_middle_of_a_run(promotion, events):
    cluster, _ = begin(
        ASHAv2(max_t=9, reduction_factor=3, promotion=promotion),
        ASHAv2(max_t=28, reduction_factor=3, promotion=promotion),
        events,
    )
    assert list(rungs(cluster.scheduler)) == [1, 3, 9, 27]
    record = cluster.run(max_events=3000)
    assert max(record.iterations()) == 28
    assert rungs(cluster.scheduler)[1].recorded == 9
    if promotion == "deferred":
        assert record.iterations()[-1] == 28, "the best"


@pytest.mark.parametrize("wrapped", [False, True])
def test_greater_max_t_after_the_end(wrapped):
    first, second = (ASHAv2(max_t=max_t, reduction_factor=3) for max_t in (3, 27))
    schedulers = [first, second]
    if wrapped:
        schedulers = [
            ResourceChangingScheduler(s, lambda *args, **kwargs: None)
            for s in schedulers
        ]
    cluster, before = begin(*schedulers)
    assert sorted(before) == [1] * 6 + [3] * 3
    # The three that had reached it wait at what is a milestone now.
    assert [t.status for t in cluster.trials].count(Trial.PAUSED) == 3
    assert rungs(second)[3].paused == 3
    assert rungs(second)[1].promoted == 3
    record = cluster.run(max_events=1000)
    # One in three is promoted from there, and goes on from its checkpoint.
    assert sorted(record.iterations()) == [1] * 6 + [3] * 2 + [27]
    assert record.iterations()[-1] == 27, "the best"
    last = [r["training_iteration"] for r in record.results[record.trials[-1].trial_id]]
    assert last == list(range(1, 28)), "nothing is trained twice"
    assert record.statuses() == [Trial.TERMINATED] * 9


def test_greater_max_t_where_the_former_one_is_no_milestone():
    cluster, before = begin(
        ASHAv2(max_t=4, reduction_factor=3), ASHAv2(max_t=27, reduction_factor=3)
    )
    assert sorted(before) == [1] * 6 + [3] * 2 + [4]
    record = cluster.run(max_events=1000)
    # It was promoted from 3 before, and goes on.
    assert sorted(record.iterations()) == [1] * 6 + [3] * 2 + [27]
    assert rungs(cluster.scheduler)[3].promoted == 1


def test_trials_without_a_checkpoint_stay_at_the_former_max_t(caplog):
    cluster, before = begin(
        ASHAv2(max_t=3, reduction_factor=3),
        ASHAv2(max_t=27, reduction_factor=3),
        checkpoint_config=None,
        param_space={"x": tune.grid_search([0.5])},
        trainable=ClassTrainable(score),
    )
    trial = cluster.trials[0]
    if trial.checkpoint is None:
        assert trial.status == Trial.TERMINATED
        assert "has reached max_t=3, and stays there" in caplog.text
        assert rungs(cluster.scheduler)[3].ended == 1
    record = cluster.run(max_events=500)
    assert record.statuses() == [Trial.TERMINATED]


def test_greater_max_t_again_and_again():
    schedulers = [ASHAv2(max_t=t, reduction_factor=3) for t in (81, 27, 9, 3)]
    cluster = VirtualCluster.of(
        lambda: schedulers.pop(),
        trainable=ClassTrainable(score),
        param_space={"x": tune.grid_search([i / 9 for i in range(9)])},
        slots=2,
        checkpoint_config=EVERY_EPOCH,
        checkpoint_period=0,
    ).start()
    for max_t in (3, 9, 27, 81):
        cluster.run_until(cluster.controller.is_finished)
        assert max(iterations(cluster)) == iterations(cluster)[-1] == max_t
        cluster.call(cluster.controller.checkpoint, force=True, wait=True)
        if schedulers:
            cluster.restart_driver()


@pytest.mark.parametrize("events", [12, 25, 40, 60, None])
def test_lower_max_t(events):
    cluster, before = begin(
        ASHAv2(max_t=27, reduction_factor=3, promotion="eager"),
        ASHAv2(max_t=3, reduction_factor=3, promotion="eager"),
        events=events,
    )
    record = cluster.run(max_events=1000)
    assert list(rungs(cluster.scheduler)) == [1]
    assert rungs(cluster.scheduler)[1].recorded == 9
    for was, now in zip(before, record.iterations(), strict=False):
        assert now == was or now <= 3, "one that was past it was trained on"
    assert record.statuses() == [Trial.TERMINATED] * 9
    assert max(record.iterations()) >= 3


def test_lower_and_greater_again():
    schedulers = [ASHAv2(max_t=t, reduction_factor=3) for t in (27, 3, 27)]
    cluster = VirtualCluster.of(
        lambda: schedulers.pop(),
        trainable=ClassTrainable(score),
        param_space={"x": tune.grid_search([i / 9 for i in range(9)])},
        slots=2,
        checkpoint_config=EVERY_EPOCH,
        checkpoint_period=0,
    ).start()
    cluster.run_until(lambda: max(iterations(cluster), default=0) >= 9)
    for _ in range(2):
        cluster.call(cluster.controller.checkpoint, force=True, wait=True)
        cluster.restart_driver()
        cluster.run_until(cluster.controller.is_finished)
    assert max(iterations(cluster)) == iterations(cluster)[-1] == 27


def test_trials_may_run_past_max_t_after_all():
    cluster, before = begin(
        ASHAv2(max_t=3, reduction_factor=3),
        ASHAv2(max_t=3, reduction_factor=3, stop_last_trials=False),
        stop={"training_iteration": 7},
    )
    assert max(before) == 3
    record = cluster.run(max_events=500)
    assert sorted(record.iterations()) == [1] * 6 + [7] * 3


@pytest.mark.parametrize("first", [None, "deferred"])
def test_other_promotion_counts(first):
    cluster, _ = begin(
        ASHAv2(max_t=9, reduction_factor=3, promotion=first),
        ASHAv2(max_t=9, reduction_factor=3, promotion="eager"),
        events=12,
    )
    assert "promotion=eager;" in cluster.scheduler.debug_string()
    cluster.run(max_events=1000)


def test_promotion_that_is_not_given_stays():
    cluster, _ = begin(
        ASHAv2(max_t=9, reduction_factor=3, promotion="eager"),
        ASHAv2(max_t=9, reduction_factor=3),
        events=12,
    )
    assert "promotion=eager;" in cluster.scheduler.debug_string()


class StrictSearcher(RandomSearcher):
    """Knows trials from when it suggests them until they complete, as HEBOSearch."""

    def __init__(self):
        super().__init__(0)
        self.known = set()

    def suggest(self, trial_id):
        config = super().suggest(trial_id)
        if isinstance(config, dict):
            self.known.add(trial_id)
        return config

    def on_trial_complete(self, trial_id, result=None, error=False):
        self.known.remove(trial_id)
        super().on_trial_complete(trial_id, result, error)

    def on_trial_result(self, trial_id, result):
        assert trial_id in self.known
        super().on_trial_result(trial_id, result)

    def on_trial_pause(self, trial_id, result=None):
        assert trial_id in self.known
        super().on_trial_pause(trial_id, result)

    def on_trial_resume(self, trial_id):
        assert trial_id in self.known
        super().on_trial_resume(trial_id)


@pytest.mark.parametrize(
    "search_alg",
    [
        lambda: RandomSearcher(0),
        StrictSearcher,
        lambda: ConcurrencyLimiter(RandomSearcher(0), 2),
        lambda: BasicVariantGenerator(max_concurrent=2),
        lambda: OptunaSearch(),
        lambda: ConcurrencyLimiter(OptunaSearch(), 2),
    ],
)
def test_search_algorithms_bear_trials_that_go_on(search_alg):
    cluster, before = begin(
        ASHAv2(max_t=3, reduction_factor=3),
        ASHAv2(max_t=27, reduction_factor=3),
        search_alg=search_alg,
        param_space={"x": tune.uniform(0, 1)},
        num_samples=9,
        slots=3,
    )
    record = cluster.run(max_events=1000)
    assert sorted(record.iterations()) == [1] * 6 + [3] * 2 + [27]


@pytest.mark.parametrize("cls", [FIFOScheduler, AsyncHyperBandScheduler])
@pytest.mark.parametrize("events", [12, 40, None])
def test_results_under_another_scheduler_count(cls, events):
    kwargs = {} if cls is FIFOScheduler else {"max_t": 9, "reduction_factor": 3}
    second = ASHAv2(max_t=27, reduction_factor=3)
    cluster, before = begin(
        cls(**kwargs), second, events=events, stop={"training_iteration": 9}
    )
    counts = rungs(second)
    assert [counts[t].recorded for t in (1, 3, 9)] == [
        sum(b >= t for b in before) for t in (1, 3, 9)
    ]
    record = cluster.run(max_events=1000)
    assert record.statuses() == [Trial.TERMINATED] * 9
    assert rungs(second)[1].recorded == 9


def test_paused_trials_stay_paused_where_the_state_cannot_be_read(caplog, monkeypatch):
    # As that of a release in which modules had other names.
    def fail(self, path):
        raise pickle.UnpicklingError("no such class")

    monkeypatch.setattr(ASHAv2, "restore", fail)
    second = ASHAv2(max_t=9, reduction_factor=3)
    cluster, before = begin(
        ASHAv2(max_t=9, reduction_factor=3),
        second,
        events=25,
    )
    assert "could not be restored" in caplog.text
    statuses = [t.status for t in cluster.trials]
    assert rungs(second)[1].recorded == sum(b >= 1 for b in before) > 3
    assert rungs(second)[1].paused == statuses.count(Trial.PAUSED) > 1
    record = cluster.run(max_events=1000)
    assert record.iterations()[-1] == 9


@pytest.mark.ray
@pytest.mark.timeout(180)
def test_run_goes_on_to_a_greater_max_t(ray_start_2_cpus, tmp_path):
    class Epochs(tune.Trainable):
        def setup(self, config):
            self.x, self.seen = config["x"], []

        def step(self):
            self.seen.append(self.training_iteration)
            return {"score": self.x, "seen": len(self.seen)}

        def save_checkpoint(self, folder):
            return {"seen": self.seen}

        def load_checkpoint(self, state):
            self.seen = state["seen"]

        def reset_config(self, config):
            self.setup(config)
            return True

    def run(max_t, reduction_factor=2, **kwargs):
        return tune.run(
            Epochs,
            config={"x": tune.grid_search([1, 2, 3, 4])},
            name="resumed",
            storage_path=str(tmp_path),
            scheduler=ASHAv2(max_t=max_t, reduction_factor=reduction_factor),
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1),
            reuse_actors=True,
            verbose=0,
            metric="score",
            mode="max",
            **kwargs,
        )

    def reached(analysis):
        results = [t.last_result for t in analysis.trials]
        return {r["config"]["x"]: (r["training_iteration"], r["seen"]) for r in results}

    assert reached(run(2)) == {1: (1, 1), 2: (1, 1), 3: (2, 2), 4: (2, 2)}
    # None of the epochs before is trained again.
    assert reached(run(8, resume=True)) == {1: (1, 1), 2: (1, 1), 3: (2, 2), 4: (8, 8)}
    with pytest.raises(ValueError, match="reduction_factor=2.*reduction_factor=4"):
        run(8, 4, resume=True)


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
