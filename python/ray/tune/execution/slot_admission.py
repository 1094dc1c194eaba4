"""Decides which trial may start next; nothing here knows the controller."""

import enum
from typing import Any, Callable, Container, Dict, Hashable, Iterable, Optional, Tuple


class ActorStatus(enum.Enum):
    """How far a trial is on its way to an actor of its own.

    Attributes:
        NONE: The trial has requested no actor.
        REQUESTED: It has requested one, and waits for resources.
        STARTED: It has the resources: the actor runs, or is being started.
    """

    NONE = "none"
    REQUESTED = "requested"
    STARTED = "started"


class Supply(enum.Enum):
    """What there is for the next trial that wants resources of some shape.

    Attributes:
        IDLE_ACTOR: An actor that waits for something to do.
        READY: Resources that were asked for, and that are promised to nobody.
        AWAITED: Resources that others have asked for already, too.
        EXHAUSTED: Nothing, as far as is known.
        UNKNOWN: Perhaps something. The way to find out is to ask.
    """

    IDLE_ACTOR = "idle actor"
    READY = "ready"
    AWAITED = "awaited"
    EXHAUSTED = "exhausted"
    UNKNOWN = "unknown"


class Admission(enum.Enum):
    """What to do about a trial that the scheduler wants to run.

    Attributes:
        REFUSE: Nothing: it is on its way, or cannot be started.
        MOVE_UP: It has asked for an actor. It gets the next one.
        START: It may ask for an actor, or use an idle one.
        RESERVE: It is paused. Resources are asked for in its place, and the scheduler
            chooses again when they are ready.
    """

    REFUSE = "refuse"
    MOVE_UP = "move up"
    START = "start"
    RESERVE = "reserve"


StatusOf = Callable[[Hashable], ActorStatus]

_STARTS_AT_ONCE = (Supply.IDLE_ACTOR, Supply.READY, Supply.UNKNOWN)


def is_below(limit: Optional[int], count: int) -> bool:
    """Return whether a limit allows one more.

    Args:
        limit: The limit. None: there is none.
        count: How many there are.

    Returns:
        True if there is no limit, too.
    """
    return limit is None or count < limit


def starts_at_once(supply: Supply) -> bool:
    """Return whether a trial would not have to wait if it was chosen.

    Args:
        supply: What there is of the shape that it wants.

    Returns:
        True also where it is not known.
    """
    return supply in _STARTS_AT_ONCE


def admit(
    is_paused: bool, status: ActorStatus, has_idle_actor: bool, has_room: bool
) -> Admission:
    """Decide what to do about the trial that the scheduler wants to run.

    Args:
        is_paused: Whether it is paused. Else it is pending.
        status: The status of its actor.
        has_idle_actor: Whether an actor of its shape is idle.
        has_room: Whether it may ask for a slot, if need be in the place of another.

    Returns:
        What to do.
    """
    if status is ActorStatus.REQUESTED and not is_paused:
        return Admission.MOVE_UP
    if status is not ActorStatus.NONE or not has_room:
        return Admission.REFUSE
    if has_idle_actor or not is_paused:
        return Admission.START
    return Admission.RESERVE


def choose_to_withdraw(
    latest_first: Iterable[Hashable],
    status_of: StatusOf,
    chosen: Hashable,
    resumed: Container[Hashable],
) -> Optional[Any]:
    """Choose who is to ask again later, so that somebody else may ask now.

    Args:
        latest_first: Pending trials, the last one that has asked for a slot first.
        status_of: Returns the status of the actor of a trial.
        chosen: Trial that the scheduler has chosen, which is not to give way.
        resumed: Trials that were resumed, which are not to give way either.

    Returns:
        The last one that still waits, or None.
    """
    for trial in latest_first:
        if (
            trial != chosen
            and trial not in resumed
            and status_of(trial) is ActorStatus.REQUESTED
        ):
            return trial
    return None


def choose_for_idle_actor(
    candidates: Iterable[Hashable],
    status_of: StatusOf,
    has_room: bool,
    more_to_come: bool,
) -> Optional[Any]:
    """Choose who gets an idle actor, first come, first served.

    A trial whose own actor is starting has a slot already. It takes another one only
    where nobody else can come to use that.

    Args:
        candidates: Trials that could use the actor, in the order in which they came.
        status_of: Returns the status of the actor of a trial.
        has_room: Whether a trial that has not asked for a slot may do so.
        more_to_come: Whether there may be further trials.

    Returns:
        The trial, or None.
    """
    starting = None
    for trial in candidates:
        status = status_of(trial)
        if status is ActorStatus.REQUESTED or (status is ActorStatus.NONE and has_room):
            return trial
        if status is ActorStatus.STARTED and starting is None:
            starting = trial
    return None if more_to_come else starting


def count_spare(
    paused: int, others_wait: bool, limit: Optional[int], started: int
) -> int:
    """Return how many idle actors of a shape to keep for trials that may be resumed.

    Args:
        paused: How many trials with this shape are paused.
        others_wait: Whether a trial with another shape waits for resources.
        limit: How many trials may have an actor. None: any number.
        started: How many have one.

    Returns:
        The number of actors, 0 where others could use the resources.
    """
    if not paused or others_wait:
        return 0
    return paused if limit is None else max(0, min(paused, limit - started))


class ResumedTrials:
    """Trials that were resumed and have not started, in the order of the choices."""

    def __init__(self):
        self._trials: Dict[Hashable, None] = {}

    def __contains__(self, trial: Hashable) -> bool:
        return trial in self._trials

    def __iter__(self):
        return iter(self._trials)

    def add(self, trial: Hashable) -> None:
        """Add a trial behind the others."""
        self._trials[trial] = None

    def discard(self, trial: Hashable) -> None:
        """Forget a trial, if it is there."""
        self._trials.pop(trial, None)

    def order_behind(self, chosen: Hashable) -> Tuple[Hashable, ...]:
        """Return whom to move to the front, one after the other.

        Args:
            chosen: Trial that the scheduler has chosen.

        Returns:
            The trials. Those that were resumed before come out ahead of the chosen one.
        """
        return chosen, *reversed(self._trials)

    def are_promised(
        self, shape: Any, shape_of: Callable[[Any], Any], status_of: StatusOf
    ) -> bool:
        """Return whether the next resources of a shape are for one of these trials.

        Args:
            shape: The resources.
            shape_of: Returns what a trial wants.
            status_of: Returns the status of the actor of a trial.

        Returns:
            True if one of them waits for these resources.
        """
        return any(
            status_of(trial) is ActorStatus.REQUESTED and shape_of(trial) == shape
            for trial in self._trials
        )
