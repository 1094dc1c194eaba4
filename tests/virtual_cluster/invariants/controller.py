"""What the controller owes to schedulers, searchers, loggers, and to the trials.

Some of it is judged when a run has ended: an experiment that hangs, or crashes, has
broken something else first.
"""

import json
import os
from typing import Dict, List, Set

from ..core.observe import ENDS
from ray.tune.experiment import Trial
from ray.tune.logger import JsonLoggerCallback
from ray.tune.result import RESULT_DUPLICATE


class EveryoneIsTold:
    """Scheduler and searcher are told of the end of each trial, with its last result.

    Of searchers only those of this package say what they were told.
    """

    def __init__(self):
        self._forget()

    def _forget(self):
        self._ends: Dict[str, List[str]] = {}
        self._errors: Set[str] = set()
        self._ended: Set[str] = set()
        self._cut: Set[str] = set()  # those that were stopped while paused
        self._searched: Dict[str, List] = {}

    def driver_died(self, monitor) -> None:
        self._forget()

    def on_hook(self, monitor, hook, trial) -> None:
        if hook in ENDS:
            self._ends.setdefault(trial.trial_id, []).append(hook)
        elif hook == "on_trial_error":
            self._errors.add(trial.trial_id)

    def on_status(self, monitor, trial, before, status) -> None:
        if before == Trial.ERROR:
            self._errors.discard(trial.trial_id)  # It is retried.
        if trial.is_finished():
            self._ended.add(trial.trial_id)
            if before == Trial.PAUSED and status == Trial.TERMINATED:
                self._cut.add(trial.trial_id)
        else:
            self._ended.discard(trial.trial_id)

    def on_searcher_complete(self, monitor, trial_id, result, error) -> None:
        self._searched.setdefault(trial_id, []).append((result, error))

    def at_end(self, monitor, controller) -> None:
        for trial in controller.get_trials():
            if trial.trial_id in self._ended:
                self._judge(monitor, controller, trial)

    def _judge(self, monitor, controller, trial) -> None:
        trial_id = trial.trial_id
        ends = self._ends.get(trial_id, [])
        failed = trial.status == Trial.ERROR
        if failed and trial_id not in self._errors or not failed and len(ends) != 1:
            monitor.broken(
                "scheduler-not-told",
                f"the trial is {trial.status}, and the scheduler was told of that by "
                f"{', '.join(ends) or 'nothing'}",
                trial_id,
            )
        was_cut = trial_id in self._cut and trial.has_reported_at_least_once
        if was_cut and not trial.last_result.get("done"):
            monitor.broken(
                "last-result-open",
                "the trial was stopped while it was paused, and its last result is not "
                "marked as done",
                trial_id,
            )
        searcher = getattr(controller.search_alg, "searcher", None)
        if not hasattr(searcher, "tells_monitor"):
            return
        told = self._searched.get(trial_id, [])
        if len(told) != 1:
            monitor.broken(
                "searcher-not-told",
                f"the trial is {trial.status}, and the searcher was told of its end "
                f"{len(told)} times",
                trial_id,
            )
        elif was_cut and not told[0][0]:
            monitor.broken(
                "searcher-not-told",
                "the trial was stopped while it was paused, and the searcher was not "
                "given the result that it had reported",
                trial_id,
            )


class LogIsComplete:
    """What was handled is in the log on disk, once and in order."""

    def __init__(self):
        self._is_on = True

    def driver_died(self, monitor) -> None:
        # Another driver may have no log but what was synced.
        self._is_on = False

    def at_end(self, monitor, controller) -> None:
        callbacks = getattr(controller._callbacks, "_callbacks", ())
        if not self._is_on or not any(
            isinstance(callback, JsonLoggerCallback) for callback in callbacks
        ):
            return
        for trial in controller.get_trials():
            handled = [
                result.get("training_iteration")
                for result in monitor.results.get(trial.trial_id, ())
                if RESULT_DUPLICATE not in result
            ]
            if not handled:
                continue
            logged = _logged(os.path.join(trial.local_path, "result.json"))
            if logged != handled:
                monitor.broken(
                    "log-incomplete",
                    f"the results of iterations {handled} were handled, and those of "
                    f"{logged} are in the log",
                    trial.trial_id,
                )


