"""Tells people once what pausing trials costs them, or loses."""

import logging
from typing import TYPE_CHECKING, Callable

from ray.tune.execution.actor_reuse import get_reuse_hint
from ray.tune.execution.trainable_support import (
    TrainableSupports,
    describe_missing_checkpoints,
    does_pause,
)
from ray.tune.experiment import Trial

if TYPE_CHECKING:
    from ray.tune.schedulers import TrialScheduler

logger = logging.getLogger(__name__)


class PauseAdvice:
    """Warnings about a trainable that cannot pause, and about actors not reused.

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
        self._scheduler = scheduler
        self._supports = supports
        self._warn_once = warn_once
        self._has_hinted = False

    def on_status_change(self, trial: Trial, reuse_actors: bool) -> None:
        """Give advice for a trial that starts or pauses, if there is some.

        Args:
            trial: Trial with its new status.
            reuse_actors: Whether actors are reused.
        """
        is_paused = trial.status == Trial.PAUSED
        may_pause = trial.status == Trial.RUNNING and does_pause(self._scheduler)
        if is_paused or may_pause:
            self._warn_of_missing_checkpoints(trial)
        if is_paused and not reuse_actors:
            self._hint_at_reuse(trial)

    def _warn_of_missing_checkpoints(self, trial: Trial) -> None:
        support = self._supports.get(trial)
        if not support.pause:
            self._warn_once(
                "no_checkpoints",
                describe_missing_checkpoints(
                    trial.get_trainable_cls(), support, self._scheduler
                ),
            )

    def _hint_at_reuse(self, trial: Trial) -> None:
        if self._has_hinted:
            return
        self._has_hinted = True
        hint = get_reuse_hint(trial, self._scheduler)
        if hint:
            logger.warning(hint)
