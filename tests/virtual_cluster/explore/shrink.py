"""Makes a failing history short: fewer faults, trials, options and events."""

import re
import time
from typing import Callable, Iterator, Optional, Tuple

from .scenarios import Scenario, Source
from .search import Outcome, run_scenario

_SIMPLEST = {
    "reuse_actors": None,
    "lag": None,
    "idle_steps": None,
    "reserve": None,
    "max_failures": None,
    "checkpoint_config": None,
    "max_concurrent": None,
    "buffer_length": None,
    "env": None,
    "resources": None,
    "time_budget_s": None,
    "nodes": None,
    "mode": None,
    "seed": 0,
}
# Arguments of schedulers that can be left out.
_OPTIONAL = (
    "choose_saving",
    "brackets",
    "stop_last_trials",
    "promotion",
    "space",
    "burn_in_period",
    "resample_probability",
    "custom_explore_fn",
    "log_config",
    "fit",
)
_SAME = "Costs(start=0, train=1, save=0.1, restore=0.1, reset=0.1, stop=0)"


def causes(scenario: Scenario) -> int:
    """Count what may have caused a failure: faults, acts and options.

    Args:
        scenario: The scenario.

    Returns:
        The number.
    """
    args = scenario.args
    count = len(scenario.faults) + len(scenario.scheduler_args.get("acts", ()))
    count += sum(name in args for name in _SIMPLEST if name not in ("seed", "env"))
    count += len(args.get("outside", ()))
    count += scenario.search_alg is not None
    source = repr(args.get("trainable"))
    count += ("length=None" not in source) + ("step=1" not in source)
    count += "skip_every" in source
    count += ("nan_every=0" not in source) + ("resettable=True" not in source)
    count += "FunctionTrainable" in source
    count += sum(name in scenario.scheduler_args for name in _OPTIONAL)
    count += repr(scenario.scheduler_args.get("base", "")).count("=")
    count += len(scenario.scheduler_args.get("changes", ()))
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
                candidate.args["seed"] = seed
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
    return scenario.scheduler_source() + repr(sorted(scenario.sources().items()))


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


