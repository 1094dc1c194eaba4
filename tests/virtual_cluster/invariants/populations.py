"""Invariants of populations, and of resources that change."""

import json
import os
from typing import Any, Dict, List, Set

from ray.tune.execution.placement_groups import resource_dict_to_pg_factory
from ray.tune.experiment import Trial
from ray.tune.schedulers import (
    PopulationBasedTraining,
    PopulationBasedTrainingReplay,
    TrialScheduler,
)
from ray.tune.search.sample import Categorical, Float, Integer, Quantized
from ray.tune.utils.util import SafeFallbackEncoder


def _base(scheduler):
    return getattr(scheduler, "_base_scheduler", scheduler)


class WithinSpace:
    """An exploit's config stays within the space that the user gave.

    Nothing is said of functions, whose values are unknown.
    """

    def on_first_train(self, monitor, trial, actor) -> None:
        if "@perturbed" not in (trial.experiment_tag or ""):
            return  # The config is what the searcher gave.
        scheduler = _base(monitor.scheduler)
        bounds = getattr(scheduler, "_hyperparam_bounds", None)
        space = bounds or scheduler._hyperparam_mutations
        outside = _outside(trial.config, space, bounds is not None)
        if outside:
            monitor.broken(
                "outside-space",
                f"an exploit has given the trial a config outside of the space: "
                f"{outside}",
                trial.trial_id,
            )


def _outside(config: Dict, space: Dict, is_bounds: bool) -> str:
    for key, domain in space.items():
        if key not in config:
            return f"{key} is missing"
        value = config[key]
        if isinstance(domain, dict):
            found = _outside(value, domain, is_bounds)
            if found:
                return f"{key}/{found}"
        elif is_bounds:
            if not domain[0] <= value <= domain[1]:
                return f"{key}={value!r}"
        elif not _contains(domain, value):
            return f"{key}={value!r}"
    return ""


def _contains(domain: Any, value: Any) -> bool:
    if isinstance(domain, Categorical):
        return value in domain.categories
    if isinstance(domain, (list, tuple)):
        return value in domain
    if not isinstance(domain, (Float, Integer)):
        return True
    sampler = domain.get_sampler()
    quantized = isinstance(sampler, Quantized)
    if isinstance(domain, Integer) and (not quantized or sampler.q == 1):
        if value != int(value) or value == domain.upper:
            return False
    if quantized:
        steps = value / sampler.q
        if abs(steps - round(steps)) > 1e-6:
            return False
    return domain.lower <= value <= domain.upper


class Bounded:
    """The work of a population is bounded.

    An exploit may set a trial back, so that it trains some iterations again; a failure
    and a restore may, too. But nobody is trained for ever while others wait.
    """

    def __init__(self):
        self._counts: Dict[str, int] = {}
        self._failures: Dict[str, int] = {}
        self._restores = 0

    def driver_died(self, monitor) -> None:
        self._restores += 1

    def on_status(self, monitor, trial, before, status) -> None:
        if status == Trial.ERROR:
            trial_id = trial.trial_id
            self._failures[trial_id] = self._failures.get(trial_id, 0) + 1

    def on_result(self, monitor, trial, result) -> None:
        due = (trial.stopping_criterion or {}).get("training_iteration")
        if due is None:
            return
        trial_id = trial.trial_id
        count = self._counts[trial_id] = self._counts.get(trial_id, 0) + 1
        times = 1 + self._restores + self._failures.get(trial_id, 0)
        if count > 2 * (due + 1) * times:
            monitor.broken(
                "unbounded",
                f"the trial was trained {count} iterations, of which {due} were due",
                trial_id,
            )


class CheckpointsThere:
    """The checkpoint that a trial is about to load exists.

    After a restore, a snapshot may name one that was deleted since.
    """

    def __init__(self):
        self._gone: Set[str] = set()
        self._restored = False

    def driver_died(self, monitor) -> None:
        self._restored = True

    def after_step(self, monitor, controller) -> None:
        if self._restored:
            self._restored = False
            for trial in controller.get_trials():
                checkpoint = trial.checkpoint
                if checkpoint and not os.path.exists(checkpoint.path):
                    self._gone.add(checkpoint.path)

    def on_submit(self, monitor, ref) -> None:
        if ref.method == "restore":
            self._judge(monitor, ref)

    def on_failure(self, monitor, ref) -> None:
        if ref.method == "restore":
            self._judge(monitor, ref)

    def _judge(self, monitor, ref) -> None:
        checkpoint = ref.args[0].checkpoint
        if checkpoint is None:
            return
        path = checkpoint.path
        if path not in self._gone and not self._restored and not os.path.exists(path):
            monitor.broken(
                "checkpoint-gone",
                "the checkpoint that the trial is about to load was deleted: "
                + "/".join(path.split("/")[-2:]),
                ref.trial_id,
            )


