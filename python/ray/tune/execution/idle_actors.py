"""Keeps the actors that no trial uses, for the trials that may reuse them."""

from collections import defaultdict
from typing import TYPE_CHECKING, Callable, Dict, Optional, Set

from ray.air.execution import ResourceRequest
from ray.air.execution._internal import TrackedActor
from ray.exceptions import RayActorError
from ray.tune.execution.actor_reuse import (
    ResetRecord,
    describe_missing_reset,
    describe_refused_reset,
)
from ray.tune.execution.paused_actors import PausedActors
from ray.tune.execution.trainable_support import TrainableSupports
from ray.tune.experiment import Trial

if TYPE_CHECKING:
    from ray.tune.utils.object_cache import _ObjectCache


class IdleActors:
    """Idle actors of an experiment: who may use one, and what became of it.

    Args:
        cache: The actors, by the resources that they have.
        supports: What the trainables implement.
        warn_once: Logs a message, but only once on a topic.

    Attributes:
        paused_actors: The actors that still have the state of a paused trial.
    """

    def __init__(
        self,
        cache: "_ObjectCache",
        supports: TrainableSupports,
        warn_once: Callable[[str, str], None],
    ):
        self._cache = cache
        self._supports = supports
        self._warn_once = warn_once
        # Trials on an actor that was idle, and has not been heard of since.
        self._unproven: Set[Trial] = set()
        # Pending trials that no idle actor will do for.
        self._need_new_actor: Set[Trial] = set()
        # By the name of the trainable.
        self._reset_records: Dict[str, ResetRecord] = defaultdict(ResetRecord)
        self.paused_actors = PausedActors()

    def __len__(self) -> int:
        return self._cache.num_cached_objects

    def has(self, request: ResourceRequest) -> bool:
        """Return whether there is an idle actor.

        Args:
            request: Resources that it is to have.

        Returns:
            True if one is cached.
        """
        return self._cache.has_cached_object(request)

    def has_one_for(self, trial: Trial) -> bool:
        """Return whether an idle actor will do for a trial.

        Args:
            trial: Trial to start.

        Returns:
            False if there is none, or if the trial has to have a new one.
        """
        return (
            self.has(trial.placement_group_factory)
            and trial not in self._need_new_actor
        )

    def pop(self, trial: Trial) -> TrackedActor:
        """Take the actor that suits a trial best.

        Args:
            trial: Trial to start.

        Returns:
            Its own actor from before it was paused, if that is still idle. Else the
            one that is idle for longest.
        """
        self._unproven.add(trial)
        return self._cache.pop_cached_object(
            trial.placement_group_factory, self.paused_actors.get(trial)
        )

    def require_new_actor(self, trial: Trial) -> None:
        """Have a pending trial start on a new actor.

        Args:
            trial: Trial that an idle actor has failed.
        """
        self._need_new_actor.add(trial)
        self._unproven.discard(trial)

    def on_status_change(self, trial: Trial) -> None:
        """Note that a trial has another status.

        Args:
            trial: Trial with its new status.
        """
        if trial.status != Trial.PENDING:
            self._need_new_actor.discard(trial)
        if trial.status not in (Trial.PENDING, Trial.RUNNING):
            self._unproven.discard(trial)

    def on_task_resolved(self, trial: Trial) -> None:
        """Note that the actor of a trial is alive.

        Args:
            trial: Trial of which a task has resolved.
        """
        self._unproven.discard(trial)

    def on_task_failed(self, trial: Trial, exception: Exception) -> bool:
        """Note that a task of a trial has failed.

        An idle actor that dies is only found out when it is used. A trial that was
        paused is not to depend on what becomes of the actor that it once had.

        Args:
            trial: Trial of which a task has failed.
            exception: What the task has failed with.

        Returns:
            True if it is no fault of the trial: this was the first task on an actor
            that was idle, and the actor has died.
        """
        was_idle = trial in self._unproven
        self._unproven.discard(trial)
        return was_idle and isinstance(exception, RayActorError)

    def may_keep_actor_of(self, trial: Trial) -> bool:
        """Return whether to keep the actor of a trial for others to reuse.

        Args:
            trial: Trial that leaves its actor.

        Returns:
            False if its class cannot be reset, or refuses too often.
        """
        if not self._supports.get(trial).reset:
            self._warn_once(
                "no_reset", describe_missing_reset(trial.get_trainable_cls())
            )
            return False
        return self._reset_records[trial.trainable_name].is_worthwhile

    def on_reset(
        self, trial: Trial, worked: bool, exception: Optional[Exception] = None
    ) -> bool:
        """Note whether the idle actor of a trial could be reset for it.

        Args:
            trial: Trial that the actor was given to.
            worked: Whether it could.
            exception: What the reset has raised, if it has.

        Returns:
            False if nobody is to be given an idle actor any more.
        """
        record = self._reset_records[trial.trainable_name]
        record.add(worked)
        if worked:
            return True
        self._warn_once(
            "refused_reset",
            describe_refused_reset(trial, trial.get_trainable_cls(), exception),
        )
        if not record.is_worthwhile:
            self._warn_once(
                "no_more_resets",
                f"Actors of {trial.trainable_name} are not reused any more, as they "
                "can hardly ever be reset. Each trial starts on a new actor.",
            )
        return record.is_worthwhile
