"""Does the explorer find what is known to be wrong with stock Ray 2.60?

No case is written for any of these: each is looked for among the runs that seeds give.
What is found is shrunk; the shrunk scenario, from which nothing can be left out, tells
which of the known faults it is.
"""

import time
from typing import Callable, List, NamedTuple, Optional, Tuple

from ..explore.replay import Outcome, run_scenario
from ..explore.scenario import Scenario
from ..explore.search import Finding, explore
from ..explore.shrink import shrink


class KnownFault(NamedTuple):
    """A known fault.

    Args:
        name: A short name.
        what: What is wrong.
        workloads: The kinds of scenarios that use what is wrong.
        candidate: Says, given a finding, whether it is worth to be shrunk.
        match: Says, given the shrunk scenario and its outcome, whether it is this one.
        same: Keeps the shrinking from leading to another known fault.
        only: Says which scenarios may show it at all, by their plan of faults.
        without: Takes the cause out of a scenario. One that fails all the same shows
            something else, and is not worth to be shrunk.
    """

    name: str
    what: str
    workloads: Tuple[str, ...]
    candidate: Callable[[Finding], bool]
    match: Callable[[Scenario, Outcome], bool]
    same: Optional[Callable[[Scenario, Outcome], bool]] = None
    only: Optional[Callable[[Scenario], bool]] = None
    without: Optional[Callable[[Scenario], Scenario]] = None


STRANDED = ("hang", "stranded")


def _kinds(scenario: Scenario) -> set:
    return {fault.kind for fault in scenario.faults}


def _ends_early(scenario: Scenario) -> bool:
    return "length" in scenario.trainable.kwargs


def _step(scenario: Scenario) -> int:
    return scenario.curve.kwargs.get("step", 1)


def _without_faults(*kinds: str) -> Callable[[Scenario], Scenario]:
    def without(scenario):
        other = scenario.copy()
        other.faults = [f for f in other.faults if f.kind not in kinds]
        return other

    return without


def _without_early_ends(scenario: Scenario) -> Scenario:
    other = scenario.copy()
    other.trainable.kwargs.pop("length")
    return other


def _rule(*rules: str) -> Callable[[Finding], bool]:
    return lambda finding: finding.rule in rules


def _plain(scenario: Scenario) -> bool:
    return not (
        scenario.faults
        or _ends_early(scenario)
        or "outside" in scenario.settings
        or "skip_every" in scenario.curve.kwargs
    )


def _alone(scenario: Scenario, outcome: Outcome) -> bool:
    # A bracket of one trial waits for nobody: it is the arithmetic that fails.
    return (
        "1 of 1 trials" in outcome.what
        and isinstance(scenario.scheduler.kwargs["reduction_factor"], float)
        and _step(scenario) == 1
    )


def _plain_alone(scenario: Scenario, outcome: Outcome) -> bool:
    return _plain(scenario) and _alone(scenario, outcome)


def _paused_before_start(outcome: Outcome) -> bool:
    started = set()
    for event in outcome.tail:
        if event.kind in ("started", "reset"):
            started.add(event.trial)
        if event.kind == "pause_trial":
            return event.trial not in started
    return False


