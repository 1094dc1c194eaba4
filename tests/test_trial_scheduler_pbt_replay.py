"""The replay of a policy that population based training has found."""

import json
import sys

import pytest
from virtual_cluster import (
    ClassTrainable,
    Cluster,
    Costs,
    Experiment,
    FunctionTrainable,
    VirtualCluster,
    actor_death,
    driver_death,
    task_error,
)
from virtual_cluster.workloads.schedulers import Act

from ray.tune import CheckpointConfig
from ray.tune.schedulers import PopulationBasedTrainingReplay


def policy_file(path, changes=((3, 30), (6, 60))):
    """Writes a policy whose config has ``lr`` 0, then what the changes say."""
    lr = 0
    with open(path, "w") as f:
        for number, (step, new_lr) in enumerate(changes):
            # Each one cloned the trial of the line before.
            tags = [f"{number + 1}_tag", f"{number}_tag"]
            row = [*tags, step, step, {"lr": lr}, {"lr": new_lr}]
            f.write(json.dumps(row) + "\n")
            lr = new_lr
    return str(path)


def seen_lr(config, iteration):
    return {"score": 0, "lr": config["lr"]}


def replay(tmp_path, *, changes=((3, 30), (6, 60)), iterations=9, **kwargs):
    path = policy_file(tmp_path / "pbt_policy.txt", changes)
    return VirtualCluster.of(
        lambda: PopulationBasedTrainingReplay(path),
        num_samples=1,
        param_space={},
        metric=None,
        mode=None,
        trainable=kwargs.pop("trainable", ClassTrainable(seen_lr)),
        stop={"training_iteration": iterations},
        **kwargs,
    ).run(max_events=300)


def schedule(record):
    """Which ``lr`` each iteration was trained with, the last time it was."""
    (results,) = record.results.values()
    last = {r["training_iteration"]: r["lr"] for r in results}
    return [lr for _, lr in sorted(last.items())]


EXPECTED = [0, 0, 0, 30, 30, 30, 60, 60, 60]


@pytest.mark.fixes("replay-blocks")
def test_replays_the_schedule(tmp_path):
    record = replay(tmp_path)
    assert schedule(record) == EXPECTED
    assert "perturb 2" in record.scheduler.debug_string()


@pytest.mark.fixes("replay-blocks")
@pytest.mark.parametrize("reuse_actors", [False, True])
def test_actor_reuse_and_num_to_keep(tmp_path, reuse_actors):
    record = replay(
        tmp_path,
        reuse_actors=reuse_actors,
        checkpoint_config=CheckpointConfig(num_to_keep=1),
    )
    assert schedule(record) == EXPECTED


@pytest.mark.fixes("replay-retry")
@pytest.mark.parametrize("fault", [task_error, actor_death])
@pytest.mark.parametrize("nth", [2, 5, 8])
def test_retried_trial_goes_on_with_the_schedule(tmp_path, fault, nth):
    record = replay(
        tmp_path,
        faults=[fault("train", trial=0, nth=nth)],
        max_failures=1,
        checkpoint_config=CheckpointConfig(checkpoint_frequency=2),
    )
    assert record.statuses() == ["TERMINATED"]
    assert schedule(record) == EXPECTED


@pytest.mark.fixes("replay-save-fails")
def test_save_before_the_change_fails(tmp_path):
    record = replay(
        tmp_path, faults=[task_error("save", trial=0, nth=1)], max_failures=1
    )
    assert schedule(record) == EXPECTED


@pytest.mark.fixes("replay-blocks")
def test_does_not_wait_in_the_event_loop(tmp_path):
    # Other events are handled while the trial is saved.
    path = policy_file(tmp_path / "pbt_policy.txt")
    cluster = VirtualCluster(
        Experiment(
            PopulationBasedTrainingReplay(path),
            num_samples=1,
            param_space={},
            metric=None,
            mode=None,
            trainable=ClassTrainable(seen_lr),
            stop={"training_iteration": 9},
        ),
        Cluster(costs=Costs(save=100.0)),
    )
    cluster.run_until(
        lambda: cluster.scheduler and cluster.scheduler._current_step == 3,
        max_events=50,
    )
    assert cluster.clock.now < 50


@pytest.mark.fixes("replay-restore")
def test_restored_trial_goes_on_with_the_schedule(tmp_path):
    for after in (4, 8, 12, 16):
        record = replay(
            tmp_path,
            faults=[driver_death(after=after)],
            checkpoint_config=CheckpointConfig(checkpoint_frequency=2),
        )
        assert schedule(record) == EXPECTED


@pytest.mark.parametrize(
    "after",
    [
        *(
            pytest.param(after, marks=pytest.mark.fixes("replay-pause"))
            for after in (3, 5, 6, 9)
        ),
        12,
        14,
    ],
)
def test_pause_without_checkpoint_goes_back_in_the_schedule(after, tmp_path):
    record = replay(tmp_path, outside=[Act("event", after, "drop_trial", 0)])
    assert schedule(record) == EXPECTED


@pytest.mark.fixes("replay-pause")
@pytest.mark.parametrize("every", [0, 2])
def test_function_without_a_checkpoint_at_the_change(every, tmp_path):
    # It gets there once more, and then the change is made all the same.
    record = replay(
        tmp_path, trainable=FunctionTrainable(seen_lr, checkpoint_every=every)
    )
    assert record.statuses() == ["TERMINATED"]
    assert schedule(record)[-1] == 60
    (results,) = record.results.values()
    assert len(results) <= 5 * 9


@pytest.mark.fixes("replay-jump")
def test_report_that_jumps_over_several_changes(tmp_path):
    def curve(config, iteration):
        return {"score": 0, "lr": config["lr"], "training_iteration": 5 * iteration}

    record = replay(
        tmp_path,
        changes=((2, 20), (4, 40), (12, 120)),
        trainable=ClassTrainable(curve),
        iterations=20,
        ignore=("resume-point",),  # the metric is not what Tune counts
    )
    (results,) = record.results.values()
    assert [r["lr"] for r in results] == [0, 40, 40, 120]


def test_second_trial_is_refused(tmp_path):
    path = policy_file(tmp_path / "pbt_policy.txt")
    with pytest.raises(Exception, match="More than one trial"):
        VirtualCluster(
            Experiment(
                PopulationBasedTrainingReplay(path),
                num_samples=2,
                metric=None,
                mode=None,
            )
        ).run(max_events=50)


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
