"""Compares the arguments of a run that is resumed with those that it was begun with."""

import sys
from typing import TYPE_CHECKING, Any, Collection, Dict

if TYPE_CHECKING:
    from ray.tune.schedulers import TrialScheduler
    from ray.tune.search import SearchAlgorithm

Arguments = Dict[str, Dict[str, Any]]

# Wrappers that a run may be resumed with or without.
_LIMITERS = ("ConcurrencyLimiter",)


def collect_arguments(
    scheduler: "TrialScheduler", search_alg: "SearchAlgorithm"
) -> Arguments:
    """Return the arguments that a resumed run is compared by.

    Args:
        scheduler: Scheduler of the experiment.
        search_alg: Search algorithm of the experiment.

    Returns:
        Arguments by name, of each of the two. They are stored with the experiment.
    """
    return {
        "scheduler": {
            "scheduler": type(scheduler).__name__,
            **scheduler.get_arguments(),
        },
        "search_alg": {
            "search_alg": describe_search_alg(search_alg),
            "metric": getattr(search_alg, "metric", None),
        },
    }


def compare_arguments(
    stored: Arguments, scheduler: "TrialScheduler", search_alg: "SearchAlgorithm"
) -> Dict[str, Any]:
    """Compare what a run is resumed with to what it was begun with.

    Args:
        stored: What :func:`collect_arguments` has returned for the run. Empty if it was
            begun with a release that stored none.
        scheduler: Scheduler that it is resumed with. One of another class is not
            compared: it starts from the results of the trials.
        search_alg: Search algorithm that it is resumed with.

    Returns:
        The arguments of the scheduler that differ, and may.

    Raises:
        ValueError: If one differs that has to be the same. Names both values.
    """
    given = collect_arguments(scheduler, search_alg)
    changed_arguments(stored.get("search_alg", {}), given["search_alg"])
    before, now = stored.get("scheduler", {}), given["scheduler"]
    if before.get("scheduler") != now["scheduler"]:
        return {}
    return changed_arguments(before, now, scheduler.changeable_arguments)


def describe_search_alg(search_alg: Any) -> str:
    """Name a search algorithm with what it wraps, but for limits on concurrency.

    Args:
        search_alg: Search algorithm or searcher.

    Returns:
        Such as ``"SearchGenerator(Repeater(TuneBOHB))"``.
    """
    name = type(search_alg).__name__
    searcher = getattr(search_alg, "searcher", None)
    if searcher is None:
        return name
    wrapped = describe_search_alg(searcher)
    return wrapped if name in _LIMITERS else f"{name}({wrapped})"


def changed_arguments(
    stored: Dict[str, Any], given: Dict[str, Any], changeable: Collection[str] = ()
) -> Dict[str, Any]:
    """Return the arguments with which a run is not resumed as it was begun.

    Args:
        stored: Arguments that the run was begun with, by name.
        given: Arguments that it is resumed with. None means that it was not given.
        changeable: Names of those that may be others.

    Returns:
        Those of the given ones that differ.

    Raises:
        ValueError: If one differs that has to be the same. Names both values.
    """
    changed = {
        name: value
        for name, value in given.items()
        if value is not None
        and stored.get(name) is not None
        and not _same(stored[name], value)
    }
    fixed = [name for name in changed if name not in changeable]
    if fixed:
        before = ", ".join(f"{name}={_shown(stored[name])}" for name in fixed)
        now = ", ".join(f"{name}={_shown(changed[name])}" for name in fixed)
        raise ValueError(
            f"The run was begun with {before}, and is resumed with {now}. That cannot "
            f"be changed, as what the trials have done so far depends on it. Resume "
            f"the run with {before}, or begin another one."
        )
    return changed


def check_num_samples(before: int, now: int, least: int) -> None:
    """Check that a run can be resumed with a number of samples.

    Args:
        before: The number that it was begun with. ``sys.maxsize`` stands for no end.
        now: The number that it is resumed with.
        least: How many were drawn already, or are sure to be.

    Raises:
        ValueError: If it is resumed with fewer than that. Names the numbers.
    """
    if now < least:
        begun = -1 if before >= sys.maxsize else before
        raise ValueError(
            f"The run was begun with num_samples={begun}, and is resumed with "
            f"num_samples={now}, but {least} samples have been drawn or are points to "
            f"evaluate. Pass num_samples={least}, or more."
        )


def _same(stored: Any, given: Any) -> bool:
    if isinstance(stored, (list, tuple)) and isinstance(given, (list, tuple)):
        # A tuple is stored as a list.
        return len(stored) == len(given) and all(map(_same, stored, given))
    if isinstance(stored, dict) and isinstance(given, dict):
        return stored.keys() == given.keys() and all(
            _same(value, given[key]) for key, value in stored.items()
        )
    try:
        return bool(stored == given)
    except Exception:
        # E.g. an array, whose truth is ambiguous.
        return repr(stored) == repr(given)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