class NoHoldLeft:
    """At the end nobody holds a checkpoint any more."""

    def at_end(self, monitor, controller) -> None:
        for trial in controller.get_trials():
            state = trial.temporary_state
            if getattr(state, "checkpoint_holds", None):
                monitor.broken(
                    "hold-left", "a checkpoint of it is still held", trial.trial_id
                )
            if getattr(state, "checkpoint_owner", None) is not None:
                monitor.broken(
                    "hold-left", "it still holds a checkpoint", trial.trial_id
                )


class OwnConfig:
    """A trial is trained with the config that it has."""

    def on_first_train(self, monitor, trial, actor) -> None:
        if actor.config != trial.config:
            monitor.broken(
                "stale-config",
                f"the trial has the config {trial.config}, but it is trained with "
                f"{actor.config}",
                trial.trial_id,
            )


class FollowsPolicy:
    """A replay trains each iteration with the config that its policy says.

    A change is made after the first result at or past its step. Nothing is said where
    results come in buffers, where a trial goes on from behind its last result, and of
    functions that do not checkpoint with each result.
    """

    def __init__(self):
        self._last = 0

    def on_result(self, monitor, trial, result) -> None:
        scheduler = monitor.scheduler
        iteration = result.get("training_iteration", 0)
        is_next = iteration == self._last + 1
        self._last = iteration
        if not is_next or os.environ.get("TUNE_RESULT_BUFFER_LENGTH", "1") != "1":
            return
        trainable = monitor.runtime.trainables[trial.trainable_name]
        if getattr(trainable, "checkpoint_every", 1) != 1:
            return
        config = scheduler.config
        for step, changed in scheduler._policy:
            if step < iteration:
                config = changed
        if result["config"].get("x") != config.get("x"):
            monitor.broken(
                "policy",
                f"iteration {iteration} was trained with {result['config']}, where the "
                f"policy says {config}",
                trial.trial_id,
            )


class Reallocations:
    """A reallocation that is due is carried out, and does not starve the trial.

    A trial that pauses for it starts again with what it is due, and before the others
    have had two turns each.
    """

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
            resuming = getattr(monitor.scheduler, "is_resuming", None)
            if resuming is None or resuming(trial):
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


class PolicyIsLogged:
    """The policy that a population logs for a trial ends with the trial's config."""

    def __init__(self):
        self._off = False

    def driver_died(self, monitor) -> None:
        self._off = True  # What the driver had not synced is lost.

    def at_end(self, monitor, controller) -> None:
        scheduler = _base(monitor.scheduler)
        if self._off or not getattr(scheduler, "_log_config", False):
            return
        for trial in controller.get_trials():
            if "@perturbed" not in (trial.experiment_tag or ""):
                continue
            path = os.path.join(
                trial.local_experiment_path, f"pbt_policy_{trial.trial_id}.txt"
            )
            last = PopulationBasedTrainingReplay(path)._policy[-1][1]
            if last != json.loads(json.dumps(trial.config, cls=SafeFallbackEncoder)):
                monitor.broken(
                    "policy-log",
                    f"the policy of the trial ends with {last}, but its config is "
                    f"{trial.config}",
                    trial.trial_id,
                )


def population_checks(scheduler: TrialScheduler) -> List:
    """Make the invariants of populations, and of resources that change.

    Args:
        scheduler: The scheduler that is used.

    Returns:
        A list of objects that have some of the hooks in ``invariants.HOOKS``.
    """
    found = [CheckpointsThere(), NoHoldLeft(), OwnConfig()]
    if isinstance(_base(scheduler), PopulationBasedTraining):
        found += [WithinSpace(), Bounded(), PolicyIsLogged()]
    if isinstance(scheduler, PopulationBasedTrainingReplay):
        found.append(FollowsPolicy())
    if hasattr(scheduler, "due"):
        found.append(Reallocations())
    return found
