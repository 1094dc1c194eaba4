"""Real BOHB on real Ray: with a limiter, with failures, and interrupted once."""

import json
import os
import sys
import time

import pytest

import ray
from ray import tune
from ray.tune.schedulers import HyperBandForBOHB
from ray.tune.search import ConcurrencyLimiter

pytest.importorskip("hpbandster")

from ray.tune.search.bohb import TuneBOHB  # noqa: E402

NUM_SAMPLES = 12


def _make_trainable():
    # Not at the top: workers cannot import a test module.
    def _mark(path, trial_id):
        """Leaves a mark, if there is none, and returns whose it is."""
        try:
            with open(path, "x") as file:
                file.write(trial_id)
        except FileExistsError:
            pass
        with open(path) as file:
            return file.read()

    class Improving(tune.Trainable):
        """Of the trials that get to a second iteration there the first one fails
        whenever it does, and the next one fails once."""

        def setup(self, config):
            self.reported = 0

        def step(self):
            if self.reported == 1:
                stopped_early = os.path.join(self.config["marks"], "stopped_early")
                unlucky = os.path.join(self.config["marks"], "unlucky")
                if _mark(stopped_early, self.trial_id) == self.trial_id:
                    raise RuntimeError("fails whenever it gets here")
                if not os.path.exists(unlucky):
                    _mark(unlucky, self.trial_id)
                    raise RuntimeError("fails once")
            self.reported += 1
            return {
                "score": self.config["x"] * self.reported,
                "reported": self.reported,
            }

        def save_checkpoint(self, checkpoint_dir):
            with open(os.path.join(checkpoint_dir, "state.json"), "w") as file:
                json.dump(self.reported, file)

        def load_checkpoint(self, checkpoint_dir):
            with open(os.path.join(checkpoint_dir, "state.json")) as file:
                self.reported = json.load(file)

        def reset_config(self, new_config):
            self.reported = 0
            return True

    return Improving


class _Interrupted(Exception):
    pass


class _Interrupt(tune.Callback):
    """The driver ends in the middle of the run, while trials are paused."""

    def on_trial_result(self, iteration, trials, trial, result, **info):
        if any(t.status == "PAUSED" for t in trials) and len(trials) > 6:
            raise _Interrupted


def _start_ray():
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)


@pytest.mark.ray
@pytest.mark.hang
@pytest.mark.timeout(150)
def test_bohb_runs_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setenv("TUNE_GLOBAL_CHECKPOINT_S", "0")
    monkeypatch.setenv("TUNE_PRINT_ALL_TRIAL_ERRORS", "0")
    marks = tmp_path / "marks"
    marks.mkdir()
    trainable = _make_trainable()
    param_space = {"x": tune.uniform(0, 1), "marks": str(marks)}

    def tune_config():
        return tune.TuneConfig(
            metric="score",
            mode="max",
            search_alg=ConcurrencyLimiter(TuneBOHB(seed=3), max_concurrent=2),
            scheduler=HyperBandForBOHB(max_t=9, reduction_factor=3),
            num_samples=NUM_SAMPLES,
            reuse_actors=True,
        )

    def run_config(callbacks):
        return tune.RunConfig(
            name="bohb",
            storage_path=str(tmp_path / "results"),
            failure_config=tune.FailureConfig(max_failures=1),
            callbacks=callbacks,
            verbose=0,
        )

    started = time.monotonic()
    _start_ray()
    try:
        with pytest.raises(Exception) as info:
            tune.Tuner(
                trainable,
                param_space=param_space,
                tune_config=tune_config(),
                run_config=run_config([_Interrupt()]),
            ).fit()
        assert "_Interrupted" in f"{info.value!r} {info.value.__cause__!r}"
    finally:
        ray.shutdown()
    _start_ray()
    try:
        tuner = tune.Tuner.restore(
            str(tmp_path / "results" / "bohb"),
            trainable=trainable,
            param_space=param_space,
        )
        # Callbacks are pickled with the tuner.
        tuner._local_tuner._run_config.callbacks = []
        results = tuner.fit()
    finally:
        ray.shutdown()
    assert len(results) == NUM_SAMPLES
    failed = [result for result in results if result.error]
    ended = [result for result in results if not result.error]
    assert len(failed) == 1
    assert sorted(os.listdir(marks)) == ["stopped_early", "unlucky"]
    # Each has been in a bracket to one of its milestones; one completed.
    assert {result.metrics["reported"] for result in ended} <= {1, 3, 9}
    assert max(result.metrics["reported"] for result in ended) == 9
    assert all(
        result.metrics["reported"] == result.metrics["training_iteration"]
        for result in ended
    )
    assert time.monotonic() - started < 140


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
