"""Draws scenarios of every kind from seeds."""

import random
from typing import Callable, Dict, Optional

from . import faults as faults_module
from . import drawing_runs
from .scenarios import Scenario, Source
from .schedulers import Act
from ray.tune import schedulers

METHODS = ("train", "train", "train", "save", "start", "restore", "reset", "stop")


def _common(rng: random.Random, scenario: Scenario, max_trials: int = 10) -> None:
    args = scenario.args
    args["num_samples"] = rng.randint(2, max_trials)
    args["slots"] = rng.randint(1, 4)
    args["seed"] = rng.randrange(10000)
    args["costs"] = Source(
        "Costs(start={}, train={}, save={}, restore={}, reset={}, stop={})".format(
            rng.choice([0, 1, (0.5, 2.0)]),
            rng.choice([1, 1, (0.5, 2.0)]),
            rng.choice([0, 0.1, 1, (0.05, 1.5)]),
            rng.choice([0.1, 1]),
            rng.choice([0.1, 1]),
            rng.choice([0, 0.1, 1]),
        )
    )
    if rng.random() < 0.3:
        args["reuse_actors"] = True
    if rng.random() < 0.25:
        args["lag"] = (0.5, 2.0)
    if rng.random() < 0.2:
        args["idle_steps"] = 1
    if rng.random() < 0.25:
        args["reserve"] = False
    if rng.random() < 0.3:
        args["max_failures"] = rng.choice([1, 3])


def _checkpointing(rng, scenario, function_ok=True) -> None:
    frequency = rng.choice([0, 0, 1, 2, 3])
    keep = rng.choice([None, None, 1, 2])
    at_end = rng.random() < 0.2
    kind = scenario.args.get("trainable")
    if kind is not None and "Function" in repr(kind):
        frequency, at_end = 0, False
    if frequency or keep or at_end:
        scenario.args["checkpoint_config"] = Source(
            f"checkpoints(frequency={frequency}, keep={keep}, at_end={at_end})"
        )


def _trainable(
    rng, scenario, step=1, function=0.25, ends=0.3, nan=0.1, pauses_often=False
) -> None:
    curve = "MixedCurve(step={}, nan_every={})".format(
        step, rng.choice([2, 3]) if rng.random() < nan else 0
    )
    if scenario.scheduler_args.get("time_attr") == "t" and rng.random() < 0.2:
        curve = curve[:-1] + f", skip_every={rng.choice([2, 3])})"
    length = "None"
    if rng.random() < ends:
        values = ", ".join(str(rng.choice([0, 0, 1, 2, 3, 5])) for _ in range(3))
        length = f"lengths({values})"
    resettable = rng.random() < 0.95
    if rng.random() < function:
        # One that pauses more often than it checkpoints would never get on.
        every = 1 if pauses_often else rng.choice([1, 1, 2, 0])
        source = (
            f"FunctionTrainable({curve}, length={length}, resettable={resettable}, "
            f"checkpoint_every={every})"
        )
    else:
        source = f"ClassTrainable({curve}, length={length}, resettable={resettable})"
    scenario.args["trainable"] = Source(source)


def _draw_faults(rng, scenario, at_most=3, restarts=True, share=0.5) -> None:
    if rng.random() > share:
        return
    trials = scenario.args["num_samples"]
    for _ in range(rng.randint(1, at_most)):
        roll = rng.random()
        trial, nth = rng.randrange(trials), rng.randint(1, 4)
        method = rng.choice(METHODS)
        if roll < 0.4:
            if method == "stop":
                method = "train"
            fault = faults_module.task_error(method, trial, nth)
        elif roll < 0.6:
            fault = faults_module.actor_death(method, trial, nth)
        elif roll < 0.65:
            fault = faults_module.preempt(method, trial, nth)
        elif roll < 0.75:
            fault = faults_module.slow_task(method, trial, nth, factor=10)
        elif roll < 0.8:
            scenario.args["nodes"] = 2
            if scenario.family == "resources" or "resources" in scenario.args:
                # Both nodes must have room for the largest trial.
                scenario.args["slots"] = 4
            fault = faults_module.node_loss(rng.randint(1, 40), rng.randrange(2), 5.0)
        elif roll < 0.85:
            fault = faults_module.storage_full(rng.randint(1, 40), rng.randint(1, 10))
        elif restarts:
            fault = faults_module.driver_death(
                rng.randint(1, 40), rng.choice([0, 0, 3, 8])
            )
        else:
            continue
        scenario.faults.append(fault)


