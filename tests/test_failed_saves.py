"""A state that cannot be stored ends no run, and the log says what is on storage."""

import errno
import logging
import sys

import pytest
from flaky_storage import FlakyStorage
from virtual_cluster import VirtualCluster

from ray.tune.execution.tune_controller import TuneController
from ray.tune.schedulers import ASHAScheduler

pytestmark = pytest.mark.timeout(120)

WRITES = ("create_dir", "write", "move", "delete")


def _cluster(folder):
    return VirtualCluster.of(
        lambda: ASHAScheduler(max_t=9),
        storage_path=str(folder),
        num_samples=3,
        slots=2,
        stop={"training_iteration": 4},
        checkpoint_period=0,
    ).start()


def _store_on(cluster, flaky):
    cluster.controller._storage.storage_filesystem = flaky.filesystem


def test_full_storage_ends_no_run_and_is_said_at_the_end(tmp_path, caplog):
    flaky = FlakyStorage(tmp_path / "control")
    cluster = _cluster(tmp_path)
    _store_on(cluster, flaky)
    cluster.run_until(lambda: cluster.monitor.number >= 10)
    assert cluster.controller.describe_failed_saves() is None
    flaky.fail(errno.ENOSPC, *WRITES)
    cluster.run_until(lambda: cluster.controller.is_finished())
    cluster.call(cluster.controller.checkpoint, force=True, wait=True)
    text = cluster.controller.describe_failed_saves()
    assert "No space left on device" in text and str(tmp_path) in text
    assert "The state that is stored there is that of" in text
    # Not once for each event
    assert 1 <= caplog.text.count("Saving experiment state to storage") <= 8

    flaky.heal()
    cluster.restart_driver()
    assert cluster.run(max_events=300).statuses() == ["TERMINATED"] * 3


def test_storage_that_is_back_is_written_to_again(tmp_path):
    flaky = FlakyStorage(tmp_path / "control")
    cluster = _cluster(tmp_path)
    _store_on(cluster, flaky)
    flaky.fail(errno.EROFS, *WRITES)
    cluster.run_until(lambda: cluster.monitor.number >= 8)
    assert "This run has stored no state" in cluster.controller.describe_failed_saves()
    flaky.heal()
    cluster.run_until(lambda: cluster.monitor.number >= 10)
    assert cluster.controller.describe_failed_saves() is None
    cluster.restart_driver()
    assert cluster.run(max_events=300).statuses() == ["TERMINATED"] * 3


@pytest.mark.fixes("driver-disk-full")
def test_full_disk_of_the_driver_ends_no_run(tmp_path, monkeypatch):
    save_to_dir, calls = TuneController.save_to_dir, []

    def save(self, *args, **kwargs):
        calls.append(self)
        if len(calls) in (2, 3):
            raise OSError(errno.ENOSPC, "No space left on device")
        return save_to_dir(self, *args, **kwargs)

    monkeypatch.setattr(TuneController, "save_to_dir", save)
    cluster = _cluster(tmp_path)
    assert cluster.run(max_events=300).statuses() == ["TERMINATED"] * 3
    assert len(calls) > 3


def test_failures_in_a_row_are_logged_ever_less_often(caplog):
    from ray.tune.execution.failed_saves import _FailedSaves

    saves = _FailedSaves("/storage")
    with caplog.at_level(logging.INFO):
        for _ in range(100):
            saves.on_failed(OSError(errno.EIO, "gone"))
        assert caplog.text.count("Saving experiment state") == 1 + 6
        assert "100 times in a row" in saves.describe()
        saves.on_stored()
    assert "is stored at '/storage' again, after 100 failed attempts" in caplog.text
    assert saves.describe() is None


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
