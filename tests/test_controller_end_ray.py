"""Runs that were cut on a real Ray are taken up."""

import os
import signal
import subprocess
import sys
import time

import pytest

import ray
from ray import cloudpickle, tune
from ray.tune import Callback, FailureConfig, RunConfig, TuneConfig

# Ray's workers cannot import this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_start_2_cpus")]

END = 9


class _Counter(tune.Trainable):
    def setup(self, config):
        self.count = 0

    def step(self):
        self.count += 1
        time.sleep(self.config.get("sleep", 0))
        if self.config["x"] == self.config.get("fails") and self.count == 2:
            if not os.path.exists(self.config["mark"]):
                open(self.config["mark"], "w").close()
                raise ArithmeticError("what a pity")
        return {"score": self.config["x"] * self.count}

    def reset_config(self, new_config):
        self.config, self.count = new_config, 0
        return True

    def save_checkpoint(self, checkpoint_dir):
        with open(os.path.join(checkpoint_dir, "count"), "w") as file:
            file.write(str(self.count))

    def load_checkpoint(self, checkpoint_dir):
        with open(os.path.join(checkpoint_dir, "count")) as file:
            self.count = int(file.read())


def _scheduler():
    from ray.tune.schedulers import ASHAv2

    return ASHAv2(max_t=END, reduction_factor=3, metric="score", mode="max")


def _run(path, num_samples=6, x=None, **kwargs):
    return tune.run(
        _Counter,
        name="run",
        storage_path=str(path),
        config={"x": tune.grid_search(list(range(1, num_samples + 1))), **(x or {})},
        scheduler=_scheduler(),
        verbose=0,
        reuse_actors=True,
        raise_on_failed_trial=False,
        **kwargs,
    )


def _check_complete(trials, num_samples=6):
    assert [trial.status for trial in trials] == ["TERMINATED"] * num_samples
    reached = [trial.last_result["training_iteration"] for trial in trials]
    assert min(reached) >= 1
    assert max(reached) == END


class _InterruptWhenPaused(Callback):
    """Sends Ctrl+C as soon as trials are paused."""

    def __init__(self, presses=1):
        self._presses = presses

    def on_step_end(self, iteration, trials, **info):
        if any(trial.status == "PAUSED" for trial in trials):
            for _ in range(self._presses):
                os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.timeout(90)
def test_paused_trials_ask_for_the_resources_of_the_resumed_run(tmp_path):
    first = _run(
        tmp_path, resources_per_trial={"cpu": 2}, callbacks=[_InterruptWhenPaused()]
    )
    assert "PAUSED" in {trial.status for trial in first.trials}
    second = _run(tmp_path, resume=True, resources_per_trial={"cpu": 1})
    _check_complete(second.trials)
    shapes = {
        trial.placement_group_factory.required_resources["CPU"]
        for trial in second.trials
        if trial.last_result["training_iteration"] > 1
    }
    assert shapes == {1}


@pytest.mark.timeout(90)
def test_run_that_used_up_its_time_goes_on_with_another_budget(tmp_path, caplog):
    kwargs = {"num_samples": 6, "x": {"sleep": 0.7}}
    first = _run(tmp_path, time_budget_s=4, **kwargs)
    assert {trial.status for trial in first.trials} == {"TERMINATED"}
    assert max(t.last_result.get("training_iteration", 0) for t in first.trials) < END
    assert "The run was ended by the time budget of 4 s" in caplog.text
    second = _run(tmp_path, resume=True, time_budget_s=80, **kwargs)
    _check_complete(second.trials)


@pytest.mark.timeout(90)
@pytest.mark.parametrize("fail_fast", [True, "raise"])
def test_run_that_failed_fast_goes_on(fail_fast, tmp_path):
    tuner = tune.Tuner(
        _Counter,
        param_space={
            "x": tune.grid_search([1, 2, 3, 4, 5, 6]),
            "fails": 6,
            "mark": str(tmp_path / "failed"),
        },
        tune_config=TuneConfig(scheduler=_scheduler(), reuse_actors=True),
        run_config=RunConfig(
            name="run",
            storage_path=str(tmp_path),
            verbose=0,
            failure_config=FailureConfig(fail_fast=fail_fast),
        ),
    )
    if fail_fast == "raise":
        with pytest.raises(ArithmeticError, match="what a pity"):
            tuner.fit()
    else:
        assert tuner.fit().num_errors == 1
    restored = tune.Tuner.restore(
        str(tmp_path / "run"), trainable=_Counter, resume_errored=True
    )
    results = restored.fit()
    assert results.num_errors == 0
    _check_complete(results._experiment_analysis.trials)


_PROGRAM = """
import ray, test_controller_end_ray as module
ray.init(address={address!r}, log_to_driver=False)
module._run({path!r}, callbacks=[module._InterruptWhenPaused({presses})])
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("presses", [1, 2])
def test_run_that_is_interrupted_goes_on(presses, tmp_path, monkeypatch):
    address = ray.get_runtime_context().gcs_address
    program = _PROGRAM.format(address=address, path=str(tmp_path), presses=presses)
    env = {**os.environ, "TUNE_GLOBAL_CHECKPOINT_S": "0"}
    env["PYTHONPATH"] = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    ended = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True
    )
    assert ("KeyboardInterrupt" in ended.stderr) == (presses == 2), ended.stderr
    _check_complete(_run(tmp_path, resume=True).trials)


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
