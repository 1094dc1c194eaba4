"""What must hold after every event, and at the end: one module for each rule.

=======================  ==================================================
the design's section 8   module
=======================  ==================================================
1 an event can come      ``progress``, ``hyperband``
2 tasks in flight        ``tasks``
3 STOP                   ``stops``
4 results                ``results``
5 checkpoints            ``checkpoints``
6 slots                  ``slots``
7 promotions             ``promotions``, ``hyperband``
8 the end                ``end``
(section 5) who is told  ``told``
(section 7) populations  ``populations``, ``reallocations``
=======================  ==================================================

An invariant is a class: ``RULES`` says in a sentence what holds, by the name under
which it is broken; ``applies(scheduler)`` says with which schedulers, with all if there
is none; its other methods are those of ``core.monitor.HOOKS``. A new one is added to
``INVARIANTS`` of its module, and to ``tests/test_invariants.py`` with something that
breaks it. What is private to Ray is read through ``private`` alone.
"""

from typing import Dict, List

from . import (
    checkpoints,
    end,
    hyperband,
    populations,
    progress,
    promotions,
    reallocations,
    results,
    slots,
    stops,
    tasks,
    told,
)

INVARIANTS = tuple(
    invariant
    for module in (
        progress,
        tasks,
        stops,
        results,
        checkpoints,
        slots,
        promotions,
        hyperband,
        end,
        told,
        populations,
        reallocations,
    )
    for invariant in module.INVARIANTS
)

# What holds, by the name of the rule.
RULES: Dict[str, str] = {
    rule: sentence
    for invariant in INVARIANTS
    for rule, sentence in invariant.RULES.items()
}

# A run that breaks one of these does not come to its end; others end, but wrongly.
LIVENESS = frozenset(
    {
        "blocked",
        "endless",
        "hang",
        "running-idle",
        "spin",
        "stranded",
        "unfinished",
    }
)
SAFETY = RULES.keys() - LIVENESS

# Stock Ray breaks these so often that they hide what else is wrong there: see
# ``tests/conftest.py``.
COMMON_ON_STOCK = frozenset(
    {
        "actor-wasted",
        "bracket-changed",
        "buffer-length",
        "checkpoint-overwritten",
        "driver-waits",
        "failure-not-its-own",
        "last-result-open",
        "learned-wrongly",
        "log-incomplete",
        "outside-space",
        "pause-not-told",
        "pause-unsaid",
        "restarted",
        "scheduler-not-told",
        "searcher-not-told",
        "stale-config",
    }
)


def invariants_of(scheduler) -> List:
    """Make the invariants of a run.

    Args:
        scheduler: Its scheduler.

    Returns:
        An object of each class that applies.
    """
    return [
        invariant()
        for invariant in INVARIANTS
        if "applies" not in vars(invariant) or invariant.applies(scheduler)
    ]
