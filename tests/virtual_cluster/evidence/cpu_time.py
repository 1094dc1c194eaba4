"""Whose work the time of a run is: samples of the stack, so that little is distorted.

Each sample counts for the innermost function that belongs to one of ``PARTS``. What
the standard library, numpy and the helpers of Tune do is thus its caller's.
"""

import gc
import os
import signal
import threading
import time
from collections import Counter
from dataclasses import replace
from typing import Dict, Iterator

from ..core.activation import silence
from ..core.cluster import VirtualCluster
from ..core.settings import Cluster, Experiment, Options
from ..explore.search import garbage_in_batches
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler

_HARNESS_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep

# The virtual cluster itself: clock, runtime, invariants.
HARNESS = "harness"
PARTS = (HARNESS, "new trials", "scheduler", "controller")

_PLACES = {
    "/ray/tune/search/": "new trials",
    "/ray/tune/schedulers/": "scheduler",
    "/ray/tune/execution/": "controller",
    "/ray/air/execution/": "controller",
}


class CpuTime:
    """Counts samples while it is entered, which may be more than once.

    Args:
        seconds: CPU time between two samples.
    """

    def __init__(self, seconds: float = 0.004):
        self._seconds = seconds
        self._part_of: Dict = {}  # code -> part, or None
        self._counts: Counter = Counter()

    def __enter__(self) -> "CpuTime":
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
    if filename.startswith(_HARNESS_FOLDER):
        return HARNESS
    filename = filename.replace(os.sep, "/")
    return next((part for place, part in _PLACES.items() if place in filename), None)


def _fifo() -> Experiment:
    # Trials are all alike, so that only their number differs.
    return Experiment(FIFOScheduler(), stop={"training_iteration": 8})


def _asha() -> Experiment:
    # The more there are, the earlier most of them are stopped.
    return Experiment(ASHAScheduler(max_t=100, grace_period=1, reduction_factor=4))


def _run(experiment: Experiment, trials: int, cpu_time: CpuTime):
    """Run once: its events, its CPU seconds, and those that go into garbage."""
    cluster = VirtualCluster(
        replace(experiment, num_samples=trials),
        Cluster(slots=8),
        options=Options(quiet=True, keep_events=False),
    ).start()
    begin = time.process_time()
    with cpu_time:
        record = cluster.run(max_events=10**7)
    seconds = time.process_time() - begin
    cluster.close()
    events = record.num_events
    del cluster, record
    begin = time.process_time()
    gc.collect()
    garbage = time.process_time() - begin
    return events, seconds + garbage, garbage


def measure(seconds: float = 2.0) -> Iterator[Dict]:
    """Measure what an event costs, and whom, by the number of trials.

    Args:
        seconds: CPU time for each number.

    Yields:
        Figures of one scheduler and number, and a ``line`` that tells them.
    """
    for name, experiment in (("FIFO", _fifo), ("ASHA", _asha)):
        _run(experiment(), 20, CpuTime())  # What is imported late, is now.
        for trials in (10, 100, 1000):
            cpu_time, runs, events, spent, garbage = CpuTime(), 0, 0, 0.0, 0.0
            rate = 0.0  # of the fastest run, where the machine has other work, too
            with silence(), garbage_in_batches():
                while spent < seconds:
                    more, took, collecting = _run(experiment(), trials, cpu_time)
                    runs, events = runs + 1, events + more
                    spent, garbage = spent + took, garbage + collecting
                    rate = max(rate, more / took)
            micros = 1e6 * (spent - garbage) / events
            each = {part: share * micros for part, share in cpu_time.shares().items()}
            each["garbage"] = 1e6 * garbage / events
            parts = ", ".join(f"{part} {spent:.0f}" for part, spent in each.items())
            yield {
                "scheduler": name,
                "trials": trials,
                "events": events // runs,
                "rate": rate,
                "events_per_trial": events / runs / trials,
                "microseconds": each,
                "line": f"{name} {trials:5d} trials {events // runs:6d} events "
                f"({events / runs / trials:4.1f} a trial) {rate:6.0f} a second; us an "
                f"event: {parts}; harness {each[HARNESS] / sum(each.values()):.0%}",
            }
