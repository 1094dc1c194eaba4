"""Runs many histories and remembers what they break."""

import gc
import hashlib
import random
import time
import traceback
from contextlib import contextmanager
from typing import Dict, Iterable, List, NamedTuple, Optional

from ..core.activation import silence
from ..core.monitor import InvariantViolation
from ..core.order import ScriptedChooser
from .drawing import FAMILIES, draw
from .scenarios import Scenario

MAX_EVENTS = 1500
_HISTORIES_PER_COLLECTION = 25


class Outcome(NamedTuple):
    """What came of one history.

    Args:
        rule: The invariant that was broken, ``crash:...`` if Tune raised, or None.
        what: What was broken.
        trial: The trial that broke it.
        events: The number of events the driver handled.
        tail: The last things that happened.
        digest: A digest of the whole history.
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
    """Run one history.

    Args:
        scenario: The scenario.
        max_events: The most events that it may take.
        states: Whether to collect the states seen.
        full: Whether to make a digest of the whole history.
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


class Finding(NamedTuple):
    """A kind of violation that was found.

    Args:
        family: The kind of scenario.
        rule: The invariant.
        seed: The seed of the first history that broke it.
        scenario: That scenario.
        outcome: What came of it.
        seconds: When it was found.
    """

    family: str
    rule: str
    seed: int
    scenario: Scenario
    outcome: Outcome
    seconds: float


class Report:
    """What an exploration has seen."""

    def __init__(self):
        self.histories = 0
        self.next_seed = 0
        self.events = 0
        self.seconds = 0.0
        self.cpu_seconds = 0.0
        self.states: set = set()
        self.findings: Dict[tuple, Finding] = {}
        self.counts: Dict[tuple, int] = {}
        self.per_family: Dict[str, List[int]] = {}

    def lines(self) -> List[str]:
        """Return the report as lines.

        Returns:
            The lines.
        """
        seconds = max(self.cpu_seconds, 1e-9)
        lines = [
            f"{self.histories} histories, {self.events} events, "
            f"{len(self.states)} states in {self.seconds:.1f} s: "
            f"{self.histories / seconds:.0f} histories/s, "
            f"{self.events / seconds:.0f} events/s of one core, "
            f"{sum(self.counts.values())} violations of {len(self.findings)} kinds"
        ]
        for family in sorted(self.per_family):
            count, broken = self.per_family[family]
            lines.append(f"  {family:<12} {count:6d} histories, {broken:6d} violations")
        for (family, rule), finding in sorted(self.findings.items()):
            lines.append(
                f"  {family:<12} {rule:<28} x{self.counts[(family, rule)]:<5d} "
                f"seed {finding.seed}: {finding.outcome.what[:110]}"
            )
        return lines


def explore(
    seconds: float,
    families: Optional[Iterable[str]] = None,
    first_seed: int = 0,
    max_histories: Optional[int] = None,
    states: bool = True,
    look_behind: bool = True,
    until=None,
    ignore: Iterable[str] = (),
    only=None,
) -> Report:
    """Run random histories.

    A rule that was broken hides what would have come after it. With ``look_behind``,
    some histories ignore the rules that their family is known to break.

    Args:
        seconds: For how long.
        families: Which kinds of scenarios; all if None.
        first_seed: The seed of the first history; the others count up from it.
        max_histories: At most so many.
        states: Whether to count the states seen.
        look_behind: Whether to ignore known violations now and then.
        ignore: Names of invariants that are never checked.
        only: ``f(scenario) -> bool``; scenarios for which it is false are not run.
        until: ``f(finding) -> bool``; ends the exploration when true.

    Returns:
        The report.
    """
    with silence(), garbage_in_batches():
        return _explore(
            seconds,
            sorted(families or FAMILIES),
            first_seed,
            max_histories,
            states,
            look_behind,
            until,
            ignore,
            only,
        )


@contextmanager
def garbage_in_batches():
    """Leave it to the caller to collect garbage, between histories.

    What there is before is no garbage: imports, most of all, which are many.

    Yields:
        Nothing.
    """
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


def _explore(
    seconds, names, first_seed, max_histories, states, look_behind, until, ignore, only
) -> Report:
    report = Report()
    begin = time.perf_counter()
    cpu = time.process_time()
    seed = first_seed
    while True:
        report.seconds = time.perf_counter() - begin
        if report.seconds >= seconds:
            break
        if max_histories is not None and report.histories >= max_histories:
            break
        family = names[seed % len(names)]
        scenario = draw(seed, family)
        if only is not None and not only(scenario):
            seed += 1
            continue
        scenario.ignore = tuple(ignore)
        if look_behind:
            known = sorted(rule for fam, rule in report.findings if fam == family)
            rng = random.Random(seed)
            scenario.ignore += tuple(
                r for r in known if rng.random() < 0.6 and not r.startswith("crash")
            )
        outcome = run_scenario(scenario, states=states)
        report.histories += 1
        if report.histories % _HISTORIES_PER_COLLECTION == 0:
            gc.collect()
        report.events += outcome.events
        report.states |= outcome.states
        counts = report.per_family.setdefault(family, [0, 0])
        counts[0] += 1
        if outcome.rule is not None:
            counts[1] += 1
            key = (family, outcome.rule)
            report.counts[key] = report.counts.get(key, 0) + 1
            finding = Finding(
                family,
                outcome.rule,
                seed,
                scenario,
                outcome,
                time.perf_counter() - begin,
            )
            if key not in report.findings:
                report.findings[key] = finding
            if until is not None and until(finding):
                report.seconds = time.perf_counter() - begin
                seed += 1
                break
        seed += 1
    report.next_seed = seed
    report.cpu_seconds = time.process_time() - cpu
    return report


def every_order(scenario: Scenario, limit: int = 3, max_histories: int = 1000):
    """Run every order of the events that are ready at once.

    Args:
        scenario: A small scenario.
        limit: Of more ready events than this, only the first ones are permuted.
        max_histories: At most so many orders.

    Yields:
        For each order: the picks that were made, and the outcome.
    """
    script: List[int] = []
    for _ in range(max_histories):
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
