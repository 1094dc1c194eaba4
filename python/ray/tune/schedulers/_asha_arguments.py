"""Checks of the arguments of ASHAv2, which name the value and what is wanted."""

import math
import numbers
from typing import Any, Optional, Union

import numpy as np


def check_key(name: str, value: Any, wanted: str = "a key of the results") -> None:
    """Check that an argument is a key of the results.

    Args:
        name: The name of the argument.
        value: Its value.
        wanted: What it has to be, for the message.

    Raises:
        ValueError: If it is no string, or empty.
    """
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} must be {wanted}, got {value!r}.")


def check_mode(mode: Optional[str]) -> None:
    """Check whether the metric is to be minimized or maximized, None for not yet.

    Args:
        mode: The argument.

    Raises:
        ValueError: If it is anything else.
    """
    if mode not in (None, "min", "max"):
        raise ValueError(f"mode must be 'min' or 'max', got {mode!r}.")


def positive_number(name: str, value: Any) -> Union[int, float]:
    """Return a positive, finite number as a Python number.

    Args:
        name: The name of the argument.
        value: Its value.

    Returns:
        An integer or a float.

    Raises:
        ValueError: If it is anything else.
    """
    if (
        not isinstance(value, numbers.Real)
        or isinstance(value, (bool, np.bool_))
        or not math.isfinite(value)
        or value <= 0
    ):
        raise ValueError(f"{name} must be a positive, finite number, got {value!r}.")
    return int(value) if isinstance(value, numbers.Integral) else float(value)


def positive_integer(name: str, value: Any) -> int:
    """Return an integer of at least one as a Python integer.

    Args:
        name: The name of the argument.
        value: Its value.

    Returns:
        The integer.

    Raises:
        ValueError: If it is anything else.
    """
    if not is_integer(value) or value < 1:
        raise ValueError(f"{name} must be an integer >= 1, got {value!r}.")
    return int(value)


def check_flag(name: str, value: Any) -> bool:
    """Return a truth value as a Python one.

    Args:
        name: The name of the argument.
        value: Its value.

    Returns:
        True or False.

    Raises:
        ValueError: If it is anything else.
    """
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"{name} must be True or False, got {value!r}.")
    return bool(value)


def is_integer(value: Any) -> bool:
    """Return whether a value is an integer, Python's or NumPy's."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)
