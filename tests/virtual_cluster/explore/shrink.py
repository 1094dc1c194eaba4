"""Makes a failing run short: fewer faults, trials, options and events."""

import time
from dataclasses import replace
from typing import Callable, Iterator, List, Optional, Tuple

from ..workloads.spec import Name, Spec
from .consistency import everyone_is_expected
from .replay import Outcome, run_scenario
from .scenario import Scenario

_PLAIN = Spec("ClassTrainable", Spec("MixedCurve"))
_COSTS = Spec("Costs", start=0, train=1, save=0.1, restore=0.1, reset=0.1, stop=0)
# Settings that are no causes. Those of the first line are there in every run.
_SETTINGS = (
    *("num_samples", "slots", "stop", "seed", "costs", "trainable"),
    *("env", "outside", "stall_timeout_s"),
)
# Arguments that a scheduler, or a searcher, is made of; others can be left out.
_ARGUMENTS = frozenset(
    {
        "acts",
        "allocate",
        "base",
        "changes",
        "grace_period",
        "hard_stop",
        "max_concurrent",
        "max_t",
        "milestones",
        "min_samples_required",
        "num_samples",
        "perturbation_interval",
        "quantile_fraction",
        "reduction_factor",
        "require_attrs",
        "resumes",
        "seed",
        "synch",
        "time_attr",
    }
)


def _specs(scenario: Scenario) -> List[Spec]:
    """All specs of a scenario but its costs, in an order that a copy has, too."""
    specs = list(scenario.scheduler.specs())
    for name in ("trainable", "checkpoint_config", "search_alg"):
        if isinstance(scenario.settings.get(name), Spec):
            specs += scenario.settings[name].specs()
    return specs


def causes(scenario: Scenario) -> int:
    """Count what may have caused a failure: faults, acts and options.

    Args:
        scenario: The scenario.

    Returns:
        The number.
    """
    settings, scheduler = scenario.settings, scenario.scheduler.kwargs
    count = len(scenario.faults) + len(settings.get("outside", ()))
    count += len(scheduler.get("acts", ())) + len(scheduler.get("changes", ()))
    count += sum(name not in _SETTINGS for name in settings)
    for spec in _specs(scenario):
        count += len(spec.kwargs.keys() - _ARGUMENTS)
        count += spec.name == "FunctionTrainable"
    return count


def _cost(outcome: Outcome, scenario: Scenario) -> Tuple[int, int, int]:
    return causes(scenario), outcome.events, scenario.size()


def shrink(
    scenario: Scenario,
    outcome: Outcome,
    seconds: float = 60.0,
    same: Optional[Callable[[Scenario, Outcome], bool]] = None,
) -> Tuple[Scenario, Outcome]:
    """Find a smaller scenario that breaks the same invariant.

    Fewer causes count most, so that what is left tells why; then fewer events.

    Args:
        scenario: The scenario.
        outcome: What came of it.
        seconds: For how long to try.
        same: Says whether a smaller one still fails for the same reason; by default,
            when it breaks the same invariant.

    Returns:
        The smallest scenario that was found, and what came of it.
    """
    deadline = time.perf_counter() + seconds
    best, best_outcome = scenario, outcome
    tried = {_key(scenario)}
    improved = True
    while improved and time.perf_counter() < deadline:
        improved = False
        for candidate in _smaller(best):
            key = _key(candidate)
            if key in tried:
                continue
            tried.add(key)
            if time.perf_counter() > deadline:
                break
            result = _try(candidate, outcome.rule, best_outcome.events, same)
            if result is None:
                continue
            if _cost(result, candidate) < _cost(best_outcome, best):
                best, best_outcome = candidate, result
                improved = True
                break
        if not improved:
            # Other seeds may get there in fewer events.
            for seed in range(12):
                candidate = best.copy()
                candidate.settings["seed"] = seed
                key = _key(candidate)
                if key in tried or time.perf_counter() > deadline:
                    continue
                tried.add(key)
                result = _try(candidate, outcome.rule, best_outcome.events, same)
                if result is not None and result.events < best_outcome.events:
                    best, best_outcome = candidate, result
                    improved = True
                    break
    return best, best_outcome


