"""Scenarios: arguments of a virtual cluster that can be drawn, shrunk and printed."""

import copy
import functools
import math
from typing import Any, Callable, Dict, List, Optional

from ..core.actors import Costs
from ..core.cluster import VirtualCluster
from ..core.order import ScriptedChooser
from ..core.settings import GROUP_OF, GROUPS
from ..faults import plan as faults_module
from ..workloads.populations import bandits, marked, population, replay
from ..workloads.reallocations import Sizes, alternating, reallocating
from ..workloads.schedulers import Act, MilestoneScheduler, PlannedScheduler
from ..workloads.searchers import BOHBStandIn, HEBOStandIn, RandomSearcher
from ..workloads.trainables import (
    ClassTrainable,
    FunctionTrainable,
    MixedCurve,
    saturating,
)
from ray import tune
from ray.tune import CheckpointConfig, schedulers
from ray.tune.logger import CSVLoggerCallback, JsonLoggerCallback
from ray.tune.schedulers import resource_changing_scheduler
from ray.tune.search import ConcurrencyLimiter, Repeater


class Scenario:
    """Arguments of :class:`VirtualCluster`, as they would be written in a test.

    Args:
        family: The kind of scenario it was drawn from.
        scheduler: The name of the scheduler's class.
        scheduler_args: Its keyword arguments.
        args: Keyword arguments of the cluster whose ``repr`` is their source.
        faults: The plan of faults.
        search_alg: Source of a searcher, or None.
    """

    def __init__(
        self,
        family: str,
        scheduler: str,
        scheduler_args: Optional[Dict[str, Any]] = None,
        args: Optional[Dict[str, Any]] = None,
        faults: Optional[List] = None,
        search_alg: Optional[str] = None,
    ):
        self.family = family
        self.scheduler = scheduler
        self.scheduler_args = dict(scheduler_args or {})
        self.args = dict(args or {})
        self.faults = list(faults or [])
        self.search_alg = search_alg
        self.ignore: tuple = ()

    def copy(self) -> "Scenario":
        """Return a copy that can be changed.

        Returns:
            The copy.
        """
        return copy.deepcopy(self)

    def scheduler_source(self) -> str:
        """Return the scheduler as source.

        Returns:
            An expression.
        """
        args = ", ".join(f"{k}={v!r}" for k, v in self.scheduler_args.items())
        return f"{self.scheduler}({args})"

    def sources(self) -> Dict[str, str]:
        """Return the cluster's arguments as source.

        Returns:
            An expression for each keyword argument.
        """
        sources = {k: repr(v) for k, v in self.args.items()}
        if self.faults:
            sources["faults"] = repr(self.faults)
        if self.search_alg:
            sources["search_alg"] = f"lambda: {self.search_alg}"
        if self.ignore:
            sources["ignore"] = repr(tuple(self.ignore))
        return sources

    def cluster(self, **overrides) -> VirtualCluster:
        """Make the cluster.

        Args:
            **overrides: Further arguments of the cluster.

        Returns:
            The cluster.
        """
        names = namespace()
        kwargs = {k: eval(_code(v), names) for k, v in self.sources().items()}
        code = _code(self.scheduler_source())
        kwargs.update(overrides)
        return VirtualCluster.of(lambda: eval(code, names), **kwargs)

    def test_source(self, rule: str, what: str) -> str:
        """Print the scenario as a test that can be pasted.

        Args:
            rule: The invariant that it breaks.
            what: What was broken.

        Returns:
            The source of a test.
        """
        name = f"test_{self.family}_{rule}".replace("-", "_").replace(":", "_").lower()
        sources = {"scheduler": f"lambda: {self.scheduler_source()}", **self.sources()}
        groups: Dict[str, Dict[str, str]] = {}
        for setting, source in sources.items():
            groups.setdefault(GROUP_OF[setting], {})[setting] = source
        lines = ""
        for group, cls in GROUPS.items():
            if group in groups:
                inner = "".join(
                    f"            {k}={v},\n" for k, v in groups[group].items()
                )
                lines += f"        {group}={cls.__name__}(\n{inner}        ),\n"
        return (
            f"def {name}():\n"
            f"    # {what[:80]}\n"
            f"    VirtualCluster(\n"
            f"{lines}"
            f"    ).run(max_events=2000)\n"
        )

    def size(self) -> int:
        """Return how much there is to it; shrinking makes it less.

        Returns:
            A number.
        """
        return len(self.scheduler_source()) + sum(
            len(k) + len(v) for k, v in self.sources().items()
        )


