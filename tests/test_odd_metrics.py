"""A metric or time that is not a number concerns the trial that reports it alone."""

import logging
import sys
from decimal import Decimal

import numpy as np
import pytest
from virtual_cluster import (
    ClassTrainable,
    Cluster,
    Experiment,
    VirtualCluster,
)

from ray import tune
from ray.tune import TuneError, schedulers, stopper
from ray.tune.schedulers import resource_changing_scheduler as resource_changing
from ray.tune.search import ConcurrencyLimiter, Repeater

COUNT = 9
ODD = 4  # The trial that reports something odd.
ITERATIONS = 6


class TwoElements:
    """As a tensor of two elements: neither one number nor the truth of it."""

    def _refuse(self, *_):
        raise RuntimeError("a Tensor with 2 elements cannot be converted to Scalar")

    __float__ = __int__ = __bool__ = _refuse

    def _elementwise(self, *_):
        return self

    __lt__ = __le__ = __gt__ = __ge__ = _elementwise
    __add__ = __radd__ = __mul__ = __rmul__ = __neg__ = _elementwise


VALUES = {
    "tensor": TwoElements(),
    "huge": 10**400,
    "text": "good",
    "list": [1.0, 2.0],
    "none": None,
    "array": np.array([1.0, 2.0]),
    "complex": 1j,
    "object": object(),
}


def of(*names):
    return pytest.mark.parametrize("value", [VALUES[name] for name in names], ids=names)


def asha():
    return schedulers.ASHAScheduler("training_iteration", max_t=ITERATIONS)


def hyperband():
    return schedulers.HyperBandScheduler("training_iteration", max_t=ITERATIONS)


def bohb():
    return schedulers.HyperBandForBOHB("training_iteration", max_t=ITERATIONS)


def median(grace_period=1):
    return schedulers.MedianStoppingRule(
        "training_iteration", grace_period=grace_period, min_samples_required=2
    )


def pbt(synch=False):
    return schedulers.PopulationBasedTraining(
        "training_iteration",
        perturbation_interval=2,
        hyperparam_mutations={"y": [1, 2, 3]},
        log_config=False,
        synch=synch,
    )


def synchronous_pbt():
    return pbt(synch=True)


def pb2():
    pytest.importorskip("sklearn")
    from ray.tune.schedulers.pb2 import PB2

    return PB2(
        "training_iteration",
        perturbation_interval=2,
        hyperparam_bounds={"y": [0.0, 1.0]},
        log_config=False,
    )


def top_job():
    return schedulers.ResourceChangingScheduler(
        asha(), resource_changing.DistributeResourcesToTopJob(metric="score")
    )


def asha_v2():
    return schedulers.ASHAv2("training_iteration", max_t=ITERATIONS, reduction_factor=3)


ON_STOCK = [asha, hyperband, bohb, median, pbt, synchronous_pbt, pb2, top_job]


class Curve:
    """Rises with the number of the trial; one trial reports something odd."""

    def __init__(self, key, value, since=1):
        self.key, self.value, self.since = key, value, since

    def __call__(self, config, iteration):
        metrics = {"score": config["x"] * iteration}
        if config["x"] == ODD and iteration >= self.since:
            metrics[self.key] = self.value
        return metrics


def run(scheduler, curve, **kwargs):
    kwargs.setdefault("stop", {"training_iteration": ITERATIONS})
    return VirtualCluster(
        Experiment(
            scheduler,
            configs=[{"x": x, "y": 1} for x in range(COUNT)],
            trainable=ClassTrainable(curve),
            **kwargs,
        ),
        Cluster(slots=3),
    ).run(max_events=3000)


def check(record, caplog, key, value):
    assert record.statuses() == ["TERMINATED"] * COUNT
    assert max(record.iterations()) == ITERATIONS
    said = [r.getMessage() for r in caplog.records if "not a number" in r.getMessage()]
    said = [message for message in said if repr(key) in message]
    assert len(said) == 1, said
    assert record.trials[ODD].trial_id in said[0]
    assert type(value).__name__ in said[0]


@pytest.mark.fixes("odd-metric")
@of("tensor", "huge", "text", "none", "array")
@pytest.mark.parametrize("scheduler", ON_STOCK)
def test_odd_metric(scheduler, value, caplog):
    with caplog.at_level(logging.WARNING):
        record = run(scheduler(), Curve("score", value))
    check(record, caplog, "score", value)


