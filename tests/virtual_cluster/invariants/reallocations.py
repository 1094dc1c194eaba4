"""Resources that change: a reallocation is carried out, and starves nobody."""

from typing import Dict

from ..workloads.reallocations import Reallocating
from .private import is_resuming
from ray.tune.execution.placement_groups import resource_dict_to_pg_factory
from ray.tune.experiment import Trial


class Reallocations:
    """A reallocation that is due is carried out, and does not starve the trial.

    A trial that pauses for it starts again with what it is due, and before the others
    have had two turns each.
    """

    RULES = {
        "reallocation-lost": "A reallocation that is due is carried out.",
        "starved": "A trial that pauses for it does not starve.",
    }

    @staticmethod
    def applies(scheduler) -> bool:
        return isinstance(scheduler, Reallocating)

    def __init__(self):
        self._waits: Dict[str, int] = {}

    def driver_died(self, monitor) -> None:
        self._waits.clear()

    def on_decision(self, monitor, trial, result, decision) -> None:
        due = monitor.scheduler.due
        if decision not in ("CONTINUE", "PAUSE"):
            due.pop(trial.trial_id, None)
        elif due.get(trial.trial_id) and decision == "CONTINUE":
            monitor.broken(
                "reallocation-lost",
                "the trial goes on with what it has, although it is due something else",
                trial.trial_id,
            )

    def on_status(self, monitor, trial, before, status) -> None:
        due = monitor.scheduler.due
        trial_id = trial.trial_id
        if status == Trial.RUNNING:
            for other in self._waits:
                self._waits[other] += 1
        self._waits.pop(trial_id, None)
        if status == Trial.PAUSED and due.get(trial_id):
            if is_resuming(monitor.scheduler, trial):
                self._waits[trial_id] = 0
        elif status == Trial.ERROR:
            due.pop(trial_id, None)
        elif status == Trial.PENDING and before == Trial.PAUSED:
            wanted = _to_pg_factory(due.pop(trial_id, None))
            if wanted and trial.placement_group_factory != wanted:
                has = trial.placement_group_factory.bundles
                monitor.broken(
                    "reallocation-lost",
                    f"the trial starts with {has}, but it is due {wanted.bundles}",
                    trial_id,
                )

    def after_step(self, monitor, controller) -> None:
        if not self._waits:
            return
        for trial_id, turns in self._waits.items():
            if turns > 2 * len(controller.get_trials()):
                monitor.broken(
                    "starved",
                    f"the trial has paused to get other resources, and others had "
                    f"{turns} turns since",
                    trial_id,
                )


def _to_pg_factory(resources):
    if isinstance(resources, dict):
        return resource_dict_to_pg_factory(resources)
    return resources


INVARIANTS = (Reallocations,)
