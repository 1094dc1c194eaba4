"""The names by which specs, and tests that are printed, call what a run is made of."""

import functools
import math
from typing import Any, Callable, Dict, Optional

from ..core.actors import Costs
from ..core.order import ScriptedChooser
from ..core.settings import GROUPS
from ..faults import plan
from .populations import bandits, marked, population, replay
from .reallocations import Sizes, alternating, reallocating
from .schedulers import Act, MilestoneScheduler, PlannedScheduler
from .searchers import BOHBStandIn, HEBOStandIn, RandomSearcher
from .trainables import ClassTrainable, FunctionTrainable, MixedCurve, saturating
from ray import tune
from ray.tune import CheckpointConfig, schedulers
from ray.tune.logger import CSVLoggerCallback, JsonLoggerCallback
from ray.tune.schedulers import resource_changing_scheduler
from ray.tune.search import ConcurrencyLimiter, Repeater


@functools.lru_cache(maxsize=None)
def names() -> Dict[str, Any]:
    """Return what each name stands for.

    Returns:
        The names; they are not to be changed.
    """
    found: Dict[str, Any] = {
        name: getattr(module, name)
        for module in (resource_changing_scheduler, schedulers, plan)
        for name in dir(module)
        if not name.startswith("_")
    }
    for cls in GROUPS.values():
        found[cls.__name__] = cls
    for thing in (
        Act,
        BOHBStandIn,
        ClassTrainable,
        ConcurrencyLimiter,
        Costs,
        FunctionTrainable,
        HEBOStandIn,
        MilestoneScheduler,
        MixedCurve,
        PlannedScheduler,
        RandomSearcher,
        ScriptedChooser,
        Sizes,
        alternating,
        bandits,
        checkpoints,
        halves,
        lengths,
        loggers,
        marked,
        population,
        reallocating,
        replay,
        saturating,
    ):
        found[thing.__name__] = thing
    found.update(
        OptunaSearch=_optuna,
        PlacementGroupFactory=tune.PlacementGroupFactory,
        Repeater=_repeater,
        nan=math.nan,
        tune=tune,
    )
    return found


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
