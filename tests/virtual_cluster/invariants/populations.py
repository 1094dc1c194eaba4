"""Populations: PBT and PB2 stay in their space, end, and are replayed as logged."""

import json
import os
from typing import Any, Dict

from .private import base_of, explored_space, logs_policy, replayed_policy
from ray.tune.experiment import Trial
from ray.tune.schedulers import PopulationBasedTraining, PopulationBasedTrainingReplay
from ray.tune.search.sample import Categorical, Float, Integer, Quantized
from ray.tune.utils.util import SafeFallbackEncoder


class WithinSpace:
    """An exploit's config stays within the space that the user gave.

    Nothing is said of functions, whose values are unknown.
    """

    RULES = {
        "outside-space": "An exploit stays within the space.",
    }

    @staticmethod
    def applies(scheduler) -> bool:
        return isinstance(base_of(scheduler), PopulationBasedTraining)

    def on_first_train(self, monitor, ref, view) -> None:
        trial = view.trial
        if "@perturbed" not in (trial.experiment_tag or ""):
            return  # The config is what the searcher gave.
        space, is_bounds = explored_space(base_of(monitor.scheduler))
        outside = what_is_outside(trial.config, space, is_bounds)
        if outside:
            monitor.broken(
                "outside-space",
                f"an exploit has given the trial a config outside of the space: "
                f"{outside}",
                trial.trial_id,
            )


def what_is_outside(config: Dict, space: Dict, is_bounds: bool) -> str:
    for key, domain in space.items():
        if key not in config:
            return f"{key} is missing"
        value = config[key]
        if isinstance(domain, dict):
            found = what_is_outside(value, domain, is_bounds)
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

    RULES = {
        "unbounded": "The work of a population is bounded.",
    }

    @staticmethod
    def applies(scheduler) -> bool:
        return isinstance(base_of(scheduler), PopulationBasedTraining)

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


class FollowsPolicy:
    """A replay trains each iteration with the config that its policy says.

    A change is made after the first result at or past its step. Nothing is said where
    results come in buffers, where a trial goes on from behind its last result, and of
    functions that do not checkpoint with each result.
    """

    RULES = {
        "policy": "A replay trains with what its policy says.",
    }

    @staticmethod
    def applies(scheduler) -> bool:
        return isinstance(scheduler, PopulationBasedTrainingReplay)

    def __init__(self):
        self._last = 0

    def on_result(self, monitor, trial, result) -> None:
        scheduler = monitor.scheduler
        iteration = result.get("training_iteration", 0)
        is_next = iteration == self._last + 1
        self._last = iteration
        if not is_next or monitor.buffer_length != 1:
            return
        trainable = monitor.runtime.trainables[trial.trainable_name]
        if trainable.checkpoint_every != 1:
            return
        config = scheduler.config
        for step, changed in replayed_policy(scheduler):
            if step < iteration:
                config = changed
        if result["config"].get("x") != config.get("x"):
            monitor.broken(
                "policy",
                f"iteration {iteration} was trained with {result['config']}, where the "
                f"policy says {config}",
                trial.trial_id,
            )


class PolicyIsLogged:
    """The policy that a population logs for a trial ends with the trial's config."""

    RULES = {
        "policy-log": "A logged policy ends with the trial's config.",
    }

    @staticmethod
    def applies(scheduler) -> bool:
        return isinstance(base_of(scheduler), PopulationBasedTraining)

    def __init__(self):
        self._has_died = False

    def driver_died(self, monitor) -> None:
        self._has_died = True  # What it had not synced is lost.

    def at_end(self, monitor, controller) -> None:
        if self._has_died or not logs_policy(base_of(monitor.scheduler)):
            return
        for trial in controller.get_trials():
            if "@perturbed" not in (trial.experiment_tag or ""):
                continue
            path = os.path.join(
                trial.local_experiment_path, f"pbt_policy_{trial.trial_id}.txt"
            )
            last = replayed_policy(PopulationBasedTrainingReplay(path))[-1][1]
            if last != json.loads(json.dumps(trial.config, cls=SafeFallbackEncoder)):
                monitor.broken(
                    "policy-log",
                    f"the policy of the trial ends with {last}, but its config is "
                    f"{trial.config}",
                    trial.trial_id,
                )


INVARIANTS = (WithinSpace, Bounded, FollowsPolicy, PolicyIsLogged)
