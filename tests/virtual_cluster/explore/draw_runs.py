"""Draws scenarios of how runs end, are restored, and are told of.

Each is built upon a scenario of another kind.
"""

import random
from typing import Callable, Dict

from ..faults import plan as faults
from ..workloads.schedulers import Act
from . import parts
from .draw_populations import POPULATIONS, draw_pbt, draw_pbt_synch
from .draw_schedulers import (
    SCHEDULERS,
    draw_asha,
    draw_fifo,
    draw_hyperband,
    draw_milestones,
    draw_planned,
)
from .scenarios import Scenario, Source

_HOOKS = (
    "on_trial_result",
    "on_trial_result",
    "on_trial_complete",
    "on_trial_remove",
    "on_trial_error",
    "choose_trial_to_run",
)


def _pausing(rng: random.Random) -> Scenario:
    kinds = [
        draw_hyperband,
        draw_milestones,
        draw_pbt,
        draw_pbt_synch,
        draw_planned,
    ]
    if "asha_v2" in SCHEDULERS:
        kinds.append(SCHEDULERS["asha_v2"])
    return rng.choice(kinds)(rng)


def _without(scenario: Scenario, *kinds: str) -> None:
    scenario.faults = [f for f in scenario.faults if f.kind not in kinds]


def draw_logged(rng: random.Random) -> Scenario:
    """Results are logged to disk, and the log is synced now and then.

    Args:
        rng: What it is drawn from.

    Returns:
        The scenario.
    """
    scenario = _pausing(rng)
    scenario.family = "logged"
    _without(scenario, "driver_death")
    scenario.args["callbacks"] = Source("loggers")
    scenario.args["checkpoint_period"] = rng.choice([1.0, 3.0])
    return scenario


def draw_hooks(rng: random.Random) -> Scenario:
    """A hook of the scheduler raises, and the experiment is restored.

    Args:
        rng: What it is drawn from.

    Returns:
        The scenario.
    """
    scenario = rng.choice([draw_fifo, draw_asha, _pausing])(rng)
    scenario.family = "hooks"
    _without(scenario, "storage_full")
    if scenario.scheduler == "MilestoneScheduler":
        scenario.scheduler = "FIFOScheduler"  # It can not be restored
        scenario.scheduler_args = {}
        scenario.args["stop"] = {"training_iteration": 3}
    scenario.faults.append(faults.hook_error(rng.choice(_HOOKS), rng.randint(1, 12)))
    return scenario


def draw_moved(rng: random.Random) -> Scenario:
    """The driver dies, and the experiment is moved before it is restored.

    Args:
        rng: What it is drawn from.

    Returns:
        The scenario.
    """
    kinds = [draw_pbt, draw_pbt, draw_hyperband]
    scenario = rng.choice([*kinds, draw_fifo])(rng)
    scenario.family = "moved"
    _without(scenario, "storage_full")
    after = rng.randint(5, 40)
    stale = rng.choice([0, 0, 3])
    scenario.faults.append(faults.driver_death(after, stale, moved=True))
    return scenario


def draw_choices(rng: random.Random) -> Scenario:
    """The scheduler chooses trials that run, save, or have ended.

    Args:
        rng: What it is drawn from.

    Returns:
        The scenario.
    """
    scenario = draw_planned(rng)
    scenario.family = "choices"
    trials = scenario.args["num_samples"]
    for _ in range(rng.randint(2, 8)):
        act = Act("choose", rng.randint(1, 25), "choose", rng.randrange(trials))
        scenario.scheduler_args["acts"].append(act)
    if rng.random() < 0.6:
        scenario.args["reuse_actors"] = True
    return scenario


def draw_stalls(rng: random.Random) -> Scenario:
    """The scheduler does not resume what it pauses.

    Args:
        rng: What it is drawn from.

    Returns:
        The scenario.
    """
    scenario = draw_planned(rng)
    scenario.family = "stalls"
    _without(scenario, "driver_death")
    scenario.scheduler_args.pop("choose_saving", None)
    scenario.scheduler_args["resumes"] = False
    scenario.args.update(may_stall=True, stall_timeout_s=rng.choice([20, 120]))
    return scenario


def draw_ended(rng: random.Random) -> Scenario:
    """The whole experiment is stopped early; then it is resumed.

    Args:
        rng: What it is drawn from.

    Returns:
        The scenario.
    """
    scenario = rng.choice([draw_fifo, _pausing])(rng)
    _without(scenario, "driver_death", "storage_full")
    how = rng.choice(["fail_fast", "fail_fast", "time_budget", "neither"])
    if how == "fail_fast":
        scenario.args["fail_fast"] = True
        trial, nth = rng.randrange(scenario.args["num_samples"]), rng.randint(1, 3)
        scenario.faults.append(faults.task_error("train", trial, nth))
    elif how == "time_budget":
        scenario.args["time_budget_s"] = rng.choice([2, 5, 9])
    if scenario.family not in POPULATIONS and rng.random() < 0.7:
        scenario.search_alg = scenario.search_alg or "RandomSearcher(seed=1)"
    scenario.family = "ended"
    if scenario.scheduler != "MilestoneScheduler":
        scenario.args["resume_after"] = rng.choice([0, 1, 1, 2])
    return scenario


