"""The same one-slot search on real Ray and on the virtual cluster decides the same."""

import sys

import pytest
from virtual_cluster import Cluster, Costs, Experiment, VirtualCluster

from ray import tune
from ray.tune import CheckpointConfig
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, HyperBandScheduler
from ray.tune.search import BasicVariantGenerator

pytestmark = [pytest.mark.ray, pytest.mark.timeout(240)]

CONFIGS = [{"x": x} for x in (0.2, 0.9, 0.5, 0.7, 0.3)]


class Log:
    """Remembers what was decided for which config."""

    def __init__(self):
        self.decisions = []

    def hear(self, trial, result, decision):
        self.decisions.append(
            (trial.config["x"], result["training_iteration"], decision)
        )


def logged(scheduler_class, log, **kwargs):
    """A scheduler that tells a log of its decisions."""

    class Logged(scheduler_class):
        def on_trial_result(self, tune_controller, trial, result):
            decision = super().on_trial_result(tune_controller, trial, result)
            log.hear(trial, result, decision)
            return decision

    return Logged(**kwargs)


def curve_class():
    """The virtual cluster's curve in a real trainable, which workers get by value."""

    class Curve(tune.Trainable):
        def setup(self, config):
            self.trained = 0

        def step(self):
            import math

            self.trained += 1
            return {"score": self.config["x"] * (1.0 - math.exp(-self.trained / 4.0))}

        def save_checkpoint(self, checkpoint_dir):
            return {"trained": self.trained}

        def load_checkpoint(self, checkpoint):
            self.trained = checkpoint["trained"]

        def reset_config(self, new_config):
            self.config = new_config
            self.trained = 0
            return True

    return Curve


def on_real_ray(make_scheduler, tmp_path, reuse_actors, frequency):
    log = Log()
    tuner = tune.Tuner(
        tune.with_resources(curve_class(), {"cpu": 2}),  # one trial takes both CPUs
        param_space={"x": tune.choice([c["x"] for c in CONFIGS])},
        tune_config=tune.TuneConfig(
            metric="score",
            mode="max",
            num_samples=len(CONFIGS),
            scheduler=make_scheduler(log),
            search_alg=BasicVariantGenerator(points_to_evaluate=CONFIGS),
            reuse_actors=reuse_actors,
        ),
        run_config=tune.RunConfig(
            storage_path=str(tmp_path),
            stop={"training_iteration": 4},
            checkpoint_config=CheckpointConfig(checkpoint_frequency=frequency),
            verbose=0,
        ),
    )
    results = tuner.fit()
    assert not results.errors
    return log.decisions, sorted(
        (r.config["x"], r.metrics["training_iteration"], round(r.metrics["score"], 9))
        for r in results
    )


def on_virtual_cluster(make_scheduler, reuse_actors, frequency):
    log = Log()
    record = VirtualCluster(
        Experiment(
            lambda: make_scheduler(log),
            configs=CONFIGS,
            reuse_actors=reuse_actors,
            stop={"training_iteration": 4},
            checkpoint_config=CheckpointConfig(checkpoint_frequency=frequency),
        ),
        Cluster(slots=1, costs=Costs(start=2, train=1, save=0.1, stop=0.1)),
    ).run()
    return log.decisions, sorted(
        (
            trial.config["x"],
            trial.last_result["training_iteration"],
            round(trial.last_result["score"], 9),
        )
        for trial in record.trials
    )


@pytest.mark.parametrize(
    "name, reuse_actors, frequency",
    [("fifo", False, 0), ("asha", True, 2), ("hyperband", False, 0)],
)
def test_same_decisions(ray_start_2_cpus, tmp_path, name, reuse_actors, frequency):
    def make_scheduler(log):
        if name == "asha":
            return logged(
                ASHAScheduler, log, max_t=4, grace_period=1, reduction_factor=2
            )
        if name == "hyperband":
            # Brackets of 2 and 3 trials; only those of the second one pause.
            return logged(HyperBandScheduler, log, max_t=3, reduction_factor=3)
        return logged(FIFOScheduler, log)

    virtual = on_virtual_cluster(make_scheduler, reuse_actors, frequency)
    real = on_real_ray(make_scheduler, tmp_path, reuse_actors, frequency)
    assert virtual[0] == real[0]
    assert virtual[1] == real[1]
    assert len(virtual[0]) >= 8


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
