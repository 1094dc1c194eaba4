"""An operation on storage that fails once is tried again, where that can help."""

import errno
import sys
from pathlib import Path

import pytest
from flaky_storage import FlakyStorage
from virtual_cluster import VirtualCluster

from ray.train import Checkpoint
from ray.train._internal import storage as ray_storage
from ray.train._internal.storage import StorageContext
from ray.tune import CheckpointConfig, ExperimentAnalysis, Tuner
from ray.tune.schedulers import ASHAScheduler

pytestmark = pytest.mark.timeout(60)

fixes_uploads = pytest.mark.fixes("uploads-not-retried")
fixes_reads = pytest.mark.fixes("reads-not-retried")


@pytest.fixture
def flaky(tmp_path, monkeypatch):
    try:
        from ray.air._internal import storage_retries
    except ImportError:  # on stock
        pass
    else:
        monkeypatch.setattr(storage_retries, "_WAITS_S", (0.0, 0.0, 0.0))
        monkeypatch.setattr(storage_retries, "_outage_until", float("-inf"))
    return FlakyStorage(tmp_path / "control")


@pytest.fixture
def context(tmp_path, flaky):
    return StorageContext(
        str(tmp_path / "stored"),
        "experiment",
        storage_filesystem=flaky.filesystem,
        trial_dir_name="trial",
        current_checkpoint_index=0,
    )


@pytest.fixture
def files(tmp_path):
    """A folder of files, as a checkpoint on the disk of a worker."""
    folder = tmp_path / "files"
    folder.mkdir()
    for name in "ab":
        (folder / name).write_text(name * 10_000)
    return folder


def _content(folder):
    return {path.name: path.read_text() for path in Path(folder).iterdir()}


@fixes_uploads
@pytest.mark.parametrize("operation", ["info", "create_dir", "open", "write"])
def test_checkpoint_is_uploaded(flaky, context, files, operation):
    flaky.fail_once(operation)
    stored = context.persist_current_checkpoint(Checkpoint(str(files)))
    assert flaky.failed and _content(stored.path) == _content(files)


@fixes_uploads
@pytest.mark.parametrize("exclude", [None, ["c"]], ids=["all", "excluding"])
def test_folder_is_uploaded(flaky, context, files, exclude):
    flaky.fail_once("create_dir", "write")
    context.syncer.sync_up(str(files), context.trial_fs_path, exclude=exclude)
    context.syncer.wait()
    assert flaky.failed and _content(context.trial_fs_path) == _content(files)


@fixes_uploads
def test_file_is_uploaded(flaky, context, files):
    flaky.fail_once("create_dir", "write")
    path = Path(context.trial_fs_path, "file")
    ray_storage._upload_to_fs_path(str(files / "a"), flaky.filesystem, str(path))
    assert flaky.failed and path.read_text() == (files / "a").read_text()


@fixes_uploads
@pytest.mark.parametrize("operation", ["create_dir", "info", "open"])
def test_new_storage_is_set_up(flaky, tmp_path, operation):
    flaky.fail_once(operation)
    context = StorageContext(
        str(tmp_path), "experiment", storage_filesystem=flaky.filesystem
    )
    assert flaky.failed and Path(context.experiment_fs_path).is_dir()


@fixes_reads
@pytest.mark.parametrize("operation", ["info", "list", "read"])
def test_checkpoint_is_downloaded(flaky, files, tmp_path, operation):
    flaky.fail_once(operation)
    checkpoint = Checkpoint(str(files), filesystem=flaky.filesystem)
    folder = checkpoint.to_directory(str(tmp_path / "loaded"))
    assert flaky.failed
    assert _content(files).items() <= _content(folder).items()


@fixes_reads
@pytest.mark.parametrize(
    "ask",
    [
        lambda fs, path: len(ray_storage._list_at_fs_path(fs, path)) == 2,
        lambda fs, path: ray_storage._exists_at_fs_path(fs, path),
        lambda fs, path: ray_storage._is_directory(fs, path),
    ],
    ids=["list", "exists", "is_directory"],
)
def test_storage_is_asked(flaky, files, ask):
    flaky.fail_once("info", "list")
    assert ask(flaky.filesystem, str(files)) and flaky.failed


@fixes_reads
def test_restorable_experiment_is_found(flaky, files):
    (files / "tuner.pkl").touch()
    flaky.fail_once("info", "list")
    assert Tuner.can_restore(str(files), storage_filesystem=flaky.filesystem)


