"""Arguments of a run that is resumed count, or are refused."""

import sys

import numpy as np
import pytest
from virtual_cluster import ScriptedScheduler, VirtualCluster
from virtual_cluster.core.storage import VirtualExperiment
from virtual_cluster.workloads.searchers import RandomSearcher

from ray import tune
from ray.tune.schedulers import (
    ASHAScheduler,
    FIFOScheduler,
    HyperBandForBOHB,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
    ResourceChangingScheduler,
)
from ray.tune.schedulers.pb2 import PB2
from ray.tune.search import (
    BasicVariantGenerator,
    ConcurrencyLimiter,
    Repeater,
    SearchGenerator,
)

# The comparison


def changed_arguments(*args):
    # Stock Ray, on which some of these tests run, does not have it.
    from ray.tune.execution.resumed_arguments import changed_arguments

    return changed_arguments(*args)


def test_arguments_that_are_the_same_are_no_change():
    stored = {"a": 1, "b": [1, 2], "c": "x", "d": None, "e": np.ones(2)}
    given = {"a": 1.0, "b": (1, 2), "c": None, "d": 3, "e": np.ones(2), "f": 1}
    assert changed_arguments(stored, given) == {}


def test_argument_that_may_change_is_returned():
    stored = {"max_t": 9, "mode": "max"}
    given = {"max_t": 27, "mode": "max"}
    assert changed_arguments(stored, given, {"max_t"}) == {"max_t": 27}


def test_error_names_both_values_of_each_argument():
    stored, given = {"max_t": 9, "mode": "max"}, {"max_t": 27, "mode": "min"}
    with pytest.raises(ValueError) as error:
        changed_arguments(stored, given, {"else"})
    assert "begun with max_t=9, mode='max'" in str(error.value)
    assert "resumed with max_t=27, mode='min'" in str(error.value)


def test_long_value_is_cut_in_the_error():
    with pytest.raises(ValueError, match="\\.\\.\\.") as error:
        changed_arguments({"policy": list(range(999))}, {"policy": [1]})
    assert len(str(error.value)) < 600


def test_search_algorithm_is_named_without_limits():
    from ray.tune.execution.resumed_arguments import describe_search_alg

    searcher = RandomSearcher(0)
    limited = ConcurrencyLimiter(searcher, 2)
    assert describe_search_alg(limited) == "RandomSearcher"
    generator = SearchGenerator(Repeater(limited))
    assert describe_search_alg(generator) == "SearchGenerator(Repeater(RandomSearcher))"


# Schedulers


def _resume(first, second, events=12, **settings):
    """Begins a run with one scheduler and resumes it with another."""
    schedulers = [second, first]
    cluster = VirtualCluster.of(
        lambda: schedulers.pop(),
        **{
            "num_samples": 6,
            "slots": 2,
            "stop": {"training_iteration": 30},
            "checkpoint_period": 0,
            **settings,
        },
    ).start()
    cluster.run_until(lambda: cluster.monitor.number >= events)
    cluster.call(cluster.controller.checkpoint, force=True, wait=True)
    cluster.restart_driver()
    assert cluster.controller.resumed
    return cluster


TIME = {"time_attr": "training_iteration"}
MUTATIONS = {"hyperparam_mutations": {"x": tune.uniform(0, 1)}}
OWN = {"metric": "score", "mode": "max"}


