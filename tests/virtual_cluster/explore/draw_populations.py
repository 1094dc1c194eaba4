"""Draws scenarios of populations: PBT and PB2 in both modes, and replay."""

import importlib.util
import random
from typing import Any, Callable, Dict

from ..faults import plan as faults_module
from ..workloads.populations import BOUNDS, SPACES
from .parts import checkpointing, common, draw_faults, trainable
from .scenarios import Scenario, Source

HAS_PB2 = importlib.util.find_spec("sklearn") is not None


def population_args(rng: random.Random, synch: bool) -> Dict[str, Any]:
    """Draw arguments that PBT and PB2 share.

    Args:
        rng: Where from.
        synch: Whether trials wait for each other.

    Returns:
        Keyword arguments.
    """
    args = {
        "time_attr": rng.choice(["training_iteration", "training_iteration", "t"]),
        "perturbation_interval": rng.choice([1, 2, 2, 3]),
        "quantile_fraction": rng.choice([0, 0.1, 0.25, 0.25, 0.34, 0.5, 0.5]),
        "require_attrs": False,
    }
    if synch:
        args["synch"] = True
    if rng.random() < 0.15:
        args["custom_explore_fn"] = Source("marked")
    if rng.random() < 0.15:
        args["log_config"] = True
    return args


def pbt_args(rng: random.Random, synch: bool) -> Dict[str, Any]:
    """Draw arguments of PBT.

    Args:
        rng: Where from.
        synch: Whether trials wait for each other.

    Returns:
        Keyword arguments of ``population``.
    """
    args = population_args(rng, synch)
    if rng.random() < 0.5:
        args["space"] = rng.choice(sorted(set(SPACES) - {"x"}))
    if rng.random() < 0.2:
        args["burn_in_period"] = rng.choice([1, 3, 5])
    if rng.random() < 0.3:
        args["resample_probability"] = rng.choice([0, 1])
    return args


def pb2_args(rng: random.Random, synch: bool) -> Dict[str, Any]:
    """Draw arguments of PB2.

    Args:
        rng: Where from.
        synch: Whether trials wait for each other.

    Returns:
        Keyword arguments of ``bandits``.
    """
    args = population_args(rng, synch)
    if rng.random() < 0.5:
        args["space"] = rng.choice(sorted(set(BOUNDS) - {"x"}))
    if rng.random() < 0.05:
        args["fit"] = True
    return args


def _finish(rng, scenario: Scenario, longest: int) -> Scenario:
    args = scenario.args
    step = 1
    if scenario.scheduler_args["time_attr"] == "t":
        step = rng.choice([1, 2, 3, 5])
    trainable(rng, scenario, step=step, nan=0.1, pauses_often=True)
    args["stop"] = {"training_iteration": rng.randint(3, longest)}
    checkpointing(rng, scenario)
    if rng.random() < 0.2:
        args["max_concurrent"] = rng.randint(1, 4)
    if rng.random() < 0.25:
        args["mode"] = "min"
    if rng.random() < 0.15:
        args["buffer_length"] = 3
        args["env"] = {"TUNE_RESULT_BUFFER_MIN_TIME_S": "3"}
    if rng.random() < 0.15:
        args["resources"] = Source("halves")
        args["slots"] = max(2, args["slots"])
    if rng.random() < 0.05:
        args["time_budget_s"] = rng.choice([3, 8])
    if rng.random() < 0.05:
        args["fail_fast"] = True
    draw_faults(rng, scenario, share=0.5)
    trials = args["num_samples"]
    if rng.random() < 0.3:
        # A donor, whoever that is, saves slowly, or dies of it.
        kind = rng.choice([faults_module.slow_task, faults_module.actor_death])
        scenario.faults.append(kind("save", rng.randrange(trials), rng.randint(1, 3)))
    return scenario


def draw_pbt(rng, synch=False):
    """Population based training.

    Args:
        rng: What it is drawn from.
        synch: Whether all wait for each other.

    Returns:
        The scenario.
    """
    scenario = Scenario("pbt-synch" if synch else "pbt", "population")
    scenario.scheduler_args = pbt_args(rng, synch)
    common(rng, scenario, max_trials=6)
    return _finish(rng, scenario, longest=8)


def draw_pbt_synch(rng):
    """Population based training in which all wait for each other.

    Args:
        rng: What it is drawn from.

    Returns:
        The scenario.
    """
    return draw_pbt(rng, synch=True)


def draw_pb2(rng, synch=False):
    """Population based bandits.

    Args:
        rng: What it is drawn from.
        synch: Whether all wait for each other.

    Returns:
        The scenario.
    """
    scenario = Scenario("pb2-synch" if synch else "pb2", "bandits")
    scenario.scheduler_args = pb2_args(rng, synch)
    common(rng, scenario, max_trials=5)
    # Each exploit fits a model and optimizes over it.
    return _finish(rng, scenario, longest=6)


def draw_pb2_synch(rng):
    """Population based bandits in which all wait for each other.

    Args:
        rng: What it is drawn from.

    Returns:
        The scenario.
    """
    return draw_pb2(rng, synch=True)


def draw_replay(rng):
    """The replay of a policy.

    Args:
        rng: What it is drawn from.

    Returns:
        The scenario.
    """
    scenario = Scenario("replay", "replay")
    common(rng, scenario, max_trials=2)
    args = scenario.args
    args["num_samples"] = 1
    args["param_space"] = {}
    longest = rng.randint(2, 9)
    # Before, at and after the last iteration, and one right after the other.
    steps = sorted(rng.sample(range(1, longest + 3), rng.randint(1, 3)))
    if rng.random() < 0.15:
        steps.insert(0, steps[0])
    changes = tuple((step, round(rng.random(), 2)) for step in steps)
    scenario.scheduler_args = {"changes": changes}
    trainable(rng, scenario, nan=0, ends=0.15)
    args["stop"] = {"training_iteration": longest}
    args["max_failures"] = rng.choice([0, 1, 3])
    checkpointing(rng, scenario)
    if rng.random() < 0.15:
        args["buffer_length"] = 3
        args["env"] = {"TUNE_RESULT_BUFFER_MIN_TIME_S": "3"}
    draw_faults(rng, scenario, share=0.7)
    return scenario


POPULATIONS: Dict[str, Callable[[random.Random], Scenario]] = {
    "pbt": draw_pbt,
    "pbt-synch": draw_pbt_synch,
    "replay": draw_replay,
}
if HAS_PB2:
    POPULATIONS["pb2"] = draw_pb2
    POPULATIONS["pb2-synch"] = draw_pb2_synch