def draw_idle(rng: random.Random) -> Scenario:
    """Actors are reused, and nodes are lost with those that are idle.

    Args:
        rng: What it is drawn from.

    Returns:
        The scenario.
    """
    scenario = _pausing(rng)
    scenario.family = "idle"
    _without(scenario, "driver_death")
    # Each node must have room for the largest trial.
    slots = 4 if "resources" in scenario.args else rng.randint(2, 4)
    scenario.args.update(reuse_actors=True, nodes=2, slots=slots)
    for _ in range(rng.randint(1, 3)):
        fault = faults.node_loss(rng.randint(3, 40), rng.randrange(2), 5.0)
        scenario.faults.append(fault)
    return scenario


def draw_buffers(rng: random.Random) -> Scenario:
    """Results arrive several at a time.

    Args:
        rng: What it is drawn from.

    Returns:
        The scenario.
    """
    scenario = rng.choice([draw_fifo, draw_asha, draw_pbt])(rng)
    scenario.family = "buffers"
    scenario.args["buffer_length"] = rng.choice([2, 3, 8])
    seconds = rng.choice([1, 2, 5])
    scenario.args["env"] = {
        "TUNE_RESULT_BUFFER_MIN_TIME_S": str(seconds),
        "TUNE_RESULT_BUFFER_MAX_TIME_S": str(seconds),
    }
    return scenario


def draw_brackets(rng: random.Random) -> Scenario:
    """Trials of several brackets fail, are retried and restored.

    Args:
        rng: What it is drawn from.

    Returns:
        The scenario.
    """
    scenario = draw_asha(rng)
    while scenario.scheduler != "ASHAScheduler":
        scenario = draw_asha(rng)
    scenario.family = "brackets"
    scenario.scheduler_args["brackets"] = rng.choice([2, 3])
    scenario.args["max_failures"] = rng.choice([1, 3])
    parts.draw_faults(rng, scenario, share=1.0)
    return scenario


def draw_median(rng: random.Random) -> Scenario:
    """``MedianStoppingRule`` with failures and restores.

    Args:
        rng: What it is drawn from.

    Returns:
        The scenario.
    """
    scenario = draw_asha(rng)
    while scenario.scheduler != "MedianStoppingRule":
        scenario = draw_asha(rng)
    scenario.family = "median"
    scenario.args["max_failures"] = rng.choice([1, 3])
    parts.draw_faults(rng, scenario, share=1.0)
    return scenario


def draw_searchers(rng: random.Random) -> Scenario:
    """Searchers with limits of their own, and wrappers, under pausing schedulers.

    Args:
        rng: What it is drawn from.

    Returns:
        The scenario.
    """
    scenario = _pausing(rng)
    while scenario.family in POPULATIONS:  # These take no searcher.
        scenario = _pausing(rng)
    scenario.family = "searchers"
    trials = scenario.args["num_samples"]
    limit = rng.randint(1, 4)
    repeat = rng.choice([2, 2, 3])
    kinds = {
        "own": f"RandomSearcher(seed=1, limit={limit})",
        "batch": f"HEBOStandIn(max_concurrent={limit})",
        "bohb": f"BOHBStandIn(max_concurrent={limit})",
        "repeated": f"Repeater(RandomSearcher(seed=1, limit={limit}), repeat={repeat})",
        "limited": f"ConcurrencyLimiter(RandomSearcher(seed=1), {limit}, "
        f"batch={rng.random() < 0.5})",
    }
    if scenario.scheduler == "HyperBandScheduler" and rng.random() < 0.5:
        scenario.scheduler = "HyperBandForBOHB"
        kinds["none"] = None
    kind = rng.choice(sorted(kinds))
    scenario.search_alg = kinds[kind]
    if kind == "repeated":
        # What is left of the last group would be ignored.
        scenario.args["num_samples"] = max(repeat, trials // repeat * repeat)
        if scenario.scheduler == "MilestoneScheduler":
            number = scenario.args["num_samples"]
            scenario.scheduler_args["num_samples"] = number
    if kind != "own":
        scenario.args.pop("max_concurrent", None)
    return scenario


RUNS: Dict[str, Callable[[random.Random], Scenario]] = {
    "brackets": draw_brackets,
    "buffers": draw_buffers,
    "choices": draw_choices,
    "ended": draw_ended,
    "hooks": draw_hooks,
    "idle": draw_idle,
    "logged": draw_logged,
    "median": draw_median,
    "moved": draw_moved,
    "searchers": draw_searchers,
    "stalls": draw_stalls,
}
