"""ASHAv2 on real Ray: the run that hangs in the private versions, and the example."""

import os
import sys
import tempfile

import pytest

from ray import cloudpickle, tune
from ray.tune.schedulers import ASHAv2

pytestmark = pytest.mark.ray

# The workers do not find the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

FAILING = 4


def score(config, epoch):
    if config["number"] == FAILING and epoch == 1:
        raise RuntimeError("This one fails in its first epoch.")
    return config["number"] + epoch / 100


class ClassTrainable(tune.Trainable):
    def setup(self, config):
        self.number = config["number"]
        self.loaded_at = 0

    def reset_config(self, new_config):
        self.setup(new_config)
        return True

    def step(self):
        epoch = self.iteration + 1
        value = score({"number": self.number}, epoch)
        return {"acc": value, "epoch": epoch, "loaded_at": self.loaded_at}

    def save_checkpoint(self, checkpoint_dir):
        with open(os.path.join(checkpoint_dir, "epoch"), "w") as f:
            f.write(str(self.iteration))

    def load_checkpoint(self, checkpoint_dir):
        with open(os.path.join(checkpoint_dir, "epoch")) as f:
            self.loaded_at = int(f.read())


def function_trainable(config):
    loaded_at = 0
    checkpoint = tune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as directory:
            with open(os.path.join(directory, "epoch")) as f:
                loaded_at = int(f.read())
    for epoch in range(loaded_at + 1, 100):
        value = score(config, epoch)
        with tempfile.TemporaryDirectory() as directory:
            with open(os.path.join(directory, "epoch"), "w") as f:
                f.write(str(epoch))
            tune.report(
                {"acc": value, "epoch": epoch, "loaded_at": loaded_at},
                checkpoint=tune.Checkpoint.from_directory(directory),
            )


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "trainable, reuse_actors, max_failures",
    [
        (ClassTrainable, True, 0),
        (ClassTrainable, False, 2),
        (function_trainable, True, 2),
        (function_trainable, False, 0),
    ],
)
def test_one_of_nine_fails_in_its_first_epoch(
    ray_start_2_cpus, tmp_path, trainable, reuse_actors, max_failures
):
    scheduler = ASHAv2(max_t=9, grace_period=1, reduction_factor=3)
    results = tune.Tuner(
        trainable,
        param_space={"number": tune.grid_search(list(range(9)))},
        tune_config=tune.TuneConfig(
            metric="acc", mode="max", scheduler=scheduler, reuse_actors=reuse_actors
        ),
        run_config=tune.RunConfig(
            storage_path=str(tmp_path),
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=max_failures),
        ),
    ).fit()

    assert len(results) == 9
    assert len(results.errors) == 1
    assert "fails in its first epoch" in str(results.errors[0])
    reached = {
        r.config["number"]: r.metrics["epoch"] for r in results if r.error is None
    }
    assert len(reached) == 8
    assert reached[8] == 9
    assert sum(epochs == 1 for epochs in reached.values()) >= 5
    # It was resumed where it had paused, and did not start over.
    best = results.get_best_result()
    assert best.config["number"] == 8
    assert best.metrics["training_iteration"] == best.metrics["epoch"] == 9
    text = scheduler.debug_string()
    assert "promotion=deferred (9 samples" in text
    assert "9 trials = 0 pending or running + 0 paused + 9 ended" in text
    assert "Milestone 1: 8 recorded" in text


@pytest.mark.timeout(180)
def test_example(ray_start_2_cpus, capsys):
    pytest.importorskip("sklearn")
    from ray.tune.examples import asha_v2_example

    found = asha_v2_example.main(num_samples=6, max_t=9)
    stock, _ = found["ASHAScheduler"]
    ours, _ = found["ASHAv2"]
    assert set(stock.reached) == set(ours.reached) == set(range(6))
    # What was trained was not trained twice.
    assert ours.total == sum(ours.reached.values())
    assert max(ours.reached.values()) == 9
    assert ours.total < stock.total
    shown = capsys.readouterr().out
    for word in ("epochs trained", "seconds", "reached max_t=9", "Milestone 3"):
        assert word in shown


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