def _cluster(folder, **kwargs):
    return VirtualCluster.of(
        lambda: ASHAScheduler(max_t=9),
        storage_path=str(folder),
        num_samples=3,
        slots=2,
        stop={"training_iteration": 3},
        checkpoint_period=0,
        checkpoint_config=CheckpointConfig(num_to_keep=1, checkpoint_frequency=1),
        **kwargs,
    )


@fixes_reads
@pytest.mark.parametrize("operation", ["info", "list", "open", "read"])
def test_results_are_read(flaky, tmp_path, operation):
    _cluster(tmp_path).run()
    for folder in (tmp_path / "experiment").glob("t_*"):
        rows = [f'{{"training_iteration": {i}}}\n' for i in (1, 2, 3)]
        (folder / "result.json").write_text("".join(rows))
    flaky.fail_once(operation)
    analysis = ExperimentAnalysis(
        str(tmp_path / "experiment"), storage_filesystem=flaky.filesystem
    )
    assert flaky.failed
    assert [len(df) for df in analysis.trial_dataframes.values()] == [3, 3, 3]


@pytest.mark.parametrize("operation", ["create_dir", "write", "move", "delete", "list"])
def test_state_is_stored(flaky, tmp_path, caplog, operation):
    cluster = _cluster(tmp_path).start()
    cluster.controller._storage.storage_filesystem = flaky.filesystem
    flaky.fail_once(operation)
    cluster.run_until(lambda: cluster.monitor.number >= 14)
    assert flaky.failed and "Saving experiment state" not in caplog.text
    cluster.restart_driver()
    assert cluster.run(max_events=300).statuses() == ["TERMINATED"] * 3


@pytest.mark.parametrize("num_failures", [1, 3])
def test_checkpoint_that_could_not_be_deleted_is_deleted_later(
    flaky, files, num_failures
):
    from ray.tune.execution.checkpoint_deletion import _CheckpointDeletions

    deletions = _CheckpointDeletions()
    flaky.fail(errno.EIO, "info" if num_failures == 1 else "delete")
    deletions.request(Checkpoint(str(files), filesystem=flaky.filesystem))
    for number in range(num_failures - 1):
        deletions.delete_unnamed(oldest=number)
        assert files.exists()
    flaky.heal()
    deletions.delete_unnamed(oldest=num_failures)
    assert not files.exists() and not deletions


def test_checkpoint_that_cannot_be_deleted_is_named_and_left(flaky, files, caplog):
    from ray.tune.execution import checkpoint_deletion

    deletions = checkpoint_deletion._CheckpointDeletions()
    flaky.fail(errno.EIO, "delete")
    deletions.request(Checkpoint(str(files), filesystem=flaky.filesystem))
    for number in range(2 * checkpoint_deletion._MAX_ATTEMPTS):
        deletions.delete_unnamed(oldest=number)
    assert not deletions._failed and not deletions._num_failures
    assert caplog.text.count("It is left on storage") == 1
    assert str(files) in caplog.text


@pytest.mark.fixes("deletions-that-raise")
def test_deletion_raises_only_where_nothing_is(flaky, files):
    flaky.fail(errno.EIO, "info")
    ray_storage._delete_fs_path(flaky.filesystem, str(files))
    flaky.heal()
    with pytest.raises(FileNotFoundError):
        ray_storage._delete_fs_path(flaky.filesystem, str(files / "nothing"))


def _counted(error):
    calls = []

    def operation():
        calls.append(error)
        raise error

    return operation, calls


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "full"),
        OSError(errno.EROFS, "read-only"),
        FileNotFoundError("x"),
        PermissionError("x"),
        NotImplementedError("x"),
    ],
    ids=lambda e: type(e).__name__ + str(e.args[0]),
)
def test_error_that_lasts_is_raised_at_once(flaky, error):
    from ray.air._internal.storage_retries import retried

    operation, calls = _counted(error)
    with pytest.raises(type(error)):
        retried(operation)()
    assert len(calls) == 1


def test_while_storage_is_gone_nothing_waits(flaky, files):
    from ray.air._internal import storage_retries

    operation, calls = _counted(ConnectionError("gone"))
    for _ in range(3):
        with pytest.raises(ConnectionError):
            storage_retries.retried(operation)()
    # Four attempts, then one each, until it is there again.
    assert len(calls) == 4 + 1 + 1
    storage_retries.retried(lambda: None)()
    with pytest.raises(ConnectionError):
        storage_retries.retried(storage_retries.retried(operation))()
    assert len(calls) == 6 + 4


def test_attempts_are_logged_with_their_error(flaky, context, files, caplog):
    flaky.fail_once("write")
    context.persist_current_checkpoint(Checkpoint(str(files)))
    assert "pyarrow_fs_copy_files has failed on storage" in caplog.text
    assert "Input/output error" in caplog.text


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
