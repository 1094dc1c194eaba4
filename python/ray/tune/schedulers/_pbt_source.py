"""The checkpoint of a trial of a population, which others may exploit."""

import copy
from typing import Dict, Optional

from ray.train._internal.session import _FutureTrainingResult, _TrainingResult
from ray.tune.experiment import Trial
from ray.tune.utils import flatten_dict
from ray.tune.utils._result_values import as_number


class SourceCheckpoint:
    """What a source trial offers: its checkpoint, once its save has resolved.

    Nothing here blocks. The checkpoint stays on storage, whatever ``num_to_keep``
    says, until it is released.

    Args:
        source: The trial that was saved.
        time: The time of that trial when the save was asked for.
        metrics: Its result at that time.
        save: The save, if it is in flight. Else its latest checkpoint is offered.
    """

    def __init__(
        self,
        source: Trial,
        time: float,
        metrics: Dict,
        save: Optional[_FutureTrainingResult] = None,
    ):
        self._source = source
        # Another trial, if the source trial itself goes on from what it has exploited.
        self.saved_by = source
        self._time = time
        self._metrics = metrics
        self._save = save
        # Whether the controller is to register what was saved with the source trial.
        self._was_tracked = source.temporary_state.saving_to is save
        self._latest_before = source.latest_checkpoint_result
        self._result: Optional[_TrainingResult] = None
        self._pinned_by = f"source_{source.trial_id}"
        if save is None and source.checkpoint:
            latest = source.latest_checkpoint_result
            self.saved_by = source.temporary_state.source_trial or source
            self._pin(
                _TrainingResult(
                    source.checkpoint, latest.metrics if latest else metrics
                )
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._save or self._result})"

    def update(self) -> None:
        """Pin what was saved, if the save has resolved since the last update.

        To be called before the trial saves again.
        """
        # The controller removes the save when it has handled it, or dropped it.
        if self._save is None or self._source.temporary_state.saving_to is self._save:
            return
        latest = self._source.latest_checkpoint_result
        if latest is self._latest_before:
            # The save failed, was dropped, gave nothing, or what it had given before.
            saved = self._save.resolve(block=False)
            if self._was_tracked and not _is_same(saved, latest):
                saved = None
            latest = saved
        self._save = None
        if latest and latest.checkpoint:
            self._pin(latest)

    def _pin(self, result: _TrainingResult):
        self._result = result
        self.saved_by.pin_checkpoint(result.checkpoint, pinned_by=self._pinned_by)

    def is_pending(self) -> bool:
        """Return whether the save had still to resolve at the last update."""
        return self._save is not None

    def is_available(self) -> bool:
        """Return whether there is a checkpoint to exploit."""
        return self._result is not None

    def time(self, time_attr: str) -> float:
        """Return the time from which a trial goes on that exploits the source trial.

        Args:
            time_attr: The name of the metric that is the time.

        Returns:
            The time of the checkpoint, or that of the result of the source trial as
            long as there is none.
        """
        time = as_number(self.metric(time_attr, default=self._time))
        return self._time if time is None else time

    def metric(self, name: str, default: float) -> float:
        """Return a metric of the result that the checkpoint belongs to.

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
        """Return the checkpoint as one of a trial that goes on from it.

        Args:
            trial: The trial, which has its new config already.

        Returns:
            A training result that shares nothing with that of the source trial but the
            checkpoint.
        """
        metrics = dict(self._result.metrics or self._metrics)
        for key, value in [("trial_id", trial.trial_id), ("config", trial.config)]:
            if key in metrics:
                metrics[key] = value
        return _TrainingResult(copy.copy(self._result.checkpoint), metrics)

    def abandon_save(self):
        """Expect nothing of a save whose trial has failed or stopped."""
        if self._source.latest_checkpoint_result is self._latest_before:
            self._save = None

    def release(self):
        """Unpin the checkpoint, which may still be pinned by who goes on from it."""
        self._save = self._result = None
        self.saved_by.unpin_checkpoint(pinned_by=self._pinned_by)


def _is_same(
    result: Optional[_TrainingResult], other: Optional[_TrainingResult]
) -> bool:
    """Return whether two results have the same checkpoint."""
    checkpoints = [r.checkpoint for r in (result, other) if r is not None]
    return (
        len(checkpoints) == 2
        and None not in checkpoints
        and checkpoints[0].path == checkpoints[1].path
    )
