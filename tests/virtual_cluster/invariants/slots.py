"""Who holds an actor (rule 6 of the design's section 8)."""

from typing import Dict, Set

from .private import is_actor_started, num_idle_actors, trial_to_actor
from ray.tune.experiment import Trial


class Slots:
    """Trials with an actor never exceed the limit, and a paused one has none."""

    RULES = {
        "max-concurrent": "At most max_concurrent trials hold an actor.",
        "paused-holds-actor": "A paused trial holds no actor.",
    }

    def on_touched(self, monitor, trial, view, controller) -> None:
        if trial.status == Trial.PAUSED and trial in trial_to_actor(controller):
            monitor.broken(
                "paused-holds-actor",
                "the trial is PAUSED and still holds an actor",
                trial.trial_id,
            )

    def after_step(self, monitor, controller) -> None:
        if not monitor.max_concurrent:
            return
        holding = [
            trial.trial_id
            for trial, actor in trial_to_actor(controller).items()
            if is_actor_started(controller, actor) and not trial.is_finished()
        ]
        if len(holding) > monitor.max_concurrent:
            monitor.broken(
                "max-concurrent",
                f"{len(holding)} trials hold an actor, but "
                f"max_concurrent={monitor.max_concurrent}",
                holding[-1],
            )


class FailureIsItsOwn:
    """A trial does not fail because of an actor that had died before it got it."""

    RULES = {
        "failure-not-its-own": "No trial fails because an idle actor had died.",
    }

    def __init__(self):
        self._blamed: Set[str] = set()
        self._innocent: Set[str] = set()
        self._resumed: Set[str] = set()  # those that have asked nothing of an actor yet
        self._first: Dict[str, int] = {}

    def driver_died(self, monitor) -> None:
        self._blamed.clear()
        self._innocent.clear()
        self._resumed.clear()
        self._first.clear()

    def on_submit(self, monitor, ref, view) -> None:
        if ref.method == "reset" or ref.trial_id in self._resumed:
            self._resumed.discard(ref.trial_id)
            self._first[ref.trial_id] = ref.seq

    def on_failure(self, monitor, ref) -> None:
        died_at = ref.actor.died_at
        was_dead = died_at is not None and ref.seq > died_at
        is_own = not was_dead or self._first.get(ref.trial_id) != ref.seq
        (self._blamed if is_own else self._innocent).add(ref.trial_id)

    def on_status(self, monitor, trial, before, status) -> None:
        if before == Trial.PAUSED:
            self._resumed.add(trial.trial_id)
        if status != Trial.ERROR:
            return
        if trial.trial_id in self._innocent - self._blamed:
            monitor.broken(
                "failure-not-its-own",
                "the trial failed, but nothing has failed but an idle actor that had "
                "died before the trial got it",
                trial.trial_id,
            )
        self._innocent.discard(trial.trial_id)
        self._blamed.discard(trial.trial_id)


class ActorsAreKept:
    """With reuse, no actor is started where that of a paused trial was stopped.

    Nothing is said where another one was idle already, which may have been enough by
    then, where something fails or is paused from outside, and where trials need
    different resources.
    """

    RULES = {
        "actor-wasted": "With reuse, a paused trial's actor is kept.",
    }

    def __init__(self):
        self._stopped: Dict[str, int] = {}  # when the actor of a trial was stopped
        self._wasted = None  # the first trial whose actor was stopped as it paused
        self._shapes: Set[str] = set()
        self._num_idle = 0
        self._is_on = True

    def driver_died(self, monitor) -> None:
        self._is_on = False

    def on_failure(self, monitor, ref) -> None:
        self._is_on = False

    def on_act(self, monitor) -> None:
        self._is_on = False

    def after_step(self, monitor, controller) -> None:
        if monitor.reuses_actors:
            self._num_idle = num_idle_actors(controller)

    def on_hook(self, monitor, hook, trial) -> None:
        if monitor.reuses_actors and hook == "on_trial_add":
            self._shapes.add(str(trial.placement_group_factory))

    def on_status(self, monitor, trial, before, status) -> None:
        if not monitor.reuses_actors:
            return
        self._shapes.add(str(trial.placement_group_factory))
        if (
            status == Trial.PAUSED
            and self._stopped.get(trial.trial_id) == monitor.number
            and self._wasted is None
            and not self._num_idle
        ):
            self._wasted = trial.trial_id

    def on_submit(self, monitor, ref, view) -> None:
        if not self._is_on or not monitor.reuses_actors or monitor.faults_fired:
            return
        if ref.method == "stop":
            self._stopped[ref.trial_id] = monitor.number
        elif (
            ref.method == "start"
            and self._wasted is not None
            and len(self._shapes) == 1
        ):
            monitor.broken(
                "actor-wasted",
                f"an actor is started, although that of {self._wasted} was stopped "
                f"when it paused, and actors are reused",
                ref.trial_id,
            )


INVARIANTS = (Slots, FailureIsItsOwn, ActorsAreKept)
