"""Errors raised by the hooks of schedulers and search algorithms."""

import contextlib
from typing import Any, Iterator, Optional

from ray.tune.error import TuneError
from ray.tune.experiment import Trial


class _HookError(TuneError):
    """A hook of the scheduler or of the search algorithm raised an error."""


@contextlib.contextmanager
def _name_hook(owner: Any, hook: str, trial: Optional[Trial] = None) -> Iterator[None]:
    """Name the hook, and the trial it was called for, in an error that it raises.

    Args:
        owner: The scheduler or search algorithm.
        hook: Name of its method that is called in the context.
        trial: The trial that the hook is called for, if it is for one.

    Raises:
        _HookError: If the hook raised an error, which is then its cause. An error
            that a hook further in raised keeps its name.
    """
    try:
        yield
    except _HookError:
        raise
    except Exception as e:
        raise _HookError(
            f"`{type(owner).__name__}.{hook}` raised an error"
            f"{f' for trial {trial}' if trial is not None else ''}: "
            f"{type(e).__name__}: {e}"
        ) from e
