from ray.train._internal.session import _TrainingResult
from ray.train.tests.util import mock_storage_context
from ray.tune import Checkpoint, CheckpointConfig
from ray.tune.experiment import Trial
from ray.tune.result import TRAINING_ITERATION


def test_checkpoint_that_is_registered_twice_is_kept(tmp_path):
    """A trainable that is asked to save may hand out what it has reported before."""
    trial = Trial(
        "trainable",
        stub=True,
        storage=mock_storage_context(),
        checkpoint_config=CheckpointConfig(num_to_keep=1),
    )
    (tmp_path / "checkpoint").mkdir()
    for _ in range(2):
        checkpoint = Checkpoint.from_directory(str(tmp_path / "checkpoint"))
        trial.on_checkpoint(
            _TrainingResult(checkpoint=checkpoint, metrics={TRAINING_ITERATION: 1})
        )
    assert (tmp_path / "checkpoint").exists()
    assert trial.checkpoint.path == str(tmp_path / "checkpoint")


if __name__ == "__main__":
    import sys

    import pytest

    sys.exit(pytest.main(["-v", __file__]))
