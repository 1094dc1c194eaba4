"""A checkpoint is deleted only when no stored state of the experiment names it."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from virtual_cluster import VirtualCluster

from ray import tune
from ray.train import Checkpoint
from ray.tune import CheckpointConfig, ExperimentAnalysis
from ray.tune.schedulers import (
    ASHAScheduler,
    FIFOScheduler,
    PopulationBasedTraining,
)

pytestmark = pytest.mark.timeout(120)


def _pbt():
    return PopulationBasedTraining(
        perturbation_interval=2,
        hyperparam_mutations={"x": tune.uniform(0, 1)},
        synch=False,
    )


def _asha_v2():
    from ray.tune.schedulers import ASHAv2

    return ASHAv2(max_t=9, reduction_factor=3)


SCHEDULERS = {
    "asha": lambda: ASHAScheduler(max_t=9),
    "asha_v2": _asha_v2,
    "fifo": FIFOScheduler,
    "pbt": _pbt,
}


def _cluster(scheduler, folder, num_to_keep=1, **kwargs):
    kwargs = {
        "num_samples": 4,
        "slots": 2,
        "stop": {"training_iteration": 6},
        "checkpoint_period": 0,
        "checkpoint_config": CheckpointConfig(
            num_to_keep=num_to_keep, checkpoint_frequency=1
        ),
        **kwargs,
    }
    return VirtualCluster.of(SCHEDULERS[scheduler], storage_path=str(folder), **kwargs)


def _stored_checkpoints(folder):
    """The checkpoints that trials go on from, as the stored state has it."""
    try:
        trials = ExperimentAnalysis(str(folder / "experiment")).trials
    except ValueError:
        return []  # Nothing is stored yet.
    return [t.checkpoint.path for t in trials if t.checkpoint and not t.is_finished()]


@pytest.fixture
def deleted(tmp_path, monkeypatch):
    """The checkpoints that were deleted; none of them may be named at that moment."""
    from ray.train._internal import checkpoint_manager

    modules = [checkpoint_manager]
    try:
        from ray.tune.execution import checkpoint_deletion
    except ImportError:  # on stock
        pass
    else:
        modules.append(checkpoint_deletion)
    paths = []

    def delete(fs, fs_path):
        paths.append((fs_path, fs_path in _stored_checkpoints(tmp_path)))
        shutil.rmtree(fs_path)

    for module in modules:
        monkeypatch.setattr(module, "_delete_fs_path", delete)
    return paths


def _check_while_running(cluster, folder):
    most = 0
    while not cluster.controller.is_finished():
        cluster.step()
        for path in _stored_checkpoints(folder):
            assert os.path.exists(path), f"{path} is named, but was deleted"
        on_disk = len(list(folder.glob("experiment/t_*/checkpoint_*")))
        most = max(most, on_disk)
    return most


@pytest.mark.fixes("checkpoint-deleted-early")
@pytest.mark.parametrize("period", [0, 3.0])
@pytest.mark.parametrize("scheduler", ["fifo", "pbt"])
def test_checkpoint_that_the_stored_state_names_is_there(
    scheduler, period, tmp_path, deleted
):
    cluster = _cluster(scheduler, tmp_path, checkpoint_period=period).start()
    _check_while_running(cluster, tmp_path)
    assert deleted
    assert not [path for path, is_named in deleted if is_named]


def test_checkpoint_that_the_stored_state_of_asha_v2_names_is_there(tmp_path, deleted):
    cluster = _cluster("asha_v2", tmp_path, num_samples=9, stop=None).start()
    _check_while_running(cluster, tmp_path)
    assert deleted
    assert not [path for path, is_named in deleted if is_named]


@pytest.mark.parametrize("period", [0, 1e6])
@pytest.mark.parametrize("num_to_keep", [1, 2])
@pytest.mark.parametrize("scheduler", sorted(SCHEDULERS))
def test_checkpoints_beyond_num_to_keep_do_not_pile_up(
    scheduler, num_to_keep, period, tmp_path
):
    cluster = _cluster(scheduler, tmp_path, num_to_keep, checkpoint_period=period)
    most = _check_while_running(cluster.start(), tmp_path)
    # What it keeps, what the stored state names, and what is being saved.
    assert most <= 4 * (2 * num_to_keep + 1)
    cluster.call(cluster.controller.checkpoint, force=True, wait=True)
    for trial in cluster.trials:
        held = cluster.call(trial.registered_checkpoints)
        folder = tmp_path / "experiment" / trial.trial_id
        on_disk = {str(path) for path in folder.glob("checkpoint_*")}
        assert len(on_disk) <= num_to_keep + 1
        assert on_disk <= {result.checkpoint.path for result in held}


@pytest.mark.parametrize("after", range(2, 40, 3))
@pytest.mark.parametrize("scheduler", sorted(SCHEDULERS))
def test_kill_loses_no_checkpoint(scheduler, after, tmp_path):
    cluster = _cluster(scheduler, tmp_path, checkpoint_period=2.5).start()
    try:
        cluster.run_until(lambda: cluster.monitor.number >= after)
    except TimeoutError:
        return
    stored = _stored_checkpoints(tmp_path)
    cluster.restart_driver()
    assert all(os.path.exists(path) for path in stored)
    assert "ERROR" not in cluster.run(max_events=400).statuses()


@pytest.mark.fixes("checkpoint-gone")
def test_trial_whose_checkpoint_is_gone_goes_on_from_the_one_before(tmp_path, caplog):
    cluster = _cluster("fifo", tmp_path, None, check=False).start()
    cluster.run_until(lambda: cluster.monitor.number >= 14)
    gone = _stored_checkpoints(tmp_path)
    assert len(gone) == 2
    for path in gone:
        shutil.rmtree(path)
    cluster.restart_driver()
    record = cluster.run(max_events=400)
    assert record.statuses() == ["TERMINATED"] * 4
    for path in gone:
        number = int(path[-6:])
        before = f"{path[:-6]}{number - 1:06d}"
        assert f"{path}, which is gone" in caplog.text
        assert before in caplog.text


@pytest.mark.fixes("checkpoint-gone")
def test_trial_of_which_no_checkpoint_is_left_starts_over(tmp_path, caplog):
    cluster = _cluster("fifo", tmp_path, 1, check=False).start()
    cluster.run_until(lambda: cluster.monitor.number >= 14)
    for path in tmp_path.glob("experiment/t_*/checkpoint_*"):
        shutil.rmtree(path)
    cluster.restart_driver()
    assert cluster.run(max_events=400).statuses() == ["TERMINATED"] * 4
    assert "it starts from the beginning" in caplog.text


def _deletions():
    from ray.tune.execution.checkpoint_deletion import _CheckpointDeletions

    deleted = []
    deletions = _CheckpointDeletions(lambda checkpoint: deleted.append(checkpoint.path))
    return deletions, deleted


def _checkpoint(name):
    return Checkpoint.from_directory(Path("/", name).as_posix())


def test_checkpoint_that_no_snapshot_has_named_is_deleted_at_once():
    deletions, deleted = _deletions()
    deletions.on_snapshot(0, "t", ["/a"])
    deletions.request(_checkpoint("b"))
    assert deleted == ["/b"] and not deletions


def test_checkpoint_stays_until_every_snapshot_that_names_it_is_gone():
    deletions, deleted = _deletions()
    deletions.on_snapshot(0, "t", ["/a"])
    deletions.request(_checkpoint("a"))
    deletions.on_snapshot(1, "t", ["/b"])
    deletions.delete_unnamed(oldest=0)
    assert not deleted
    assert deletions.is_held_up(newest=1, oldest=0)
    deletions.delete_unnamed(oldest=1)
    assert deleted == ["/a"] and not deletions


def test_checkpoint_that_another_trial_goes_on_from_stays():
    deletions, deleted = _deletions()
    deletions.on_snapshot(0, "source", ["/a"])
    deletions.on_snapshot(0, "clone", ["/a"])
    deletions.request(_checkpoint("a"))
    deletions.on_snapshot(1, "source", ["/b"])
    deletions.delete_unnamed(oldest=1)
    assert not deleted and not deletions.is_held_up(newest=1, oldest=0)
    deletions.on_snapshot(2, "clone", ["/c"])
    deletions.delete_unnamed(oldest=2)
    assert deleted == ["/a"]


def test_request_after_the_snapshot_waits_for_the_older_one():
    deletions, deleted = _deletions()
    deletions.on_snapshot(0, "t", ["/a"])
    deletions.on_snapshot(1, "t", ["/b"])
    deletions.request(_checkpoint("a"))
    assert not deleted
    deletions.delete_unnamed(oldest=1)
    assert deleted == ["/a"]


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
