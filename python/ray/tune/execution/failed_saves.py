"""Says which saves of the experiment state have failed, without flooding the log."""

import logging
import time
from datetime import datetime
from typing import Optional

logger = logging.getLogger(__name__)


class _FailedSaves:
    """Counts the saves in a row that have not got to storage.

    Args:
        path: Where the experiment is stored.
    """

    def __init__(self, path: str):
        self._path = path
        self._num_failed = 0
        self._last_error: Optional[BaseException] = None
        self._stored_time: Optional[float] = None

    def on_stored(self) -> None:
        """Take note that a save has got to storage."""
        if self._num_failed:
            logger.info(
                f"The experiment state is stored at '{self._path}' again, after "
                f"{self._num_failed} failed attempts."
            )
        self._num_failed = 0
        self._last_error = None
        self._stored_time = time.time()

    def on_failed(self, error: BaseException) -> None:
        """Take note that a save has failed, and log it.

        The first one is logged in full. If the storage is gone for a night, of the
        others in a row each second, fourth, eighth, ... one is, in a line.

        Args:
            error: What it has failed with.
        """
        self._num_failed += 1
        self._last_error = error
        if self._num_failed == 1:
            logger.error(
                f"Saving experiment state to storage at '{self._path}' failed with "
                f"exception: ",
                exc_info=error,
            )
        elif self._num_failed & (self._num_failed - 1) == 0:
            logger.error(
                f"Saving experiment state to storage at '{self._path}' has failed "
                f"{self._num_failed} times in a row: {type(error).__name__}: {error}"
            )

    def describe(self) -> Optional[str]:
        """Say what is on storage, if the last save is not.

        Returns:
            A text, None if the last save has got there.
        """
        if not self._num_failed:
            return None
        error = self._last_error
        if self._stored_time is None:
            stored = "This run has stored no state there"
        else:
            moment = datetime.fromtimestamp(self._stored_time).isoformat(" ", "seconds")
            stored = f"The state that is stored there is that of {moment}"
        times = f" ({self._num_failed} times in a row)" if self._num_failed > 1 else ""
        return (
            f"The last state of the experiment could not be stored at "
            f"'{self._path}'{times}: {type(error).__name__}: {error}. {stored}; trials "
            f"that have gone on since are only in the results that are returned. Once "
            f"the storage can be written to again, restore the run from there: it "
            f"repeats what came after."
        )
