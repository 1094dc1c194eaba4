import json
from pathlib import Path

from ray.train._internal.session import _TrainingResult
from ray.train.tests.util import mock_storage_context
from ray.tune import Checkpoint
from ray.tune.experiment import Trial
from ray.tune.logger import JsonLoggerCallback
from ray.tune.result import EXPR_RESULT_FILE, TRAINING_ITERATION


def test_results_since_the_last_sync_are_kept(tmp_path):
    """The copy on storage is older than the log of a trial that was paused."""
    trial = Trial("trainable", stub=True, storage=mock_storage_context())
    trial.init_local_path()
    remote = Path(trial.storage.trial_fs_path)
    remote.mkdir(parents=True, exist_ok=True)
    (remote / EXPR_RESULT_FILE).write_text('{"x": 1}\n')
    logger = JsonLoggerCallback()
    logger.log_trial_start(trial)
    local = Path(trial.local_path, EXPR_RESULT_FILE)
    for x in (1, 2):
        logger.log_trial_result(x, trial, {"x": x})

    logger.log_trial_end(trial)
    trial.on_checkpoint(
        _TrainingResult(
            checkpoint=Checkpoint.from_directory(str(tmp_path)),
            metrics={TRAINING_ITERATION: 2},
        )
    )

    logger.log_trial_start(trial)

    results = [json.loads(line) for line in local.read_text().splitlines()]
    assert [result["x"] for result in results][-2:] == [1, 2]


if __name__ == "__main__":
    import sys

    import pytest

    sys.exit(pytest.main(["-v", __file__]))
