"""What is explored: one entry for each kind of run.

A new scheduler is one entry of ``SCHEDULERS``. An entry of ``CIRCUMSTANCES`` is drawn
over one of others: something happens in their runs. Whatever a combination of values
asks for is in ``consistency``.
"""

import importlib.util
from dataclasses import dataclass, field
from typing import Any, Dict, Tuple

from ..core.builds import PATCHED
from ..workloads.populations import BOUNDS, SPACES
from ..workloads.spec import Name, Spec
from .chances import Between, Maybe, OneOf, Several
from .fault_mixes import ALWAYS, ANY, MANY, NO_FAULTS, SOME, FaultMix, without

HAS_PB2 = importlib.util.find_spec("sklearn") is not None


def _ends(value: Any) -> Spec:
    return Spec("lengths", value, value, value)


def trainable(
    function: float = 0.25,
    ends: float = 0.3,
    nan: float = 0.1,
    gaps: float = 0,
    step: OneOf = OneOf(1, 1, 2, 3),
) -> Maybe:
    """Return what is trained.

    Args:
        function: The share of functions.
        ends: The share of those that end on their own.
        nan: The share of those that report NaN.
        gaps: The share of those whose score is missing at times.
        step: By how much ``t`` rises with an iteration.

    Returns:
        A chance of a spec.
    """
    curve = Spec(
        "MixedCurve",
        # These two are for schedulers that go by ``t``.
        step=step,
        skip_every=Maybe(0.2, OneOf(2, 3)),
        nan_every=Maybe(nan, OneOf(1, 2, 3)),
        gap_every=Maybe(gaps, OneOf(2, 3)),
    )
    common = {
        "length": Maybe(ends, _ends(OneOf(0, 0, 1, 2, 3, 5))),
        "resettable": Maybe(0.05, False),
    }
    return Maybe(
        function,
        Spec("FunctionTrainable", curve, **common, checkpoint_every=OneOf(1, 1, 2, 0)),
        Spec("ClassTrainable", curve, **common),
    )


def limit(share: float) -> Dict[str, Any]:
    """Return settings that limit the trials that run at once.

    Args:
        share: The share of runs with such a limit.

    Returns:
        The settings.
    """
    return {"max_concurrent": Maybe(share, Between(1, 4))}


def stop(low: int, high: int) -> Dict[str, Any]:
    """Return settings that end each trial.

    Args:
        low: The fewest iterations.
        high: The most.

    Returns:
        The settings.
    """
    return {"stop": {"training_iteration": Between(low, high)}}


def buffered(length: Any, seconds: Any) -> Dict[str, Any]:
    """Return settings with which results arrive several at a time.

    Args:
        length: How many, at most.
        seconds: For how long they are gathered, as a string.

    Returns:
        The settings.
    """
    return {"buffer_length": length, "env": {"TUNE_RESULT_BUFFER_MIN_TIME_S": seconds}}


RANDOM_SEARCH = {"search_alg": Maybe(0.2, Spec("RandomSearcher", seed=1))}
COMMON: Dict[str, Any] = {
    "num_samples": Between(2, 10),
    "slots": Between(1, 4),
    "seed": Between(0, 9999),
    "costs": Spec(
        "Costs",
        start=OneOf(0, 1, (0.5, 2.0)),
        train=OneOf(1, 1, (0.5, 2.0)),
        save=OneOf(0, 0.1, 1, (0.05, 1.5)),
        restore=OneOf(0.1, 1),
        reset=OneOf(0.1, 1),
        stop=OneOf(0, 0.1, 1),
    ),
    "reuse_actors": Maybe(0.3, True),
    "lag": Maybe(0.25, (0.5, 2.0)),
    "idle_steps": Maybe(0.2, 1),
    "reserve": Maybe(0.25, False),
    "max_failures": Maybe(0.3, OneOf(1, 3)),
    "trainable": trainable(),
    "checkpoint_config": Maybe(
        0.7,
        Spec(
            "checkpoints",
            frequency=OneOf(0, 0, 1, 2, 3),
            keep=Maybe(0.5, OneOf(1, 2)),
            at_end=Maybe(0.2, True),
        ),
    ),
}
# Done to the run by somebody outside, as a callback might.
OUTSIDE = Maybe(
    0.12,
    Several(
        1,
        2,
        Spec(
            "Act",
            "event",
            Between(1, 30),
            OneOf("pause_trial", "pause_trial", "drop_trial", "stop_trial"),
            Between(0, 9),
        ),
    ),
)


