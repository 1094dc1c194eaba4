"""The virtual clock, and the stand-in for the ``time`` module that reads it."""

import time as _time
from typing import Callable, Optional


class VirtualClock:
    """Seconds that pass only when somebody lets them pass.

    Args:
        epoch: Unix time, in seconds, at which the clock starts.
    """

    def __init__(self, epoch: float = 1_700_000_000.0):
        self.epoch = epoch
        self.now = 0.0
        self.unix = epoch  # the same moment as Unix time

    def advance_to(self, moment: float) -> None:
        """Let time pass until a moment; a moment in the past changes nothing.

        Args:
            moment: Seconds since the clock was started.
        """
        if moment > self.now:
            self.now = moment
            self.unix = self.epoch + moment


class VirtualTime:
    """What modules of Tune see as ``time`` while a virtual cluster is active.

    Args:
        clock: The clock to read and, on ``sleep``, to advance.
        stretch: How many seconds go by in a sleep of so many. As many, if None.
    """

    def __init__(
        self,
        clock: VirtualClock,
        stretch: Optional[Callable[[float], float]] = None,
    ):
        self._clock = clock
        self._stretch = stretch or float

    def time(self) -> float:
        return self._clock.unix

    def monotonic(self) -> float:
        # Not zero: Tune compares to timestamps that default to 0 and -inf.
        return 1000.0 + self._clock.now

    perf_counter = monotonic

    def sleep(self, seconds: float) -> None:
        self._clock.advance_to(self._clock.now + self._stretch(max(0.0, seconds)))

    def __getattr__(self, name):
        return getattr(_time, name)