def _replay(tmp_path, values):
    import json

    path = tmp_path / f"policy-{values[0]}.txt"
    rows = [
        [str(i), str(i + 1), 2 * i, 2 * i, {"x": 0}, {"x": v}]
        for i, v in enumerate(values, 1)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tune.schedulers.PopulationBasedTrainingReplay(str(path))


@pytest.mark.fixes("resumed-arguments")
@pytest.mark.parametrize(
    "cls, first, second, named",
    [
        (ASHAScheduler, {"reduction_factor": 3}, {"reduction_factor": 4}, "3|4"),
        (ASHAScheduler, {"grace_period": 1}, {"grace_period": 2}, "1|2"),
        (ASHAScheduler, {"brackets": 1}, {"brackets": 2}, "1|2"),
        (ASHAScheduler, {}, TIME | {"time_attr": "t"}, "'training_iteration'|'t'"),
        (HyperBandScheduler, {"max_t": 9}, {"max_t": 27}, "9|27"),
        (HyperBandScheduler, {}, {"reduction_factor": 4}, "3|4"),
        (HyperBandForBOHB, {"max_t": 9}, {"max_t": 27}, "9|27"),
        (MedianStoppingRule, TIME, {"time_attr": "t"}, "'training_iteration'|'t'"),
        (
            PopulationBasedTraining,
            {"synch": True, **MUTATIONS, **TIME},
            {"synch": False, **MUTATIONS, **TIME},
            "True|False",
        ),
        (
            PB2,
            {"hyperparam_bounds": {"x": [0, 1]}, **TIME},
            {"hyperparam_bounds": {"x": [0, 2]}, **TIME},
            r"{'x': \[0, 1\]}|{'x': \[0, 2\]}",
        ),
    ],
)
@pytest.mark.parametrize("wrapped", [False, True])
def test_argument_that_cannot_change_is_refused(cls, first, second, named, wrapped):
    settings = {}
    if cls is HyperBandForBOHB:
        settings["search_alg"] = lambda: RandomSearcher(0)
    schedulers = [cls(**first), cls(**second)]
    if wrapped:
        schedulers = [ResourceChangingScheduler(s, None) for s in schedulers]
    before, now = named.split("|")
    message = f"begun with \\w+={before}, and is resumed with \\w+={now}\\."
    with pytest.raises(ValueError, match=message):
        _resume(*schedulers, **settings)


@pytest.mark.fixes("resumed-arguments")
@pytest.mark.parametrize("key, value", [("mode", "min"), ("metric", "other")])
def test_other_metric_is_refused(key, value):
    with pytest.raises(ValueError, match=f"resumed with {key}='{value}'"):
        _resume(
            HyperBandScheduler(max_t=9, **OWN),
            HyperBandScheduler(max_t=9, **{**OWN, key: value}),
            metric=None,
            mode=None,
        )


def test_other_policy_is_refused(tmp_path):
    schedulers = _replay(tmp_path, [0.1, 0.2]), _replay(tmp_path, [0.3, 0.4])
    with pytest.raises(ValueError, match="policy="):
        _resume(*schedulers, num_samples=1, events=4)


def test_refused_run_is_as_it_was(tmp_path):
    schedulers = [HyperBandScheduler(max_t=t) for t in (9, 27, 9)][::-1]
    cluster = VirtualCluster.of(
        lambda: schedulers.pop(), num_samples=6, slots=2, checkpoint_period=0
    ).start()
    cluster.run_until(lambda: cluster.monitor.number >= 12)
    with pytest.raises(ValueError, match="max_t=9.*max_t=27"):
        cluster.restart_driver()
    cluster.restart_driver()
    assert cluster.run(max_events=500).statuses() == ["TERMINATED"] * 6


@pytest.mark.fixes("resumed-arguments")
@pytest.mark.parametrize("max_t", [27, 2])
def test_asha_goes_on_with_another_max_t(max_t):
    first = {"grace_period": 1, "reduction_factor": 3}
    cluster = _resume(
        ASHAScheduler(max_t=9, **first), ASHAScheduler(max_t=max_t, **first)
    )
    [bracket] = cluster.scheduler._brackets
    fresh = ASHAScheduler(max_t=max_t, **first)._brackets[0]
    assert [t for t, _ in bracket._rungs] == [t for t, _ in fresh._rungs]
    assert bracket._rungs[-1][1], "what was recorded is lost"
    assert set(cluster.scheduler._trial_info.values()) <= {bracket}
    record = cluster.run(max_events=1000)
    assert max(record.iterations()) >= max_t


@pytest.mark.fixes("resumed-arguments")
def test_median_rule_goes_on_with_another_grace_period():
    first = MedianStoppingRule(grace_period=1, min_samples_required=1, **TIME)
    second = MedianStoppingRule(grace_period=7, min_samples_required=2, **TIME)
    cluster = _resume(first, second, events=4)
    assert cluster.scheduler._grace_period == 7
    assert cluster.scheduler._min_samples_required == 2
    assert cluster.scheduler._results
    stopped_before = {t.trial_id for t in cluster.trials if t.is_finished()}
    record = cluster.run(max_events=1000)
    for trial, iteration in zip(record.trials, record.iterations(), strict=True):
        assert iteration >= 7 or trial.trial_id in stopped_before


def test_pbt_goes_on_with_another_interval():
    first, second = (
        PopulationBasedTraining(perturbation_interval=i, **MUTATIONS, **TIME)
        for i in (2, 5)
    )
    cluster = _resume(first, second)
    assert cluster.scheduler._perturbation_interval == 5
    cluster.run(max_events=3000)


def test_scheduler_of_another_class_starts_from_the_results(caplog):
    rule = MedianStoppingRule(grace_period=1, min_samples_required=1, **TIME)
    cluster = _resume(
        ASHAScheduler(max_t=30), rule, check=False, ignore=["bracket-changed"]
    )
    assert "begun with AsyncHyperBandScheduler, and is resumed with Med" in caplog.text
    assert rule._results
    cluster.run(max_events=1000)
    assert [trial.status for trial in cluster.trials] == ["TERMINATED"] * 6


def test_scheduler_of_somebody_else_is_not_compared():
    class Own(ScriptedScheduler):
        def __init__(self, number):
            super().__init__()
            self.number = number

    cluster = _resume(Own(1), Own(2), events=5)
    assert cluster.scheduler.number == 2


# Search algorithms


@pytest.mark.fixes("resumed-arguments")
def test_other_searcher_is_refused():
    class Other(RandomSearcher):
        pass

    searchers = [Other(0), RandomSearcher(0)]
    with pytest.raises(ValueError, match="RandomSearcher.*SearchGenerator.Other"):
        _resume(
            FIFOScheduler(),
            FIFOScheduler(),
            events=5,
            search_alg=lambda: searchers.pop(),
        )


def test_limit_may_come_and_go():
    searchers = [ConcurrencyLimiter(RandomSearcher(0), 1), RandomSearcher(0)]
    cluster = _resume(
        FIFOScheduler(), FIFOScheduler(), events=5, search_alg=lambda: searchers.pop()
    )
    search_alg = cluster.controller.search_alg
    assert getattr(search_alg, "searcher", search_alg).max_concurrent == 1


@pytest.mark.fixes("resumed-arguments")
@pytest.mark.parametrize("make", [BasicVariantGenerator, None])
def test_other_limit_counts(make):
    def limited(number):
        if make:
            return make(max_concurrent=number)
        return ConcurrencyLimiter(RandomSearcher(0), number)

    searchers = [limited(1), limited(3)]
    cluster = _resume(
        FIFOScheduler(), FIFOScheduler(), events=5, search_alg=lambda: searchers.pop()
    )
    search_alg = cluster.controller.search_alg
    assert getattr(search_alg, "searcher", search_alg).max_concurrent == 1


def _with_samples(cluster, *numbers, **space):
    """Do what ``tune.run`` does if it is resumed with numbers of samples."""
    experiments = [_experiment(cluster, number, **space) for number in numbers]
    cluster.call(cluster.controller.search_alg.change_num_samples, experiments)


def _experiment(cluster, number, **space):
    return VirtualExperiment(
        "experiment",
        "virtual_class",
        config={"x": tune.uniform(0, 1), **space},
        num_samples=number,
        stop=cluster.experiment.stop,
        storage_path=cluster.storage_path,
        trial_dirname_creator=lambda trial: trial.trial_id,
    )


@pytest.mark.parametrize("search_alg", [None, lambda: RandomSearcher(0)])
@pytest.mark.parametrize("finished", [False, True])
def test_more_samples_are_drawn(search_alg, finished):
    cluster = _resume(
        FIFOScheduler(),
        FIFOScheduler(),
        events=28 if finished else 5,
        search_alg=search_alg,
        stop={"training_iteration": 3},
        max_pending=1,
    )
    _with_samples(cluster, 9)
    assert cluster.controller.search_alg.total_samples == 9
    record = cluster.run(max_events=500)
    assert record.statuses() == ["TERMINATED"] * 9
    assert len({trial.trial_id for trial in record.trials}) == 9
    if search_alg is None:
        assert len({trial.config["x"] for trial in record.trials}) == 9


def test_points_to_evaluate_are_not_evaluated_again():
    cluster = _resume(
        FIFOScheduler(),
        FIFOScheduler(),
        events=5,
        stop={"training_iteration": 2},
        search_alg=lambda: BasicVariantGenerator(points_to_evaluate=[{"x": 0.25}]),
    )
    _with_samples(cluster, 8)
    configs = [t.config["x"] for t in cluster.run(max_events=500).trials]
    assert len(configs) == 8 and configs.count(0.25) == 1


@pytest.mark.parametrize("search_alg", [None, lambda: RandomSearcher(0)])
def test_fewer_samples_than_trials_are_refused(search_alg):
    cluster = _resume(
        FIFOScheduler(),
        FIFOScheduler(),
        events=20,
        search_alg=search_alg,
        stop={"training_iteration": 2},
    )
    assert len(cluster.trials) > 3
    with pytest.raises(ValueError, match="num_samples=6.*num_samples=3"):
        _with_samples(cluster, 3)


@pytest.mark.parametrize("search_alg", [None, lambda: RandomSearcher(0)])
def test_fewer_samples_are_drawn(search_alg):
    cluster = _resume(
        FIFOScheduler(),
        FIFOScheduler(),
        events=5,
        search_alg=search_alg,
        stop={"training_iteration": 2},
        max_pending=1,
    )
    assert len(cluster.trials) < 5
    _with_samples(cluster, 5)
    assert cluster.controller.search_alg.total_samples == 5
    assert cluster.run(max_events=500).statuses() == ["TERMINATED"] * 5


def _generator(*specs, drawn=0, **kwargs):
    """Return a generator of such experiments, some samples of which are drawn."""
    generator = BasicVariantGenerator(**kwargs)
    for number, config in specs:
        generator.add_configurations(_samples(number, config))
    for _ in range(drawn):
        generator.next_trial()
    # As it is after a restore.
    generator.set_state(generator.get_state())
    return generator


def _samples(number, config=None):
    return tune.Experiment(
        "e", "__fake", num_samples=number, config=config or {"x": tune.uniform(0, 1)}
    )


def _drawn(generator):
    trials = []
    while not generator.is_finished():
        trial = generator.next_trial()
        trials += [trial] if trial else []
    return trials


@pytest.fixture
def fake_trainable():
    tune.register_trainable("__fake", lambda config: None)


def test_each_experiment_keeps_its_number_of_samples(fake_trainable):
    # As upstream's tests resume a run of several experiments.
    generator = _generator((2, None), (2, None), (2, None), drawn=3)
    generator.change_num_samples([_samples(2)] * 3)
    assert generator.total_samples == 6 and len(_drawn(generator)) == 3


def test_each_experiment_gets_its_new_number_of_samples(fake_trainable):
    generator = _generator(*((3, {"e": i}) for i in range(3)), drawn=1)
    specs = [(4, {"e": 0}), (1, {"e": 1}), (2, {"e": 2}), (9, {"e": 3})]
    generator.change_num_samples([_samples(*spec) for spec in specs])
    assert generator.total_samples == 9
    generator.change_num_samples([_samples(*spec) for spec in [(5, {"e": 0})]])
    assert generator.total_samples == 10
    trials = _drawn(generator)
    counts = [sum(t.config["e"] == e for t in trials) for e in range(4)]
    # The first one of the first experiment was drawn, and none is begun later.
    assert counts == [4, 3, 2, 0]
    assert len({t.trial_id for t in trials}) == 9


def test_trials_of_a_grid_are_counted_by_sample(fake_trainable):
    grid = {"x": tune.uniform(0, 1), "y": tune.grid_search([1, 2, 3])}
    generator = _generator((4, grid), drawn=2)
    with pytest.raises(ValueError, match="1 samples have been drawn"):
        generator.change_num_samples([_samples(0, grid)])
    generator.change_num_samples([_samples(2, grid)])
    assert generator.total_samples == 6 and len(_drawn(generator)) == 4


def test_points_to_evaluate_are_evaluated_whatever_the_number(fake_trainable):
    points = [{"x": 0.1}, {"x": 0.2}, {"x": 0.3}]
    generator = _generator((6, None), drawn=1, points_to_evaluate=points)
    with pytest.raises(ValueError, match="with num_samples=2, but 3 samples"):
        generator.change_num_samples([_samples(2)])
    generator.change_num_samples([_samples(4)])
    configs = [t.config["x"] for t in _drawn(generator)]
    assert configs[:2] == [0.2, 0.3] and len(configs) == 3


def test_an_endless_search_is_ended_by_a_number(fake_trainable):
    endless = sys.maxsize
    generator = _generator((endless, None), drawn=5)
    generator.change_num_samples([_samples(endless)])
    with pytest.raises(ValueError, match="begun with num_samples=-1, .* 5 samples"):
        generator.change_num_samples([_samples(4)])
    generator.change_num_samples([_samples(7)])
    assert len(_drawn(generator)) == 2


@pytest.mark.ray
@pytest.mark.fixes("resumed-arguments")
@pytest.mark.timeout(180)
def test_run_is_resumed_with_other_arguments(ray_start_2_cpus, tmp_path):
    def train(config):
        for i in range(4):
            tune.report({"score": config["x"] * i})

    def run(max_t=9, reduction_factor=3, **kwargs):
        scheduler = ASHAScheduler(max_t=max_t, reduction_factor=reduction_factor)
        return tune.run(
            train,
            config={"x": tune.uniform(0, 1)},
            name="resumed",
            storage_path=str(tmp_path),
            scheduler=scheduler,
            reuse_actors=True,
            verbose=0,
            **OWN,
            **kwargs,
        )

    assert len(run(num_samples=2).trials) == 2
    assert len(run(num_samples=3, resume=True, max_t=27).trials) == 3
    # Not given: as many as there were.
    assert len(run(resume=True, max_t=27).trials) == 3
    with pytest.raises(ValueError, match="reduction_factor=3.*reduction_factor=2"):
        run(num_samples=3, resume=True, max_t=27, reduction_factor=2)
    with pytest.raises(ValueError, match="num_samples=3.*num_samples=2"):
        run(num_samples=2, resume=True, max_t=27)


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
