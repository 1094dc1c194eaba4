"""Scenarios that the explorer has found, shrunk: what each of them broke is mended."""

import os
import sys

import pytest
from virtual_cluster import (
    Cluster,
    Costs,
    Experiment,
    Faults,
    VirtualCluster,
    driver_death,
    task_error,
)

from ray.tune import CheckpointConfig
from ray.tune.schedulers import MedianStoppingRule


@pytest.mark.fixes("median-stopping-retry")
def test_median_stopping_rule_stops_a_retried_trial_again():
    # Its STOP waits for a save; the save fails, and the trial is retried.
    record = VirtualCluster(
        Experiment(
            lambda: MedianStoppingRule(
                time_attr="training_iteration",
                grace_period=2,
                min_samples_required=2,
                hard_stop=True,
            ),
            configs=[{"x": 0.9}, {"x": 0.8}, {"x": 0.7}, {"x": 0.1}],
            stop={"training_iteration": 4},
            max_failures=1,
            checkpoint_config=CheckpointConfig(checkpoint_frequency=2),
        ),
        Cluster(
            slots=4,
            costs=Costs(
                train=lambda config, iteration: 1 if config["x"] > 0.5 else 1.5
            ),
        ),
        Faults([task_error("save", trial=3)]),
    ).run(max_events=200)
    assert record.statuses().count("TERMINATED") == 4
    assert max(r["training_iteration"] for r in record.results["t_00003"]) < 4


@pytest.mark.fixes("checkpoint-registered-halfway")
@pytest.mark.parametrize("after, stale", [(9, 2), (11, 2), (10, 3)])
def test_checkpoint_is_registered_although_an_old_one_is_gone(after, stale):
    # The snapshot names a checkpoint that was deleted after it had been stored.
    cluster = VirtualCluster(
        Experiment(
            num_samples=1,
            stop={"training_iteration": 8},
            max_failures=3,
            checkpoint_config=CheckpointConfig(checkpoint_frequency=1, num_to_keep=2),
        ),
        faults=Faults(
            [
                driver_death(after=after, stale=stale),
                task_error("train", trial=0, nth=9),
                task_error("train", trial=0, nth=11),
            ]
        ),
    )
    record = cluster.run(max_events=300)
    (trial,) = record.trials
    assert record.iterations() == [8]
    manager = trial.run_metadata.checkpoint_manager
    paths = [result.checkpoint.path for result in manager.best_checkpoint_results]
    assert len(set(paths)) == len(paths) == 2
    assert all(os.path.exists(path) for path in paths)


@pytest.mark.fixes("restore-without-trials")
def test_experiment_is_restored_that_had_no_trial_yet():
    # The last snapshot was stored before the first step.
    record = VirtualCluster(
        Experiment(num_samples=4, stop={"training_iteration": 2}, fail_fast=True),
        faults=Faults([driver_death(after=1, stale=1)]),
    ).run(max_events=100)
    assert record.statuses() == ["TERMINATED"] * 4


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
