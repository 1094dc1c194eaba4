"""Draws scenarios of schedulers, and of schedulers that explore the controller."""

import random
from typing import Callable, Dict

from ..workloads.schedulers import Act
from .parts import checkpointing, common, draw_faults, limit, trainable
from .scenarios import Scenario, Source
from ray.tune import schedulers


def draw_fifo(rng):
    """First in, first out: what the controller does by itself.

    Args:
        rng: What it is drawn from.

    Returns:
        The scenario.
    """
    scenario = Scenario("fifo", "FIFOScheduler")
    common(rng, scenario)
    trainable(rng, scenario)
    scenario.args["stop"] = {"training_iteration": rng.randint(1, 6)}
    checkpointing(rng, scenario)
    limit(rng, scenario)
    if rng.random() < 0.1:
        scenario.search_alg = "OptunaSearch(seed=1)"
    if rng.random() < 0.2:
        scenario.args["buffer_length"] = 3
        scenario.args["env"] = {"TUNE_RESULT_BUFFER_MIN_TIME_S": "3"}
    if rng.random() < 0.2:
        scenario.args["resources"] = Source("halves")
        scenario.args["slots"] = max(2, scenario.args["slots"])
    if rng.random() < 0.1:
        scenario.args["time_budget_s"] = rng.choice([3, 8])
    draw_faults(rng, scenario, share=0.7)
    return scenario


def draw_asha(rng):
    """Stopping at rungs, and below the median.

    Args:
        rng: What it is drawn from.

    Returns:
        The scenario.
    """
    scenario = Scenario(
        "asha",
        rng.choice(["ASHAScheduler", "MedianStoppingRule"]),
    )
    if scenario.scheduler == "ASHAScheduler":
        scenario.scheduler_args = {
            "max_t": rng.choice([4, 9]),
            "grace_period": 1,
            "reduction_factor": rng.choice([2, 3]),
        }
    else:
        scenario.scheduler_args = {
            "time_attr": "training_iteration",
            "grace_period": 1,
            "min_samples_required": 2,
            "hard_stop": rng.random() < 0.5,
        }
        scenario.args["stop"] = {"training_iteration": 5}
    stop = scenario.args.get("stop")
    common(rng, scenario)
    if stop:
        scenario.args["stop"] = stop
    trainable(rng, scenario)
    checkpointing(rng, scenario)
    limit(rng, scenario)
    draw_faults(rng, scenario, share=0.6)
    return scenario


def draw_hyperband(rng, name="HyperBandScheduler"):
    """Brackets whose trials pause at milestones.

    Args:
        rng: What it is drawn from.
        name: The scheduler's class.

    Returns:
        The scenario.
    """
    scenario = Scenario("hyperband", name)
    max_t, eta = rng.choice([(9, 3), (9, 3), (4, 2), (3, 1.5), (5, 2), (3, 3), (2, 3)])
    scenario.scheduler_args = {"max_t": max_t, "reduction_factor": eta}
    if rng.random() < 0.1:
        scenario.scheduler_args["stop_last_trials"] = False
        scenario.args["stop"] = {"training_iteration": max_t + 1}
    common(rng, scenario)
    trainable(rng, scenario, ends=0.2)
    if rng.random() < 0.15:
        scenario.scheduler_args["time_attr"] = "t"
        trainable(rng, scenario, step=rng.choice([1, 2, 3]), ends=0.2)
    checkpointing(rng, scenario)
    if rng.random() < 0.2:
        scenario.args["max_concurrent"] = rng.randint(1, 4)
    draw_faults(rng, scenario, share=0.5)
    return scenario


def draw_bohb(rng):
    """HyperBand over a searcher that is told of pauses.

    Args:
        rng: What it is drawn from.

    Returns:
        The scenario.
    """
    scenario = draw_hyperband(rng, "HyperBandForBOHB")
    scenario.family = "bohb"
    if scenario.args.get("max_concurrent") or rng.random() < 0.5:
        scenario.search_alg = "RandomSearcher(seed=1)"
    else:
        scenario.search_alg = f"RandomSearcher(seed=1, limit={rng.randint(1, 4)})"
    return scenario


