"""What was logged of a trial is still there after it was paused and resumed."""

import csv
import json
import os
import shutil

import pytest
from virtual_cluster import Experiment, ScriptedScheduler, VirtualCluster

from ray.tune.logger import CSVLoggerCallback, JsonLoggerCallback


def _logged(path):
    with open(path) as log_file:
        if path.endswith(".csv"):
            return [int(row["training_iteration"]) for row in csv.DictReader(log_file)]
        return [json.loads(line)["training_iteration"] for line in log_file]


@pytest.mark.parametrize(
    "logger, name",
    [
        pytest.param(
            JsonLoggerCallback,
            "result.json",
            marks=pytest.mark.fixes("log-overwritten"),
        ),
        (CSVLoggerCallback, "progress.csv"),
    ],
)
def test_log_is_not_overwritten_when_a_trial_is_resumed(logger, name):
    # The log was synced to storage after the first result, and not again since.
    def decide(controller, trial, result):
        return "PAUSE" if result["training_iteration"] == 4 else "CONTINUE"

    cluster = VirtualCluster(
        Experiment(
            ScriptedScheduler(decide),
            num_samples=1,
            callbacks=lambda: [logger()],
            stop={"training_iteration": 6},
        )
    ).start()
    cluster.run_until(lambda: cluster.record().results.get("t_00000"))
    [trial] = cluster.trials
    local_file = os.path.join(trial.local_path, name)
    os.makedirs(trial.storage.trial_fs_path, exist_ok=True)
    shutil.copy(local_file, os.path.join(trial.storage.trial_fs_path, name))
    cluster.run(max_events=100)
    assert _logged(local_file) == [1, 2, 3, 4, 5, 6]


def test_log_is_fetched_from_storage_where_there_is_none():
    # As when an experiment is restored on another machine.
    def decide(controller, trial, result):
        return "PAUSE" if result["training_iteration"] == 4 else "CONTINUE"

    cluster = VirtualCluster(
        Experiment(
            ScriptedScheduler(decide),
            num_samples=1,
            callbacks=lambda: [JsonLoggerCallback()],
            stop={"training_iteration": 6},
        )
    ).start()
    cluster.run_until(lambda: cluster.trials and cluster.trials[0].status == "PAUSED")
    [trial] = cluster.trials
    local_file = os.path.join(trial.local_path, "result.json")
    os.makedirs(trial.storage.trial_fs_path, exist_ok=True)
    shutil.move(local_file, os.path.join(trial.storage.trial_fs_path, "result.json"))
    cluster.run(max_events=100)
    assert _logged(local_file) == [1, 2, 3, 4, 5, 6]


if __name__ == "__main__":
    import sys

    sys.exit(pytest.main(["-v", __file__]))
