"""Schedulers of populations, by what can be written in a scenario: PBT, PB2, replay."""

import functools
import json
import os
import random
import tempfile
from typing import Any, Dict, Sequence, Tuple
from unittest import mock

import numpy as np

from ray import tune
from ray.tune import schedulers

# What is explored. Trials come with an ``x``, and with nothing else.
SPACES: Dict[str, Dict[str, Any]] = {
    "x": {"x": tune.uniform(0, 1)},
    "listed": {
        "x": [0.1, 0.3, 0.5, 0.7, 0.9],
        "layers": (1, 2, 4),
        "kind": tune.choice(["a", "b"]),
    },
    "numbers": {
        "x": tune.quniform(0, 1, 0.25),
        "size": tune.randint(1, 9),
        "even": tune.qrandint(2, 8, 2),
        "lr": tune.loguniform(1e-4, 1e-1),
    },
    "drawn": {
        "x": lambda: random.uniform(0, 1),
        "size": lambda: random.randint(1, 8),
    },
    "nested": {
        "x": tune.uniform(0, 1),
        "net": {
            "act": ["relu", "tanh"],
            "lr": tune.loguniform(1e-4, 1e-1),
            "opt": {"beta": tune.uniform(0.8, 1)},
        },
    },
}
BOUNDS: Dict[str, Dict[str, Any]] = {
    "x": {"x": [0.0, 1.0]},
    "two": {"x": [0.0, 1.0], "lr": (1e-4, 1e-1)},
    "narrow": {"x": [0.0, 1.0], "lr": [0.1, 0.3], "size": [2, 2]},
    "nested": {"x": [0.0, 1.0], "net": {"lr": [1e-4, 1e-1]}},
}


def population(space: str = "x", **kwargs) -> schedulers.PopulationBasedTraining:
    """Make a ``PopulationBasedTraining``.

    Args:
        space: The name of what it explores, in ``SPACES``.
        **kwargs: Its arguments.

    Returns:
        The scheduler.
    """
    return schedulers.PopulationBasedTraining(
        hyperparam_mutations=SPACES[space], **{"log_config": False, **kwargs}
    )


def bandits(
    space: str = "x", fit: bool = False, **kwargs
) -> schedulers.PopulationBasedTraining:
    """Make a ``PB2``.

    Args:
        space: The name of its bounds, in ``BOUNDS``.
        fit: Whether it fits its model and looks for the point that is best by it, which
            takes tenths of a second. Otherwise it takes any, often one in a corner.
        **kwargs: Its arguments.

    Returns:
        The scheduler.
    """
    return _bandits_class(fit)(
        hyperparam_bounds=BOUNDS[space], **{"log_config": False, **kwargs}
    )


@functools.cache
def _bandits_class(fit: bool) -> type:
    from ray.tune.schedulers import pb2

    class Bandits(pb2.PB2):
        def _get_new_config(self, trial, trial_to_clone):
            if fit:
                return super()._get_new_config(trial, trial_to_clone)
            with mock.patch.object(pb2, "_select_config", _any_point):
                return super()._get_new_config(trial, trial_to_clone)

    return Bandits


def _any_point(Xraw, yraw, current, newpoint, bounds, num_f):
    low, high = np.array(list(bounds.values())).T
    point = np.clip(np.random.uniform(-0.5, 1.5, len(bounds)), 0, 1)
    return (low + point * (high - low)).astype(np.float32)


def replay(
    changes: Sequence[Tuple[int, float]] = ((2, 0.2),), before: float = 0.9
) -> schedulers.PopulationBasedTrainingReplay:
    """Make a ``PopulationBasedTrainingReplay`` of a policy that changes ``x``.

    Args:
        changes: After which iteration ``x`` becomes what.
        before: What ``x`` is in the beginning.

    Returns:
        The scheduler.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "pbt_policy_0.txt")
        with open(path, "w") as file:
            for number, (step, x) in enumerate(changes):
                # Each one cloned the trial of the line before.
                tags = [f"{number + 1}_tag", f"{number}_tag"]
                row = [*tags, step, step, {"x": before}, {"x": x}]
                file.write(json.dumps(row) + "\n")
                before = x
        return schedulers.PopulationBasedTrainingReplay(path)


def marked(config: Dict) -> Dict:
    """Count, in a config, how often it was explored; a ``custom_explore_fn``.

    Args:
        config: The config.

    Returns:
        The new config.
    """
    return {**config, "explored": config.get("explored", 0) + 1}
