"""Checkpoints that another trial is about to load stay on storage."""

import os
import sys
from types import SimpleNamespace

import pytest

from ray.train._internal.checkpoint_manager import _CheckpointManager
from ray.train._internal.session import _TrainingResult
from ray.tune import Checkpoint, CheckpointConfig


class Trials:
    """Makes trials, and checkpoints for them, in a directory."""

    def __init__(self, root):
        self._root = root

    def make(self, **config):
        from ray.train._internal.storage import StorageContext
        from ray.tune.experiment import Trial

        trial = Trial("stub", stub=True, checkpoint_config=CheckpointConfig(**config))
        trial.storage = StorageContext.__new__(StorageContext)
        trial.storage._update_checkpoint_index = lambda metrics: None
        return trial

    def save(self, trial, number, **metrics):
        path = self._root / f"{trial.trial_id}_{number}"
        path.mkdir()
        result = _TrainingResult(Checkpoint(str(path)), metrics)
        trial.on_checkpoint(result)
        return result


@pytest.fixture
def trials(tmp_path):
    return Trials(tmp_path)


def on_storage(*results):
    return [os.path.exists(result.checkpoint.path) for result in results]


def test_pinned_checkpoint_stays_until_it_is_unpinned(trials):
    source = trials.make(num_to_keep=1)
    first = trials.save(source, 1)
    source.pin_checkpoint(first.checkpoint, pinned_by="somebody")
    second = trials.save(source, 2)
    third = trials.save(source, 3)
    assert on_storage(first, second, third) == [True, False, True]
    source.unpin_checkpoint("somebody")
    assert on_storage(first, second, third) == [False, False, True]
    source.unpin_checkpoint("somebody")
    assert on_storage(third) == [True]


def test_checkpoint_that_is_gone_already(trials):
    source = trials.make(num_to_keep=1)
    first = trials.save(source, 1)
    source.pin_checkpoint(first.checkpoint, pinned_by="somebody")
    trials.save(source, 2)
    os.rmdir(first.checkpoint.path)
    source.unpin_checkpoint("somebody")


def test_two_pins(trials):
    source = trials.make(num_to_keep=1)
    first = trials.save(source, 1)
    source.pin_checkpoint(first.checkpoint, pinned_by="a")
    source.pin_checkpoint(first.checkpoint, pinned_by="b")
    second = trials.save(source, 2)
    source.unpin_checkpoint("a")
    assert on_storage(first) == [True]
    # A name pins one at a time.
    source.pin_checkpoint(second.checkpoint, pinned_by="b")
    assert on_storage(first, second) == [False, True]


def test_scores_decide_what_else_is_kept(trials):
    source = trials.make(num_to_keep=2, checkpoint_score_attribute="acc")
    results = []
    for number, acc in enumerate([1, 9, 5, 7, 3]):
        results.append(trials.save(source, number, acc=acc))
        if number == 0:
            source.pin_checkpoint(results[0].checkpoint, pinned_by="somebody")
    # The pinned one, the best two, and the latest
    assert on_storage(*results) == [True, True, False, True, True]
    manager = source.run_metadata.checkpoint_manager
    assert [r.metrics["acc"] for r in manager.best_checkpoint_results] == [7, 9]
    source.unpin_checkpoint("somebody")
    assert on_storage(*results) == [False, True, False, True, True]


def test_exploited_checkpoint_is_pinned_until_the_next_own_one(trials):
    source, clone = trials.make(num_to_keep=1), trials.make(num_to_keep=1)
    first = trials.save(source, 1)
    clone.exploit_checkpoint(_TrainingResult(first.checkpoint, {}), source=source)
    second = trials.save(source, 2)
    assert on_storage(first, second) == [True, True]
    assert clone.checkpoint.path == first.checkpoint.path
    own = trials.save(clone, 1)
    assert on_storage(first, second, own) == [False, True, True]


def test_trial_that_is_over_lets_go(trials):
    source, clone = trials.make(num_to_keep=1), trials.make()
    first = trials.save(source, 1)
    clone.exploit_checkpoint(_TrainingResult(first.checkpoint, {}), source=source)
    trials.save(source, 2)
    # A trial that fails is retried from there.
    clone.set_status("ERROR")
    clone.set_status("PENDING")
    assert on_storage(first) == [True]
    clone.unpin_exploited_checkpoint()
    assert on_storage(first) == [False]


def test_exploited_checkpoint_is_stored_with_the_experiment(trials):
    source, clone = trials.make(), trials.make()
    trials.save(clone, 1)
    clone.run_metadata.get_json_state()  # which is cached
    result = trials.save(source, 1)
    clone.exploit_checkpoint(_TrainingResult(result.checkpoint, {}), source=source)
    state = clone.run_metadata.get_json_state()
    copy = type(clone.run_metadata).from_json_state(state)
    latest = copy.checkpoint_manager.latest_checkpoint_result
    assert latest.checkpoint.path == result.checkpoint.path


def test_exploiting_another_one_unpins_the_first(trials):
    sources = [trials.make(num_to_keep=1) for _ in range(2)]
    clone = trials.make()
    first = trials.save(sources[0], 1)
    clone.exploit_checkpoint(_TrainingResult(first.checkpoint, {}), source=sources[0])
    trials.save(sources[0], 2)
    other = trials.save(sources[1], 1)
    clone.exploit_checkpoint(_TrainingResult(other.checkpoint, {}), source=sources[1])
    assert on_storage(first, other) == [False, True]


def test_pins_are_not_stored_with_the_experiment(trials):
    source = trials.make(num_to_keep=1)
    result = trials.save(source, 1)
    source.pin_checkpoint(result.checkpoint, pinned_by="somebody")
    manager = source.run_metadata.checkpoint_manager
    assert type(manager) is _CheckpointManager
    assert "somebody" not in source.run_metadata.get_json_state()


@pytest.mark.fixes("moved-clone")
@pytest.mark.parametrize("new", ["elsewhere/exp", "backup/old/exp"])
def test_moved_experiment(new):
    # The new place may have the old one in its path.
    from pyarrow.fs import LocalFileSystem

    from ray.tune.experiment import Trial

    def storage(root):
        return SimpleNamespace(
            experiment_fs_path=root,
            trial_fs_path=f"{root}/clone",
            storage_filesystem=LocalFileSystem(),
        )

    trial = Trial("stub", stub=True)
    trial.storage = storage("/old/exp")
    own = _TrainingResult(Checkpoint("/old/exp/clone/checkpoint_000000"), {})
    sources = _TrainingResult(Checkpoint("/old/exp/source/checkpoint_000003"), {})
    manager = trial.run_metadata.checkpoint_manager
    manager.register_checkpoint(own)
    trial.set_storage(storage(f"/{new}"))
    assert own.checkpoint.path == f"/{new}/clone/checkpoint_000000"

    trial.storage = storage("/old/exp")
    manager._latest_checkpoint_result = sources
    trial.set_storage(storage(f"/{new}"))
    assert trial.checkpoint.path == f"/{new}/source/checkpoint_000003"


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
