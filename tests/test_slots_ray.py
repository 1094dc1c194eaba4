"""Slots on real Ray: a limit, the order of starts, checkpoints of paused trials."""

import json
import os
import sys
import tempfile
import time

import pytest

import ray
from ray import cloudpickle, tune
from ray.tune import Callback
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler

# Workers do not know this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = [pytest.mark.ray, pytest.mark.timeout(100)]


@pytest.fixture(scope="module", autouse=True)
def two_cpus():
    yield ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    ray.shutdown()


class Watch(Callback):
    """Sees how many trials run, the order of starts, and what paused ones have."""

    def __init__(self):
        self.most_running = 0
        self.order = []
        self.unsafe = []

    def on_step_end(self, iteration, trials, **info):
        self.most_running = max(
            self.most_running, sum(trial.status == Trial.RUNNING for trial in trials)
        )
        for trial in trials:
            if trial.status == Trial.PAUSED:
                path = trial.checkpoint and trial.checkpoint.path
                root = trial.storage.trial_fs_path
                if not path or not path.startswith(root) or not os.path.exists(path):
                    self.unsafe.append((trial.trial_id, path))

    def on_trial_start(self, iteration, trials, trial, **info):
        self.order.append(trials.index(trial))


def train(config):
    first = 0
    checkpoint = tune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as directory:
            with open(os.path.join(directory, "state.json")) as f:
                first = json.load(f)["epoch"]
    for epoch in range(first + 1, 100):
        with tempfile.TemporaryDirectory() as directory:
            with open(os.path.join(directory, "state.json"), "w") as f:
                json.dump({"epoch": epoch}, f)
            tune.report(
                {"score": config["x"] * epoch, "epoch": epoch, "pid": os.getpid()},
                checkpoint=tune.Checkpoint.from_directory(directory),
            )


def test_one_slot_search_with_optuna_and_asha_v2(tmp_path):
    pytest.importorskip("optuna")
    from ray.tune.schedulers.asha_v2 import ASHAv2
    from ray.tune.search.optuna import OptunaSearch

    watch = Watch()
    results = tune.Tuner(
        train,
        param_space={"x": tune.uniform(0, 1)},
        tune_config=tune.TuneConfig(
            metric="score",
            mode="max",
            num_samples=9,
            max_concurrent_trials=1,
            search_alg=OptunaSearch(),
            scheduler=ASHAv2(max_t=9, grace_period=1, reduction_factor=3),
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(
            storage_path=str(tmp_path),
            callbacks=[watch],
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(num_to_keep=1),
        ),
    ).fit()
    assert not results.errors
    epochs = sorted(result.metrics["epoch"] for result in results)
    assert epochs[-1] == 9 and epochs[0] == 1
    # Each goes on where it was.
    assert all(r.metrics["epoch"] == r.metrics["training_iteration"] for r in results)
    assert watch.most_running == 1
    assert watch.unsafe == []
    # All in one process, or another one while the first was being stopped.
    assert len({result.metrics["pid"] for result in results}) <= 2


class ResumeFirst(FIFOScheduler):
    """Pauses the first trial once, and wants it back before any other is started."""

    has_paused = False

    def on_trial_result(self, tune_controller, trial, result):
        is_first = trial is tune_controller.get_trials()[0]
        if is_first and not self.has_paused:
            self.has_paused = True
            return "PAUSE"
        return "STOP" if result["training_iteration"] >= 2 else "CONTINUE"

    def choose_trial_to_run(self, tune_controller):
        first = tune_controller.get_trials()[0]
        return first if first.status == Trial.PAUSED else None


def slow(config):
    for epoch in (1, 2):
        time.sleep(0.3)
        tune.report({"score": epoch})


@pytest.mark.fixes("promotion-queued-last")
def test_chosen_trial_starts_before_pending_ones(tmp_path):
    watch = Watch()
    tune.Tuner(
        tune.with_resources(slow, {"cpu": 2}),
        tune_config=tune.TuneConfig(num_samples=4, scheduler=ResumeFirst()),
        run_config=tune.RunConfig(
            storage_path=str(tmp_path), callbacks=[watch], verbose=0
        ),
    ).fit()
    assert watch.order == [0, 0, 1, 2, 3]


class Refuses(tune.Trainable):
    """Forgets to say that its reset has worked."""

    def step(self):
        return {"score": self.iteration, "pid": os.getpid()}

    def save_checkpoint(self, checkpoint_dir):
        return {}

    def load_checkpoint(self, checkpoint):
        pass

    def reset_config(self, new_config):
        pass


def slow_to_return(config):
    try:
        for epoch in range(1, 10):
            tune.report({"score": epoch, "pid": os.getpid()})
    finally:
        time.sleep(3)


@pytest.mark.fixes("refused-reset")
@pytest.mark.parametrize("trainable", [Refuses, slow_to_return])
def test_refused_reset_loses_no_trial(trainable, tmp_path):
    results = tune.Tuner(
        tune.with_resources(trainable, {"cpu": 2}),
        tune_config=tune.TuneConfig(num_samples=2, reuse_actors=True),
        run_config=tune.RunConfig(
            storage_path=str(tmp_path), stop={"training_iteration": 1}, verbose=0
        ),
    ).fit()
    assert not results.errors
    assert len({result.metrics["pid"] for result in results}) == 2


@pytest.mark.parametrize(
    "run, fails",
    [
        (lambda: tune.Tuner(slow).fit(), False),
        (lambda: tune.run(slow), False),
        (lambda: tune.run_experiments({"e": {"run": slow}}), True),
    ],
    ids=["Tuner", "run", "run_experiments"],
)
def test_refused_reset_is_a_failure_of_the_legacy_entrypoint_only(
    run, fails, monkeypatch
):
    seen = []

    def controller(**kwargs):
        seen.append(kwargs["_fail_on_refused_reset"])
        raise KeyboardInterrupt

    monkeypatch.setattr("ray.tune.tune.TuneController", controller)
    with pytest.raises(KeyboardInterrupt):
        run()
    assert seen == [fails]


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
