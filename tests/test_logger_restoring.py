"""No death of the driver shows in the logs of the trials."""

import csv
import json
import os
import random
import sys

import pytest
from virtual_cluster import Experiment, VirtualCluster

from ray import tune
from ray.tune import CheckpointConfig, ExperimentAnalysis
from ray.tune.logger import CSVLoggerCallback, JsonLoggerCallback
from ray.tune.schedulers import (
    ASHAScheduler,
    FIFOScheduler,
    PopulationBasedTraining,
)

pytestmark = pytest.mark.timeout(120)


def _asha_v2():
    from ray.tune.schedulers import ASHAv2

    return ASHAv2(max_t=9, reduction_factor=3)


SCHEDULERS = {
    "asha": lambda: ASHAScheduler(max_t=9),
    "asha_v2": _asha_v2,
    "fifo": FIFOScheduler,
}


def _cluster(scheduler, folder, frequency=1, period=0.0, **kwargs):
    return VirtualCluster.of(
        SCHEDULERS[scheduler],
        storage_path=str(folder),
        checkpoint_period=period,
        checkpoint_config=CheckpointConfig(checkpoint_frequency=frequency),
        callbacks=lambda: [JsonLoggerCallback(), CSVLoggerCallback()],
        **{"num_samples": 5, "slots": 2, "stop": {"training_iteration": 7}, **kwargs},
    )


def _rows(path):
    with open(path, newline="") as log_file:
        if path.name.endswith(".csv"):
            return [int(row["training_iteration"]) for row in csv.DictReader(log_file)]
        return [json.loads(line)["training_iteration"] for line in log_file]


def _check_logs(cluster, folder):
    trials = cluster.trials
    assert trials
    for trial in trials:
        last = trial.run_metadata.last_result.get("training_iteration", 0)
        for name in ("result.json", "progress.csv"):
            path = folder / "experiment" / trial.trial_id / name
            rows = _rows(path) if path.exists() else []
            assert rows == list(range(1, last + 1)), (trial, name)


def _run_with_kills(cluster, kills, finish=True):
    for after in kills:
        number = cluster.monitor.number
        try:
            cluster.run_until(lambda end=number + after: cluster.monitor.number >= end)
        except TimeoutError:
            break
        cluster.restart_driver()
    record = cluster.run(max_events=600)
    cluster.call(cluster.controller.checkpoint, force=True, wait=True)
    return record


@pytest.mark.fixes("kill-in-the-logs")
@pytest.mark.parametrize("frequency, period", [(1, 0.0), (1, 3.5), (3, 0.0), (3, 3.5)])
def test_logs_of_a_killed_run_repeat_and_lack_no_row(tmp_path, frequency, period):
    cluster = _cluster("fifo", tmp_path, frequency, period).start()
    _run_with_kills(cluster, [9, 5, 8, 6])
    _check_logs(cluster, tmp_path)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("scheduler", sorted(SCHEDULERS))
def test_logs_of_runs_killed_at_random_repeat_and_lack_no_row(
    scheduler, seed, tmp_path
):
    draw = random.Random(seed)
    stop = None if scheduler == "asha_v2" else {"training_iteration": 7}
    cluster = _cluster(
        scheduler,
        tmp_path,
        draw.choice([1, 2, 3]),
        draw.choice([0.0, 2.5, 6.0]),
        stop=stop,
        seed=seed,
        num_samples=9 if scheduler == "asha_v2" else 5,
    ).start()
    _run_with_kills(cluster, [draw.randrange(3, 25) for _ in range(4)])
    _check_logs(cluster, tmp_path)


def test_logs_are_reconciled_where_the_staging_folder_is_gone(tmp_path):
    cluster = _cluster("fifo", tmp_path, frequency=2, period=3.5).start()
    cluster.run_until(lambda: cluster.monitor.number >= 14)
    os.rename(tmp_path / ".session", tmp_path / "gone")
    cluster.restart_driver()
    cluster.run(max_events=600)
    cluster.call(cluster.controller.checkpoint, force=True, wait=True)
    _check_logs(cluster, tmp_path)


@pytest.mark.parametrize("name", ["result.json", "progress.csv"])
def test_row_that_was_written_in_part_is_dropped(name, tmp_path):
    cluster = _cluster("fifo", tmp_path).start()
    cluster.run_until(lambda: cluster.monitor.number >= 12)
    for path in tmp_path.glob(f"**/{name}"):
        content = path.read_bytes()
        path.write_bytes(content + content[-120:-60])
    cluster.restart_driver()
    cluster.run(max_events=600)
    cluster.call(cluster.controller.checkpoint, force=True, wait=True)
    _check_logs(cluster, tmp_path)


@pytest.mark.fixes("kill-in-the-logs")
def test_results_of_a_trial_are_read_though_the_last_row_is_cut(tmp_path):
    cluster = _cluster("fifo", tmp_path).start()
    cluster.run_until(lambda: cluster.monitor.number >= 12)
    paths = list((tmp_path / "experiment").glob("*/result.json"))
    rows = {path.parent.name: _rows(path) for path in paths}
    for path in paths:
        content = path.read_bytes()
        path.write_bytes(content + content[:40])
    frames = ExperimentAnalysis(str(tmp_path / "experiment")).trial_dataframes
    assert rows
    for trial_id, iterations in rows.items():
        assert list(frames[trial_id]["training_iteration"]) == iterations