@of(*VALUES)
@pytest.mark.parametrize("mode", ["min", "max"])
def test_odd_metric_under_asha_v2(value, mode, caplog):
    with caplog.at_level(logging.WARNING):
        record = run(asha_v2(), Curve("score", value), mode=mode)
    check(record, caplog, "score", value)


@of("tensor", "huge")
@pytest.mark.parametrize(
    "scheduler",
    [
        # Stock HyperBand gets by, as it looks at no value before its first milestone.
        pytest.param(s, marks=[] if s is hyperband else pytest.mark.fixes("odd-metric"))
        for s in ON_STOCK
    ],
)
def test_trial_that_turns_odd(scheduler, value):
    record = run(scheduler(), Curve("score", value, since=3))
    assert record.statuses() == ["TERMINATED"] * COUNT


@pytest.mark.fixes("odd-time")
@of("tensor", "text")
@pytest.mark.parametrize("scheduler", ON_STOCK)
def test_odd_time(scheduler, value, caplog):
    made = scheduler()
    getattr(made, "_base_scheduler", made)._time_attr = "t"

    def curve(config, iteration):
        return {"t": iteration, **Curve("t", value)(config, iteration)}

    with caplog.at_level(logging.WARNING):
        record = run(made, curve)
    check(record, caplog, "t", value)


@of(*VALUES)
def test_odd_time_under_asha_v2(value, caplog):
    scheduler = schedulers.ASHAv2("t", max_t=ITERATIONS, reduction_factor=3)

    def curve(config, iteration):
        return {"t": iteration, **Curve("t", value)(config, iteration)}

    with caplog.at_level(logging.WARNING):
        record = run(scheduler, curve)
    check(record, caplog, "t", value)


@pytest.mark.fixes("median-nan")
def test_best_result_of_a_trial_that_began_with_nan():
    def curve(config, iteration):
        if config["x"] == COUNT - 1 and iteration == 1:
            return {"score": float("nan")}
        return {"score": config["x"] * iteration}

    record = run(median(grace_period=2), curve)
    # `max()` keeps a NaN that comes first, and took the best of all for the worst.
    assert record.iterations()[COUNT - 1] == ITERATIONS


def searcher(name):
    if name == "optuna":
        search = pytest.importorskip("ray.tune.search.optuna")
        pytest.importorskip("optuna").logging.set_verbosity(40)
        return search.OptunaSearch(seed=1)
    if name == "limited":
        return ConcurrencyLimiter(searcher("optuna"), max_concurrent=2, batch=True)
    if name == "repeated":
        return Repeater(searcher("optuna"), repeat=2)
    if name == "hyperopt":
        pytest.importorskip("hyperopt")
        search = pytest.importorskip("ray.tune.search.hyperopt")
        return search.HyperOptSearch(random_state_seed=1, n_initial_points=2)
    if name == "bayesopt":
        pytest.importorskip("bayes_opt")
        search = pytest.importorskip("ray.tune.search.bayesopt")
        return search.BayesOptSearch(random_state=1, random_search_steps=COUNT)
    pytest.importorskip("hpbandster")
    return pytest.importorskip("ray.tune.search.bohb").TuneBOHB(seed=1)


def search_with(name, curve, scheduler=None, **kwargs):
    return VirtualCluster(
        Experiment(
            scheduler,
            num_samples=COUNT + 1,
            param_space={"x": tune.uniform(0, 1)},
            search_alg=searcher(name),
            trainable=ClassTrainable(curve),
            stop={"training_iteration": ITERATIONS},
            **kwargs,
        ),
        Cluster(slots=1),
    ).run(max_events=3000)


def every_third(value):
    """A curve of which every third trial reports a value that is odd."""
    seen = []

    def curve(config, iteration):
        if config["x"] not in seen:
            seen.append(config["x"])
        odd = seen.index(config["x"]) % 3 == 1
        score = {"score": value} if odd else {"score": config["x"] * iteration}
        return {k: v for k, v in score.items() if v is not MISSING}

    return curve


MISSING = object()
SEARCHERS = ["optuna", "limited", "repeated", "hyperopt", "bayesopt"]


