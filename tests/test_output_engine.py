"""The default output engine tells of pauses, promotions and rungs, and sums up."""

import os
import re
import subprocess
import sys

import pytest
from virtual_cluster import Costs, VirtualCluster

from ray.tune import schedulers
from ray.tune.experimental.output import AirVerbosity, TuneTerminalReporter
from ray.tune.schedulers import HyperBandScheduler

SEARCH = """
import sys
from ray import tune
from ray.tune.schedulers import ASHAv2


class Trainable(tune.Trainable):
    def setup(self, config):
        self.epoch = 0

    def step(self):
        self.epoch += 1
        return {"score": self.config["x"] * self.epoch}

    def save_checkpoint(self, folder):
        return {"epoch": self.epoch}

    def load_checkpoint(self, checkpoint):
        self.epoch = checkpoint["epoch"]

    def reset_config(self, config):
        self.epoch = 0
        return True


tune.Tuner(
    tune.with_resources(Trainable, {"cpu": 2}),
    param_space={"x": tune.grid_search([0.1, 0.2, 0.3])},
    tune_config=tune.TuneConfig(
        metric="score",
        mode="max",
        scheduler=ASHAv2(max_t=3, reduction_factor=3),
        reuse_actors=True,
    ),
    run_config=tune.RunConfig(storage_path=sys.argv[1], name="search"),
).fit()
"""


def run(scheduler, capsys, verbosity=AirVerbosity.DEFAULT, **kwargs):
    settings = {
        "num_samples": 9,
        "slots": 2,
        "stop": {"training_iteration": 9},
        "checkpoint_period": 5,
        "costs": Costs(start=2, train=1, save=0.5),
        "env": {"RAY_AIR_NEW_OUTPUT": "1"},
        **kwargs,
    }
    reporter = TuneTerminalReporter(verbosity, metric="score", mode="max")
    cluster = VirtualCluster.of(scheduler, callbacks=[reporter], **settings).start()
    reporter.setup(start_time=cluster.call(__import__("time").time))
    if hasattr(reporter, "on_decision"):
        cluster.controller.decision_log.add_listener(reporter.on_decision)
    record = cluster.run(max_events=3000)
    return cluster, record, capsys.readouterr().out


@pytest.mark.fixes("resume-printed-as-start")
def test_configuration_is_told_once(capsys):
    _, record, out = run(
        lambda: HyperBandScheduler(max_t=9, reduction_factor=3), capsys
    )
    assert any(paused for _, _, _, paused in record.decisions if paused == "PAUSE")
    for trial in record.trials:
        started = f"Trial {trial} started with"
        assert out.count(started) == 1, trial


@pytest.mark.parametrize("name", ["ASHAv2", "HyperBand"])
def test_pauses_and_promotions_are_told(capsys, name):
    make = schedulers.ASHAv2 if name == "ASHAv2" else HyperBandScheduler
    _, record, out = run(lambda: make(max_t=9, reduction_factor=3), capsys)
    assert re.search(r"Trial \S+ paused at milestone \d+ \(score 0\.\d+", out)
    assert re.search(r"Trial \S+ promoted from milestone \d+ \(score 0\.\d+", out)
    assert re.search(r"Trial \S+ stopped at milestone \d+ \(score .*\)\.", out)
    assert re.search(r"Trial \S+ started again, with \d+ iterations reported\.", out)


def test_silent_engine_tells_nothing(capsys):
    _, _, out = run(
        lambda: schedulers.ASHAv2(max_t=9, reduction_factor=3),
        capsys,
        AirVerbosity.SILENT,
    )
    assert "milestone" not in out


def test_summary(capsys, tmp_path):
    cluster, record, _ = run(
        lambda: schedulers.ASHAv2(max_t=9, reduction_factor=3),
        capsys,
        storage_path=str(tmp_path),
    )
    text = cluster.call(cluster.controller.describe_decisions)
    trained = sum(trial.last_result["training_iteration"] for trial in record.trials)
    assert f"9 trials have trained {trained} iterations" in text
    assert "81 without a scheduler that stops (FIFO)" in text
    stopping = int(re.search(r"at least (\d+) by ASHAScheduler's rule", text)[1])
    assert 9 <= stopping <= 81
    pauses = sum(decision == "PAUSE" for *_, decision in record.decisions)
    assert f"There were {pauses} pauses" in text
    saving = float(re.search(r"took ([\d.]+) s of slots", text)[1])
    assert saving == pytest.approx(0.5 * pauses, abs=0.1)


def test_rule_of_stopping_asha():
    from ray.tune.draw.history import History, RungHistory
    from ray.tune.draw.summary import summarize

    header = {"scheduler": "ASHAv2", "max_t": 9, "reduction_factor": 3, "mode": "max"}
    rungs = {
        # a goes on, as the first; b is stopped; c is better than both.
        (0, 1.0): RungHistory(0, 1.0, {"a": 2.0, "b": 1.0, "c": 3.0}),
        # a was never there: it is taken to be stopped at 3.
        (0, 3.0): RungHistory(0, 3.0, {"c": 4.0}),
    }
    history = History(
        header=header,
        trials=["a", "b", "c"],
        rungs=rungs,
        iterations={"a": 1, "b": 1, "c": 9},
    )
    summary = summarize(history)
    assert (summary.trained, summary.fifo) == (11, 27)
    assert summary.stopping_asha == 3 + 1 + 9


@pytest.mark.ray
@pytest.mark.timeout(240)
def test_in_a_file(tmp_path):
    program = tmp_path / "search.py"
    program.write_text(SEARCH)
    env = {**os.environ, "RAY_AIR_NEW_OUTPUT": "1", "COLUMNS": "120"}
    run = subprocess.run(
        [sys.executable, str(program), str(tmp_path)],
        capture_output=True,
        text=True,
        env=env,
        timeout=200,
    )
    assert run.returncode == 0, run.stderr
    out = run.stdout
    assert re.search(
        r"Milestone 1: 3 recorded = 0 paused \+ 1 promoted \+ 2 ended", out
    )
    assert "paused at milestone 1" in out
    assert "promoted from milestone 1" in out or "promoted in place" in out
    assert out.count("started with configuration") == 3
    assert "3 trials have trained 5 iterations" in out
    assert "9 without a scheduler that stops (FIFO)" in out


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
