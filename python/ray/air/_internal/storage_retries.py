"""Tries operations on storage again that fail, as they do on a network now and then."""

import errno
import functools
import logging
import time
from typing import Callable, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")

# How long to wait before each further attempt, in seconds.
_WAITS_S = (0.5, 2.0, 5.0)
# For so long after all attempts were in vain, nothing is waited for, in seconds. There
# may be an operation for each of a thousand trials.
_OUTAGE_S = 30.0

# It would fail again: something is not there, not allowed, or not implemented.
_LASTING_TYPES = (
    FileExistsError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    NotImplementedError,
    PermissionError,
    AttributeError,
    TypeError,
    ValueError,
)
_LASTING_ERRNOS = {
    getattr(errno, name)
    for name in ("ENOSPC", "EDQUOT", "EROFS", "EFBIG", "ENAMETOOLONG", "EPERM")
    if hasattr(errno, name)
}

_outage_until = float("-inf")


def is_lasting(error: Exception) -> bool:
    """Tell whether an operation on storage would fail in the same way again.

    Args:
        error: What it has failed with.

    Returns:
        Whether another attempt soon after has no prospects, as on a full or read-only
        disk, or where a file is not there. An error that is not known to last does not.
    """
    return (
        isinstance(error, _LASTING_TYPES)
        or getattr(error, "errno", None) in _LASTING_ERRNOS
    )


def retried(operation: Callable[..., T]) -> Callable[..., T]:
    """Let an operation on storage be tried again when it fails.

    Args:
        operation: Does the same when it is called again, whatever a failed call has
            left behind.

    Returns:
        A function of the same arguments that makes up to four attempts within some
        eight seconds, and raises the error of the last one, or one that lasts
        (:func:`is_lasting`) at once. After it has given up, functions like it make one
        attempt each, for half a minute or until one succeeds.
    """

    @functools.wraps(operation)
    def attempt(*args, **kwargs) -> T:
        global _outage_until
        waits_s = iter(_WAITS_S)
        while True:
            try:
                result = operation(*args, **kwargs)
            except Exception as e:
                if is_lasting(e) or time.monotonic() < _outage_until:
                    raise
                wait_s = next(waits_s, None)
                if wait_s is None:
                    _outage_until = time.monotonic() + _OUTAGE_S
                    raise
                logger.warning(
                    f"{_describe(operation)} has failed on storage and is tried again "
                    f"in {wait_s} s: {type(e).__name__}: {e}"
                )
                time.sleep(wait_s)
            else:
                _outage_until = float("-inf")
                return result

    return attempt


def _describe(operation: Callable) -> str:
    return getattr(operation, "__name__", str(operation)).strip("_")
