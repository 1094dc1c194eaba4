"""What some values of a run ask of others.

Values are drawn one by one. Each of these rules changes a scenario so that it makes
sense, and is applied to every one, in this order.
"""

from dataclasses import replace
from typing import Callable, List

from ..core.builds import PATCHED
from ..workloads.spec import Spec


def _needs_two_cpus(resources) -> bool:
    return resources is not None and resources != {"CPU": 1, "GPU": 1}


def trials_exist(scenario) -> None:
    """What is done to a trial is done to one that there is."""
    trials = scenario.settings["num_samples"]
    scenario.faults = [
        fault if fault.trial is None else replace(fault, trial=fault.trial % trials)
        for fault in scenario.faults
    ]
    acts = scenario.scheduler.kwargs.get("acts", [])
    for act in [*acts, *scenario.settings.get("outside", ())]:
        if len(act.args) > 3:
            act.args[3] %= trials


def everyone_is_expected(scenario) -> None:
    """A scheduler that waits for all trials knows how many there are."""
    if scenario.scheduler.name == "MilestoneScheduler":
        scenario.scheduler.kwargs["num_samples"] = scenario.settings["num_samples"]


def groups_are_complete(scenario) -> None:
    """What is left of the last group of repeated trials would be ignored."""
    search_alg = scenario.settings.get("search_alg")
    if search_alg is not None and search_alg.name == "Repeater":
        trials, repeat = scenario.settings["num_samples"], search_alg.args[1]
        scenario.settings["num_samples"] = max(repeat, trials // repeat * repeat)


def one_limit(scenario) -> None:
    """Only a searcher that runs on its own is limited from outside."""
    search_alg = scenario.settings.get("search_alg")
    if search_alg is not None and search_alg.name not in (
        "RandomSearcher",
        "OptunaSearch",
    ):
        scenario.settings.pop("max_concurrent", None)


def populations_are_not_searched(scenario) -> None:
    """PBT and PB2 take no searcher."""
    if scenario.scheduler.name in ("population", "bandits", "replay"):
        scenario.settings.pop("search_alg", None)


def bohb_is_searched(scenario) -> None:
    """Stock Ray's BOHB wants a searcher that knows of pauses."""
    if not PATCHED and any(
        spec.name == "HyperBandForBOHB" for spec in scenario.scheduler.specs()
    ):
        random_search = Spec("RandomSearcher", seed=1)
        scenario.settings.setdefault("search_alg", random_search)


def steps_are_for_t(scenario) -> None:
    """Steps of ``t``, and gaps in it, matter to a scheduler that goes by it."""
    specs = scenario.scheduler.specs()
    if not any(spec.kwargs.get("time_attr") == "t" for spec in specs):
        for name in ("step", "skip_every"):
            scenario.curve.kwargs.pop(name, None)


def last_trials_end(scenario) -> None:
    """Trials that no scheduler ends are ended by ``stop``."""
    if scenario.scheduler.kwargs.get("stop_last_trials") is False:
        end = scenario.scheduler.kwargs["max_t"] + 1
        scenario.settings["stop"] = {"training_iteration": end}


def functions_save_themselves(scenario) -> None:
    """Nobody else says when a function saves."""
    function = scenario.trainable
    if function.name != "FunctionTrainable":
        return
    config = scenario.settings.get("checkpoint_config")
    if config is not None:
        keep = config.kwargs.get("keep")
        config.kwargs = {} if keep is None else {"keep": keep}
    # One that pauses more often than it saves would never get on.
    if scenario.scheduler.name in ("population", "bandits", "reallocating"):
        function.kwargs["checkpoint_every"] = 1


def reallocated_actors_are_not_reused(scenario) -> None:
    """The scheduler refuses it."""
    if scenario.scheduler.name == "reallocating":
        scenario.settings.pop("reuse_actors", None)


def nodes_can_be_lost(scenario) -> None:
    """There is another node, where one is lost."""
    if any(fault.kind == "node_loss" for fault in scenario.faults):
        if isinstance(scenario.settings.get("nodes", 1), int):
            scenario.settings["nodes"] = 2


def trials_fit(scenario) -> None:
    """The largest trial fits on each node."""
    settings = scenario.settings
    reallocates = scenario.scheduler.name == "reallocating"
    if _needs_two_cpus(settings.get("resources")) or reallocates:
        settings["slots"] = max(settings["slots"], 2)
        if settings.get("nodes") == 2:
            settings["slots"] = 4
    if settings.get("nodes") == 2:
        settings["slots"] = max(settings["slots"], 2)


def allocations_fit(scenario) -> None:
    """What a trial is given fits on a node, or is spread over them."""
    allocate = scenario.scheduler.kwargs.get("allocate")
    if not isinstance(allocate, Spec):
        return
    settings, kwargs = scenario.settings, allocate.kwargs
    nodes, resources = settings.get("nodes", 1), settings.get("resources")
    if allocate.name == "Sizes":
        sizes = kwargs.pop("sizes", allocate.args)
        most = settings["slots"]
        if isinstance(nodes, list):
            most = int(nodes[0]["CPU"])
        elif nodes == 2 and not kwargs.get("spread"):
            most //= 2
        allocate.args = [size % (most + 1) for size in sizes]
        return
    if nodes == 2 or isinstance(resources, Spec):
        kwargs["add_bundles"] = True
    if "increase_by" not in kwargs:
        kwargs.pop("increase_by_times", None)
    elif "GPU" in kwargs["increase_by"] and not isinstance(nodes, list):
        kwargs["increase_by"] = {"CPU": 1}


def policy_is_a_policy(scenario) -> None:
    """A replay changes ``x`` at steps that rise, at most one behind the end."""
    if scenario.scheduler.name != "replay":
        return
    changes = scenario.scheduler.kwargs["changes"]
    if isinstance(changes, list):
        end = scenario.settings["stop"]["training_iteration"] + 2
        steps = sorted(1 + (step - 1) % end for step in changes)
        scenario.scheduler.kwargs["changes"] = tuple(
            (step, round((0.37 + 0.31 * number) % 1, 2))
            for number, step in enumerate(steps)
        )


def work_is_bounded(scenario) -> None:
    """The longer trials are, the fewer there are."""
    max_t = scenario.scheduler.kwargs.get("max_t", 1)
    length = max(1, max_t // scenario.curve.kwargs.get("step", 1))
    settings = scenario.settings
    settings["num_samples"] = min(settings["num_samples"], 1 + 300 // length)


CONSISTENCY: List[Callable] = [
    work_is_bounded,
    groups_are_complete,
    everyone_is_expected,
    trials_exist,
    populations_are_not_searched,
    bohb_is_searched,
    one_limit,
    steps_are_for_t,
    last_trials_end,
    functions_save_themselves,
    reallocated_actors_are_not_reused,
    nodes_can_be_lost,
    trials_fit,
    allocations_fit,
    policy_is_a_policy,
]


def make_consistent(scenario) -> None:
    """Apply all of the rules.

    Args:
        scenario: The scenario; it is changed.
    """
    for rule in CONSISTENCY:
        rule(scenario)
