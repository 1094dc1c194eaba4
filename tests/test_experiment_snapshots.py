"""The state of an experiment on disk is whole at every moment, and never given up."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from virtual_cluster import VirtualCluster
from virtual_cluster.core import storage as virtual_storage

from ray import tune
from ray.tune import ExperimentAnalysis
from ray.tune.error import TuneError
from ray.tune.schedulers import ASHAScheduler

pytestmark = pytest.mark.timeout(120)


def _cluster(folder, **kwargs):
    kwargs = {
        "num_samples": 6,
        "slots": 2,
        "stop": {"training_iteration": 3},
        "checkpoint_period": 0,
        "max_pending": 2,
        "seed": 3,
        **kwargs,
    }
    return VirtualCluster.of(
        lambda: ASHAScheduler(max_t=9), storage_path=str(folder), **kwargs
    )


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """The folder of an experiment whose driver was killed, and how far it was."""
    folder = tmp_path_factory.mktemp("interrupted")
    cluster = _cluster(folder).start()
    cluster.run_until(lambda: cluster.monitor.number >= 12)
    return folder, _progress(cluster)


def _progress(cluster):
    return _iterations(cluster.trials)


def _iterations(trials):
    return {
        trial.trial_id: trial.run_metadata.last_result.get("training_iteration", 0)
        for trial in trials
    }


def _state_files(folder):
    """The files of the experiment that are no trial's, relative to the folder."""
    found = []
    for path in Path(folder, "experiment").rglob("*"):
        parts = path.relative_to(folder).parts
        is_trial = len(parts) > 2 and parts[1].startswith("t_")
        if path.is_file() and not is_trial and not path.name.startswith("."):
            found.append(path.relative_to(folder).as_posix())
    return sorted(found)


def _contents(folder):
    return {
        p.relative_to(folder).as_posix(): p.read_bytes()
        for p in Path(folder, "experiment").rglob("*")
        if p.is_file()
    }


def _restore(folder, **kwargs):
    return _cluster(folder, resume=True, **kwargs).start()


def _lost(before, after):
    """Which trials are gone or have lost more than the results of a few events."""
    return [i for i, n in before.items() if after.get(i, 0) < n - 1]


