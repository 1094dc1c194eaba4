"""Whose work the time of a run is: samples of the stack, so that little is distorted.

Each sample counts for the innermost function that belongs to one of ``PARTS``. What
the standard library, numpy and the helpers of Tune do is thus its caller's.
"""

import os
import signal
import threading
from collections import Counter
from typing import Dict

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep

# The virtual cluster itself: clock, runtime, invariants.
HARNESS = "harness"
PARTS = (HARNESS, "new trials", "scheduler", "controller")

_PLACES = {
    "/ray/tune/search/": "new trials",
    "/ray/tune/schedulers/": "scheduler",
    "/ray/tune/execution/": "controller",
    "/ray/air/execution/": "controller",
}


class Shares:
    """Counts samples while it is entered, which may be more than once.

    Args:
        seconds: CPU time between two samples.
    """

    def __init__(self, seconds: float = 0.004):
        self._seconds = seconds
        self._part_of: Dict = {}  # code -> part, or None
        self._counts: Counter = Counter()

    def __enter__(self) -> "Shares":
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("Only the main thread can be sampled.")
        self._before = signal.signal(signal.SIGPROF, self._sample)
        signal.setitimer(signal.ITIMER_PROF, self._seconds, self._seconds)
        return self

    def __exit__(self, *exc_info) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, self._before)

    def _sample(self, signum, frame) -> None:
        while frame is not None:
            code = frame.f_code
            try:
                part = self._part_of[code]
            except KeyError:
                part = self._part_of[code] = _part(code.co_filename)
            if part is not None:
                self._counts[part] += 1
                return
            frame = frame.f_back

    @property
    def num_samples(self) -> int:
        """How many samples there are by now."""
        return sum(self._counts.values())

    def shares(self) -> Dict[str, float]:
        """Return the share of each part.

        Returns:
            Numbers whose sum is 1, if there are any samples.
        """
        total = max(1, self.num_samples)
        return {part: self._counts[part] / total for part in PARTS}


def _part(filename: str):
    if filename.startswith(_HERE):
        return HARNESS
    filename = filename.replace(os.sep, "/")
    return next((part for place, part in _PLACES.items() if place in filename), None)
