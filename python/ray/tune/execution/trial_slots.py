"""Decides which trial gets a slot, i.e. the resources that one trial needs."""

import itertools
import logging
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Dict, Iterator, Optional, Set

from ray.air.execution import ResourceRequest
from ray.air.execution._internal import TrackedActor
from ray.exceptions import RayActorError
from ray.tune.execution.actor_reuse import (
    ResetRecord,
    describe_missing_reset,
    describe_refused_reset,
    get_reuse_hint,
)
from ray.tune.execution.paused_actors import PausedActors
from ray.tune.execution.trainable_support import (
    TrainableSupport,
    describe_missing_checkpoints,
    does_pause,
    get_trainable_support,
)
from ray.tune.experiment import Trial
from ray.tune.search.pausing import (
    get_concurrency_limit,
    notify_trial_pause,
    notify_trial_resume,
)
from ray.tune.utils import warn_if_slow

if TYPE_CHECKING:
    from ray.tune.execution.tune_controller import TuneController

logger = logging.getLogger(__name__)


class TrialSlots:
    """Slots of a running experiment: who asks for one, who gets the next.

    The trial that the scheduler chooses goes before those that are pending already.
    It is asked for its choice when a slot is free. Where that takes resources that
    nobody has asked for, it is asked once more than that: if it would resume a trial,
    resources of that shape are reserved, and it chooses again when they are ready.

    Args:
        controller: Controller of the experiment.
    """

    def __init__(self, controller: "TuneController"):
        self._controller = controller
        self._attached_to = None
        self._paused_requests: Dict[Trial, ResourceRequest] = {}
        self._num_paused: Counter = Counter()
        # Trials that were resumed and have not started, in the order of the choices.
        self._resumed: Dict[Trial, None] = {}
        # Trials on an actor that was idle, and has not been heard of since.
        self._on_idle_actor: Set[Trial] = set()
        # Pending trials that no idle actor will do for.
        self._need_new_actor: Set[Trial] = set()
        # By the name of the trainable.
        self._reset_records: Dict[str, ResetRecord] = defaultdict(ResetRecord)
        self._support: Dict[str, TrainableSupport] = {}
        self._hinted = False
        self.paused_actors = PausedActors()

    # Limits

    @property
    def limit(self) -> Optional[int]:
        """How many trials may have an actor at the same time. None: any number."""
        return get_concurrency_limit(self._controller._search_alg)

    def _num_held(self) -> int:
        """The number of slots that trials have, or that were asked for."""
        return (
            len(self._controller._trial_to_actor)
            + self._controller._actor_manager.num_reserved()
        )

    def _num_started(self) -> int:
        manager = self._controller._actor_manager
        return sum(
            manager.is_actor_started(tracked_actor)
            for tracked_actor in self._controller._trial_to_actor.values()
        )

    def has_room(self) -> bool:
        """Whether one more trial may ask for a slot."""
        limit = self.limit
        return limit is None or self._num_held() < limit

    def _has_waiting_trial(self, but: Trial) -> bool:
        return self._last_waiting_trial(but) is not None

    def _last_waiting_trial(self, but: Trial) -> Optional[Trial]:
        """The last trial that has asked for a slot without having got it yet."""
        controller = self._controller
        for trial, tracked_actor in reversed(list(controller._trial_to_actor.items())):
            if (
                trial is not but
                and trial not in self._resumed
                and trial.status == Trial.PENDING
                and trial in controller._staged_trials
                and not controller._actor_manager.is_actor_started(tracked_actor)
            ):
                return trial
        return None

    def _is_promised(self, request: ResourceRequest) -> bool:
        """Whether the next slot of a shape is for a trial that was resumed already."""
        controller = self._controller
        for trial in self._resumed:
            tracked_actor = controller._trial_to_actor.get(trial)
            if (
                tracked_actor is not None
                and trial.placement_group_factory == request
                and not controller._actor_manager.is_actor_started(tracked_actor)
            ):
                return True
        return False

    def _is_ready(self, request: ResourceRequest) -> bool:
        """Whether resources of a shape are ready, and promised to nobody."""
        return self._controller._actor_manager.has_resources_ready(
            request
        ) and not self._is_promised(request)

    def _make_room(self, chosen: Trial) -> None:
        """Have others than the chosen trial ask again later, if there are too many."""
        limit = self.limit
        if limit is None:
            return
        manager = self._controller._actor_manager
        while self._num_held() > limit:
            waiting = self._last_waiting_trial(but=chosen)
            if waiting:
                self._withdraw(waiting)
            elif manager.num_reserved():
                manager.release_resources(manager.reserved_requests[0])
            else:
                return

    def _withdraw(self, trial: Trial) -> None:
        """Take back the request of a trial for an actor; it stays pending."""
        controller = self._controller
        logger.debug(f"Withdrawing the actor request of trial {trial}")
        tracked_actor = controller._trial_to_actor.pop(trial)
        controller._actor_to_trial.pop(tracked_actor)
        controller._actor_manager.remove_actor(tracked_actor)
        controller._unstage_trial_with_resources(trial)
        controller._pending_trials_list.insert(0, trial)

    # The next slot

    def has_slot(self, trial: Trial) -> bool:
        """Whether the trial would start right away if it was chosen now.

        Args:
            trial: Trial that has no actor.

        Returns:
            False if it would have to wait. True also when nothing is known of free
            resources: the way to find out is to ask for them.
        """
        controller, request = self._controller, trial.placement_group_factory
        limit = self.limit
        if limit is not None and self._num_started() >= limit:
            return False
        if controller._actor_cache.has_cached_object(request):
            return True
        if self._is_requested(request):
            return self._is_ready(request)
        return not controller._actor_manager.num_live_actors or self._may_fit(request)

    def _may_fit(self, request: ResourceRequest) -> bool:
        """Whether the cluster has more than our actors use, for all we know."""
        controller = self._controller
        used = controller._actor_manager.get_live_actors_resources()
        known = controller._resource_updater._avail_resources
        total = {
            **known.custom_resources,
            "CPU": known.cpu,
            "GPU": known.gpu,
            "memory": known.memory,
        }
        return all(
            used.get(name, 0.0) + amount <= total.get(name, 0.0)
            for name, amount in request.required_resources.items()
        )

    def _is_requested(self, request: ResourceRequest) -> bool:
        return self._controller._actor_manager.is_requested(request)

    def _has_candidates(self) -> bool:
        """Whether there is a point in asking the scheduler for its choice."""
        controller = self._controller
        limit = self.limit
        if limit is not None and self._num_started() >= limit:
            return False
        if controller._actor_cache.num_cached_objects:
            return True
        if not controller._actor_manager.num_live_actors:
            # Schedulers may be asked in vain, but nobody else gets things going.
            return True
        for request, trials in controller._resources_to_pending_trials.items():
            if trials and not self._is_requested(request):
                return True
        self._update_paused()
        return any(not self._is_requested(request) for request in self._num_paused)

    def trials_to_run(
        self, resource_request: Optional[ResourceRequest] = None
    ) -> Iterator[Trial]:
        """Ask the scheduler which trials to start on the slots that are free.

        Args:
            resource_request: Request that is ready, if one is.

        Yields:
            Trials that there is a slot for, or that shall ask for one, before others.
        """
        controller = self._controller
        self._attach()
        if resource_request is not None and self._is_promised(resource_request):
            return
        seen = set()
        while resource_request is not None or self._has_candidates():
            trial = self._choose_trial_to_run()
            if trial is None or trial in seen or not self._prepare(trial):
                break
            seen.add(trial)
            from_cache = controller._actor_cache.has_cached_object(
                trial.placement_group_factory
            )
            yield trial
            self._settle(trial, from_cache)
            if resource_request is not None:
                return
        if resource_request is not None:
            # Nobody has a use for what was reserved. If the scheduler changes its
            # mind, it is reserved again.
            controller._actor_manager.release_resources(resource_request)

    def _choose_trial_to_run(self) -> Optional[Trial]:
        controller, scheduler = self._controller, self._controller._scheduler_alg
        with warn_if_slow("choose_trial_to_run"):
            with controller._hook(scheduler, "choose_trial_to_run"):
                return scheduler.choose_trial_to_run(controller._wrapped())

    def close(self) -> None:
        """Give out no slots any more."""
        manager = self._controller._actor_manager
        manager.set_on_resources_ready(None)
        for request in manager.reserved_requests:
            manager.release_resources(request)

    def _attach(self) -> None:
        manager = self._controller._actor_manager
        if manager is not self._attached_to:
            self._attached_to = manager
            manager.set_on_resources_ready(self._controller._maybe_add_actors)

    def _prepare(self, trial: Trial) -> bool:
        """Return whether the trial is to be started now."""
        controller, request = self._controller, trial.placement_group_factory
        manager = controller._actor_manager
        if trial.status not in (Trial.PENDING, Trial.PAUSED):
            return False
        tracked_actor = controller._trial_to_actor.get(trial)
        cached = controller._actor_cache.has_cached_object(request)
        if tracked_actor is not None:
            if trial.status == Trial.PAUSED or manager.is_actor_started(tracked_actor):
                return False
            self._prioritize(trial)
            return cached
        room = (
            self.has_room()
            or manager.num_reserved(request) > 0
            or self._has_waiting_trial(but=trial)
        )
        if not room:
            return False
        if cached or trial.status == Trial.PENDING:
            return True
        if not self._is_requested(request):
            manager.reserve_resources(request)
            self._make_room(trial)
        return self._is_ready(request)

    def _prioritize(self, chosen: Trial) -> None:
        """Move a trial to the front, behind those that were resumed before it."""
        controller = self._controller
        for trial in (chosen, *reversed(self._resumed)):
            tracked_actor = controller._trial_to_actor.get(trial)
            if tracked_actor is not None:
                controller._actor_manager.prioritize_actor(tracked_actor)

    def _settle(self, trial: Trial, from_cache: bool) -> None:
        """Put a trial that was just started ahead of the others."""
        manager = self._controller._actor_manager
        if trial not in self._controller._trial_to_actor:
            return
        request = trial.placement_group_factory
        if from_cache:
            manager.release_resources(request)
        self._release_unless_paused(request)
        self._prioritize(trial)
        self._make_room(trial)

    def start_first(self, trial: Trial) -> None:
        """Have a pending trial start on a new actor, ahead of others.

        Args:
            trial: Trial that had a slot already, and lost it by no fault of its own.
        """
        controller = self._controller
        self._need_new_actor.add(trial)
        self._resumed[trial] = None
        controller._staged_trials.add(trial)
        controller._actor_cache.increase_max(trial.placement_group_factory)
        controller._schedule_trial_actor(trial)
        self._prioritize(trial)

    def next_pending_trial(self, request: ResourceRequest) -> Optional[Trial]:
        """Return the trial to start on a cached actor, first come first served.

        A trial whose own actor is starting has a slot already. It only takes another
        one where nobody else can come to use that.

        Args:
            request: Resources of the actor.

        Returns:
            A pending trial, or None if none is allowed to start.
        """
        controller = self._controller
        pending = controller._resources_to_pending_trials[request]
        room = self.has_room()
        in_order = itertools.chain(
            self._resumed,
            controller._trial_to_actor,  # These have asked for an actor already.
            controller._pending_trials_list,
            pending,
        )
        candidates = (
            trial
            for trial in in_order
            if trial in pending
            and trial not in controller._resetting_trials
            and trial not in self._need_new_actor
            and (room or trial in controller._trial_to_actor)
        )
        starting = None
        for trial in candidates:
            if not self._is_starting(trial):
                chosen = trial
                break
            starting = starting or trial
        else:
            chosen = starting
            if chosen is None or not controller._search_alg.is_finished():
                # The next trial can use the actor, and does not have to wait for one.
                return None
        pending.discard(chosen)
        self.paused_actors.forget(chosen)
        # It may never have asked for an actor.
        chosen.init_local_path()
        controller._mark_trial_to_checkpoint(chosen)
        return chosen

    def _is_starting(self, trial: Trial) -> bool:
        """Whether a trial has got its slot, and its actor is on its way."""
        controller = self._controller
        tracked_actor = controller._trial_to_actor.get(trial)
        return tracked_actor is not None and controller._actor_manager.is_actor_started(
            tracked_actor
        )

    # Paused trials

    def on_status_change(self, trial: Trial, previous: str) -> None:
        """Note that a trial has another status.

        Args:
            trial: Trial with its new status.
            previous: Its status before.
        """
        controller, search_alg = self._controller, self._controller._search_alg
        self._resumed.pop(trial, None)
        if trial.status != Trial.PENDING:
            self._need_new_actor.discard(trial)
        if trial.status not in (Trial.PENDING, Trial.RUNNING):
            self._on_idle_actor.discard(trial)
        if trial.status == Trial.PAUSED or (
            trial.status == Trial.RUNNING and does_pause(controller._scheduler_alg)
        ):
            self._warn_if_it_cannot_pause(trial)
        if trial.status == Trial.PAUSED:
            self._count_paused(trial)
            with controller._hook(search_alg, "on_trial_pause", trial):
                result = controller._latest_result(trial)
                notify_trial_pause(search_alg, trial.trial_id, result)
            self._hint_at_reuse(trial)
        elif previous == Trial.PAUSED:
            self._forget_paused(trial)
            if trial.status == Trial.PENDING:
                self._resumed[trial] = None
            if not trial.is_finished():
                with controller._hook(search_alg, "on_trial_resume", trial):
                    notify_trial_resume(search_alg, trial.trial_id)

    def _count_paused(self, trial: Trial) -> None:
        request = trial.placement_group_factory
        self._paused_requests[trial] = request
        self._num_paused[request] += 1

    def _forget_paused(self, trial: Trial) -> None:
        request = self._paused_requests.pop(trial, None)
        if request is None:
            return
        self._num_paused[request] -= 1
        if not self._num_paused[request]:
            del self._num_paused[request]
        if trial.is_finished():
            # Its resources may have been changed while it was paused.
            for wanted in (request, trial.placement_group_factory):
                self._release_unless_paused(wanted)

    def _release_unless_paused(self, request: ResourceRequest) -> None:
        """Take back a reservation if there is no trial left to use it."""
        if not self._num_paused[request]:
            self._controller._actor_manager.release_resources(request)

    def _update_paused(self) -> None:
        """Count trials that were paused when they were added."""
        paused = self._controller._paused_trials
        if len(paused) != len(self._paused_requests):
            self._paused_requests.clear()
            self._num_paused.clear()
            for trial in paused:
                self._count_paused(trial)

    def _warn_if_it_cannot_pause(self, trial: Trial) -> None:
        support = self.get_support(trial)
        if not support.pause:
            self._controller._warn_once(
                "no_checkpoints",
                describe_missing_checkpoints(
                    trial.get_trainable_cls(), support, self._controller._scheduler_alg
                ),
            )

    def _hint_at_reuse(self, trial: Trial) -> None:
        if self._hinted or self._controller._reuse_actors:
            return
        hint = get_reuse_hint(trial, self._controller._scheduler_alg)
        self._hinted = True
        if hint:
            logger.warning(hint)

    # Cached actors

    def num_spare_actors(
        self, request: ResourceRequest, leaving: Optional[Trial] = None
    ) -> int:
        """Return how many idle actors to keep for trials that may be resumed.

        Args:
            request: Resources of the actors.
            leaving: Trial that is about to leave its actor, if any.

        Returns:
            The number of paused trials with these resources, as far as the limit
            allows; none while a trial with other resources waits for some.
        """
        self._update_paused()
        spare, started = self._num_paused[request], self._num_started()
        if leaving:
            spare += not leaving.is_finished()
            started -= 1
        if not spare or self._others_wait(request):
            return 0
        limit = self.limit
        return spare if limit is None else max(0, min(spare, limit - started))

    def _others_wait(self, request: ResourceRequest) -> bool:
        manager = self._controller._actor_manager
        return any(
            other != request and not manager.has_resources_ready(other)
            for other in manager.requested_resources
        )

    def may_need_actor_of(self, trial: Trial) -> bool:
        """Whether a trial may be resumed that can use the actor of this one.

        Args:
            trial: Trial that has ended, or is about to be paused.

        Returns:
            Whether to keep its actor, even if no trial is waiting for one.
        """
        self._update_paused()
        return (
            not trial.is_finished()
            or self._num_paused[trial.placement_group_factory] > 0
        )

    def may_use_idle_actor(self, trial: Trial) -> bool:
        """Return whether an idle actor will do for a trial.

        Args:
            trial: Trial to start.
        """
        return trial not in self._need_new_actor

    def may_reuse_actor_of(self, trial: Trial) -> bool:
        """Return whether to keep the actor of a trial for others to reuse.

        Args:
            trial: Trial that leaves its actor.
        """
        if not self.get_support(trial).reset:
            self._controller._warn_once(
                "no_reset", describe_missing_reset(trial.get_trainable_cls())
            )
            return False
        return self._reset_records[trial.trainable_name].is_worthwhile

    def get_support(self, trial: Trial) -> TrainableSupport:
        """Return what the trainable of a trial implements.

        Args:
            trial: Any trial.
        """
        name = trial.trainable_name
        if name not in self._support:
            self._support[name] = get_trainable_support(trial.get_trainable_cls())
        return self._support[name]

    def on_reset(
        self, trial: Trial, worked: bool, exception: Optional[Exception] = None
    ) -> None:
        """Note whether the idle actor of a trial could be reset for it.

        Args:
            trial: Trial that the actor was given to.
            worked: Whether it could.
            exception: What the reset has raised, if it has.
        """
        controller, record = self._controller, self._reset_records[trial.trainable_name]
        record.add(worked)
        if worked:
            return
        controller._warn_once(
            "refused_reset",
            describe_refused_reset(trial, trial.get_trainable_cls(), exception),
        )
        if not record.is_worthwhile:
            controller._warn_once(
                "no_more_resets",
                f"Actors of {trial.trainable_name} are not reused any more, as they "
                "can hardly ever be reset. Each trial starts on a new actor.",
            )
            # Nobody is to be given one that is idle now.
            controller._cleanup_cached_actors(force_all=True)

    def pop_cached_actor(self, trial: Trial) -> TrackedActor:
        """Take the cached actor that suits a trial best.

        Args:
            trial: Trial to start.

        Returns:
            Its own actor from before it was paused, if that is still cached. Else the
            one that is cached for longest.
        """
        self._on_idle_actor.add(trial)
        return self._controller._actor_cache.pop_cached_object(
            trial.placement_group_factory, self.paused_actors.get(trial)
        )

    def on_task_resolved(self, trial: Trial) -> None:
        """Note that the actor of a trial is alive.

        Args:
            trial: Trial of which a task has resolved.
        """
        self._on_idle_actor.discard(trial)

    def has_lost_idle_actor(self, trial: Trial, exception: Exception) -> bool:
        """Return whether it was no fault of a trial that its actor has died.

        An idle actor that dies is only found out when it is used. A trial that was
        paused is not to depend on what becomes of the actor that it once had.

        Args:
            trial: Trial of which a task has failed.
            exception: What the task has failed with.

        Returns:
            True if this is the first task on an actor that was idle, and it has died.
        """
        was_idle = trial in self._on_idle_actor
        self._on_idle_actor.discard(trial)
        return was_idle and isinstance(exception, RayActorError)
