"""Chances: values that are drawn, nested as the data that they stand in."""

import random
from typing import Any

from ..workloads.spec import Spec

ABSENT = object()  # leaves a setting or an argument out


class OneOf:
    """One of several values, each as likely; one that stands twice is twice as likely.

    Args:
        *values: The values, which may be chances again.
    """

    def __init__(self, *values: Any):
        self.values = values


class Between:
    """A whole number.

    Args:
        low: The lowest.
        high: The highest.
    """

    def __init__(self, low: int, high: int):
        self.low, self.high = low, high


class Maybe:
    """A value, or none.

    Args:
        share: How likely it is.
        value: The value, which may be a chance again.
        otherwise: What there is instead; by default, the argument is left out.
    """

    def __init__(self, share: float, value: Any, otherwise: Any = ABSENT):
        self.share, self.value, self.otherwise = share, value, otherwise


class Several:
    """A list of values that are drawn one by one.

    Args:
        low: The fewest.
        high: The most.
        value: Each of them, a chance.
    """

    def __init__(self, low: int, high: int, value: Any):
        self.low, self.high, self.value = low, high, value


def drawn(value: Any, rng: random.Random) -> Any:
    """Draw what is left to chance in a value.

    Args:
        value: A chance, a spec, a dictionary, a list, or anything else.
        rng: What is drawn from.

    Returns:
        The value; ``ABSENT`` if there is none.
    """
    kind = type(value)
    if kind is OneOf:
        return drawn(rng.choice(value.values), rng)
    if kind is Between:
        return rng.randint(value.low, value.high)
    if kind is Maybe:
        return drawn(
            value.value if rng.random() < value.share else value.otherwise, rng
        )
    if kind is Several:
        return [
            drawn(value.value, rng) for _ in range(rng.randint(value.low, value.high))
        ]
    if kind is Spec:
        return Spec(
            drawn(value.name, rng),
            *[drawn(arg, rng) for arg in value.args],
            **drawn(value.kwargs, rng),
        )
    if kind is list:
        return [drawn(item, rng) for item in value]
    if kind is dict:
        items = {key: drawn(item, rng) for key, item in value.items()}
        return {key: item for key, item in items.items() if item is not ABSENT}
    return value
