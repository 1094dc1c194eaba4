"""Population based training on real Ray: no trial is lost."""

import json
import os
import sys

import pytest

from ray import tune
from ray.tune import CheckpointConfig, FailureConfig, RunConfig
from ray.tune.schedulers import PopulationBasedTraining

pytestmark = pytest.mark.ray


def make_trainable():
    # Made in a function, so that workers need not import this file.
    class Fails(tune.Trainable):
        """Counts its iterations, and fails once in those that its config names."""

        def setup(self, config):
            self.reset_config(config)

        def reset_config(self, config):
            self.config = config
            self.count = 0
            self.lineage = []
            return True

        def step(self):
            self.count += 1
            self.lineage.append(self.config["bias"])
            marker = os.path.join(
                self.config["dir"], f"{self.config['number']}_{self.count}"
            )
            if self.count in self.config["fails_at"] and not os.path.exists(marker):
                open(marker, "w").close()
                raise RuntimeError("as asked for")
            # The later trials are the better ones.
            return {"score": self.config["bias"] + self.count, "count": self.count}

        def save_checkpoint(self, checkpoint_dir):
            with open(os.path.join(checkpoint_dir, "state.json"), "w") as f:
                json.dump({"count": self.count, "lineage": self.lineage}, f)

        def load_checkpoint(self, checkpoint_dir):
            with open(os.path.join(checkpoint_dir, "state.json")) as f:
                state = json.load(f)
            self.count, self.lineage = state["count"], state["lineage"]

    return Fails


def fit(tmp_path, *, synch, fails_at=(), max_failures=0):
    scheduler = PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=1,
        quantile_fraction=0.34,
        hyperparam_mutations={"lr": tune.uniform(0.1, 1.0)},
        synch=synch,
    )
    markers = tmp_path / "markers"
    markers.mkdir()
    results = tune.Tuner(
        make_trainable(),
        param_space={
            "number": tune.grid_search([0, 1, 2]),
            "bias": tune.sample_from(lambda config: 10 * config["number"]),
            "fails_at": list(fails_at),
            "dir": str(markers),
        },
        tune_config=tune.TuneConfig(
            metric="score", mode="max", scheduler=scheduler, reuse_actors=True
        ),
        run_config=RunConfig(
            storage_path=str(tmp_path / "results"),
            name="pbt",
            stop={"training_iteration": 5},
            checkpoint_config=CheckpointConfig(num_to_keep=1, checkpoint_frequency=1),
            failure_config=FailureConfig(max_failures=max_failures),
            verbose=0,
        ),
    ).fit()
    return results, scheduler, len(os.listdir(markers))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("synch", [False, True])
def test_no_trial_is_lost(ray_start_2_cpus, tmp_path, synch):
    results, scheduler, failures = fit(
        tmp_path, synch=synch, fails_at=[2, 4], max_failures=6
    )
    assert failures >= 2
    assert results.num_errors == 0
    assert [r.metrics["training_iteration"] for r in results] == [5, 5, 5]
    # What was trained is what was counted, also across clones and retries.
    assert [r.metrics["count"] for r in results] == [5, 5, 5]
    assert scheduler._num_perturbations >= 1
    for result in results:
        with result.checkpoint.as_directory() as path:
            with open(os.path.join(path, "state.json")) as f:
                assert len(json.load(f)["lineage"]) == 5
        assert 0.1 <= result.config["lr"] <= 1.0
        kept = [n for n in os.listdir(result.path) if n.startswith("checkpoint_")]
        assert len(kept) == 1


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