@pytest.mark.fixes("columns-in-another-order")
def test_columns_stay_where_they_are_when_a_run_is_restored(tmp_path):
    cluster = _cluster("fifo", tmp_path).start()
    cluster.run_until(lambda: cluster.monitor.number >= 12)
    for path in tmp_path.glob("**/progress.csv"):
        with open(path, newline="") as log_file:
            rows = list(csv.DictReader(log_file))
        with open(path, "w", newline="") as log_file:
            writer = csv.DictWriter(log_file, sorted(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    cluster.restart_driver()
    cluster.run(max_events=600)
    cluster.call(cluster.controller.checkpoint, force=True, wait=True)
    _check_logs(cluster, tmp_path)


def _row(iteration, since_restore=2):
    from ray.tune.experiment._log_reconciliation import _Row

    return _Row(
        {
            "training_iteration": iteration,
            "iterations_since_restore": since_restore,
        },
        0,
    )


@pytest.mark.parametrize(
    "rows, iteration, is_own, kept",
    [
        ([1, 2, 3], 2, True, 2),
        ([1, 2, 3], 3, True, 3),
        ([1, 2, 3], 0, True, 0),
        ([1, 2, 3], 5, True, 3),
        ([1, 3, 5], 2, True, 1),
        # It was retried within the run before.
        ([1, 2, 3, 2, 3, 4], 3, True, 5),
        ([], 3, True, 0),
    ],
)
def test_rows_after_the_checkpoint_are_cut_off(rows, iteration, is_own, kept):
    from ray.tune.experiment._log_reconciliation import _num_to_keep

    assert _num_to_keep([_row(r) for r in rows], iteration, is_own) == kept


def test_what_was_logged_before_the_checkpoint_of_another_trial_is_kept():
    from ray.tune.experiment._log_reconciliation import _num_to_keep

    own = [_row(1, 1), _row(2), _row(3)]
    exploit = [_row(9, 1), _row(10)]
    assert _num_to_keep([*own, *exploit], 8, is_own=False) == 3
    assert _num_to_keep(own, 8, is_own=False) == 3


def test_columns_may_have_line_breaks():
    from ray.tune.experiment._log_reconciliation import _read_csv_rows

    content = b'training_iteration,note\r\n1,"a\r\nb"\r\n2,"c\r\n'
    rows = _read_csv_rows(content)
    assert [row.result.get("training_iteration") for row in rows] == [None, "1"]
    assert content[rows[-1].end :] == b'2,"c\r\n'


@pytest.mark.fixes("pending-order-lost")
@pytest.mark.parametrize("seed", range(3))
def test_pending_trials_keep_their_order(seed, tmp_path):
    cluster = _cluster("fifo", tmp_path, num_samples=30, slots=1, seed=seed).start()
    cluster.run_until(lambda: cluster.monitor.number >= 6)
    order = [trial.trial_id for trial in cluster.trials]
    cluster.restart_driver()
    assert [trial.trial_id for trial in cluster.trials] == order
    started = []
    while len(started) < 6:
        cluster.step()
        for trial in cluster.trials:
            if trial.status == "RUNNING" and trial.trial_id not in started:
                started.append(trial.trial_id)
    assert started == [i for i in order if i in started]
    assert started == order[order.index(started[0]) :][:6]


def test_trial_that_is_retried_stays_behind_those_that_wait(tmp_path):
    from virtual_cluster import task_error

    cluster = _cluster(
        "fifo",
        tmp_path,
        num_samples=4,
        slots=1,
        max_failures=1,
        faults=[task_error("train", trial=0, nth=3)],
    ).start()
    cluster.run_until(lambda: cluster.trials and cluster.trials[-1].num_failures == 1)
    order = [trial.trial_id for trial in cluster.trials]
    assert order[-1] == "t_00000"
    cluster.call(cluster.controller.checkpoint, force=True, wait=True)
    cluster.restart_driver()
    assert [trial.trial_id for trial in cluster.trials] == order
    pending = cluster.controller._pending_trials_list
    assert [trial.trial_id for trial in pending] == order


def test_logs_of_population_based_training_go_back_only_to_exploit(tmp_path):
    cluster = VirtualCluster(
        Experiment(
            lambda: PopulationBasedTraining(
                perturbation_interval=2,
                hyperparam_mutations={"x": tune.uniform(0, 1)},
            ),
            num_samples=4,
            stop={"training_iteration": 12},
            storage_path=str(tmp_path),
            checkpoint_period=2.5,
            checkpoint_config=CheckpointConfig(checkpoint_frequency=1),
            callbacks=lambda: [JsonLoggerCallback(), CSVLoggerCallback()],
        )
    ).start()
    _run_with_kills(cluster, [21, 17, 19])
    for trial in cluster.trials:
        path = tmp_path / "experiment" / trial.trial_id / "result.json"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        assert rows[-1]["training_iteration"] == 12
        for before, row in zip(rows, rows[1:], strict=False):
            if row["training_iteration"] != before["training_iteration"] + 1:
                # It goes on from another trial, and so explores another value.
                assert row["config"]["x"] != before["config"]["x"], trial


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