@dataclass(frozen=True)
class Workload:
    """One kind of run.

    Args:
        scheduler: Its scheduler, a chance of a spec. With ``over``: arguments that are
            added to those of the scheduler there.
        settings: Settings of the virtual cluster, over ``COMMON`` or those of the run
            below; chances.
        variants: One of these is added to the settings.
        faults: What goes wrong. With ``over``: that, too.
        over: The kinds of runs that this one is drawn over.
        without: The kinds of faults (``Fault.kind``) that are taken out of those.
        outside: What somebody outside does.
        pauses: Whether trials pause, and are resumed.
        searches: Whether a search algorithm of another kind can be used.
        restores: Whether the experiment can be restored.
    """

    scheduler: Any = None
    settings: Dict[str, Any] = field(default_factory=dict)
    variants: Tuple[Dict[str, Any], ...] = ({},)
    faults: FaultMix = SOME
    over: Tuple[str, ...] = ()
    without: Tuple[str, ...] = ()
    outside: Any = OUTSIDE
    pauses: bool = False
    searches: bool = True
    restores: bool = True


_TIME_ATTR = Maybe(0.15, "t")
_STOP_LAST = Maybe(0.1, False)
_MAX_T_AND_ETA = [(9, 3), (9, 3), (4, 2), (3, 1.5), (5, 2), (3, 3), (2, 3)]


def _hyperband(name: str) -> OneOf:
    return OneOf(
        *(
            Spec(
                name,
                max_t=max_t,
                reduction_factor=eta,
                stop_last_trials=_STOP_LAST,
                time_attr=_TIME_ATTR,
            )
            for max_t, eta in _MAX_T_AND_ETA
        )
    )


def _population(name: str, spaces: Dict, synch: bool, **more: Any) -> Spec:
    return Spec(
        name,
        time_attr=OneOf("training_iteration", "training_iteration", "t"),
        perturbation_interval=OneOf(1, 2, 2, 3),
        quantile_fraction=OneOf(0, 0.1, 0.25, 0.25, 0.34, 0.5, 0.5),
        require_attrs=False,
        space=Maybe(0.5, OneOf(*sorted(set(spaces) - {"x"}))),
        custom_explore_fn=Maybe(0.15, Name("marked")),
        log_config=Maybe(0.15, True),
        **({"synch": True} if synch else {}),
        **more,
    )


def _pbt(synch: bool) -> Spec:
    return _population(
        "population",
        SPACES,
        synch,
        burn_in_period=Maybe(0.2, OneOf(1, 3, 5)),
        resample_probability=Maybe(0.3, OneOf(0, 1)),
    )


def _pb2(synch: bool) -> Spec:
    return _population("bandits", BOUNDS, synch, fit=Maybe(0.05, True))


_RULE = Spec(
    "MedianStoppingRule",
    time_attr="training_iteration",
    grace_period=1,
    min_samples_required=2,
    hard_stop=OneOf(True, False),
)
_ASHA = Spec(
    "ASHAScheduler", max_t=OneOf(4, 9), grace_period=1, reduction_factor=OneOf(2, 3)
)
_ACT = OneOf(
    Spec(
        "Act",
        OneOf("result", "result", "choose"),
        Between(1, 12),
        OneOf("pause_trial", "pause_trial", "drop_trial", "stop_trial", "save"),
        Between(0, 4),
    ),
    Spec(
        "Act",
        "result",
        Between(1, 12),
        OneOf("pause", "pause", "stop", "noop", "pause_trial", "save"),
    ),
)
_CHOICE = Spec("Act", "choose", Between(1, 25), "choose", Between(0, 4))


