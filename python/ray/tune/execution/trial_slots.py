"""Decides which trial gets a slot, i.e. the resources that one trial needs."""

import itertools
from typing import (
    TYPE_CHECKING,
    Callable,
    Collection,
    Container,
    Dict,
    Iterable,
    Iterator,
    Optional,
)

from ray.air.execution import ResourceRequest
from ray.air.execution._internal import TrackedActor
from ray.tune.execution.slot_admission import (
    ActorStatus,
    Admission,
    ResumedTrials,
    Supply,
    admit,
    choose_for_idle_actor,
    choose_to_withdraw,
    count_spare,
    is_below,
    starts_at_once,
)
from ray.tune.execution.slot_reservations import SlotReservations
from ray.tune.experiment import Trial
from ray.tune.search.pausing import get_concurrency_limit

if TYPE_CHECKING:
    from ray.air.execution._internal import RayActorManager
    from ray.tune.execution.idle_actors import IdleActors
    from ray.tune.search import SearchAlgorithm


class TrialSlots:
    """Slots of a running experiment: who asks for one, who gets the next.

    The trial that the scheduler chooses goes before those that are pending already.
    It is asked for its choice when a slot is free. Where that takes resources that
    nobody has asked for, it is asked once more than that: if it would resume a trial,
    resources of that shape are reserved, and it chooses again when they are ready.

    What is decided is decided by :mod:`ray.tune.execution.slot_admission`; this looks
    up what that has to know, and carries it out.

    Args:
        get_manager: Returns the manager of the actors.
        trial_to_actor: The actors that trials have or have asked for, in the order in
            which they did.
        staged_trials: The trials that count as asking for an actor.
        pending_by_request: The pending trials, by the resources that they want.
        idle_actors: The actors that no trial uses.
        search_alg: The search algorithm, which limits how many trials run at once.
        get_total_resources: Returns what the cluster has, for all we know.
        choose_trial_to_run: Asks the scheduler for its choice.
        on_resources_ready: Called when resources are ready, before an actor gets them.
        withdraw: Takes back the request of a trial for an actor; it stays pending.
    """

    def __init__(
        self,
        *,
        get_manager: Callable[[], "RayActorManager"],
        trial_to_actor: Dict[Trial, TrackedActor],
        staged_trials: Container[Trial],
        pending_by_request: Dict[ResourceRequest, Collection[Trial]],
        idle_actors: "IdleActors",
        search_alg: "SearchAlgorithm",
        get_total_resources: Callable[[], Dict[str, float]],
        choose_trial_to_run: Callable[[], Optional[Trial]],
        on_resources_ready: Callable[[ResourceRequest], None],
        withdraw: Callable[[Trial], None],
    ):
        self._get_manager = get_manager
        self._trial_to_actor = trial_to_actor
        self._staged_trials = staged_trials
        self._pending_by_request = pending_by_request
        self._idle_actors = idle_actors
        self._search_alg = search_alg
        self._get_total_resources = get_total_resources
        self._choose_trial_to_run = choose_trial_to_run
        self._on_resources_ready = on_resources_ready
        self._withdraw = withdraw
        self._attached_to: Optional["RayActorManager"] = None
        self._reservations = SlotReservations(get_manager)
        self._resumed = ResumedTrials()

    # What there is

    @property
    def limit(self) -> Optional[int]:
        """How many trials may have an actor at the same time. None: any number."""
        return get_concurrency_limit(self._search_alg)

    def has_room(self) -> bool:
        """Return whether one more trial may ask for a slot."""
        limit = self.limit
        return limit is None or is_below(limit, self._num_requested())

    def _num_requested(self) -> int:
        """Return the number of slots that trials have, or that were asked for."""
        return len(self._trial_to_actor) + len(self._reservations)

    def _num_started(self) -> int:
        manager = self._get_manager()
        return sum(map(manager.is_actor_started, self._trial_to_actor.values()))

    def _is_below_limit(self) -> bool:
        """Return whether one more trial may have an actor."""
        limit = self.limit
        return limit is None or is_below(limit, self._num_started())

    def _actor_status(self, trial: Trial) -> ActorStatus:
        tracked_actor = self._trial_to_actor.get(trial)
        if tracked_actor is None:
            return ActorStatus.NONE
        if self._get_manager().is_actor_started(tracked_actor):
            return ActorStatus.STARTED
        return ActorStatus.REQUESTED

    def _supply(self, request: ResourceRequest) -> Supply:
        manager = self._get_manager()
        if self._idle_actors.has(request):
            return Supply.IDLE_ACTOR
        if manager.is_requested(request):
            return Supply.READY if self._is_ready(request) else Supply.AWAITED
        if manager.num_live_actors and not self._may_fit(request):
            return Supply.EXHAUSTED
        return Supply.UNKNOWN

    def _is_ready(self, request: ResourceRequest) -> bool:
        """Return whether requested resources are ready, and promised to nobody."""
        return self._get_manager().has_resources_ready(
            request
        ) and not self._is_promised(request)

    def _is_promised(self, request: ResourceRequest) -> bool:
        return self._resumed.are_promised(
            request, lambda trial: trial.placement_group_factory, self._actor_status
        )

    def _may_fit(self, request: ResourceRequest) -> bool:
        """Return whether the cluster has more than our actors use, for all we know."""
        used = self._get_manager().get_live_actors_resources()
        total = self._get_total_resources()
        return all(
            used.get(name, 0.0) + amount <= total.get(name, 0.0)
            for name, amount in request.required_resources.items()
        )

    def has_slot(self, trial: Trial) -> bool:
        """Return whether a trial would start right away if it was chosen now.

        Args:
            trial: Trial that has no actor.

        Returns:
            False if it would have to wait. True also when nothing is known of free
            resources: the way to find out is to ask for them.
        """
        return self._is_below_limit() and starts_at_once(
            self._supply(trial.placement_group_factory)
        )

    # The next slot

    def trials_to_run(
        self, resource_request: Optional[ResourceRequest] = None
    ) -> Iterator[Trial]:
        """Ask the scheduler which trials to start on the slots that are free.

        Args:
            resource_request: Request that is ready, if one is.

        Yields:
            Trial: One that there is a slot for, or that shall ask for one, before
                others.
        """
        self._attach()
        if resource_request is not None and self._is_promised(resource_request):
            return
        seen = set()
        while resource_request is not None or self._has_candidates():
            trial = self._choose_trial_to_run()
            if trial is None or trial in seen or not self._prepare(trial):
                break
            seen.add(trial)
            was_idle = self._idle_actors.has(trial.placement_group_factory)
            yield trial
            self._put_ahead(trial, was_idle)
            if resource_request is not None:
                return
        if resource_request is not None:
            # Nobody has a use for what was reserved. If the scheduler changes its
            # mind, it is reserved again.
            self._reservations.release(resource_request)

    def _has_candidates(self) -> bool:
        """Return whether there is a point in asking the scheduler for its choice."""
        if not self._is_below_limit():
            return False
        manager = self._get_manager()
        if len(self._idle_actors) or not manager.num_live_actors:
            # Where nothing lives the scheduler may be asked in vain, but nobody else
            # gets things going.
            return True
        return (
            any(
                trials and not manager.is_requested(request)
                for request, trials in self._pending_by_request.items()
            )
            or self._reservations.has_unrequested()
        )

    def _prepare(self, trial: Trial) -> bool:
        """Have a chosen trial ask before others; return whether to start it now."""
        if trial.status not in (Trial.PENDING, Trial.PAUSED):
            return False
        request, status = trial.placement_group_factory, self._actor_status(trial)
        has_idle_actor = self._idle_actors.has(request)
        admission = admit(
            is_paused=trial.status == Trial.PAUSED,
            status=status,
            has_idle_actor=has_idle_actor,
            has_room=status is ActorStatus.NONE and self._has_room_for(trial),
        )
        if admission is Admission.MOVE_UP:
            self.prioritize(trial)
            return has_idle_actor
        if admission is Admission.RESERVE:
            if not self._get_manager().is_requested(request):
                self._reservations.reserve(request)
                self._make_room(trial)
            return self._is_ready(request)
        return admission is Admission.START

    def _has_room_for(self, chosen: Trial) -> bool:
        """Return whether a chosen trial may ask, perhaps in the place of another."""
        return (
            self.has_room()
            or self._reservations.has(chosen.placement_group_factory)
            or self._find_to_withdraw(chosen) is not None
        )

    def _make_room(self, chosen: Trial) -> None:
        """Have others than the chosen trial ask again later, if there are too many."""
        limit = self.limit
        while limit is not None and self._num_requested() > limit:
            waiting = self._find_to_withdraw(chosen)
            if waiting is not None:
                self._withdraw(waiting)
            elif not self._reservations.release_any():
                return

    def _find_to_withdraw(self, chosen: Trial) -> Optional[Trial]:
        latest_first = (
            trial
            for trial in reversed(self._trial_to_actor)
            if trial.status == Trial.PENDING and trial in self._staged_trials
        )
        return choose_to_withdraw(
            latest_first, self._actor_status, chosen, self._resumed
        )

    def _put_ahead(self, trial: Trial, was_idle: bool) -> None:
        """Put a trial that was just started ahead of the others."""
        if trial not in self._trial_to_actor:
            return
        request = trial.placement_group_factory
        if was_idle:
            self._reservations.release(request)
        self._reservations.release_unless_paused(request)
        self.prioritize(trial)
        self._make_room(trial)

    def prioritize(self, chosen: Trial) -> None:
        """Move a trial to the front, behind those that were resumed before it.

        Args:
            chosen: Trial that has asked for an actor.
        """
        for trial in self._resumed.order_behind(chosen):
            tracked_actor = self._trial_to_actor.get(trial)
            if tracked_actor is not None:
                self._get_manager().prioritize_actor(tracked_actor)

    def next_pending_trial(
        self,
        request: ResourceRequest,
        in_order: Iterable[Trial],
        resetting_trials: Container[Trial],
    ) -> Optional[Trial]:
        """Return the trial to start on an idle actor, first come, first served.

        Args:
            request: Resources of the actor.
            in_order: Trials in the order in which they became pending.
            resetting_trials: Trials that have an actor, which is being reset for them.

        Returns:
            A pending trial, or None if none is allowed to start.
        """
        pending = self._pending_by_request[request]
        first_come = itertools.chain(
            self._resumed,
            self._trial_to_actor,  # These have asked for an actor already.
            in_order,
            pending,
        )
        return choose_for_idle_actor(
            (
                trial
                for trial in first_come
                if trial in pending
                and trial not in resetting_trials
                and self._idle_actors.has_one_for(trial)
            ),
            self._actor_status,
            has_room=self.has_room(),
            more_to_come=not self._search_alg.is_finished(),
        )

    def _attach(self) -> None:
        manager = self._get_manager()
        if manager is not self._attached_to:
            self._attached_to = manager
            manager.set_on_resources_ready(self._on_resources_ready)

    def close(self) -> None:
        """Give out no slots any more."""
        self._get_manager().set_on_resources_ready(None)
        self._reservations.release_all()

    # Trials

    def on_trial_add(self, trial: Trial) -> None:
        """Note that there is one more trial.

        Args:
            trial: The trial. It may be paused already, in a run that was restored.
        """
        if trial.status == Trial.PAUSED:
            self._reservations.on_pause(trial)

    def on_status_change(self, trial: Trial, previous: str) -> None:
        """Note that a trial has another status.

        Args:
            trial: Trial with its new status.
            previous: Its status before.
        """
        self._resumed.discard(trial)
        if trial.status == Trial.PAUSED:
            self._reservations.on_pause(trial)
        elif previous == Trial.PAUSED:
            self._reservations.on_unpause(trial)
            if trial.status == Trial.PENDING:
                self._resumed.add(trial)

    def start_first(self, trial: Trial) -> None:
        """Have a pending trial that has asked for an actor start before others.

        Args:
            trial: Trial that had a slot already, and lost it by no fault of its own.
        """
        if trial in self._trial_to_actor:
            self._resumed.add(trial)
            self.prioritize(trial)

    # Idle actors

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
        paused, limit = self._reservations.num_paused(request), self.limit
        started = 0 if limit is None else self._num_started()
        if leaving:
            paused += not leaving.is_finished()
            started -= 1
        others_wait = paused > 0 and self._others_wait(request)
        return count_spare(paused, others_wait, limit, started)

    def _others_wait(self, request: ResourceRequest) -> bool:
        manager = self._get_manager()
        return any(
            other != request and not manager.has_resources_ready(other)
            for other in manager.requested_resources
        )

    def may_need_actor_of(self, trial: Trial) -> bool:
        """Return whether a trial may be resumed that can use the actor of this one.

        Args:
            trial: Trial that has ended, or is about to be paused.

        Returns:
            Whether to keep its actor, even if no trial is waiting for one.
        """
        return (
            not trial.is_finished()
            or self._reservations.num_paused(trial.placement_group_factory) > 0
        )