KNOWN_FAULTS: List[KnownFault] = [
    KnownFault(
        "hyperband-saving",
        "HyperBand hangs: a trial that saves for its pause is overlooked when its "
        "bracket finishes",
        ("hyperband",),
        lambda f: f.rule in STRANDED and not f.scenario.faults,
        lambda s, o: _plain(s) and s.settings["slots"] > 1,
    ),
    KnownFault(
        "hyperband-failure",
        "HyperBand: a trial that fails strands its bracket",
        ("hyperband",),
        lambda f: f.rule in STRANDED and "raise" in _kinds(f.scenario),
        lambda s, o: bool(_kinds(s) & {"raise", "die"}),
        only=lambda s: bool(_kinds(s) & {"raise", "die"}),
        without=_without_faults("raise", "die"),
    ),
    KnownFault(
        "hyperband-early-end",
        "HyperBand: a trial that ends early strands its bracket",
        ("hyperband",),
        lambda f: f.rule in STRANDED and _ends_early(f.scenario),
        lambda s, o: not s.faults and _ends_early(s) and "outside" not in s.settings,
        without=_without_early_ends,
    ),
    KnownFault(
        "hyperband-arithmetic",
        "HyperBand with max_t=3 and eta 1.5 never finishes",
        ("hyperband",),
        lambda f: f.rule == "stranded" and _alone(f.scenario, f.outcome),
        _plain_alone,
        _alone,
        only=lambda s: isinstance(s.scheduler.kwargs["reduction_factor"], float),
    ),
    KnownFault(
        "pbt-synch-terminated",
        "Synchronous PBT terminates a trial that should only have paused (ray#57906)",
        ("pbt-synch",),
        lambda f: f.rule == "unasked-stop",
        lambda s, o: not s.faults,
    ),
    KnownFault(
        "pbt-synch-failure",
        "Synchronous PBT is blocked for good by one trial that failed (ray#12122)",
        ("pbt-synch",),
        lambda f: f.rule == "hang" and bool(f.scenario.faults),
        lambda s, o: bool(_kinds(s) & {"raise", "die"}),
    ),
    KnownFault(
        "pbt-synch-step",
        "Synchronous PBT is blocked by a time step larger than the interval",
        ("pbt-synch",),
        lambda f: f.rule == "hang" and _step(f.scenario) > 1,
        lambda s, o: (
            not s.faults and _step(s) > s.scheduler.kwargs["perturbation_interval"]
        ),
    ),
    KnownFault(
        "max-concurrent-basic",
        "A paused trial counts against max_concurrent (BasicVariantGenerator)",
        ("milestones",),
        lambda f: f.rule == "hang" and "search_alg" not in f.scenario.settings,
        lambda s, o: "max_concurrent" in s.settings and not s.faults,
    ),
    KnownFault(
        "max-concurrent-limiter",
        "A paused trial counts against max_concurrent (ConcurrencyLimiter)",
        ("milestones",),
        lambda f: (
            f.rule == "hang"
            and "search_alg" in f.scenario.settings
            and "max_concurrent" in f.scenario.settings
        ),
        lambda s, o: "max_concurrent" in s.settings and "search_alg" in s.settings,
        lambda s, o: "search_alg" in s.settings,
    ),
    KnownFault(
        "two-saves",
        "Two saves of one trial are in flight",
        ("pbt", "pbt-synch", "planned"),
        _rule("two-saves"),
        lambda s, o: True,
    ),
    KnownFault(
        "pause-pending",
        "pause_trial on a PENDING trial: it is never scheduled again",
        ("planned",),
        lambda f: (
            f.rule == "hang"
            and any(
                act.args[2] in ("pause_trial", "drop_trial")
                for act in f.scenario.scheduler.kwargs["acts"]
            )
        ),
        lambda s, o: _paused_before_start(o),
    ),
    KnownFault(
        "choose-saving",
        "choose_trial_to_run returns a trial that is saving, with reuse_actors: crash",
        ("planned",),
        lambda f: (
            f.rule.startswith("crash")
            and "reuse_actors" in f.scenario.settings
            and "choose_saving" in f.scenario.scheduler.kwargs
        ),
        lambda s, o: (
            "reuse_actors" in s.settings and "choose_saving" in s.scheduler.kwargs
        ),
    ),
    KnownFault(
        "hyperband-restored",
        "HyperBand restored after an interruption: PAUSED for good (ray#39900)",
        ("hyperband",),
        lambda f: f.rule in STRANDED and "driver_death" in _kinds(f.scenario),
        lambda s, o: "driver_death" in _kinds(s),
        only=lambda s: "driver_death" in _kinds(s),
        without=_without_faults("driver_death"),
    ),
]


class Hit(NamedTuple):
    """What became of a search for a known fault.

    Args:
        known: The known fault.
        seconds: After how long it was found and shrunk; None if it was not.
        runs: How many runs were run.
        events: The number of events of the shrunk run.
        test: The shrunk run as a test.
    """

    known: KnownFault
    seconds: Optional[float]
    runs: int
    events: int
    test: str


def search(known: KnownFault, seconds: float = 120.0, first_seed: int = 0) -> Hit:
    """Look for a known fault.

    Args:
        known: The known fault.
        seconds: For how long.
        first_seed: The seed of the first run.

    Returns:
        What became of it.
    """
    begin = time.perf_counter()
    runs, seed = 0, first_seed
    best = None
    while time.perf_counter() - begin < seconds:
        found: List[Finding] = []

        def until(finding, found=found):
            if known.candidate(finding):
                found.append(finding)
            return bool(found)

        report = explore(
            seconds - (time.perf_counter() - begin),
            known.workloads,
            first_seed=seed,
            states=False,
            until=until,
            only=known.only,
        )
        runs += report.runs
        seed = report.next_seed
        if not found:
            break
        finding = found[0]
        if known.without is not None:
            rule = run_scenario(known.without(finding.scenario)).rule
            if rule == finding.rule or rule in STRANDED and finding.rule in STRANDED:
                continue
        left = seconds - (time.perf_counter() - begin)
        scenario, outcome = shrink(
            finding.scenario, finding.outcome, min(20.0, left), known.same
        )
        if not known.match(scenario, outcome):
            continue
        if best is None or outcome.events < best[1].events:
            best = scenario, outcome
        if best[1].events <= 12:
            break
    taken = time.perf_counter() - begin
    if best is None:
        return Hit(known, None, runs, 0, "")
    scenario, outcome = best
    test = scenario.test_source(outcome.rule, outcome.what)
    return Hit(known, taken, runs, outcome.events, test)