def _population_settings(most: int, longest: int) -> Dict[str, Any]:
    return {
        "num_samples": Between(2, most),
        **stop(3, longest),
        **limit(0.2),
        "mode": Maybe(0.25, "min"),
        "resources": Maybe(0.15, Name("halves")),
        "time_budget_s": Maybe(0.05, OneOf(3, 8)),
        "fail_fast": Maybe(0.05, True),
    }


_PLAIN_OR_BUFFERED = ({},) * 5 + (buffered(3, "3"),)
# A trial that is exploited, whichever it is, saves slowly, or dies of it.
_POPULATION_FAULTS = FaultMix(
    share=0.6, kinds={**ANY, "slow save": 3, "death in a save": 3}
)

SCHEDULERS: Dict[str, Workload] = {
    "fifo": Workload(
        Spec("FIFOScheduler"),
        {
            **stop(1, 6),
            **limit(0.3),
            "search_alg": Maybe(
                0.3,
                OneOf(
                    Spec("RandomSearcher", seed=1),
                    Spec("RandomSearcher", seed=1),
                    Spec("OptunaSearch", seed=1),
                ),
            ),
            "resources": Maybe(0.2, Name("halves")),
            "time_budget_s": Maybe(0.1, OneOf(3, 8)),
        },
        variants=_PLAIN_OR_BUFFERED,
        faults=MANY,
    ),
    "asha": Workload(_ASHA, {**limit(0.3), **RANDOM_SEARCH}),
    "brackets": Workload(
        Spec(_ASHA.name, **_ASHA.kwargs, brackets=OneOf(2, 3)),
        {"max_failures": OneOf(1, 3), **limit(0.3), **RANDOM_SEARCH},
        faults=ALWAYS,
    ),
    "median": Workload(
        _RULE,
        {**stop(5, 5), "max_failures": OneOf(1, 3), **limit(0.3), **RANDOM_SEARCH},
        faults=ALWAYS,
    ),
    "hyperband": Workload(
        _hyperband("HyperBandScheduler"),
        {"trainable": trainable(ends=0.2), **limit(0.2)},
        pauses=True,
    ),
    # Brackets of every size and factor.
    "hyperband-sizes": Workload(
        Spec(
            OneOf("HyperBandScheduler", "HyperBandForBOHB"),
            max_t=OneOf(1, 2, 3, 5, 9, 16, 27, 50, 81, 243, Between(1, 243)),
            reduction_factor=OneOf(
                2, 3, 4, Between(2, 10), 1.1, 1.3, 1.5, 1.9, 2.7, 7.3
            ),
            stop_last_trials=_STOP_LAST,
            time_attr="t",
        ),
        {
            "num_samples": OneOf(1, 2, 3, 8, 10, 20, 40, 80),
            "slots": OneOf(1, 2, 4, 8),
            "trainable": trainable(
                ends=0.2, nan=0.2, step=OneOf(1, 1, 2, 7, 30), gaps=0.2
            ),
            "env": {"TUNE_DISABLE_STRICT_METRIC_CHECKING": "1"},
            **limit(0.4),
        },
    ),
    "bohb": Workload(
        _hyperband("HyperBandForBOHB"),
        {"trainable": trainable(ends=0.2)},
        variants=(
            {"search_alg": Spec("RandomSearcher", seed=1), **limit(0.5)},
            {"search_alg": Spec("RandomSearcher", seed=1, limit=Between(1, 4))},
        ),
    ),
    "milestones": Workload(
        Spec(
            "MilestoneScheduler",
            num_samples=0,  # that of the run: see ``consistency``
            milestones=OneOf((1, 2), (1, 2, 4), (2, 3)),
            reduction_factor=2,
        ),
        {
            "num_samples": Between(2, 6),
            "trainable": trainable(ends=0, nan=0),
            **limit(0.6),
            **RANDOM_SEARCH,
        },
        faults=FaultMix(share=0.3, kinds=without(ANY, "driver death")),
        outside=None,
        pauses=True,
        restores=False,
    ),
    "planned": Workload(
        Spec(
            "PlannedScheduler",
            acts=Several(1, 6, _ACT),
            choose_saving=Maybe(0.4, True),
        ),
        {
            "num_samples": Between(2, 5),
            "trainable": trainable(ends=0.1, nan=0),
            **stop(2, 5),
            **limit(0.15),
            **RANDOM_SEARCH,
        },
        faults=FaultMix(share=0.3),
        outside=None,
        pauses=True,
    ),
    "pbt": Workload(
        _pbt(synch=False),
        _population_settings(6, 8),
        _PLAIN_OR_BUFFERED,
        _POPULATION_FAULTS,
        pauses=True,
        searches=False,
    ),
    "pbt-synch": Workload(
        _pbt(synch=True),
        _population_settings(6, 8),
        _PLAIN_OR_BUFFERED,
        _POPULATION_FAULTS,
        pauses=True,
        searches=False,
    ),
    "replay": Workload(
        Spec("replay", changes=Several(1, 3, Between(1, 11))),
        {
            "num_samples": 1,
            "param_space": {},
            "trainable": trainable(nan=0, ends=0.15),
            **stop(2, 9),
            "max_failures": OneOf(0, 1, 3),
        },
        _PLAIN_OR_BUFFERED,
        MANY,
        searches=False,
    ),
}
if HAS_PB2:
    # Each exploit fits a model and optimizes over it.
    SCHEDULERS["pb2"] = Workload(
        _pb2(synch=False),
        _population_settings(5, 6),
        _PLAIN_OR_BUFFERED,
        _POPULATION_FAULTS,
        searches=False,
    )
    SCHEDULERS["pb2-synch"] = Workload(
        _pb2(synch=True),
        _population_settings(5, 6),
        _PLAIN_OR_BUFFERED,
        _POPULATION_FAULTS,
        searches=False,
    )
