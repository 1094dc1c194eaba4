"""What a build says while it runs."""

import sys
import time
from typing import List, Tuple


class Clock:
    """Times the phases of a build, in seconds."""

    def __init__(self):
        self._laps: List[Tuple[str, float]] = []
        self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        now = time.perf_counter()
        self._laps.append((phase, now - self._last))
        self._last = now

    def __str__(self) -> str:
        total = sum(seconds for _, seconds in self._laps)
        laps = ", ".join(f"{phase} {seconds:.2f} s" for phase, seconds in self._laps)
        return f"{laps}, in all {total:.2f} s"


def say(text: str) -> None:
    """Print a line where it does not mix with what a frontend reads."""
    print(text, file=sys.stderr, flush=True)
