"""A virtual cluster for Tune: the real controller, without a Ray runtime.

The real ``TuneController``, ``RayActorManager``, schedulers, searchers, stoppers and
callbacks run over a stand-in for Ray with a virtual clock. A run is determined by its
arguments and its seed. After every event the invariants are checked; one that is broken
raises ``InvariantViolation``, which says what was broken, by which trial, and what
happened last.

The rooms:

* ``faults``: what goes wrong, and when.
* ``workloads``: what is run: trainables, schedulers, searchers; as data: ``spec``.
* ``core``: the clock, actors and their tasks, storage, the monitor of what happens, and
  the cluster over them.
* ``invariants``: what must hold: a module for each rule of the design.
* ``explore``: draws runs from data, searches, replays and shrinks them.
* ``evidence``: what the explorer notices of known faults and of patches taken out, and
  what it costs.

A run to the end::

    from ray.tune.schedulers import HyperBandScheduler
    from virtual_cluster import (
        Cluster, Costs, Experiment, Faults, Options, VirtualCluster, task_error
    )

    record = VirtualCluster(
        Experiment(HyperBandScheduler(max_t=9, reduction_factor=3), num_samples=10),
        Cluster(slots=4, costs=Costs(train=1, save=1)),
        Faults([task_error("train", trial=3, nth=4)]),
        Options(seed=7),
    ).run(max_events=1000)
    assert record.statuses().count("TERMINATED") == 9
    record.decisions  # (time, trial id, iteration, decision)
    record.results  # the results that were handled, per trial id

Step by step, with a scheduler that does as it is told::

    from virtual_cluster import ScriptedScheduler

    def decide(controller, trial, result):
        return "PAUSE" if result["training_iteration"] == 2 else "CONTINUE"

    cluster = VirtualCluster(
        Experiment(
            ScriptedScheduler(decide, choose=lambda controller: None),
            num_samples=2,
            stop={"training_iteration": 4},
        ),
        Cluster(slots=1),
    ).start()
    cluster.run_until(lambda: cluster.trials and cluster.trials[0].status == "RUNNING")
    cluster.pause_trial(cluster.trials[0])  # as a callback might
    cluster.step()
    cluster.in_flight(cluster.trials[0])  # e.g. {"train": 1, "save": 1}

``VirtualCluster.of(scheduler, slots=1, **settings)`` sorts single settings into these
dataclasses, for a test's helper that is given some by each test.

``cluster.call(f, ...)`` calls anything else of Tune as if in the driver, and
``Options(on_event=f)`` has ``f(cluster, event)`` called after every step. What Tune
logs can be read with pytest's ``caplog``. ``TUNE_STALL_TIMEOUT_S`` is set to
``stall_timeout_s`` (0 by default, since the invariants see a hang at once); a test of
the stall's own end has ``Experiment(stall_timeout_s=600)`` and
``Options(detect_hangs=False)``.

Learning curves are functions ``f(config, iteration)``, or ``f(config, iteration,
state)`` where the state goes into checkpoints; ``ClassTrainable`` and
``FunctionTrainable`` say how the trainable around it behaves.
"""

from .core.actors import Costs
from .core.cluster import VirtualCluster
from .core.monitor import Event, InvariantViolation
from .core.order import ScriptedChooser, SeededChooser
from .core.record import RunRecord
from .core.settings import Cluster, Experiment, Faults, Options
from .faults.plan import (
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
from .workloads.schedulers import (
    Act,
    MilestoneScheduler,
    PlannedScheduler,
    ScriptedScheduler,
)
from .workloads.trainables import (
    ClassTrainable,
    FunctionTrainable,
    MixedCurve,
    saturating,
)

__all__ = [
    "Act",
    "ClassTrainable",
    "Cluster",
    "Costs",
    "Event",
    "Experiment",
    "Fault",
    "Faults",
    "FunctionTrainable",
    "InvariantViolation",
    "MilestoneScheduler",
    "MixedCurve",
    "Options",
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
