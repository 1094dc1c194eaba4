"""What schedulers, searchers and users are told of.

It is judged when a run has ended: one that hangs, or crashes, has broken something else
first.
"""

import sys
from typing import Any, Dict, List, Set

from ..core.observe import ENDS, TellsMonitor
from .private import model_of, searcher
from ray.tune.experiment import Trial


class EveryoneIsTold:
    """Scheduler and searcher are told of the end of each trial, with its last result.

    Of searchers only those of this package say what they were told.
    """

    RULES = {
        "last-result-open": "The last result of a stopped trial is marked done.",
        "scheduler-not-told": "The scheduler is told of the end of each trial.",
        "searcher-not-told": "The searcher is told of the end of each trial, once.",
    }

    def __init__(self):
        self._failed: Set[str] = set()  # before the driver died
        self._forget()

    def _forget(self):
        self._ends: Dict[str, List[str]] = {}
        self._errors: Set[str] = set()
        self._ended: Set[str] = set()
        self._cut: Set[str] = set()  # those that were stopped while paused
        self._searched: Dict[str, List] = {}

    def driver_died(self, monitor) -> None:
        self._failed |= self._errors
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
        found, is_limited = searcher(controller)
        if not isinstance(found, TellsMonitor):
            return
        if is_limited and trial_id in self._failed:
            # It had completed, and a limiter does not know it when it is tried again.
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


class SearcherIsToldOfPauses:
    """The searcher is told of each pause, and has the result to learn from.

    Of searchers only those of this package say what they were told. What others have
    learned is looked up in what their library keeps.
    """

    RULES = {
        "pause-not-told": "The searcher is told of each pause, with the last result.",
        "learned-wrongly": "A model has each trial once, with its last result.",
    }

    def __init__(self):
        self._paused: List[Trial] = []  # in this step
        self._told: Dict[str, List] = {}

    def driver_died(self, monitor) -> None:
        self.__init__()

    def on_status(self, monitor, trial, before, status) -> None:
        if status == Trial.PAUSED:
            self._paused.append(trial)

    def on_searcher_pause(self, monitor, trial_id, result) -> None:
        self._told.setdefault(trial_id, []).append(result)

    def after_step(self, monitor, controller) -> None:
        paused, self._paused = self._paused, []
        told, self._told = self._told, {}
        paused = [trial for trial in paused if trial.status == Trial.PAUSED]
        if not paused and not told:
            return
        found, _ = searcher(controller)
        if isinstance(found, TellsMonitor):
            for trial in paused:
                self._judge(monitor, trial, told.get(trial.trial_id, []))
        self._judge_model(monitor, found, paused)

    def at_end(self, monitor, controller) -> None:
        found, _ = searcher(controller)
        trials = controller.get_trials()
        ended = [trial for trial in trials if trial.status == Trial.TERMINATED]
        self._judge_model(monitor, found, ended)

    def _judge(self, monitor, trial, told) -> None:
        last = trial.last_result if trial.has_reported_at_least_once else {}
        keys = ("training_iteration", "score")
        wanted = [last.get(key) for key in keys]
        given = [[(result or {}).get(key) for key in keys] for result in told]
        if repr(given) != repr([wanted]):  # NaN is not equal to itself
            monitor.broken(
                "pause-not-told",
                f"the trial has paused with {keys}={wanted}, and the searcher was told "
                f"{given}",
                trial.trial_id,
            )

    def _judge_model(self, monitor, found, trials) -> None:
        model = model_of(found) if trials else None
        if model is None:
            return
        for trial in trials:
            score = trial.last_result.get("score")
            if not _is_finite(score):
                continue
            learned = model.get(trial.config["x"], [])
            if learned != [score]:
                monitor.broken(
                    "learned-wrongly",
                    f"the trial is {trial.status} with a score of {score}, and the "
                    f"model has {learned} of it",
                    trial.trial_id,
                )


def _is_finite(value: Any) -> bool:
    # An integer that no float holds would raise an error in ``math.isfinite``.
    return isinstance(value, (int, float)) and abs(value) <= sys.float_info.max


class PauseWithoutCheckpointIsSaid:
    """That a paused trial has no checkpoint to go on from is said once."""

    RULES = {
        "pause-unsaid": "That a paused trial has no checkpoint is said once.",
    }

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
        if "has never reported a checkpoint" in message or "STARTS OVER" in message:
            self._said.append(message)

    def at_end(self, monitor, controller) -> None:
        if len(self._said) > 1 or self._paused and not self._said:
            monitor.broken(
                "pause-unsaid",
                f"{len(self._paused)} trials were paused that have no checkpoint, and "
                f"that was said {len(self._said)} times",
                self._paused[0] if self._paused else None,
            )


INVARIANTS = (EveryoneIsTold, SearcherIsToldOfPauses, PauseWithoutCheckpointIsSaid)
