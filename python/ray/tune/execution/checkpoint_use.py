"""Notices trials that do not go on from their checkpoint when they are resumed."""

from typing import TYPE_CHECKING, Any, Callable, Dict, List, Set, Tuple

from ray.tune.execution.checkpoint_advice import (
    describe_class_without_checkpoints,
    describe_pause_without_checkpoint,
    describe_unread_checkpoint,
)
from ray.tune.execution.own_checkpoints import (
    compare_counters,
    keeps_own_state,
    names_path,
)
from ray.tune.execution.trainable_support import TrainableSupports
from ray.tune.experiment import Trial
from ray.tune.result import TRAINING_ITERATION
from ray.tune.trainable._checkpoint_notes import CALLBACK, UNREAD, detach_notes
from ray.tune.utils import flatten_dict

if TYPE_CHECKING:
    from ray.tune.schedulers import TrialScheduler


class CheckpointUse:
    """Warns once of each way in which a trial starts over when it is resumed.

    Trainables that keep their state elsewhere are left alone, as far as that can be
    told: by what they report, and by what is in their config.

    Args:
        scheduler: Scheduler of the experiment.
        supports: What the trainables implement.
        warn_once: Logs a message, but only once on a topic.
    """

    def __init__(
        self,
        scheduler: "TrialScheduler",
        supports: TrainableSupports,
        warn_once: Callable[[str, str], None],
    ):
        self._scheduler = type(scheduler).__name__
        self._supports = supports
        self._warn_once = warn_once
        # By the name of the trainable: the callback it reports with, and its setting.
        self._callbacks: Dict[str, Tuple[str, str]] = {}
        # Trials of classes that load nothing, but may keep their state themselves. Of
        # these, those that have reported, and are to report from a new start.
        self._deferred: Set[Trial] = set()
        self._not_restored: Set[Trial] = set()

    def on_pause(self, trial: Trial) -> None:
        """Warn if a trial has no checkpoint to go on from.

        Args:
            trial: Trial of a scheduler that has decided to pause it.
        """
        if (
            not trial.has_reported_at_least_once
            or trial.has_checkpoint()
            or not self._supports.get(trial).pause
            or self._keeps_own_state(trial)
        ):
            return
        library, setting = self._callbacks.get(trial.trainable_name, (None, None))
        self._warn_once(
            "pause_without_checkpoint",
            describe_pause_without_checkpoint(
                str(trial), self._scheduler, library, setting
            ),
        )

    def on_start(self, trial: Trial) -> None:
        """Warn if a trial can be paused, but not go on after that.

        Args:
            trial: Trial that has started, or has paused.
        """
        if self._supports.get(trial).pause:
            return
        if names_path(trial.config):
            self._deferred.add(trial)
        else:
            self._warn_of_class(trial)

    def on_restore(self, trial: Trial) -> None:
        """Note that a trial has started on an actor that does not hold its state.

        Args:
            trial: Trial that is to be restored, if it can be.
        """
        if trial in self._deferred and trial.has_reported_at_least_once:
            self._not_restored.add(trial)

    def on_results(self, trial: Trial, results: List[Dict[str, Any]]) -> None:
        """Take what workers have noted out of results, and judge it.

        Args:
            trial: Trial that has reported.
            results: Its results, not yet known to anybody.
        """
        for result in results:
            notes = detach_notes(result)
            if CALLBACK in notes:
                self._callbacks[trial.trainable_name] = tuple(notes[CALLBACK])
            if notes.get(UNREAD):
                self._judge_unread(trial, result)
        if trial in self._not_restored:
            self._not_restored.discard(trial)
            self._judge_class(trial, results[0])

    def _keeps_own_state(self, trial: Trial) -> bool:
        since = trial.run_metadata.start_time or 0
        return keeps_own_state(trial.config, trial.last_result, since)

    def _compare_counters(self, trial: Trial, saved: Dict, result: Dict) -> Tuple:
        analysis = trial.metric_analysis
        lowest = {key: values["min"] for key, values in analysis.items()}
        return compare_counters(saved, lowest, result)

    def _judge_unread(self, trial: Trial, result: Dict[str, Any]) -> None:
        checkpoint = trial.latest_checkpoint_result
        if checkpoint is None:
            return
        saved = checkpoint.metrics
        goes_on, anew = self._compare_counters(trial, saved, result)
        if not anew and (goes_on or self._keeps_own_state(trial)):
            return
        counter = None
        if anew:
            counter = (anew, flatten_dict(saved)[anew], flatten_dict(result)[anew])
        library, _ = self._callbacks.get(trial.trainable_name, (None, None))
        self._warn_once(
            "unread_checkpoint",
            describe_unread_checkpoint(
                str(trial), saved.get(TRAINING_ITERATION, 0), counter, library
            ),
        )

    def _judge_class(self, trial: Trial, result: Dict[str, Any]) -> None:
        goes_on, anew = self._compare_counters(trial, trial.last_result, result)
        if anew or not (goes_on or self._keeps_own_state(trial)):
            self._warn_of_class(trial)

    def _warn_of_class(self, trial: Trial) -> None:
        support = self._supports.get(trial)
        self._warn_once(
            "no_checkpoints",
            describe_class_without_checkpoints(
                str(trial),
                trial.get_trainable_cls().__name__,
                self._scheduler,
                support.save,
                support.load,
            ),
        )