if PATCHED:
    SCHEDULERS["asha_v2"] = Workload(
        Spec(
            "ASHAv2",
            max_t=OneOf(4, 9, 5),
            grace_period=1,
            reduction_factor=OneOf(2, 3),
            promotion=Maybe(0.67, OneOf("deferred", "eager")),
            brackets=Maybe(0.2, 2),
            stop_last_trials=_STOP_LAST,
            time_attr=_TIME_ATTR,
        ),
        {**limit(0.3), **RANDOM_SEARCH},
        pauses=True,
    )

_RESOURCES = (
    {},
    {},
    {},
    {},
    {"resources": {"CPU": 2}},
    {"resources": Spec("PlacementGroupFactory", [{"CPU": 1}] * 2)},
    {
        "resources": {"CPU": 1, "GPU": 1},
        "nodes": OneOf(*([{"CPU": 4, "GPU": gpus}] for gpus in (1, 2, 4))),
    },
)
_DISTRIBUTION = {
    "add_bundles": OneOf(True, False),
    "reserve_resources": Maybe(0.2, {"CPU": 1}),
    "increase_by": Maybe(0.2, OneOf({"CPU": 1}, {"CPU": 1, "GPU": 1})),
    "increase_by_times": Maybe(0.5, OneOf(-1, 1, 2)),
}
_SIZES = Several(1, 4, Between(0, 5))
SCHEDULERS["resources"] = Workload(
    Spec(
        "reallocating",
        base=OneOf(
            Spec("FIFOScheduler"),
            _ASHA.but(max_t=5, reduction_factor=2),
            _RULE,
            Spec("HyperBandScheduler", max_t=4, reduction_factor=2),
            Spec("HyperBandForBOHB", max_t=4, reduction_factor=2),
            *(workload.scheduler for n, workload in SCHEDULERS.items() if "pb" in n),
            *(
                [
                    Spec(
                        "ASHAv2",
                        max_t=5,
                        reduction_factor=2,
                        promotion=OneOf("deferred", "eager"),
                    )
                ]
                if PATCHED
                else []
            ),
        ),
        allocate=OneOf(
            Name("alternating"),
            Spec("Sizes", sizes=_SIZES, spread=Maybe(0.4, True)),
            Spec("Sizes", sizes=_SIZES, as_dict=Maybe(0.3, True)),
            Spec("DistributeResources", **_DISTRIBUTION),
            Spec("DistributeResourcesToTopJob", **_DISTRIBUTION),
        ),
    ),
    {"num_samples": Between(2, 6), "slots": Between(2, 5), **stop(2, 6), **limit(0.15)},
    variants=_RESOURCES,
    searches=False,
)