def _logged(path: str) -> List[int]:
    if not os.path.exists(path):
        return []
    with open(path) as file:
        return [json.loads(line).get("training_iteration") for line in file]


class BracketIsKept:
    """A trial stays in its bracket of ASHA, also when it is retried or restored."""

    def __init__(self):
        self._brackets: Dict[str, int] = {}

    def driver_died(self, monitor) -> None:
        for trial_id in set(self._brackets) - monitor.stored:
            del self._brackets[trial_id]

    def on_status(self, monitor, trial, before, status) -> None:
        if trial.is_finished():
            return
        scheduler = monitor.scheduler
        known = getattr(scheduler, "_trial_info", None)
        brackets = getattr(scheduler, "_brackets", None)
        if not isinstance(known, dict) or not isinstance(brackets, list):
            return
        bracket = known.get(trial.trial_id)
        if bracket is None or bracket not in brackets:
            return
        index = brackets.index(bracket)
        if self._brackets.setdefault(trial.trial_id, index) != index:
            monitor.broken(
                "bracket-changed",
                f"the trial was in bracket {self._brackets[trial.trial_id]}, and is in "
                f"bracket {index} now",
                trial.trial_id,
            )


class FailureIsItsOwn:
    """A trial does not fail because of an actor that had died before it got it."""

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

    def on_submit(self, monitor, ref) -> None:
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


class PauseWithoutCheckpointIsSaid:
    """That a paused trial has no checkpoint to go on from is said once.

    ``ASHAv2`` says so itself.
    """

    def __init__(self):
        self._paused: List[str] = []
        self._decided: Set[str] = set()
        self._said: List[str] = []

    def driver_died(self, monitor) -> None:
        self.__init__()

    def on_decision(self, monitor, trial, result, decision) -> None:
        if decision == "PAUSE":
            self._decided.add(trial.trial_id)

    def on_status(self, monitor, trial, before, status) -> None:
        decided = trial.trial_id in self._decided
        self._decided.discard(trial.trial_id)
        if not decided or before != Trial.RUNNING or status != Trial.PAUSED:
            return
        if trial.has_reported_at_least_once and not trial.has_checkpoint():
            self._paused.append(trial.trial_id)

    def on_act(self, monitor) -> None:
        self._decided.clear()

    def on_warning(self, monitor, message) -> None:
        if "paused" in message and "has never reported a checkpoint" in message:
            self._said.append(message)

    def at_end(self, monitor, controller) -> None:
        if type(monitor.scheduler).__name__ == "ASHAv2":
            return
        if len(self._said) > 1 or self._paused and not self._said:
            monitor.broken(
                "pause-unsaid",
                f"{len(self._paused)} trials were paused that have no checkpoint, and "
                f"that was said {len(self._said)} times",
                self._paused[0] if self._paused else None,
            )


class SavesAreNotWaitedFor:
    """The driver does nothing else while it waits for the save of one trial."""

    def __init__(self):
        self._waited = None

    def on_wait(self, monitor, ref, seconds) -> None:
        if ref.method == "save" and self._waited is None:
            self._waited = ref.trial_id, seconds

    def at_end(self, monitor, controller) -> None:
        if self._waited is not None:
            trial_id, seconds = self._waited
            monitor.broken(
                "driver-waits",
                f"the driver waited for {seconds:.1f} s for a save, while no other "
                f"event was handled",
                trial_id,
            )


class ActorsAreKept:
    """With reuse, no actor is started where that of a paused trial was stopped.

    Nothing is said where another one was idle already, which may have been enough by
    then, where something fails or is paused from outside, and where trials need
    different resources.
    """

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
            self._num_idle = controller._actor_cache.num_cached_objects

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

    def on_submit(self, monitor, ref) -> None:
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


def duties() -> List:
    """Make the checks of this module.

    Returns:
        A list of objects that have some of the hooks in ``invariants.HOOKS``.
    """
    return [
        EveryoneIsTold(),
        LogIsComplete(),
        BracketIsKept(),
        FailureIsItsOwn(),
        PauseWithoutCheckpointIsSaid(),
        SavesAreNotWaitedFor(),
        ActorsAreKept(),
    ]