def _outside(rng, scenario, share=0.12) -> None:
    if rng.random() > share:
        return
    trials = scenario.args["num_samples"]
    scenario.args["outside"] = [
        Act(
            "event",
            rng.randint(1, 30),
            rng.choice(["pause_trial", "pause_trial", "drop_trial", "stop_trial"]),
            rng.randrange(trials),
        )
        for _ in range(rng.randint(1, 2))
    ]


def _limit(rng, scenario, share=0.3) -> None:
    if rng.random() < share:
        scenario.args["max_concurrent"] = rng.randint(1, 4)
    roll = rng.random()
    if roll < 0.2:
        scenario.search_alg = "RandomSearcher(seed=1)"


def draw_fifo(rng):
    scenario = Scenario("fifo", "FIFOScheduler")
    _common(rng, scenario)
    _trainable(rng, scenario)
    scenario.args["stop"] = {"training_iteration": rng.randint(1, 6)}
    _checkpointing(rng, scenario)
    _limit(rng, scenario)
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
    _draw_faults(rng, scenario, share=0.7)
    return scenario


def draw_asha(rng):
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
    _common(rng, scenario)
    if stop:
        scenario.args["stop"] = stop
    _trainable(rng, scenario)
    _checkpointing(rng, scenario)
    _limit(rng, scenario)
    _draw_faults(rng, scenario, share=0.6)
    return scenario


def draw_hyperband(rng, name="HyperBandScheduler"):
    scenario = Scenario("hyperband", name)
    max_t, eta = rng.choice([(9, 3), (9, 3), (4, 2), (3, 1.5), (5, 2), (3, 3), (2, 3)])
    scenario.scheduler_args = {"max_t": max_t, "reduction_factor": eta}
    if rng.random() < 0.1:
        scenario.scheduler_args["stop_last_trials"] = False
        scenario.args["stop"] = {"training_iteration": max_t + 1}
    _common(rng, scenario)
    _trainable(rng, scenario, ends=0.2)
    if rng.random() < 0.15:
        scenario.scheduler_args["time_attr"] = "t"
        _trainable(rng, scenario, step=rng.choice([1, 2, 3]), ends=0.2)
    _checkpointing(rng, scenario)
    if rng.random() < 0.2:
        scenario.args["max_concurrent"] = rng.randint(1, 4)
    _draw_faults(rng, scenario, share=0.5)
    return scenario


def draw_bohb(rng):
    scenario = draw_hyperband(rng, "HyperBandForBOHB")
    scenario.family = "bohb"
    if scenario.args.get("max_concurrent") or rng.random() < 0.5:
        scenario.search_alg = "RandomSearcher(seed=1)"
    else:
        scenario.search_alg = f"RandomSearcher(seed=1, limit={rng.randint(1, 4)})"
    return scenario


