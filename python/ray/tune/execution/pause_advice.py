"""Tells people once what pausing trials costs them, or loses."""

import logging
from typing import TYPE_CHECKING

from ray.tune.execution.actor_reuse import get_reuse_hint
from ray.tune.execution.checkpoint_use import CheckpointUse
from ray.tune.execution.trainable_support import does_pause
from ray.tune.experiment import Trial

if TYPE_CHECKING:
    from ray.tune.schedulers import TrialScheduler

logger = logging.getLogger(__name__)


class PauseAdvice:
    """Warnings about a trainable that cannot pause, and about actors not reused.

    Args:
        scheduler: Scheduler of the experiment.
        checkpoint_use: Warns of a trainable that cannot pause.
    """

    def __init__(
        self,
        scheduler: "TrialScheduler",
        checkpoint_use: CheckpointUse,
    ):
        self._scheduler = scheduler
        self._checkpoint_use = checkpoint_use
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
            self._checkpoint_use.on_start(trial)
        if is_paused and not reuse_actors:
            self._hint_at_reuse(trial)

    def _hint_at_reuse(self, trial: Trial) -> None:
        if self._has_hinted:
            return
        self._has_hinted = True
        hint = get_reuse_hint(trial, self._scheduler)
        if hint:
            logger.warning(hint)
