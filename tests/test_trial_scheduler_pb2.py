"""PB2: the guarantees of population based training, within the bounds given."""

import itertools
import sys

import numpy as np
import pytest
from virtual_cluster import (
    ClassTrainable,
    Costs,
    VirtualCluster,
    actor_death,
    task_error,
)

from ray import tune
from ray.tune import CheckpointConfig

pytest.importorskip("sklearn")

from ray.tune.schedulers.pb2 import PB2  # noqa: E402


def pb2(**kwargs):
    return PB2(
        **{
            "time_attr": "training_iteration",
            "perturbation_interval": 1,
            "quantile_fraction": 0.5,
            "hyperparam_bounds": {"x": [0.0, 1.0]},
            "log_config": False,
            **kwargs,
        }
    )


def curve(config, iteration):
    return {"score": config["x"] * iteration}


def run(scheduler, count=3, *, iterations=5, curve=curve, param_space=None, **kwargs):
    kwargs.setdefault("slots", count)
    xs = [0.1 + 0.8 * i / max(1, count - 1) for i in range(count)]
    return VirtualCluster.of(
        scheduler,
        param_space={"x": tune.grid_search(xs), **(param_space or {})},
        trainable=ClassTrainable(curve),
        stop={"training_iteration": iterations},
        **kwargs,
    ).run(max_events=600)


@pytest.mark.fixes("ray#12122")
def test_sync_does_not_wait_for_a_failed_trial():
    record = run(pb2(synch=True), faults=[task_error("train", trial=1, nth=2)])
    assert sorted(record.statuses()) == ["ERROR", "TERMINATED", "TERMINATED"]


@pytest.mark.fixes("ray#9036")
def test_no_trial_is_lost_with_num_to_keep_1():
    for seed in range(2):
        record = run(
            pb2(quantile_fraction=0.34),
            6,
            slots=3,
            seed=seed,
            checkpoint_config=CheckpointConfig(num_to_keep=1, checkpoint_frequency=1),
            costs=Costs(train=(0.5, 1.5), start=3.0, restore=2.0),
        )
        assert record.statuses() == ["TERMINATED"] * 6


@pytest.mark.fixes("pbt-source-dies")
def test_exploit_is_given_up_when_its_source_fails():
    record = run(
        pb2(perturbation_interval=2, quantile_fraction=0.34),
        iterations=6,
        costs=Costs(
            train=lambda c, i: 1.2 if c["x"] < 0.2 else 1.0,
            save=lambda c, i: 20.0 if c["x"] > 0.8 else 0.1,
        ),
        faults=[actor_death("save", trial=2, nth=1)],
    )
    assert record.statuses() == ["TERMINATED", "TERMINATED", "ERROR"]
    # Nobody was stopped for the 20 s
    times = sorted(time for time, *_ in record.decisions)
    assert max(b - a for a, b in itertools.pairwise(times)) < 10


@pytest.mark.fixes("pb2-nan")
def test_scores_that_are_not_finite():
    def curve(config, iteration):
        if iteration == 2:
            return {"score": float("inf" if config["x"] > 0.5 else "nan")}
        return {"score": config["x"] * iteration}

    record = run(pb2(synch=True), 4, curve=curve)
    assert record.statuses() == ["TERMINATED"] * 4


@pytest.mark.fixes("pb2-config")
def test_the_rest_of_the_config_stays():
    rest = {"model": {}, "layers": {"sizes": [1, 2], 3: "three"}}
    record = run(pb2(synch=True), param_space=rest)
    assert record.scheduler._num_perturbations > 0
    for trial in record.trials:
        assert {k: trial.config[k] for k in rest} == rest
        assert 0 <= trial.config["x"] <= 1


@pytest.mark.fixes("pb2-bounds")
@pytest.mark.parametrize(
    "bounds, value", [([0.1, 0.3], 0.3), ([1e-4, 0.1], 0.1), ([0.5, 1.5], 1)]
)
def test_values_stay_within_the_bounds(bounds, value, monkeypatch):
    from ray.tune.schedulers import pb2 as module

    # Whatever the model says: the best point is in a corner.
    monkeypatch.setattr(
        module,
        "optimize_acq",
        lambda func, m, m1, fixed, num_f: np.ones(1) * corner,
    )
    for corner in (0, 1):
        record = run(
            pb2(synch=True, hyperparam_bounds={"x": [0.0, 1.0], "lr": bounds}),
            param_space={"lr": value},
        )
        for trial in record.trials:
            assert bounds[0] <= trial.config["lr"] <= bounds[1]


@pytest.mark.fixes("pb2-names")
def test_trials_of_the_same_name(monkeypatch):
    from ray.tune.experiment import Trial

    monkeypatch.setattr(Trial, "__str__", lambda self: "the_same")
    record = run(pb2(synch=True))
    assert len(set(record.scheduler.data["Trial"])) == 3


@pytest.mark.fixes("pbt-restore")
def test_save_and_restore(tmp_path):
    record = run(pb2(synch=True))
    path = str(tmp_path / "state")
    record.scheduler.save(path)
    restored = pb2(synch=True)
    restored.restore(path)
    assert restored.data.equals(record.scheduler.data)
    assert restored.last_exploration_time == record.scheduler.last_exploration_time
    ids = {trial.trial_id for trial in record.trials}
    assert set(restored.data["Trial"]) == ids


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
