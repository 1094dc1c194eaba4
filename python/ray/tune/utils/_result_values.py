"""Numbers from the results of trials, whatever a trainable reports.

One trial that reports a tensor or a string must not end the search of all others, so
schedulers, stoppers and trials read numbers by means of this module. It knows nothing
of the controller, and of trials but how they are named in a log.
"""

import logging
from typing import Any, Dict, Iterable, NamedTuple, Optional, Union

logger = logging.getLogger(__name__)

Number = Union[int, float]

_MISSING = object()


class ResultValues(NamedTuple):
    """What a scheduler compares a result by.

    Attributes:
        time: The value of ``time_attr``, never NaN.
        metric: The value of the metric as it was reported; NaN where that is not a
            number.
    """

    time: Number
    metric: float


def as_number(value: Any) -> Optional[Number]:
    """Return a value as a Python number.

    Args:
        value: Anything: the ``float()`` of a tensor of two elements raises a
            ``RuntimeError``, that of ``10**400`` an ``OverflowError``.

    Returns:
        An integer as it is, anything else as ``float()`` makes of it. None if that
        raises an error or gives NaN.
    """
    kind = type(value)
    if kind is not float:
        try:
            number = float(value)
        except Exception:
            return None
        if kind is int:
            return value
        value = number
    return None if value != value else value


def is_number(value: Any) -> bool:
    """Return whether ``float()`` accepts a value, which may be NaN."""
    return as_number(value) is not None or _refusal(value) is None


def read_result(scheduler: Any, trial: Any, result: Dict) -> Optional[ResultValues]:
    """Read what a scheduler compares a result by.

    The first time that is not a number is warned of, and the first metric that
    ``float()`` refuses. NaN is taken for what it says.

    Args:
        scheduler: The scheduler, of which ``_time_attr`` and ``_metric`` are used.
        trial: The trial that has reported.
        result: Its result.

    Returns:
        The values. None if the result has to be skipped: it lacks one of them, or its
        time is not a number.
    """
    if scheduler._time_attr not in result or scheduler._metric not in result:
        return None
    time = read_time(scheduler, trial, result)
    if time is None:
        return None
    return ResultValues(time, read_metric(scheduler, trial, result))


def read_time(scheduler: Any, trial: Any, result: Dict) -> Optional[Number]:
    """Read the time of a result.

    Args:
        scheduler: The scheduler, of which ``_time_attr`` is used.
        trial: The trial that has reported.
        result: Its result.

    Returns:
        The time. None if there is none, or none that is a number.
    """
    key = scheduler._time_attr
    value = result.get(key, _MISSING)
    time = as_number(value)
    if time is None and value is not _MISSING:
        warn_of_value(scheduler, trial, key, value, "skips such results")
    return time


def read_metric(scheduler: Any, trial: Any, result: Dict) -> float:
    """Read the metric of a result.

    Args:
        scheduler: The scheduler, of which ``_metric`` is used.
        trial: The trial that has reported.
        result: Its result, which has the metric.

    Returns:
        The metric, NaN if its value is not a number.
    """
    key = scheduler._metric
    metric = as_number(result[key])
    if metric is not None:
        return metric
    if not is_number(result[key]):
        warn_of_value(scheduler, trial, key, result[key], "ranks it as NaN")
    return float("nan")


def with_readable_metrics(
    owner: Any, trial: Any, result: Dict, keys: Iterable[str], is_final: bool = False
) -> Dict:
    """Return a result whose metrics a search algorithm can compute with.

    Libraries take floats: they raise an error for a tensor or a ``Decimal``, and that
    would end the search of all trials.

    Args:
        owner: Who hands on the result.
        trial: The trial that has reported.
        result: Its result, which is not changed.
        keys: The keys of the metrics.
        is_final: Whether the trial has ended, so that a metric that is missing stays
            so. Before, it is left out.

    Returns:
        The result, with NaN for what is not a number.
    """
    readable = {}
    for key in keys:
        value = result.get(key, _MISSING)
        if type(value) is float or value is _MISSING and not is_final:
            continue
        number = None if value is _MISSING else as_number(value)
        if number is None:
            number = float("nan")
            if value is not _MISSING and not is_number(value):
                warn_of_value(owner, trial, key, value, "hands on NaN to the searcher")
        readable[key] = number
    return {**result, **readable} if readable else result


def describe_value(trial: Any, key: str, value: Any) -> str:
    """Return a sentence that says that a value is not a number, and why.

    Args:
        trial: The trial that has reported it.
        key: The key of the result.
        value: The value. It is not shown: its ``repr()`` may fail, too, or be long.

    Returns:
        The sentence, which names the trial, the key and the type.
    """
    kind = type(value)
    name = kind.__qualname__
    if kind.__module__ != "builtins":
        name = f"{kind.__module__}.{name}"
    reason = _refusal(value) or "it is NaN"
    return (
        f"Trial {trial} reported a {key!r} of type {name}, which is not a number "
        f"({reason})."
    )


def warn_of_value(
    owner: Any, trial: Any, key: str, value: Any, consequence: str
) -> None:
    """Warn of a value that is not a number, once for each key.

    Args:
        owner: Who reads the value: a scheduler or a stopper. It gets an attribute that
            says which keys it has warned of.
        trial: The trial that has reported it.
        key: The key of the result.
        value: The value.
        consequence: What the owner does then, as a predicate.
    """
    warned = getattr(owner, "_warned_keys", frozenset())
    if key in warned:
        return
    # Replaced, not changed: a set would be shared by all copies of the owner.
    owner._warned_keys = warned | {key}
    logger.warning(
        f"{describe_value(trial, key, value)} {type(owner).__name__} {consequence}. "
        f"Report a float instead. (Logged once for {key!r}.)"
    )


def _refusal(value: Any) -> Optional[str]:
    """Return why ``float()`` refuses a value, None if it does not."""
    try:
        float(value)
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:200]
    return None
