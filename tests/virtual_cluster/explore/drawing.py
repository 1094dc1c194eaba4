"""Draws scenarios of every kind from seeds."""

import random
from typing import Callable, Dict, Optional

from .draw_populations import POPULATIONS
from .draw_reallocations import draw_resources
from .draw_runs import RUNS
from .draw_schedulers import SCHEDULERS
from .parts import outside
from .scenarios import Scenario

FAMILIES: Dict[str, Callable[[random.Random], Scenario]] = {
    **SCHEDULERS,
    **POPULATIONS,
    **RUNS,
    "resources": draw_resources,
}


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
    # What goes on outside is not told of an error in a hook.
    has_hook_error = any(fault.kind == "hook" for fault in scenario.faults)
    plans = scenario.scheduler in ("PlannedScheduler", "MilestoneScheduler")
    if not plans and not has_hook_error:
        outside(rng, scenario)
    return scenario
