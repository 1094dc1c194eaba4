"""Runs one scenario, in one order of its events or in every one."""

import hashlib
import traceback
from typing import Dict, List, NamedTuple, Optional

from ..core.monitor import InvariantViolation
from ..core.order import ScriptedChooser
from .scenario import Scenario

MAX_EVENTS = 1500


class Outcome(NamedTuple):
    """What came of one run.

    Args:
        rule: The invariant that was broken, ``crash:...`` if Tune raised, or None.
        what: What was broken.
        trial: The trial that broke it.
        events: The number of events the driver handled.
        tail: The last things that happened.
        digest: A digest of the whole run.
        states: Digests of the states that were seen.
        message: The whole message.
    """

    rule: Optional[str]
    what: str
    trial: Optional[str]
    events: int
    tail: List
    digest: str
    states: frozenset
    message: str


def run_scenario(
    scenario: Scenario,
    max_events: int = MAX_EVENTS,
    states: bool = False,
    full: bool = False,
    **overrides,
) -> Outcome:
    """Run one scenario.

    Args:
        scenario: The scenario.
        max_events: The most events that it may take.
        states: Whether to collect the states seen.
        full: Whether to make a digest of the whole run.
        **overrides: Further arguments of the cluster.

    Returns:
        The outcome.
    """
    seen = _States() if states else None

    rule, what, trial, message = None, "", None, ""
    cluster = scenario.cluster(quiet=True, on_event=seen, keep_events=full, **overrides)
    try:
        cluster.run(max_events=max_events)
    except InvariantViolation as exc:
        rule, what, trial, message = exc.rule, exc.what, exc.trial, str(exc)
    except Exception as exc:
        kind, what = _crash(exc)
        rule = f"crash:{kind}"
        message = f"[{rule}] {what}\n" + "".join(
            f"  {event}\n" for event in cluster.monitor.events[-16:]
        )
    cluster.close()
    events = cluster.monitor.events
    digest = ""
    if full:
        text = "\n".join(map(str, events))
        digest = hashlib.sha256(text.encode()).hexdigest()
    return Outcome(
        rule,
        what,
        trial,
        cluster.monitor.number,
        events[-16:],
        digest,
        frozenset(seen.digests if states else ()),
        message,
    )


def _crash(exc: Exception):
    """Name a crash by the innermost error and place."""
    text = str(exc)
    if "Traceback" in text:
        last = text.strip().splitlines()[-1]
        kind = last.split(":")[0].split(".")[-1]
        return kind, last[:200]
    frames = traceback.extract_tb(exc.__traceback__)
    place = frames[-1].name if frames else ""
    return type(exc).__name__, f"{type(exc).__name__}: {text[:160]} (in {place})"


class _States:
    """Digests of the states that a cluster was in: what its trials are and do."""

    def __init__(self):
        self.digests: set = set()
        self._last = None
        self._parts: Dict[str, int] = {}
        self._sum = 0  # of all parts, since the order of the trials does not matter

    def __call__(self, cluster, event) -> None:
        monitor = cluster.monitor
        if (monitor.number, cluster.num_restarts) == self._last:
            return
        if self._last is None or cluster.num_restarts != self._last[1]:
            self._parts, self._sum = {}, 0
        self._last = monitor.number, cluster.num_restarts
        for trial_id in monitor.touched:
            part = _part(monitor.views[trial_id])
            self._sum += part - self._parts.get(trial_id, 0)
            self._parts[trial_id] = part
        monitor.touched.clear()
        self.digests.add(hash((len(self._parts), self._sum)))


def _part(view) -> int:
    """A digest of what one trial is, and what is in flight."""
    trial, flight = view.trial, view.in_flight
    if trial is None:
        return 0
    last = trial.run_metadata.last_result or {}
    return hash(
        (
            trial.status,
            last.get("training_iteration", 0),
            trial.is_saving,
            flight.get("train", 0) > 0,
            flight.get("save", 0) > 0,
            flight.get("restore", 0) > 0,
        )
    )


def every_order(scenario: Scenario, limit: int = 3, max_runs: int = 1000):
    """Run every order of the events that are ready at once.

    Args:
        scenario: A small scenario.
        limit: Of more ready events than this, only the first ones are permuted.
        max_runs: At most so many orders.

    Yields:
        For each order: the picks that were made, and the outcome.
    """
    script: List[int] = []
    for _ in range(max_runs):
        chooser = ScriptedChooser(script, limit)
        outcome = run_scenario(scenario, chooser=chooser)
        yield list(chooser.taken), outcome
        # The next order: raise the last pick that can be raised.
        taken, counts = chooser.taken, chooser.counts
        position = len(taken) - 1
        while position >= 0 and taken[position] + 1 >= counts[position]:
            position -= 1
        if position < 0:
            return
        script = taken[:position] + [taken[position] + 1]