def draw_milestones(rng):
    """Synchronous successive halving, as people write it themselves.

    Args:
        rng: What it is drawn from.

    Returns:
        The scenario.
    """
    scenario = Scenario("milestones", "MilestoneScheduler")
    common(rng, scenario, max_trials=6)
    scenario.scheduler_args = {
        "num_samples": scenario.args["num_samples"],
        "milestones": rng.choice([(1, 2), (1, 2, 4), (2, 3)]),
        "reduction_factor": 2,
    }
    trainable(rng, scenario, ends=0, nan=0)
    checkpointing(rng, scenario)
    limit(rng, scenario, share=0.6)
    draw_faults(rng, scenario, share=0.3, restarts=False)
    return scenario


def draw_planned(rng):
    """What the controller offers to schedulers, at any moment.

    Args:
        rng: What it is drawn from.

    Returns:
        The scenario.
    """
    scenario = Scenario("planned", "PlannedScheduler")
    common(rng, scenario, max_trials=5)
    trials = scenario.args["num_samples"]
    acts = []
    for _ in range(rng.randint(1, 6)):
        hook = rng.choice(["result", "result", "choose"])
        nth = rng.randint(1, 12)
        what = rng.choice(
            ["pause_trial", "pause_trial", "drop_trial", "stop_trial", "save"]
        )
        target = rng.randrange(trials)
        if hook == "result" and rng.random() < 0.6:
            what = rng.choice(["pause", "pause", "stop", "noop", "pause_trial", "save"])
            target = None
        acts.append(Act(hook, nth, what, target))
    scenario.scheduler_args = {"acts": acts}
    if rng.random() < 0.4:
        scenario.scheduler_args["choose_saving"] = True
    trainable(rng, scenario, ends=0.1, nan=0)
    scenario.args["stop"] = {"training_iteration": rng.randint(2, 5)}
    checkpointing(rng, scenario)
    limit(rng, scenario, share=0.15)
    draw_faults(rng, scenario, share=0.3)
    return scenario


def draw_asha_v2(rng):
    """Successive halving by promotion.

    Args:
        rng: What it is drawn from.

    Returns:
        The scenario.
    """
    scenario = Scenario("asha_v2", "ASHAv2")
    scenario.scheduler_args = {
        "max_t": rng.choice([4, 9, 5]),
        "grace_period": 1,
        "reduction_factor": rng.choice([2, 3]),
    }
    promotion = rng.choice([None, "deferred", "eager"])
    if promotion:
        scenario.scheduler_args["promotion"] = promotion
    if rng.random() < 0.2:
        scenario.scheduler_args["brackets"] = 2
    if rng.random() < 0.1:
        scenario.scheduler_args["stop_last_trials"] = False
        scenario.args["stop"] = {
            "training_iteration": scenario.scheduler_args["max_t"] + 1
        }
    common(rng, scenario)
    trainable(rng, scenario)
    if rng.random() < 0.15:
        scenario.scheduler_args["time_attr"] = "t"
        trainable(rng, scenario, step=rng.choice([1, 2, 3]))
    checkpointing(rng, scenario)
    limit(rng, scenario)
    draw_faults(rng, scenario, share=0.5)
    return scenario


SCHEDULERS: Dict[str, Callable[[random.Random], Scenario]] = {
    "fifo": draw_fifo,
    "asha": draw_asha,
    "hyperband": draw_hyperband,
    "bohb": draw_bohb,
    "milestones": draw_milestones,
    "planned": draw_planned,
}
if hasattr(schedulers, "ASHAv2"):
    SCHEDULERS["asha_v2"] = draw_asha_v2
