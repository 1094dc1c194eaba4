"""What a virtual cluster is given: the experiment, the machines, the faults, the rest.

``Experiment`` is what a user hands to a ``Tuner``. ``Cluster`` is what the experiment
runs on. ``Faults`` is what goes wrong. ``Options`` say how the run is watched.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

from ..faults.plan import Fault
from ..workloads.schedulers import Act
from ..workloads.trainables import VirtualTrainable
from .actors import Costs
from .order import SeededChooser
from ray.tune import CheckpointConfig, ResumeConfig
from ray.tune.schedulers import TrialScheduler


@dataclass(frozen=True)
class Experiment:
    """What a user hands to a ``Tuner``, and the environment variables beside it.

    Args:
        scheduler: The scheduler, or a function that makes one (needed to restore the
            experiment if the scheduler cannot be pickled before the run).
        num_samples: The number of trials.
        configs: Instead of ``num_samples`` and ``param_space``: the trials' configs.
        param_space: Tune's search space.
        trainable: A curve ``f(config, iteration) -> metrics``, or a
            ``ClassTrainable`` or ``FunctionTrainable``.
        metric: The metric; None if the scheduler brings its own.
        mode: ``"max"`` or ``"min"``.
        resources: What a trial needs: ``{"CPU": 2}``, a ``PlacementGroupFactory``, or
            a function of the config that returns one of these.
        search_alg: A searcher, a search algorithm, or a function that makes one.
        max_concurrent: As ``max_concurrent_trials`` of ``TuneConfig``.
        stop: As ``stop`` of ``RunConfig``.
        time_budget_s: As in ``TuneConfig``, in virtual seconds.
        checkpoint_config: As in ``RunConfig``.
        max_failures: As in ``FailureConfig``.
        fail_fast: As in ``FailureConfig``.
        reuse_actors: As in ``TuneConfig``.
        callbacks: Tune callbacks, or a function that makes them.
        buffer_length: ``TUNE_RESULT_BUFFER_LENGTH``.
        max_pending: ``TUNE_MAX_PENDING_TRIALS_PG``; None for Tune's own.
        stall_timeout_s: ``TUNE_STALL_TIMEOUT_S``; 0 leaves it to ``detect_hangs``.
        checkpoint_period: Virtual seconds between snapshots of the experiment; None
            for never, but for those that Tune forces when ``num_to_keep`` is set and
            those that a driver death in ``faults`` restores from.
        storage_path: Where the experiment is stored; a temporary directory if None.
        resume: Restores the experiment that is in ``storage_path``: a
            ``ResumeConfig``, or True.
        env: More environment variables.
    """

    scheduler: Union[None, TrialScheduler, Callable[[], TrialScheduler]] = None
    num_samples: int = 1
    configs: Optional[List[Dict]] = None
    param_space: Optional[Dict] = None
    trainable: Union[None, Callable, VirtualTrainable] = None
    metric: Optional[str] = "score"
    mode: Optional[str] = "max"
    resources: Any = None
    search_alg: Any = None
    max_concurrent: int = 0
    stop: Any = None
    time_budget_s: Optional[float] = None
    checkpoint_config: Optional[CheckpointConfig] = None
    max_failures: int = 0
    fail_fast: Union[bool, str] = False
    reuse_actors: bool = False
    callbacks: Any = None
    buffer_length: int = 1
    max_pending: Optional[int] = None
    stall_timeout_s: float = 0
    checkpoint_period: Optional[float] = None
    storage_path: Optional[str] = None
    resume: Union[bool, ResumeConfig] = False
    env: Optional[Dict[str, str]] = None


@dataclass(frozen=True)
class Cluster:
    """The machines that an experiment runs on, and how long things take there.

    Args:
        slots: The number of CPUs; a trial takes one unless ``resources`` says else.
        nodes: Over how many nodes the slots are spread; or a list with what each has.
        costs: How long things take.
        reserve: Whether resources act like placement groups (True) or like
            ``FixedResourceManager`` (False).
        lag: ``(probability, seconds)``: before a step the driver is busy for so long,
            so that events pile up.
        idle_steps: How many steps of the controller without an event there are before
            time leaps to the next one.
    """

    slots: int = 4
    nodes: Union[int, List[Dict[str, float]]] = 1
    costs: Costs = field(default_factory=Costs)
    reserve: bool = True
    lag: Tuple[float, float] = (0.0, 0.0)
    idle_steps: int = 0


@dataclass(frozen=True)
class Faults:
    """What goes wrong, and what others do to the run.

    Args:
        faults: What goes wrong, and when.
        outside: What somebody outside, as a callback, does after so many events:
            ``Act("event", 5, "pause_trial", 2)``, also ``drop_trial`` (a pause without
            a checkpoint) and ``stop_trial``.
        resume_after: How many times the experiment is restored once it has ended, and
            what failed is tried again.
    """

    faults: Sequence[Fault] = ()
    outside: Sequence[Act] = ()
    resume_after: int = 0


@dataclass(frozen=True)
class Options:
    """How a run is drawn, watched and judged.

    Args:
        seed: Determines everything that is drawn.
        chooser: Picks among events that are ready at once; from the seed if None.
        may_stall: Whether the run may come to a point where nothing can happen, as with
            a scheduler that never resumes what it pauses. The controller has to end it
            with an error after ``stall_timeout_s``.
        detect_hangs: Whether a run in which nothing can happen any more violates an
            invariant. If not, such a run goes on: each step takes a virtual second.
        check: Whether a broken invariant ends the run with ``InvariantViolation``.
        ignore: Names of invariants that are not checked.
        on_event: ``f(cluster, event)``, called after a step for each event in it.
        keep_events: Whether the record keeps all events, or only the last ones.
        quiet: Whether to silence Ray's loggers.
    """

    seed: int = 0
    chooser: Optional[SeededChooser] = None
    may_stall: bool = False
    detect_hangs: bool = True
    check: bool = True
    ignore: Sequence[str] = ()
    on_event: Optional[Callable] = None
    keep_events: bool = True
    quiet: bool = False


# The dataclass of each setting; no two have a setting of the same name.
GROUPS = {
    "experiment": Experiment,
    "cluster": Cluster,
    "faults": Faults,
    "options": Options,
}
GROUP_OF: Dict[str, str] = {
    setting.name: group
    for group, cls in GROUPS.items()
    for setting in dataclasses.fields(cls)
}


def grouped(settings: Dict[str, Any]) -> Dict[str, Any]:
    """Sort settings into the dataclasses whose fields they are.

    Args:
        settings: Fields of any of the dataclasses, by name.

    Returns:
        A dataclass for each argument of ``VirtualCluster``.

    Raises:
        TypeError: If there is no such setting.
    """
    groups: Dict[str, Dict[str, Any]] = {group: {} for group in GROUPS}
    for name, value in settings.items():
        if name not in GROUP_OF:
            raise TypeError(
                f"There is no setting {name!r} of a virtual cluster. Those that there "
                f"are: {', '.join(sorted(GROUP_OF))}."
            )
        groups[GROUP_OF[name]][name] = value
    return {group: cls(**groups[group]) for group, cls in GROUPS.items()}
