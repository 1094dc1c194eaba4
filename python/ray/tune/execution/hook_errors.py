"""Calls of the hooks of schedulers and search algorithms, and the errors they raise."""

import contextlib
import logging
from typing import Any, Iterator, List, Optional

from ray.tune.experiment import Trial

logger = logging.getLogger(__name__)


class HookCalls:
    """The hooks that are being called, and the last error that one has raised.

    An error is raised as it is. The log names the hook and the trial it was called
    for, which a traceback does not.
    """

    def __init__(self):
        self._names: List[str] = []
        self._error: Optional[Exception] = None

    @property
    def current(self) -> Optional[str]:
        """Name of the hook that is being called, the innermost one; None: no hook."""
        return self._names[-1] if self._names else None

    def has_raised(self, error: Exception) -> bool:
        """Return whether an error comes from the last hook that has failed.

        Args:
            error: Error that was caught outside of the hook.

        Returns:
            True if it is the very same error.
        """
        return error is self._error

    @contextlib.contextmanager
    def call(
        self, owner: Any, hook: str, trial: Optional[Trial] = None
    ) -> Iterator[None]:
        """Make the context in which a hook is called.

        Args:
            owner: The scheduler or search algorithm.
            hook: Name of its method.
            trial: The trial that the hook is called for, if it is for one.
        """
        name = f"{type(owner).__name__}.{hook}"
        self._names.append(name)
        try:
            yield
        except Exception as e:
            # One that a hook further in raised was logged with its name.
            if e is not self._error:
                self._error = e
                logger.error(
                    f"`{name}` raised an error"
                    f"{f' for trial {trial}' if trial is not None else ''}: "
                    f"{type(e).__name__}: {e}"
                )
            raise
        finally:
            self._names.pop()