def _cuts(size):
    return sorted({0, size // 2, size - 1} & set(range(size)))


@pytest.mark.fixes("state-given-up")
def test_no_file_that_is_cut_or_missing_loses_the_search(interrupted, tmp_path, caplog):
    folder, progress = interrupted
    num_damaged = 0
    for name in _state_files(folder):
        size = (folder / name).stat().st_size
        for cut in [*_cuts(size), None]:
            copy = tmp_path / "copy"
            shutil.copytree(folder, copy)
            if cut is None:
                os.unlink(copy / name)
            else:
                os.truncate(copy / name, cut)
            caplog.clear()
            cluster = _restore(copy)
            assert cluster.controller.resumed, (name, cut)
            assert not _lost(progress, _progress(cluster)), (name, cut)
            if "Passed over" in caplog.text:
                num_damaged += 1
            record = cluster.run(max_events=300)
            assert record.statuses() == ["TERMINATED"] * 6, (name, cut)
            shutil.rmtree(copy)
    assert num_damaged > 10


def test_what_was_passed_over_is_named_with_the_reason(interrupted, tmp_path, caplog):
    folder, _ = interrupted
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    newest = max(n for n in _state_files(folder) if "controller.json" in n)
    os.truncate(copy / newest, 10)
    _restore(copy)
    assert f"{newest.split('/', 1)[1]} has 10 bytes instead of" in caplog.text


@pytest.mark.fixes("state-given-up")
@pytest.mark.parametrize("cut", [0, 0.5])
def test_state_of_which_nothing_loads_is_an_error_and_stays_as_it_is(
    interrupted, tmp_path, cut
):
    folder, _ = interrupted
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    names = _state_files(copy)
    for name in names:
        os.truncate(copy / name, int(cut * (copy / name).stat().st_size))
    before = _contents(copy)
    with pytest.raises(TuneError) as error:
        _restore(copy)
    manifests = [n for n in names if "manifest" in n or "experiment_state" in n]
    assert manifests
    for name in manifests:
        assert Path(name).name in str(error.value)
    assert _contents(copy) == before


@pytest.fixture
def of_another_release(tmp_path):
    """What another release of Ray would have stored, and how far it was."""
    folder = tmp_path / "another"
    cluster = _cluster(folder).start()
    cluster.run_until(lambda: cluster.monitor.number >= 12)
    cluster.call(cluster.controller.checkpoint, force=True, wait=True)
    shutil.rmtree(folder / "experiment" / "experiment_snapshots", ignore_errors=True)
    return folder, _progress(cluster)


def test_state_of_another_release_is_restored(of_another_release):
    folder, progress = of_another_release
    cluster = _restore(folder)
    assert cluster.controller.resumed
    assert not _lost(progress, _progress(cluster))
    assert cluster.run(max_events=300).statuses() == ["TERMINATED"] * 6


@pytest.mark.fixes("state-given-up")
def test_cut_state_of_another_release_is_passed_over(of_another_release, caplog):
    folder, progress = of_another_release
    experiment = folder / "experiment"
    for path in list(experiment.iterdir()):
        # The log of decisions is no state.
        if path.is_file() and not path.name.startswith((".", "decisions-")):
            session = "2023-11-14_22-13-20"
            assert session in path.name
            later = path.name.replace(session, "2023-11-14_23-00-00")
            (experiment / later).write_bytes(path.read_bytes()[:-7])
    cluster = _restore(folder)
    assert cluster.controller.resumed
    assert not _lost(progress, _progress(cluster))
    assert "experiment_state-2023-11-14_23-00-00.json is cut" in caplog.text


@pytest.mark.fixes("state-given-up")
def test_only_state_of_another_release_is_cut(of_another_release):
    folder, _ = of_another_release
    [name] = [n for n in _state_files(folder) if "experiment_state" in n]
    whole = (folder / name).read_bytes()
    for cut in _cuts(len(whole)):
        (folder / name).write_bytes(whole[:cut])
        with pytest.raises(TuneError, match=Path(name).name):
            _restore(folder)


def test_results_are_read_from_the_newest_state_that_is_whole(interrupted, tmp_path):
    folder, progress = interrupted
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    newest = max(n for n in _state_files(copy) if n.endswith((".jsonl", "state-2023")))
    os.truncate(copy / newest, 30)
    trials = ExperimentAnalysis(str(copy / "experiment")).trials
    assert not _lost(progress, _iterations(trials))


class _Killed(BaseException):
    """The driver is gone."""


class _Killer:
    """Ends the driver at the n-th thing that it does to the storage, or half way."""

    def __init__(self, monkeypatch):
        from ray.tune.execution import snapshot_storage

        self.at, self.count, self.half = None, 0, False
        monkeypatch.setattr(
            virtual_storage.shutil,
            "copyfile",
            self._dying(shutil.copyfile, self._half_copy),
        )
        killer = self

        class Files:
            def __init__(self, fs):
                self._fs = fs

            def __getattr__(self, name):
                method = getattr(self._fs, name)
                if name in ("delete_file", "delete_dir"):
                    return killer._dying(method, lambda path: None)
                return method

        monkeypatch.setattr(
            snapshot_storage._SnapshotStorage,
            "_fs",
            property(lambda storage: Files(storage._storage.storage_filesystem)),
        )
        for name, half_way in [
            ("_replace_file", self._half_replace),
            ("_write_file", self._half_write),
        ]:
            write = getattr(snapshot_storage, name)
            monkeypatch.setattr(
                snapshot_storage,
                name,
                self._dying(
                    lambda fs, *args, write=write: write(fs._fs, *args), half_way
                ),
            )
        monkeypatch.setattr(
            snapshot_storage,
            "_files_below",
            lambda fs, *args, below=snapshot_storage._files_below, **kwargs: below(
                fs._fs, *args, **kwargs
            ),
        )

    def _dying(self, action, half_way):
        def act(*args):
            self.count += 1
            if self.count == self.at:
                if self.half:
                    half_way(*args)
                raise _Killed
            return action(*args)

        return act

    @staticmethod
    def _half_copy(source, target):
        content = Path(source).read_bytes()
        Path(target).write_bytes(content[: len(content) // 2])

    @staticmethod
    def _half_write(fs, path, content):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        Path(path).write_bytes(content[: len(content) // 2])

    @staticmethod
    def _half_replace(fs, path, content):
        Path(f"{path}.tmp").write_bytes(content[: len(content) // 2])


@pytest.mark.parametrize("half", [False, True])
def test_driver_may_be_killed_at_any_moment_of_storing(tmp_path, monkeypatch, half):
    killer = _Killer(monkeypatch)
    killer.half = half
    kills = 0
    for at in range(8, 10_000, 7):
        folder = tmp_path / str(at)
        killer.at, killer.count = at, 0
        cluster = _cluster(folder, num_samples=3).start()
        number = -1
        try:
            while not cluster.controller.is_finished():
                number = cluster.controller._checkpoint_manager._snapshots._kept
                number = number[-1].number if number else -1
                cluster.step()
        except _Killed:
            kills += 1
        else:
            break
        killer.at = None
        restored = _restore(folder, num_samples=3)
        # What counted before the last step still does, or what that step has stored.
        assert restored.controller.resumed or number < 0
        assert restored.controller._checkpoint_manager._snapshots
        if number >= 0:
            assert len(restored.trials) >= 1
        assert restored.run(max_events=200).statuses() == ["TERMINATED"] * 3
        shutil.rmtree(folder)
    assert kills > 12


def test_old_snapshots_are_deleted(tmp_path):
    cluster = _cluster(tmp_path).start()
    root = tmp_path / "experiment" / "experiment_snapshots"
    most = 0
    while not cluster.controller.is_finished():
        cluster.step()
        most = max(most, len(list(root.glob("*.manifest.json"))))
    assert most == 2
    cluster.run()
    assert len(list(root.glob("*.manifest.json"))) == 1
    manifest = json.loads(next(root.glob("*.manifest.json")).read_text())
    stored = {p.relative_to(root).as_posix() for p in root.rglob("*/*") if p.is_file()}
    assert stored == set(manifest["files"])
    local = tmp_path / ".session" / "driver_artifacts" / "experiment_snapshots"
    assert len(list(local.iterdir())) <= 2


def test_states_of_old_sessions_are_deleted(tmp_path):
    cluster = _cluster(tmp_path).start()
    for _ in range(5):
        number = cluster.monitor.number
        cluster.run_until(lambda number=number: cluster.monitor.number > number + 1)
        cluster.restart_driver()
    cluster.run(max_events=300)
    names = os.listdir(tmp_path / "experiment")
    assert sum(name.startswith("experiment_state") for name in names) == 2


def test_session_comes_after_the_one_restored_though_the_clock_was_set_back(tmp_path):
    cluster = _cluster(tmp_path).start()
    cluster.run_until(lambda: cluster.monitor.number >= 6)
    before = cluster.controller._session_str
    again = _restore(tmp_path)
    assert before < again.controller._session_str
    progress = _progress(again)
    again.run_until(lambda: again.monitor.number >= 8)
    assert sum(_progress(again).values()) > sum(progress.values())
    progress = _progress(again)
    third = _restore(tmp_path)
    assert not _lost(progress, _progress(third))


# What is written


def test_only_the_trials_that_have_changed_are_written(tmp_path, monkeypatch):
    from ray.tune.execution import snapshot_storage

    written = []
    write = snapshot_storage._write_segment

    def write_segment(root, path, states):
        written.append(set(states))
        return write(root, path, states)

    monkeypatch.setattr(snapshot_storage, "_write_segment", write_segment)
    cluster = _cluster(tmp_path, num_samples=40, max_pending=40).start()
    cluster.run_until(lambda: cluster.monitor.number >= 12)
    assert len(written[0]) == 40
    assert all(len(trial_ids) <= 4 for trial_ids in written[1:])


def _merged(sizes, small=0):
    from ray.tune.execution.snapshot_segments import _num_to_merge

    segments = []
    for size in sizes:
        count = _num_to_merge(segments, size, small)
        kept = segments[: len(segments) - count]
        segments = [*kept, size + sum(segments[len(kept) :])]
    return segments


def test_segments_stay_few_and_each_is_rewritten_seldom():
    segments = _merged([1000] + [1] * 500)
    assert len(segments) <= 10
    assert segments == sorted(segments, reverse=True)
    assert _merged([10] * 5, small=100) == [50]
    assert _merged([1000, 1], small=100) == [1000, 1]


def test_merged_segments_have_the_latest_state_of_each_trial(tmp_path):
    from ray.tune.execution import snapshot_segments as segments

    first = segments._write_segment(tmp_path, "a", {"x": ("1", "m"), 'q"': ("\n", "é")})
    second = segments._write_segment(tmp_path, "b", {"x": ("2", "m"), "z": ("3", "")})
    merged = segments._merge_segments(tmp_path, [first, second], "c")
    states = dict(segments._decode_lines((tmp_path / "c").read_bytes()))
    assert states == {"x": ("2", "m"), 'q"': ("\n", "é"), "z": ("3", "")}
    lines = segments._latest_lines(tmp_path, [merged])
    data = json.loads(segments._stock_trial_data(lines, ["z", 'q"', "x"]))
    assert data == [["3", ""], ["\n", "é"], ["2", "m"]]


def test_state_of_a_trial_reads_as_before(tmp_path):
    from ray.tune.experiment import Trial

    cluster = _cluster(tmp_path).start()
    cluster.run_until(lambda: cluster.monitor.number >= 12)
    trial = cluster.trials[0]
    state, metadata = cluster.call(trial.get_json_state)
    again = Trial.from_json_state(state, stub=True)
    again.restore_run_metadata(metadata)
    assert again.trial_id == trial.trial_id
    before, after = trial.run_metadata, again.run_metadata
    assert after.metric_n_steps == before.metric_n_steps
    assert after.metric_n_steps["score"]["5"].maxlen == 5
    assert after.metric_analysis == before.metric_analysis


def test_states_are_written_again_where_the_staging_folder_was_cleaned_up(tmp_path):
    cluster = _cluster(tmp_path).start()
    cluster.run_until(lambda: cluster.monitor.number >= 6)
    shutil.rmtree(tmp_path / ".session")
    cluster.run_until(lambda: cluster.monitor.number >= 12)
    progress = _progress(cluster)
    cluster.restart_driver()
    assert not _lost(progress, _progress(cluster))
    assert cluster.run(max_events=300).statuses() == ["TERMINATED"] * 6


# tuner.pkl


def _train(config):
    tune.report({"score": 1})


def _tuner(folder, **kwargs):
    return tune.Tuner(
        _train,
        run_config=tune.RunConfig(name="experiment", storage_path=str(folder)),
        **kwargs,
    )


@pytest.mark.fixes("state-given-up")
def test_cut_tuner_is_an_error_that_names_it_if_there_is_no_copy(tmp_path):
    _tuner(tmp_path)
    path = tmp_path / "experiment" / "tuner.pkl"
    whole = path.read_bytes()
    for cut in _cuts(len(whole)):
        path.write_bytes(whole[:cut])
        with pytest.raises(TuneError, match="tuner.pkl"):
            tune.Tuner.restore(str(path.parent), trainable=_train)
        assert path.read_bytes() == whole[:cut]


@pytest.fixture
def with_tuner(tmp_path):
    _tuner(tmp_path, tune_config=tune.TuneConfig(num_samples=7))
    cluster = _cluster(tmp_path).start()
    cluster.run_until(lambda: cluster.monitor.number >= 12)
    return tmp_path / "experiment"


@pytest.mark.fixes("state-given-up")
def test_cut_or_missing_tuner_is_taken_from_the_newest_snapshot(with_tuner, caplog):
    path = with_tuner / "tuner.pkl"
    whole = path.read_bytes()
    for cut in [*_cuts(len(whole)), None]:
        path.unlink() if cut is None else path.write_bytes(whole[:cut])
        assert tune.Tuner.can_restore(str(with_tuner))
        caplog.clear()
        tuner = tune.Tuner.restore(str(with_tuner), trainable=_train)
        assert tuner._local_tuner._tune_config.num_samples == 7
        assert "tuner.pkl" in caplog.text


def test_cut_tuner_is_mended_when_the_run_goes_on(with_tuner):
    path = with_tuner / "tuner.pkl"
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    cluster = _restore(with_tuner.parent)
    cluster.run(max_events=300)
    assert path.read_bytes() == whole


def test_tuner_that_has_stored_no_state_is_not_mixed_with_that_of_another(
    with_tuner, caplog
):
    _tuner(with_tuner.parent, tune_config=tune.TuneConfig(num_samples=99))
    tuner = tune.Tuner.restore(str(with_tuner), trainable=_train)
    assert tuner._local_tuner._tune_config.num_samples == 7
    assert "has stored no state" in caplog.text


@pytest.mark.fixes("state-given-up")
def test_tuner_restore_of_unreadable_state_is_an_error_at_once(with_tuner):
    for name in _state_files(with_tuner.parent):
        if not name.endswith("tuner.pkl"):
            os.truncate(with_tuner.parent / name, 0)
    with pytest.raises(TuneError, match="experiment_state"):
        tune.Tuner.restore(str(with_tuner), trainable=_train)


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