def namespace() -> Dict[str, Any]:
    """Return the names that sources of scenarios may use.

    Returns:
        The names.
    """
    return dict(_names())


@functools.lru_cache(maxsize=1000)
def _code(source: str):
    return compile(source, "<scenario>", "eval")


@functools.lru_cache(maxsize=None)
def _names() -> Dict[str, Any]:
    names: Dict[str, Any] = {
        name: getattr(module, name)
        for module in (resource_changing_scheduler, schedulers)
        for name in dir(module)
        if not name.startswith("_")
    }
    names.update(
        {name: getattr(faults_module, name) for name in faults_module.__dict__}
    )
    names.update(
        Act=Act,
        BOHBStandIn=BOHBStandIn,
        CheckpointConfig=lambda **kwargs: CheckpointConfig(**kwargs),
        ClassTrainable=ClassTrainable,
        Costs=Costs,
        ConcurrencyLimiter=ConcurrencyLimiter,
        FunctionTrainable=FunctionTrainable,
        HEBOStandIn=HEBOStandIn,
        MilestoneScheduler=MilestoneScheduler,
        MixedCurve=MixedCurve,
        OptunaSearch=_optuna,
        PlannedScheduler=PlannedScheduler,
        RandomSearcher=RandomSearcher,
        Repeater=_repeater,
        ScriptedChooser=ScriptedChooser,
        Sizes=Sizes,
        alternating=alternating,
        bandits=bandits,
        checkpoints=checkpoints,
        marked=marked,
        nan=math.nan,
        population=population,
        reallocating=reallocating,
        replay=replay,
        saturating=saturating,
        tune=tune,
        **{cls.__name__: cls for cls in GROUPS.values()},
        lengths=lengths,
        loggers=loggers,
        halves=halves,
    )
    return names


class Source:
    """A value that is printed as the source it was made from.

    Args:
        source: The expression.
    """

    def __init__(self, source: str):
        self.source = source

    def __repr__(self) -> str:
        return self.source


def checkpoints(frequency: int = 0, keep: Optional[int] = None, at_end: bool = False):
    """Make a ``CheckpointConfig``.

    Args:
        frequency: ``checkpoint_frequency``.
        keep: ``num_to_keep``.
        at_end: ``checkpoint_at_end``.

    Returns:
        The config.
    """
    return CheckpointConfig(
        checkpoint_frequency=frequency, num_to_keep=keep, checkpoint_at_end=at_end
    )


def lengths(*values: int) -> Callable[[Dict], Optional[int]]:
    """Let trials end after different times, depending on their ``x``.

    Args:
        *values: Iterations; 0 for never.

    Returns:
        A function of the config.
    """

    def length(config):
        return values[int(config.get("x", 0) * 1000) % len(values)] or None

    return length


def halves(config: Dict) -> Dict[str, float]:
    """Let some trials need two CPUs.

    Args:
        config: The trial's config.

    Returns:
        What it needs.
    """
    return {"CPU": 2 if config.get("x", 0) > 0.6 else 1}


def loggers():
    """Make the loggers that write a file for each trial.

    Returns:
        Tune callbacks.
    """
    return [JsonLoggerCallback(), CSVLoggerCallback()]


def _repeater(searcher, repeat):
    return Repeater(searcher, repeat=repeat, set_index=False)


def _optuna(**kwargs):
    import optuna

    from ray.tune.search.optuna import OptunaSearch

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return OptunaSearch(**kwargs)
