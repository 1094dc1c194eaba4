"""What a restored trial goes on from when its checkpoint is gone."""

import json
import logging
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Dict, List, Optional

from ray.air.constants import EXPR_RESULT_FILE
from ray.train import Checkpoint
from ray.train._internal.session import _TrainingResult
from ray.train._internal.storage import _exists_at_fs_path, _list_at_fs_path
from ray.train.constants import CHECKPOINT_DIR_NAME
from ray.tune.result import TRAINING_ITERATION

if TYPE_CHECKING:
    from ray.tune.experiment import Trial

logger = logging.getLogger(__name__)


def _replace_missing_checkpoint(trial: "Trial") -> None:
    """Let a trial go on from the newest complete checkpoint on storage.

    Its state may name one that is gone: other releases of Ray delete a checkpoint
    before the state that names the next one is stored, and somebody may have deleted
    it. A checkpoint is complete if it was registered, or if a result that was logged
    says that it came with it.

    Args:
        trial: A trial that was restored with its experiment.
    """
    manager = trial.run_metadata.checkpoint_manager
    missing = manager.latest_checkpoint_result
    if missing is None or _is_there(missing):
        return
    registered = [r for r in trial.registered_checkpoints() if _is_there(r)]
    candidates = [*registered, *_logged_checkpoints(trial)]
    found = max(candidates, key=_iteration, default=None)
    manager._checkpoint_results = registered
    if found is not None and not any(found is r for r in registered):
        registered.append(found)
    manager._latest_checkpoint_result = found
    trial.run_metadata.invalidate_cache()
    if found is None:
        logger.warning(
            f"Trial {trial} was stored with the checkpoint {missing.checkpoint.path}, "
            f"which is gone, and there is no other one: it starts from the beginning."
        )
    else:
        logger.warning(
            f"Trial {trial} was stored with the checkpoint {missing.checkpoint.path}, "
            f"which is gone. It goes on from {found.checkpoint.path}, of iteration "
            f"{_iteration(found)} instead of {_iteration(missing)}."
        )


def _is_there(result: _TrainingResult) -> bool:
    checkpoint = result.checkpoint
    return _exists_at_fs_path(checkpoint.filesystem, checkpoint.path)


def _iteration(result: _TrainingResult) -> int:
    return result.metrics.get(TRAINING_ITERATION, 0)


def _logged_checkpoints(trial: "Trial") -> List[_TrainingResult]:
    """Find the checkpoints on storage that came with a result that was logged."""
    fs, folder = trial.storage.storage_filesystem, trial.storage.trial_fs_path
    names = {PurePosixPath(name).name for name in _list_at_fs_path(fs, folder)}
    metrics: Dict[str, Dict] = {}
    for row in _logged_results(fs, Path(folder, EXPR_RESULT_FILE).as_posix()):
        name = row.get(CHECKPOINT_DIR_NAME)
        if name in names:
            metrics[name] = row
    return [
        _TrainingResult(Checkpoint(Path(folder, name).as_posix(), fs), row)
        for name, row in metrics.items()
    ]


def _logged_results(fs, path: str) -> List[Dict]:
    if not _exists_at_fs_path(fs, path):
        return []
    with fs.open_input_stream(path) as f:
        lines = f.readall().split(b"\n")
    rows: List[Optional[Dict]] = []
    for line in lines:
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue  # It is empty, or cut.
    return [row for row in rows if isinstance(row, dict)]
