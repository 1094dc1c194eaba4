"""Draws scenarios of every kind from seeds."""

import random
from typing import Optional

from .chances import drawn
from .consistency import make_consistent
from .scenario import Scenario
from .workloads import COMMON, WORKLOADS


def draw(seed: int, workload: Optional[str] = None) -> Scenario:
    """Draw a scenario.

    Args:
        seed: The seed.
        workload: The kind of run; any if None.

    Returns:
        The scenario.
    """
    rng = random.Random(seed * 2654435761 + 11)
    scenario = _draw(rng, workload or rng.choice(sorted(WORKLOADS)))
    make_consistent(scenario)
    return scenario


def _draw(rng: random.Random, name: str) -> Scenario:
    workload = WORKLOADS[name]
    if workload.over:
        scenario = _draw(rng, rng.choice(workload.over))
        scenario.workload = name
        scenario.faults = [f for f in scenario.faults if f.kind not in workload.without]
        if workload.outside is None:
            scenario.settings.pop("outside", None)
        scenario.settings.update(drawn(workload.settings, rng))
        known = scenario.scheduler.kwargs
        for key, value in drawn(workload.scheduler or {}, rng).items():
            known[key] = known[key] + value if isinstance(value, list) else value
    else:
        settings = {**COMMON, **workload.settings}
        if workload.outside is not None:
            settings["outside"] = workload.outside
        scenario = Scenario(name, drawn(workload.scheduler, rng), drawn(settings, rng))
    scenario.settings.update(drawn(rng.choice(workload.variants), rng))
    scenario.faults.extend(workload.faults.draw(rng))
    return scenario
