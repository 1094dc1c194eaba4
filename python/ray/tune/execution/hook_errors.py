"""Errors raised by the hooks of schedulers and search algorithms."""

import contextlib
from typing import Any, Iterator, Optional

from ray.tune.error import TuneError
from ray.tune.experiment import Trial


class _HookError(TuneError):
    """A hook of the scheduler or of the search algorithm raised an error.

    Args:
        message: Names the hook, the trial, and the error.
    """

    def __init__(self, message: str):
        # Not that of a class that is mixed in, which may want other arguments.
        Exception.__init__(self, message)
        self._message = message

    def __str__(self) -> str:
        return self._message

    def __reduce__(self):
        return _HookError, (self._message,)


def _make_hook_error(message: str, cause: Exception) -> _HookError:
    """Make an error that can be caught as what the hook has raised, too."""
    if isinstance(cause, StopIteration):
        # It would mean something else further out.
        return _HookError(message)
    try:
        error_cls = type("_HookError", (_HookError, type(cause)), {})
        return error_cls(message)
    except Exception:
        return _HookError(message)


@contextlib.contextmanager
def _name_hook(owner: Any, hook: str, trial: Optional[Trial] = None) -> Iterator[None]:
    """Name the hook, and the trial it was called for, in an error that it raises.

    Args:
        owner: The scheduler or search algorithm.
        hook: Name of its method that is called in the context.
        trial: The trial that the hook is called for, if it is for one.

    Raises:
        _HookError: If the hook raised an error, which is then its cause. It is of the
            type of that error, too. An error that a hook further in raised keeps its
            name.
    """
    try:
        yield
    except _HookError:
        raise
    except Exception as e:
        message = (
            f"`{type(owner).__name__}.{hook}` raised an error"
            f"{f' for trial {trial}' if trial is not None else ''}: "
            f"{type(e).__name__}: {e}"
        )
        raise _make_hook_error(message, e) from e