def _with(scenario: Scenario, **changes) -> Scenario:
    other = scenario.copy()
    for name, value in changes.items():
        if value is None:
            other.args.pop(name, None)
        else:
            other.args[name] = value
    return other


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    """Go through scenarios that are a little smaller."""
    args = scenario.args
    # Leave out faults, then acts.
    if len(scenario.faults) > 1:
        other = scenario.copy()
        other.faults = []
        yield other
    for i in range(len(scenario.faults)):
        other = scenario.copy()
        del other.faults[i]
        yield other
    outside = args.get("outside")
    for i in range(len(outside or ())):
        kept = outside[:i] + outside[i + 1 :]
        yield _with(scenario, outside=kept or None)
    acts = scenario.scheduler_args.get("acts")
    for i in range(len(acts or ())):
        other = scenario.copy()
        del other.scheduler_args["acts"][i]
        yield other
    # Leave out options.
    for name, value in _SIMPLEST.items():
        if name in args and repr(args[name]) != repr(value):
            yield _with(scenario, **{name: value})
    if scenario.search_alg:
        other = scenario.copy()
        other.search_alg = None
        yield other
    if scenario.ignore:
        for i in range(len(scenario.ignore)):
            other = scenario.copy()
            other.ignore = scenario.ignore[:i] + scenario.ignore[i + 1 :]
            yield other
    config = repr(args.get("checkpoint_config", ""))
    for frequency in range(0, 3):
        candidate = re.sub(
            r"frequency=(\d+)",
            lambda m: f"frequency={min(frequency, int(m.group(1)))}",  # noqa: B023
            config,
        )
        for simpler in (
            candidate,
            re.sub("keep=[12]", "keep=None", candidate),
            candidate.replace("at_end=True", "at_end=False"),
        ):
            if simpler != config:
                yield _with(scenario, checkpoint_config=Source(simpler))
    yield from _smaller_trainable(scenario)
    # Fewer trials and slots, and smaller numbers all over.
    trials = args["num_samples"]
    for count in sorted({1, 2, 3, 4, trials // 2, trials - 1}):
        if 0 < count < trials:
            other = _with(scenario, num_samples=count)
            if "num_samples" in other.scheduler_args:
                other.scheduler_args["num_samples"] = count
            yield other
    slots = args["slots"]
    for count in (1, 2, slots - 1):
        if 0 < count < slots:
            yield _with(scenario, slots=count)
    # More slots can mean fewer events, since nobody has to be stopped.
    if slots < trials <= 12:
        yield _with(scenario, slots=trials)
    stop = args.get("stop")
    if stop:
        for value in range(1, stop["training_iteration"]):
            yield _with(scenario, stop={"training_iteration": value})
    limit = args.get("max_concurrent")
    for value in range(1, limit or 1):
        yield _with(scenario, max_concurrent=value)
    yield from _smaller_costs(scenario)
    yield from _smaller_scheduler(scenario)
    for i, fault in enumerate(scenario.faults):
        for name in ("trial", "nth", "after", "stale"):
            value = getattr(fault, name)
            if not value:
                continue
            low = 1 if name in ("nth", "after") else 0
            for smaller in sorted({low, value // 2, value - 1}):
                if low <= smaller < value:
                    other = scenario.copy()
                    other.faults[i] = type(fault)(**{**fault.__dict__, name: smaller})
                    yield other
    for i, act in enumerate(outside or ()):
        changes = [act._replace(target=t) for t in range(act.target)]
        changes += [act._replace(nth=n) for n in range(1, act.nth)]
        for change in changes:
            yield _with(scenario, outside=[*outside[:i], change, *outside[i + 1 :]])
    for i, act in enumerate(acts or ()):
        changes = []
        if act.target:
            changes += [act._replace(target=t) for t in range(act.target)]
        changes += [act._replace(nth=n) for n in range(1, act.nth)]
        for change in changes:
            other = scenario.copy()
            other.scheduler_args["acts"][i] = change
            yield other


def _smaller_trainable(scenario: Scenario) -> Iterator[Scenario]:
    source = repr(scenario.args.get("trainable", ""))
    if not source or source == "''":
        return
    plain = "ClassTrainable(MixedCurve(step=1, nan_every=0), length=None, "
    plain += "resettable=True)"
    candidates = [
        plain,
        re.sub(r"nan_every=\d+", "nan_every=0", source),
        re.sub(r", skip_every=\d+", "", source),
        re.sub(r"length=lengths\(.*?\)", "length=None", source),
        re.sub(r"checkpoint_every=\d+", "checkpoint_every=1", source),
        re.sub(r"resettable=False", "resettable=True", source),
        re.sub(r"step=\d+", "step=1", source),
        re.sub(r"step=\d+", "step=2", source),
        re.sub(r"(, checkpoint_every=\d+)?\)$", ")", source).replace(
            "FunctionTrainable", "ClassTrainable"
        ),
    ]
    match = re.search(r"lengths\((.*?)\)", source)
    if match:
        for value in sorted({v.strip() for v in match.group(1).split(",")}):
            if value != "0":
                candidates.append(source.replace(match.group(0), f"lengths({value})"))
                candidates.append(
                    source.replace(match.group(0), f"lengths(0, {value})")
                )
                candidates.append(source.replace(match.group(0), "lengths(0, 1)"))
                candidates.append(source.replace(match.group(0), "lengths(1)"))
    for candidate in candidates:
        if candidate != source:
            yield _with(scenario, trainable=Source(candidate))


def _smaller_costs(scenario: Scenario) -> Iterator[Scenario]:
    source = repr(scenario.args.get("costs", ""))
    if source == "''":
        return
    yield _with(scenario, costs=Source(_SAME))
    # Actors that stop late do not get in the way.
    late = re.sub(r"stop=(\([^)]*\)|[^,()]+)", "stop=100", source)
    if late != source:
        yield _with(scenario, costs=Source(late))
    for name, simplest in re.findall(r"(\w+)=([^,()]+)", _SAME):
        pattern = rf"{name}=(\([^)]*\)|[^,()]+)"
        candidate = re.sub(pattern, f"{name}={simplest}", source)
        if candidate != source:
            yield _with(scenario, costs=Source(candidate))


def _smaller_scheduler(scenario: Scenario) -> Iterator[Scenario]:
    args = scenario.scheduler_args
    for name in ("max_t", "perturbation_interval", "reduction_factor"):
        value = args.get(name)
        if isinstance(value, int):
            for smaller in range(1 if name != "reduction_factor" else 2, value):
                other = scenario.copy()
                other.scheduler_args[name] = smaller
                yield other
    milestones = args.get("milestones")
    if milestones and len(milestones) > 2:
        other = scenario.copy()
        other.scheduler_args["milestones"] = milestones[:-1]
        yield other
    if milestones and milestones[0] > 1:
        other = scenario.copy()
        other.scheduler_args["milestones"] = tuple(m - 1 for m in milestones)
        yield other
    for name in _OPTIONAL:
        if name in args:
            other = scenario.copy()
            del other.scheduler_args[name]
            yield other
    if args.get("time_attr") == "t":
        other = scenario.copy()
        other.scheduler_args["time_attr"] = "training_iteration"
        yield other
    base = args.get("base")
    if base and repr(base) != "FIFOScheduler()":
        other = scenario.copy()
        other.scheduler_args["base"] = Source("FIFOScheduler()")
        yield other
        # One of its arguments less, of those that it can do without.
        name, inner = repr(base).rstrip(")").split("(", 1)
        for part in inner.split(", "):
            if part.split("=")[0] in _OPTIONAL:
                left = [p for p in inner.split(", ") if p != part]
                other = scenario.copy()
                other.scheduler_args["base"] = Source(f"{name}({', '.join(left)})")
                yield other
    if "allocate" in args and repr(args["allocate"]) != "alternating":
        for simpler in ("alternating", "Sizes(2)", "Sizes(1, 2)"):
            other = scenario.copy()
            other.scheduler_args["allocate"] = Source(simpler)
            yield other
    changes = args.get("changes", ())
    for i in range(len(changes) if len(changes) > 1 else 0):
        other = scenario.copy()
        other.scheduler_args["changes"] = changes[:i] + changes[i + 1 :]
        yield other
