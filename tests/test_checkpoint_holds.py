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


def test_held_checkpoint_stays_until_it_is_let_go(trials):
    donor = trials.make(num_to_keep=1)
    first = trials.save(donor, 1)
    donor.hold_checkpoint(first.checkpoint, holder="somebody")
    second = trials.save(donor, 2)
    third = trials.save(donor, 3)
    assert on_storage(first, second, third) == [True, False, True]
    donor.release_checkpoint("somebody")
    assert on_storage(first, second, third) == [False, False, True]
    donor.release_checkpoint("somebody")
    assert on_storage(third) == [True]


def test_checkpoint_that_is_gone_already(trials):
    donor = trials.make(num_to_keep=1)
    first = trials.save(donor, 1)
    donor.hold_checkpoint(first.checkpoint, holder="somebody")
    trials.save(donor, 2)
    os.rmdir(first.checkpoint.path)
    donor.release_checkpoint("somebody")


def test_two_holders(trials):
    donor = trials.make(num_to_keep=1)
    first = trials.save(donor, 1)
    donor.hold_checkpoint(first.checkpoint, holder="a")
    donor.hold_checkpoint(first.checkpoint, holder="b")
    second = trials.save(donor, 2)
    donor.release_checkpoint("a")
    assert on_storage(first) == [True]
    # A holder holds one at a time.
    donor.hold_checkpoint(second.checkpoint, holder="b")
    assert on_storage(first, second) == [False, True]


def test_scores_decide_what_else_is_kept(trials):
    donor = trials.make(num_to_keep=2, checkpoint_score_attribute="acc")
    results = []
    for number, acc in enumerate([1, 9, 5, 7, 3]):
        results.append(trials.save(donor, number, acc=acc))
        if number == 0:
            donor.hold_checkpoint(results[0].checkpoint, holder="somebody")
    # The held one, the best two, and the latest
    assert on_storage(*results) == [True, True, False, True, True]
    manager = donor.run_metadata.checkpoint_manager
    assert [r.metrics["acc"] for r in manager.best_checkpoint_results] == [7, 9]
    donor.release_checkpoint("somebody")
    assert on_storage(*results) == [False, True, False, True, True]


def test_adopted_checkpoint_is_held_until_the_next_own_one(trials):
    donor, clone = trials.make(num_to_keep=1), trials.make(num_to_keep=1)
    first = trials.save(donor, 1)
    clone.adopt_checkpoint(_TrainingResult(first.checkpoint, {}), owner=donor)
    second = trials.save(donor, 2)
    assert on_storage(first, second) == [True, True]
    assert clone.checkpoint.path == first.checkpoint.path
    own = trials.save(clone, 1)
    assert on_storage(first, second, own) == [False, True, True]


def test_trial_that_is_over_lets_go(trials):
    donor, clone = trials.make(num_to_keep=1), trials.make()
    first = trials.save(donor, 1)
    clone.adopt_checkpoint(_TrainingResult(first.checkpoint, {}), owner=donor)
    trials.save(donor, 2)
    # A trial that fails is retried from there.
    clone.set_status("ERROR")
    clone.set_status("PENDING")
    assert on_storage(first) == [True]
    clone.let_go_of_adopted_checkpoint()
    assert on_storage(first) == [False]


def test_adopted_checkpoint_is_stored_with_the_experiment(trials):
    donor, clone = trials.make(), trials.make()
    trials.save(clone, 1)
    clone.run_metadata.get_json_state()  # which is cached
    result = trials.save(donor, 1)
    clone.adopt_checkpoint(_TrainingResult(result.checkpoint, {}), owner=donor)
    state = clone.run_metadata.get_json_state()
    copy = type(clone.run_metadata).from_json_state(state)
    latest = copy.checkpoint_manager.latest_checkpoint_result
    assert latest.checkpoint.path == result.checkpoint.path


def test_adopting_another_one_lets_go_of_the_first(trials):
    donors = [trials.make(num_to_keep=1) for _ in range(2)]
    clone = trials.make()
    first = trials.save(donors[0], 1)
    clone.adopt_checkpoint(_TrainingResult(first.checkpoint, {}), owner=donors[0])
    trials.save(donors[0], 2)
    other = trials.save(donors[1], 1)
    clone.adopt_checkpoint(_TrainingResult(other.checkpoint, {}), owner=donors[1])
    assert on_storage(first, other) == [False, True]


def test_holds_are_not_stored_with_the_experiment(trials):
    donor = trials.make(num_to_keep=1)
    result = trials.save(donor, 1)
    donor.hold_checkpoint(result.checkpoint, holder="somebody")
    manager = donor.run_metadata.checkpoint_manager
    assert type(manager) is _CheckpointManager
    assert "somebody" not in donor.run_metadata.get_json_state()


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
    donors = _TrainingResult(Checkpoint("/old/exp/donor/checkpoint_000003"), {})
    manager = trial.run_metadata.checkpoint_manager
    manager.register_checkpoint(own)
    trial.set_storage(storage(f"/{new}"))
    assert own.checkpoint.path == f"/{new}/clone/checkpoint_000000"

    trial.storage = storage("/old/exp")
    manager._latest_checkpoint_result = donors
    trial.set_storage(storage(f"/{new}"))
    assert trial.checkpoint.path == f"/{new}/donor/checkpoint_000003"


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
