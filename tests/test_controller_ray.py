"""What users meet of the controller's rules, on a real Ray runtime."""

import json
import os
import sys
import time

import pytest

from ray import cloudpickle, tune
from ray.tune import CheckpointConfig, RunConfig, TuneConfig, TuneError
from ray.tune.schedulers import FIFOScheduler, HyperBandScheduler

# Ray's workers cannot import this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_start_2_cpus")]


class _Counter(tune.Trainable):
    def setup(self, config):
        self.count = 0

    def step(self):
        self.count += 1
        time.sleep(self.config.get("sleep", 0.02))
        return {"score": self.count + self.config.get("x", 0)}

    def save_checkpoint(self, checkpoint_dir):
        with open(os.path.join(checkpoint_dir, "count.json"), "w") as count_file:
            json.dump(self.count, count_file)

    def load_checkpoint(self, checkpoint_dir):
        with open(os.path.join(checkpoint_dir, "count.json")) as count_file:
            self.count = json.load(count_file)

    def reset_config(self, new_config):
        self.config, self.count = new_config, 0
        return True


class _Scripted(FIFOScheduler):
    """Decides as a function says."""

    def __init__(self, decide, choose=None):
        super().__init__()
        self._decide, self._choose = decide, choose

    def on_trial_result(self, tune_controller, trial, result):
        return self._decide(tune_controller, trial, result)

    def choose_trial_to_run(self, tune_controller):
        if self._choose is None:
            return super().choose_trial_to_run(tune_controller)
        return self._choose(tune_controller)


def _fit(tmp_path, scheduler, trainable=_Counter, num_samples=2, run=None, **kwargs):
    run = {"stop": {"training_iteration": 4}, **(run or {})}
    tuner = tune.Tuner(
        trainable,
        param_space={"x": tune.uniform(0, 1)},
        tune_config=TuneConfig(
            scheduler=scheduler,
            num_samples=num_samples,
            metric="score",
            mode="max",
            **kwargs,
        ),
        run_config=RunConfig(name="run", storage_path=str(tmp_path), verbose=0, **run),
    )
    return tuner.fit()


@pytest.mark.hang
@pytest.mark.fixes("stall")
@pytest.mark.timeout(60)
def test_stalled_run_ends_and_costs_next_to_no_cpu(tmp_path, monkeypatch):
    monkeypatch.setenv("TUNE_STALL_TIMEOUT_S", "5")
    began = {}

    def choose(controller):
        if not began and not any(
            trial.status in ("PENDING", "RUNNING") for trial in controller.get_trials()
        ):
            began.update(wall=time.monotonic(), cpu=time.process_time())
        if began and time.monotonic() - began["wall"] > 12:
            raise AssertionError("The run hangs.")
        return None

    scheduler = _Scripted(lambda *_: "PAUSE", choose)
    with pytest.raises(TuneError, match="has stalled"):
        _fit(tmp_path, scheduler)
    wall, cpu = time.monotonic() - began["wall"], time.process_time() - began["cpu"]
    print(f"CPU share while nothing could happen: {cpu / wall:.1%}")
    # Stock burns more than half of a core; this asserts that it does not spin.
    assert cpu / wall < 0.35


@pytest.mark.fixes("result-thrown-away")
@pytest.mark.timeout(90)
def test_no_result_of_a_trial_that_another_one_pauses_is_lost(tmp_path):
    # While the driver is busy with one trial, both tasks of another resolve.
    seen = {}

    def decide(controller, trial, result):
        seen.setdefault(trial.trial_id, []).append(result["training_iteration"])
        for other in controller.get_trials():
            if other is not trial and other.status == "RUNNING":
                controller.pause_trial(other)
        time.sleep(0.2)
        return "CONTINUE"

    _fit(
        tmp_path,
        _Scripted(decide),
        num_samples=4,
        run={"stop": {"training_iteration": 8}},
        reuse_actors=True,
    )
    # The last result stops the trial, so the scheduler is not asked.
    assert sorted(seen.values()) == [list(range(1, 8))] * 4


@pytest.mark.fixes("hook-error")
@pytest.mark.timeout(60)
def test_run_that_a_hook_ends_can_be_restored(tmp_path, caplog):
    def decide(controller, trial, result):
        if result["training_iteration"] == 3:
            raise ArithmeticError("what a pity")
        return "CONTINUE"

    run = {"checkpoint_config": CheckpointConfig(checkpoint_frequency=1)}
    with pytest.raises(ArithmeticError, match="what a pity"):
        _fit(tmp_path, _Scripted(decide), run=run)
    assert "`_Scripted.on_trial_result` raised an error for trial" in caplog.text

    tuner = tune.Tuner.restore(str(tmp_path / "run"), trainable=_Counter)
    tuner._local_tuner._tune_config.scheduler = FIFOScheduler()
    results = tuner.fit()
    assert [result.metrics["training_iteration"] for result in results] == [4, 4]
    # The other trial may not have got to a checkpoint by then.
    assert min(result.metrics["iterations_since_restore"] for result in results) < 4


@pytest.mark.fixes("buffer-arguments")
@pytest.mark.timeout(60)
def test_results_are_buffered_as_documented(tmp_path, monkeypatch):
    monkeypatch.setenv("TUNE_RESULT_BUFFER_LENGTH", "3")
    monkeypatch.setenv("TUNE_RESULT_BUFFER_MIN_TIME_S", "100")
    arrived = []

    def decide(controller, trial, result):
        arrived.append(time.monotonic())
        return "CONTINUE"

    class Sleepy(_Counter):
        def step(self):
            time.sleep(0.1)
            return super().step()

    _fit(
        tmp_path,
        _Scripted(decide),
        Sleepy,
        num_samples=1,
        run={
            "stop": {"training_iteration": 12},
            # Which is on by default, and turns buffering off.
            "checkpoint_config": CheckpointConfig(checkpoint_at_end=False),
        },
    )
    # Those of one batch arrive at once.
    gaps = [
        later - earlier for earlier, later in zip(arrived, arrived[1:], strict=False)
    ]
    assert sum(gap > 0.1 for gap in gaps) == 3


@pytest.mark.timeout(90)
@pytest.mark.parametrize("reuse_actors", [False, True])
def test_scheduler_that_pauses_every_trial_loses_nothing(tmp_path, reuse_actors):
    seen = {}

    def decide(controller, trial, result):
        seen.setdefault(trial.trial_id, []).append(result["training_iteration"])
        return "PAUSE" if result["training_iteration"] % 2 else "CONTINUE"

    results = _fit(
        tmp_path, _Scripted(decide), num_samples=3, reuse_actors=reuse_actors
    )
    assert [result.metrics["training_iteration"] for result in results] == [4] * 3
    assert sorted(seen.values()) == [[1, 2, 3]] * 3


@pytest.mark.hang
@pytest.mark.timeout(60)
def test_hyperband_ends_with_slow_checkpoints(tmp_path):
    class SlowSave(_Counter):
        def save_checkpoint(self, checkpoint_dir):
            time.sleep(0.3)
            super().save_checkpoint(checkpoint_dir)

    results = _fit(
        tmp_path,
        HyperBandScheduler(max_t=3, reduction_factor=3),
        SlowSave,
        num_samples=2,
        run={"stop": {}},
        reuse_actors=True,
    )
    assert len(results) == 2


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
