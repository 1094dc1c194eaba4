"""A virtual cluster for Tune: the real controller, without a Ray runtime.

The real ``TuneController``, ``RayActorManager``, schedulers, searchers, stoppers and
callbacks run over a stand-in for Ray with a virtual clock. A run is determined by its
arguments and its seed. After every event the invariants of ``invariants.py`` are
checked; one that is broken raises ``InvariantViolation``, which says what was broken,
by which trial, and what happened last.

A run to the end::

    from ray.tune.schedulers import HyperBandScheduler
    from virtual_cluster import Costs, VirtualCluster, task_error

    record = VirtualCluster(
        HyperBandScheduler(max_t=9, reduction_factor=3),
        num_samples=10,
        slots=4,
        costs=Costs(train=1, save=1),
        faults=[task_error("train", trial=3, nth=4)],
        seed=7,
    ).run(max_events=1000)
    assert record.statuses().count("TERMINATED") == 9
    record.decisions  # (time, trial id, iteration, decision)
    record.results  # the results that were handled, per trial id

Step by step, with a scheduler that does as it is told::

    from virtual_cluster import ScriptedScheduler

    def decide(controller, trial, result):
        return "PAUSE" if result["training_iteration"] == 2 else "CONTINUE"

    cluster = VirtualCluster(
        ScriptedScheduler(decide, choose=lambda controller: None),
        num_samples=2,
        slots=1,
        stop={"training_iteration": 4},
    ).start()
    cluster.run_until(lambda: cluster.trials and cluster.trials[0].status == "RUNNING")
    cluster.pause_trial(cluster.trials[0])  # as a callback might
    cluster.step()
    cluster.in_flight(cluster.trials[0])  # e.g. {"train": 1, "save": 1}

``cluster.call(f, ...)`` calls anything else of Tune as if in the driver, and
``on_event=f(cluster, event)`` is called after every step. What Tune logs can be read
with pytest's ``caplog``. ``TUNE_STALL_TIMEOUT_S`` is set to ``stall_timeout_s`` (0 by
default, since the invariants see a hang at once); a test of the stall's own end passes
``stall_timeout_s=600, detect_hangs=False``.

Learning curves are functions ``f(config, iteration)``, or ``f(config, iteration,
state)`` where the state goes into checkpoints; ``ClassTrainable`` and
``FunctionTrainable`` say how the trainable around it behaves.
"""

from .cluster import RunRecord, ScriptedChooser, SeededChooser, VirtualCluster
from .faults import (
    Fault,
    actor_death,
    driver_death,
    hook_error,
    node_loss,
    preempt,
    slow_task,
    storage_full,
    task_error,
)
from .invariants import Event, InvariantViolation
from .runtime import Costs
from .schedulers import Act, MilestoneScheduler, PlannedScheduler, ScriptedScheduler
from .trainables import ClassTrainable, FunctionTrainable, MixedCurve, saturating

__all__ = [
    "Act",
    "ClassTrainable",
    "Costs",
    "Event",
    "Fault",
    "FunctionTrainable",
    "InvariantViolation",
    "MilestoneScheduler",
    "MixedCurve",
    "PlannedScheduler",
    "RunRecord",
    "ScriptedChooser",
    "ScriptedScheduler",
    "SeededChooser",
    "VirtualCluster",
    "actor_death",
    "driver_death",
    "hook_error",
    "node_loss",
    "preempt",
    "saturating",
    "slow_task",
    "storage_full",
    "task_error",
]
