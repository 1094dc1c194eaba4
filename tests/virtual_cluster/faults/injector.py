"""Lets faults of the cluster happen, and what somebody outside does to the run."""

import contextlib
from typing import Dict, List, Optional

from ..core.settings import Faults
from ..workloads.schedulers import Act
from .plan import Fault, FaultPlan


class FaultInjector:
    """Lets happen to a cluster what is due after so many events.

    Faults of single tasks are not among it: the runtime asks the plan for those.

    Args:
        cluster: The cluster.
        faults: What goes wrong.
    """

    def __init__(self, cluster, faults: Faults):
        self._cluster = cluster
        self.plan = FaultPlan(faults.faults)
        self._outside: Dict[int, List[Act]] = {}
        for act in faults.outside:
            self._outside.setdefault(act.nth, []).append(act)
        self._last_planned = max([self.plan.last_event, *self._outside])
        self.pending_nodes: List = []  # (when, node) of those that come back
        self._storage_full_until: Optional[int] = None
        self._num_seen = 0

    def apply_due(self) -> None:
        """Let happen what is due after the events so far."""
        while (
            self.pending_nodes and self.pending_nodes[0][0] <= self._cluster.clock.now
        ):
            _, node = self.pending_nodes.pop(0)
            node.up = True
            self._cluster.monitor.log("node_back", None, f"node {node.number}")
            self._cluster.resource_manager.resources_changed()
        number = self._cluster.monitor.number
        if self._storage_full_until is not None and number >= self._storage_full_until:
            self._storage_full_until = None
            self._set_storage_full(False)
        for count in range(self._num_seen, min(number, self._last_planned) + 1):
            if count in self.plan.snapshots:
                self._cluster.controller.checkpoint(force=True, wait=True)
            for fault in self.plan.for_event(count):
                self._apply(fault)
            for act in self._outside.get(count, ()):
                self._act(act)
        self._num_seen = number + 1

    def _apply(self, fault: Fault) -> None:
        self._cluster.monitor.log("fault", None, repr(fault))
        self._cluster.monitor.faults_fired.append(fault)
        if fault.kind == "node_loss":
            node = self._cluster.nodes[fault.node % len(self._cluster.nodes)]
            if node.up:
                self._cluster.runtime.lose_node(fault.node)
                if fault.duration:
                    self.pending_nodes.append(
                        (self._cluster.clock.now + fault.duration, node)
                    )
                    self.pending_nodes.sort(key=lambda item: item[0])
        elif fault.kind == "storage_full":
            self._storage_full_until = self._cluster.monitor.number + int(
                fault.duration
            )
            self._set_storage_full(True)
        elif fault.kind == "driver_death":
            self._cluster.restart(moved=fault.moved)

    def _act(self, act: Act) -> None:
        trials = {
            self._cluster.runtime.trial_numbers[trial.trial_id]: trial
            for trial in self._cluster.controller.get_trials()
        }
        trial = trials.get(act.target)
        if trial is None:
            return
        if act.what == "stop_trial":
            self._cluster.controller.stop_trial(trial)
        else:
            self._cluster.controller.pause_trial(
                trial, should_checkpoint=act.what == "pause_trial"
            )

    def _set_storage_full(self, full: bool) -> None:
        self._cluster.runtime.storage_full = full
        self._cluster.controller._storage.syncer.full = full

    def hook_failed(self, exc: Exception, hook: str) -> None:
        """The run has ended with what a hook raised: is it named, and is all there?

        Args:
            exc: The error that ended the run.
            hook: The name of the hook that was hit.
        """
        self._cluster.monitor.tell("on_hook_failed", exc, hook)
        last = {
            trial.trial_id: (trial.last_result or {}).get("training_iteration", 0)
            for trial in self._cluster.controller.get_trials()
        }
        with contextlib.suppress(Exception):
            self._cluster.controller.cleanup()
        try:
            self._cluster.restart(last=last)
        except ValueError as error:  # Nothing of it was stored.
            self._cluster.monitor.broken(
                "result-lost", f"the run cannot be restored: {error}"
            )