def draw_pbt(rng, synch=False):
    scenario = Scenario("pbt-synch" if synch else "pbt", "population")
    scenario.scheduler_args = {
        "time_attr": rng.choice(["training_iteration", "t"]),
        "perturbation_interval": rng.choice([1, 2, 2, 3]),
        "quantile_fraction": rng.choice([0.25, 0.5]),
        "require_attrs": False,
    }
    if synch:
        scenario.scheduler_args["synch"] = True
    _common(rng, scenario, max_trials=6)
    step = 1
    if scenario.scheduler_args["time_attr"] == "t":
        step = rng.choice([1, 2, 3, 5])
    _trainable(rng, scenario, step=step, nan=0.05, pauses_often=True)
    scenario.args["stop"] = {"training_iteration": rng.randint(3, 8)}
    _checkpointing(rng, scenario)
    if rng.random() < 0.15:
        scenario.args["max_concurrent"] = rng.randint(1, 4)
    _draw_faults(rng, scenario, share=0.5)
    return scenario


def draw_pbt_synch(rng):
    return draw_pbt(rng, synch=True)


def draw_resources(rng):
    base = rng.choice(
        [
            "FIFOScheduler()",
            "ASHAScheduler(max_t=5, grace_period=1, reduction_factor=2)",
            "HyperBandScheduler(max_t=4, reduction_factor=2)",
        ]
    )
    scenario = Scenario("resources", "reallocating", {"base": base})
    _common(rng, scenario, max_trials=6)
    scenario.args["slots"] = rng.randint(2, 5)
    scenario.args.pop("reuse_actors", None)  # the scheduler refuses it
    _trainable(rng, scenario, pauses_often=True)
    scenario.args["stop"] = {"training_iteration": rng.randint(2, 6)}
    _checkpointing(rng, scenario)
    _draw_faults(rng, scenario, share=0.4)
    return scenario


def draw_milestones(rng):
    scenario = Scenario("milestones", "MilestoneScheduler")
    _common(rng, scenario, max_trials=6)
    scenario.scheduler_args = {
        "num_samples": scenario.args["num_samples"],
        "milestones": rng.choice([(1, 2), (1, 2, 4), (2, 3)]),
        "reduction_factor": 2,
    }
    _trainable(rng, scenario, ends=0, nan=0)
    _checkpointing(rng, scenario)
    _limit(rng, scenario, share=0.6)
    _draw_faults(rng, scenario, share=0.3, restarts=False)
    return scenario


def draw_planned(rng):
    scenario = Scenario("planned", "PlannedScheduler")
    _common(rng, scenario, max_trials=5)
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
    _trainable(rng, scenario, ends=0.1, nan=0)
    scenario.args["stop"] = {"training_iteration": rng.randint(2, 5)}
    _checkpointing(rng, scenario)
    _limit(rng, scenario, share=0.15)
    _draw_faults(rng, scenario, share=0.3)
    return scenario


def draw_asha_v2(rng):
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
    _common(rng, scenario)
    _trainable(rng, scenario)
    if rng.random() < 0.15:
        scenario.scheduler_args["time_attr"] = "t"
        _trainable(rng, scenario, step=rng.choice([1, 2, 3]))
    _checkpointing(rng, scenario)
    _limit(rng, scenario)
    _draw_faults(rng, scenario, share=0.5)
    return scenario


FAMILIES: Dict[str, Callable[[random.Random], Scenario]] = {
    "fifo": draw_fifo,
    "asha": draw_asha,
    "hyperband": draw_hyperband,
    "bohb": draw_bohb,
    "pbt": draw_pbt,
    "pbt-synch": draw_pbt_synch,
    "resources": draw_resources,
    "milestones": draw_milestones,
    "planned": draw_planned,
}
if hasattr(schedulers, "ASHAv2"):
    FAMILIES["asha_v2"] = draw_asha_v2


FAMILIES.update(drawing_runs.KINDS)


def draw(seed: int, family: Optional[str] = None) -> Scenario:
    """Draw a scenario.

    Args:
        seed: The seed.
        family: The kind of scenario; any if None.

    Returns:
        The scenario.
    """
    rng = random.Random(seed * 2654435761 + 11)
    if family is None:
        family = rng.choice(sorted(FAMILIES))
    scenario = FAMILIES[family](rng)
    if family not in ("planned", "milestones"):
        _outside(rng, scenario)
    return scenario
