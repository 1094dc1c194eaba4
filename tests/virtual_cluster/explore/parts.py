"""What the scenarios of every kind are drawn from: costs, trainables, faults."""

import random

from ..faults import plan as faults_module
from ..workloads.schedulers import Act
from .scenarios import Scenario, Source

METHODS = ("train", "train", "train", "save", "start", "restore", "reset", "stop")


def common(rng: random.Random, scenario: Scenario, max_trials: int = 10) -> None:
    """Draw the size of the cluster, costs, and how actors are handled.

    Args:
        rng: What is drawn from.
        scenario: What it is drawn for; it is changed.
        max_trials: The most trials.
    """
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


def checkpointing(rng, scenario) -> None:
    """Draw when a trial is saved, and how much is kept.

    Args:
        rng: What is drawn from.
        scenario: What it is drawn for; it is changed.
    """
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


def trainable(
    rng, scenario, step=1, function=0.25, ends=0.3, nan=0.1, pauses_often=False
) -> None:
    """Draw what is trained: its curve, its end, a class or a function.

    Args:
        rng: What is drawn from.
        scenario: What it is drawn for; it is changed.
        step: How far one result advances the time.
        function: The share of functions.
        ends: The share of those that end by themselves.
        nan: The share of those that report NaN.
        pauses_often: Whether trials pause more often than at milestones.
    """
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


def draw_faults(rng, scenario, at_most=3, restarts=True, share=0.5) -> None:
    """Draw what goes wrong.

    Args:
        rng: What is drawn from.
        scenario: What it is drawn for; it is changed.
        at_most: The most faults.
        restarts: Whether the driver may die.
        share: In which share of scenarios.
    """
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


def outside(rng, scenario, share=0.12) -> None:
    """Draw what somebody outside does, as a callback.

    Args:
        rng: What is drawn from.
        scenario: What it is drawn for; it is changed.
        share: In which share of scenarios.
    """
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


def limit(rng, scenario, share=0.3) -> None:
    """Draw a limit on concurrent trials, and a searcher.

    Args:
        rng: What is drawn from.
        scenario: What it is drawn for; it is changed.
        share: In which share of scenarios.
    """
    if rng.random() < share:
        scenario.args["max_concurrent"] = rng.randint(1, 4)
    roll = rng.random()
    if roll < 0.2:
        scenario.search_alg = "RandomSearcher(seed=1)"