def _key(scenario: Scenario) -> str:
    return repr(sorted(scenario.sources().items()))


def _try(scenario: Scenario, rule: str, events: int, same):
    try:
        outcome = run_scenario(scenario, max_events=max(150, 3 * events))
    except Exception:
        return None
    if (
        _kind(outcome.rule) != _kind(rule)
        or same is not None
        and not same(scenario, outcome)
    ):
        return None
    return outcome


def _kind(rule: Optional[str]) -> Optional[str]:
    # A stranded bracket is a hang that was seen early.
    return "hang" if rule == "stranded" else rule


def _changed(scenario: Scenario, change: Callable[[Scenario], None]) -> Scenario:
    other = scenario.copy()
    change(other)
    everyone_is_expected(other)
    return other


def _with(scenario: Scenario, **settings) -> Scenario:
    return _changed(scenario, lambda other: other.settings.update(settings))


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    yield from _fewer_faults(scenario)
    yield from _earlier_trials(scenario)
    yield from _fewer_options(scenario)
    yield from _simpler_specs(scenario)
    yield from _smaller_settings(scenario)
    yield from _smaller_arguments(scenario)
    yield from _earlier_faults(scenario)


def _fewer_faults(scenario: Scenario) -> Iterator[Scenario]:
    for i in range(len(scenario.faults)):
        yield _changed(scenario, lambda other: other.faults.pop(i))  # noqa: B023
    for i in range(len(scenario.settings.get("outside", ()))):
        yield _changed(
            scenario,
            lambda other: other.settings["outside"].pop(i),  # noqa: B023
        )
    for name in ("acts", "changes"):
        items = scenario.scheduler.kwargs.get(name, ())
        for i in range(len(items) if len(items) > 1 else 0):
            left = items[:i] + items[i + 1 :]
            yield _changed(
                scenario,
                lambda other: other.scheduler.kwargs.update({name: left}),  # noqa: B023
            )