def _names(**wanted: bool) -> Tuple[str, ...]:
    return tuple(
        name
        for name, workload in SCHEDULERS.items()
        if all(getattr(workload, key) == value for key, value in wanted.items())
    )


_PAUSING = _names(pauses=True)

CIRCUMSTANCES: Dict[str, Workload] = {
    # Results arrive several at a time.
    "buffers": Workload(
        settings=buffered(OneOf(2, 3, 8), OneOf("1", "2", "5")),
        faults=NO_FAULTS,
        over=("fifo", "asha", "pbt"),
    ),
    # The scheduler chooses trials that run, save, or have ended.
    "choices": Workload(
        {"acts": Several(2, 8, _CHOICE)},
        {"reuse_actors": Maybe(0.6, True)},
        faults=NO_FAULTS,
        over=("planned",),
    ),
    # The whole experiment is stopped early; then it is resumed.
    "ended": Workload(
        settings={"resume_after": OneOf(0, 1, 1, 2)},
        variants=(
            {"fail_fast": True},
            {"fail_fast": True, "search_alg": Spec("RandomSearcher", seed=1)},
            {"time_budget_s": OneOf(2, 5, 9)},
            {"search_alg": Spec("RandomSearcher", seed=1)},
        ),
        faults=FaultMix(share=0.6, at_most=1, kinds={"training error": 1}),
        over=("fifo", *_names(pauses=True, restores=True)),
        without=("driver_death", "storage_full"),
    ),
    # A hook of the scheduler raises, and the experiment is restored. What goes on
    # outside is not told of that.
    "hooks": Workload(
        faults=FaultMix(share=1, at_most=1, kinds={"hook error": 1}),
        over=("fifo", "asha", *_names(pauses=True, restores=True)),
        without=("storage_full",),
        outside=None,
    ),
    # Actors are reused, and nodes are lost with those that are idle.
    "idle": Workload(
        settings={"reuse_actors": True, "nodes": 2, "slots": Between(2, 4)},
        faults=FaultMix(share=1, kinds={"node loss": 1}),
        over=_PAUSING,
        without=("driver_death",),
    ),
    # Results are logged to disk, and the log is synced now and then.
    "logged": Workload(
        settings={"callbacks": Name("loggers"), "checkpoint_period": OneOf(1.0, 3.0)},
        faults=NO_FAULTS,
        over=_PAUSING,
        without=("driver_death",),
    ),
    # The driver dies, and the experiment is moved before it is restored.
    "moved": Workload(
        faults=FaultMix(share=1, at_most=1, kinds={"move": 1}),
        over=("pbt", "pbt", "hyperband", "fifo"),
        without=("storage_full",),
    ),
    # Searchers with limits of their own, and wrappers, under pausing schedulers.
    "searchers": Workload(
        variants=(
            {"search_alg": Spec("RandomSearcher", seed=1, limit=Between(1, 4))},
            {"search_alg": Spec("HEBOStandIn", max_concurrent=Between(1, 4))},
            {"search_alg": Spec("BOHBStandIn", max_concurrent=Between(1, 4))},
            {
                "search_alg": Spec(
                    "Repeater",
                    Spec("RandomSearcher", seed=1, limit=Between(1, 4)),
                    OneOf(2, 2, 3),
                )
            },
            {
                "search_alg": Spec(
                    "ConcurrencyLimiter",
                    Spec("RandomSearcher", seed=1),
                    Between(1, 4),
                    batch=OneOf(True, False),
                )
            },
        ),
        faults=NO_FAULTS,
        over=("bohb", *_names(pauses=True, searches=True)),
    ),
    # The scheduler does not resume what it pauses.
    "stalls": Workload(
        {"resumes": False},
        {"may_stall": True, "stall_timeout_s": OneOf(20, 120)},
        faults=NO_FAULTS,
        over=("planned",),
        without=("driver_death",),
    ),
}

WORKLOADS: Dict[str, Workload] = {**SCHEDULERS, **CIRCUMSTANCES}