@pytest.mark.fixes("odd-metric")
@of("tensor", "huge", "text", "none", "array")
@pytest.mark.parametrize("name", SEARCHERS)
def test_odd_metric_under_a_search_algorithm(name, value, caplog):
    with caplog.at_level(logging.WARNING):
        record = search_with(name, every_third(value))
    assert record.iterations() == [ITERATIONS] * (COUNT + 1)
    said = [r.getMessage() for r in caplog.records if "not a number" in r.getMessage()]
    assert len(said) == 1, said
    assert record.trials[2 if name == "repeated" else 1].trial_id in said[0]
    assert "hands on NaN to the searcher" in said[0]


@of("tensor", "huge", "text", "none", "array")
@pytest.mark.parametrize("name", [*SEARCHERS, "bohb"])
def test_odd_metric_that_a_trial_pauses_with(name, value):
    record = search_with(name, every_third(value), asha_v2())
    assert record.statuses() == ["TERMINATED"] * (COUNT + 1)
    assert max(record.iterations()) == ITERATIONS


@pytest.mark.fixes("odd-metric")
@pytest.mark.parametrize("name", ["optuna", "hyperopt", "bayesopt"])
def test_missing_metric_under_a_search_algorithm(name):
    env = {"TUNE_DISABLE_STRICT_METRIC_CHECKING": "1"}
    record = search_with(name, every_third(MISSING), env=env)
    assert record.statuses() == ["TERMINATED"] * (COUNT + 1)
    assert record.iterations() == [ITERATIONS] * (COUNT + 1)


@pytest.mark.fixes("odd-metric")
def test_decimal_under_a_search_algorithm(caplog):
    with caplog.at_level(logging.WARNING):
        record = search_with("hyperopt", every_third(Decimal("0.5")))
    assert record.iterations() == [ITERATIONS] * (COUNT + 1)
    assert "not a number" not in caplog.text


# Brothers: the criteria of `stop=`, the stoppers, and what is kept of every metric.


@pytest.mark.fixes("odd-metric")
@pytest.mark.parametrize("name", ["tensor", "text", "list", "none", "array", "complex"])
def test_odd_value_of_a_stop_criterion(name, caplog):
    stop = {"training_iteration": ITERATIONS, f"of {name}": 1000}
    with caplog.at_level(logging.WARNING):
        record = run(None, Curve(f"of {name}", VALUES[name]), stop=stop)
    assert record.iterations() == [ITERATIONS] * COUNT
    said = [r.getMessage() for r in caplog.records if "not a number" in r.getMessage()]
    assert len(said) == 1 and f"'of {name}'" in said[0]


def test_stop_criterion_that_makes_no_sense_is_an_error():
    with pytest.raises(TuneError, match="TypeError: '>=' not supported"):
        run(None, Curve("score", 1), stop={"score": "high"})


@pytest.mark.fixes("odd-metric")
@pytest.mark.parametrize("name", ["huge", "complex"])
def test_number_that_is_not_a_float_ends_no_run(name):
    record = run(None, Curve("other", VALUES[name]))
    assert record.iterations() == [ITERATIONS] * COUNT
    assert all(trial.metric_analysis["score"]["last"] >= 0 for trial in record.trials)


@pytest.mark.fixes("odd-metric")
@of("tensor", "text", "none", "complex")
def test_odd_metric_under_a_plateau_stopper_of_the_experiment(value, caplog):
    stop = stopper.CombinedStopper(
        stopper.ExperimentPlateauStopper("score", mode="max", top=3, std=0.001),
        stopper.MaximumIterationStopper(ITERATIONS),
    )
    with caplog.at_level(logging.WARNING):
        record = run(None, Curve("score", value), stop=stop)
    check(record, caplog, "score", value)


@pytest.mark.fixes("odd-metric")
@pytest.mark.parametrize("name", ["tensor", "text", "list", "none", "array", "complex"])
def test_odd_metric_under_a_plateau_stopper_of_trials(name, caplog):
    stop = stopper.CombinedStopper(
        stopper.TrialPlateauStopper(
            "score", std=0.0, num_results=2, mode="max", metric_threshold=1e9
        ),
        stopper.MaximumIterationStopper(ITERATIONS),
    )
    with caplog.at_level(logging.WARNING):
        record = run(None, Curve("score", VALUES[name]), stop=stop)
    assert record.iterations() == [ITERATIONS] * COUNT


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