def _earlier_trials(scenario: Scenario) -> Iterator[Scenario]:
    """Leave out the trials before the first one that a fault means."""
    named = [fault.trial for fault in scenario.faults if fault.trial is not None]
    trials = scenario.settings["num_samples"]
    first = min(named, default=0)
    for count in sorted({first, first // 2, 1}, reverse=True):
        if not 0 < count <= first or count >= trials:
            continue
        faults = [
            fault if fault.trial is None else replace(fault, trial=fault.trial - count)
            for fault in scenario.faults
        ]
        for left in sorted({max(named) - count + 1, trials - count}):
            other = _with(scenario, num_samples=left)
            other.faults[:] = faults
            yield other


def _fewer_options(scenario: Scenario) -> Iterator[Scenario]:
    for name in scenario.settings:
        if name not in _SETTINGS or name in ("env", "outside"):
            yield _changed(
                scenario,
                lambda other: other.settings.pop(name),  # noqa: B023
            )
    for i in range(len(scenario.ignore)):
        left = scenario.ignore[:i] + scenario.ignore[i + 1 :]
        yield _changed(
            scenario,
            lambda other: setattr(other, "ignore", left),  # noqa: B023
        )
    for i, spec in enumerate(_specs(scenario)):
        for name in spec.kwargs.keys() - _ARGUMENTS:
            yield _changed(
                scenario,
                lambda other: _specs(other)[i].kwargs.pop(name),  # noqa: B023
            )


def _simpler_specs(scenario: Scenario) -> Iterator[Scenario]:
    settings = scenario.settings
    if scenario.trainable is not None:
        yield _with(scenario, trainable=_PLAIN)
        if scenario.trainable.name == "FunctionTrainable":
            simpler = scenario.trainable.but(checkpoint_every=...)
            simpler.name = "ClassTrainable"
            yield _with(scenario, trainable=simpler)
    costs = settings.get("costs")
    if costs is not None:
        yield _with(scenario, costs=_COSTS)
        # Actors that stop late do not get in the way.
        yield _with(scenario, costs=costs.but(stop=100))
        for name, value in _COSTS.kwargs.items():
            yield _with(scenario, costs=costs.but(**{name: value}))
    arguments = scenario.scheduler.kwargs
    simpler = {
        "time_attr": ["training_iteration"],
        "base": [Spec("FIFOScheduler")],
        "allocate": [Name("alternating"), Spec("Sizes", 2), Spec("Sizes", 1, 2)],
    }
    for name, values in simpler.items():
        for value in values if name in arguments else ():
            yield _changed(
                scenario,
                lambda other: other.scheduler.kwargs.update({name: value}),  # noqa: B023
            )


def _smaller_settings(scenario: Scenario) -> Iterator[Scenario]:
    settings = scenario.settings
    trials, slots = settings["num_samples"], settings["slots"]
    for count in sorted({1, 2, 3, 4, trials // 2, trials - 1}):
        if 0 < count < trials:
            yield _with(scenario, num_samples=count)
    for count in (1, 2, slots - 1):
        if 0 < count < slots:
            yield _with(scenario, slots=count)
    # More slots can mean fewer events, since nobody has to be stopped.
    if slots < trials <= 12:
        yield _with(scenario, slots=trials)
    for value in range(1, settings.get("stop", {}).get("training_iteration", 1)):
        yield _with(scenario, stop={"training_iteration": value})
    for value in range(1, settings.get("max_concurrent", 1)):
        yield _with(scenario, max_concurrent=value)
    yield _with(scenario, seed=0)


def _smaller_arguments(scenario: Scenario) -> Iterator[Scenario]:
    for i, spec in enumerate(_specs(scenario)):
        for name, value in spec.kwargs.items():
            for smaller in _smaller_values(name, value):
                yield _changed(
                    scenario,
                    lambda other: _specs(other)[i].kwargs.update(  # noqa: B023
                        {name: smaller}  # noqa: B023
                    ),
                )
        for args in _smaller_args(spec):
            yield _changed(
                scenario,
                lambda other: setattr(_specs(other)[i], "args", args),  # noqa: B023
            )


def _smaller_values(name: str, value) -> Iterator:
    if type(value) is int:
        yield from range(2 if name == "reduction_factor" else 1, value)
    elif name == "milestones":
        if len(value) > 2:
            yield value[:-1]
        if value[0] > 1:
            yield tuple(milestone - 1 for milestone in value)


def _smaller_args(spec: Spec) -> Iterator[List]:
    if spec.name == "lengths":
        for value in sorted(set(spec.args) - {0}):
            yield from ([value], [0, value], [1], [0, 1])


def _earlier_faults(scenario: Scenario) -> Iterator[Scenario]:
    for i, fault in enumerate(scenario.faults):
        for name in ("trial", "nth", "after", "stale"):
            value = getattr(fault, name)
            low = 1 if name in ("nth", "after") else 0
            for smaller in sorted({low, (value or 0) // 2, (value or 0) - 1}):
                if value and low <= smaller < value:
                    earlier = replace(fault, **{name: smaller})
                    yield _changed(
                        scenario,
                        lambda other: other.faults.__setitem__(i, earlier),  # noqa: B023
                    )
    for where in ("outside", "acts"):
        for i, act in enumerate(_acts(scenario, where)):
            # The moment, and the trial that is meant.
            for position, low in ((1, 1), (3, 0)):
                value = act.args[position] if position < len(act.args) else low
                for smaller in range(low, value):
                    yield _changed(
                        scenario,
                        lambda other: _acts(other, where)[i].args.__setitem__(  # noqa: B023
                            position,  # noqa: B023
                            smaller,  # noqa: B023
                        ),
                    )


def _acts(scenario: Scenario, where: str) -> List[Spec]:
    owner = scenario.settings if where == "outside" else scenario.scheduler.kwargs
    return owner.get(where, [])
