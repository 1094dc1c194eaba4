"""Runs many scenarios, and remembers what they break."""

import gc
import random
import time
from contextlib import contextmanager
from typing import Dict, Iterable, List, NamedTuple, Optional

from ..core.activation import silence
from .draw import draw
from .replay import Outcome, run_scenario
from .scenario import Scenario
from .workloads import WORKLOADS

_RUNS_PER_COLLECTION = 25


class Finding(NamedTuple):
    """A kind of violation that was found.

    Args:
        workload: The kind of scenario.
        rule: The invariant.
        seed: The seed of the first run that broke it.
        scenario: That scenario.
        outcome: What came of it.
        seconds: When it was found.
    """

    workload: str
    rule: str
    seed: int
    scenario: Scenario
    outcome: Outcome
    seconds: float


class Report:
    """What an exploration has seen."""

    def __init__(self):
        self.runs = 0
        self.next_seed = 0
        self.events = 0
        self.seconds = 0.0
        self.cpu_seconds = 0.0
        self.states: set = set()
        self.findings: Dict[tuple, Finding] = {}
        self.counts: Dict[tuple, int] = {}
        self.per_workload: Dict[str, List[int]] = {}

    def lines(self) -> List[str]:
        """Return the report as lines.

        Returns:
            The lines.
        """
        seconds = max(self.cpu_seconds, 1e-9)
        lines = [
            f"{self.runs} runs, {self.events} events, "
            f"{len(self.states)} states in {self.seconds:.1f} s: "
            f"{self.runs / seconds:.0f} runs/s, "
            f"{self.events / seconds:.0f} events/s of one core, "
            f"{sum(self.counts.values())} violations of {len(self.findings)} kinds"
        ]
        for workload in sorted(self.per_workload):
            count, broken = self.per_workload[workload]
            lines.append(f"  {workload:<12} {count:6d} runs, {broken:6d} violations")
        for (workload, rule), finding in sorted(self.findings.items()):
            lines.append(
                f"  {workload:<12} {rule:<28} x{self.counts[(workload, rule)]:<5d} "
                f"seed {finding.seed}: {finding.outcome.what[:110]}"
            )
        return lines


def explore(
    seconds: float,
    workloads: Optional[Iterable[str]] = None,
    first_seed: int = 0,
    max_runs: Optional[int] = None,
    states: bool = True,
    look_behind: bool = True,
    until=None,
    ignore: Iterable[str] = (),
    only=None,
) -> Report:
    """Run random runs.

    A rule that was broken hides what would have come after it. With ``look_behind``,
    some runs ignore the rules that their workload is known to break.

    Args:
        seconds: For how long.
        workloads: Which kinds of scenarios; all if None.
        first_seed: The seed of the first run; the others count up from it.
        max_runs: At most so many.
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
            sorted(workloads or WORKLOADS),
            first_seed,
            max_runs,
            states,
            look_behind,
            until,
            ignore,
            only,
        )


@contextmanager
def garbage_in_batches():
    """Leave it to the caller to collect garbage, between runs.

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
    seconds, names, first_seed, max_runs, states, look_behind, until, ignore, only
) -> Report:
    report = Report()
    begin = time.perf_counter()
    cpu = time.process_time()
    seed = first_seed
    while True:
        report.seconds = time.perf_counter() - begin
        if report.seconds >= seconds:
            break
        if max_runs is not None and report.runs >= max_runs:
            break
        workload = names[seed % len(names)]
        scenario = draw(seed, workload)
        if only is not None and not only(scenario):
            seed += 1
            continue
        scenario.ignore = tuple(ignore)
        if look_behind:
            known = sorted(rule for fam, rule in report.findings if fam == workload)
            rng = random.Random(seed)
            scenario.ignore += tuple(
                r for r in known if rng.random() < 0.6 and not r.startswith("crash")
            )
        outcome = run_scenario(scenario, states=states)
        report.runs += 1
        if report.runs % _RUNS_PER_COLLECTION == 0:
            gc.collect()
        report.events += outcome.events
        report.states |= outcome.states
        counts = report.per_workload.setdefault(workload, [0, 0])
        counts[0] += 1
        if outcome.rule is not None:
            counts[1] += 1
            key = (workload, outcome.rule)
            report.counts[key] = report.counts.get(key, 0) + 1
            finding = Finding(
                workload,
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
