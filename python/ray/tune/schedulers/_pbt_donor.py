"""The checkpoint of a trial of a population, which others may clone."""

import copy
from typing import Dict, Optional

from ray.train._internal.session import _FutureTrainingResult, _TrainingResult
from ray.tune.experiment import Trial
from ray.tune.utils import flatten_dict
from ray.tune.utils._result_values import as_number


class _DonorCheckpoint:
    """What a donor gives: its checkpoint, as soon as the save of it has resolved.

    Nothing here blocks. The checkpoint stays on storage, whatever ``num_to_keep``
    says, until it is released.

    Args:
        donor: The trial that was saved.
        time: The donor's time when the save was asked for.
        metrics: The donor's result at that time.
        save: The save, if it is in flight. Else the donor's latest checkpoint is taken.
    """

    def __init__(
        self,
        donor: Trial,
        time: float,
        metrics: Dict,
        save: Optional[_FutureTrainingResult] = None,
    ):
        self._donor = donor
        # Who has saved the checkpoint: maybe another trial, that the donor cloned
        self.owner = donor
        self._time = time
        self._metrics = metrics
        self._save = save
        # Whether the controller is to register what was saved with the donor
        self._was_tracked = donor.temporary_state.saving_to is save
        self._latest_before = donor.latest_checkpoint_result
        self._result: Optional[_TrainingResult] = None
        self._holder = f"donor_{donor.trial_id}"
        if save is None and donor.checkpoint:
            latest = donor.latest_checkpoint_result
            self.owner = donor.temporary_state.checkpoint_owner or donor
            self._take(
                _TrainingResult(donor.checkpoint, latest.metrics if latest else metrics)
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._save or self._result})"

    def is_pending(self) -> bool:
        """Whether the save is still to resolve."""
        if self._save is None:
            return False
        # The controller takes the save away when it has handled it, or dropped it.
        if self._donor.temporary_state.saving_to is self._save:
            return True
        latest = self._donor.latest_checkpoint_result
        if latest is self._latest_before:
            # The save failed, was dropped, gave nothing, or what it had given before.
            saved = self._save.resolve(block=False)
            if self._was_tracked and not _is_same(saved, latest):
                saved = None
            latest = saved
        self._save = None
        if latest and latest.checkpoint:
            self._take(latest)
        return False

    def _take(self, result: _TrainingResult):
        self._result = result
        self.owner.hold_checkpoint(result.checkpoint, holder=self._holder)

    def is_available(self) -> bool:
        """Whether there is a checkpoint to clone."""
        return not self.is_pending() and self._result is not None

    def time(self, time_attr: str) -> float:
        """The time from which a clone goes on.

        Args:
            time_attr: The name of the metric that is the time.

        Returns:
            The time of the checkpoint, or that of the donor's result as long as there
            is none.
        """
        time = as_number(self.metric(time_attr, default=self._time))
        return self._time if time is None else time

    def metric(self, name: str, default: float) -> float:
        """A metric of the result that the checkpoint belongs to.

        Args:
            name: The name of the metric.
            default: What to return without a checkpoint, or without the metric.

        Returns:
            The value.
        """
        if not self.is_available():
            return default
        return flatten_dict(self._result.metrics or {}).get(name, default)

    def result_for(self, trial: Trial) -> _TrainingResult:
        """The checkpoint, made out to a trial that goes on from it.

        Args:
            trial: The trial, which has its new config already.

        Returns:
            A training result that shares nothing with the donor's but the checkpoint.
        """
        metrics = dict(self._result.metrics or self._metrics)
        for key, value in [("trial_id", trial.trial_id), ("config", trial.config)]:
            if key in metrics:
                metrics[key] = value
        return _TrainingResult(copy.copy(self._result.checkpoint), metrics)

    def abandon_save(self):
        """Expect nothing of a save whose donor has failed or stopped."""
        if self._donor.latest_checkpoint_result is self._latest_before:
            self._save = None

    def release(self):
        """Let go of the checkpoint, unless a clone holds it."""
        self._save = self._result = None
        self.owner.release_checkpoint(holder=self._holder)


def _is_same(
    result: Optional[_TrainingResult], other: Optional[_TrainingResult]
) -> bool:
    """Whether two results have the same checkpoint."""
    checkpoints = [r.checkpoint for r in (result, other) if r is not None]
    return (
        len(checkpoints) == 2
        and None not in checkpoints
        and checkpoints[0].path == checkpoints[1].path
    )
