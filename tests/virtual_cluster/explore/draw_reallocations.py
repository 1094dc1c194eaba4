"""Draws scenarios in which the resources of trials change, over every scheduler."""

from .draw_populations import HAS_PB2, pb2_args, pbt_args
from .parts import checkpointing, common, draw_faults, trainable
from .scenarios import Scenario, Source
from ray.tune import schedulers


def _base(rng, scenario: Scenario) -> str:
    kinds = ["fifo", "asha", "median", "hyperband", "bohb", "pbt", "pbt-synch"]
    if hasattr(schedulers, "ASHAv2"):
        kinds.append("asha_v2")
    if HAS_PB2:
        kinds += ["pb2", "pb2-synch"]
    kind = rng.choice(kinds)
    if kind == "fifo":
        return "FIFOScheduler()"
    if kind == "asha":
        return "ASHAScheduler(max_t=5, grace_period=1, reduction_factor=2)"
    if kind == "asha_v2":
        promotion = rng.choice(["deferred", "eager"])
        return f"ASHAv2(max_t=5, reduction_factor=2, promotion={promotion!r})"
    if kind == "median":
        return (
            'MedianStoppingRule(time_attr="training_iteration", grace_period=1, '
            f"min_samples_required=2, hard_stop={rng.random() < 0.5})"
        )
    if kind == "hyperband":
        return "HyperBandScheduler(max_t=4, reduction_factor=2)"
    if kind == "bohb":
        scenario.search_alg = "RandomSearcher(seed=1)"
        return "HyperBandForBOHB(max_t=4, reduction_factor=2)"
    synch = kind.endswith("synch")
    if kind.startswith("pb2"):
        name, args = "bandits", pb2_args(rng, synch)
    else:
        name, args = "population", pbt_args(rng, synch)
    scenario.args["num_samples"] = min(5, scenario.args["num_samples"])
    return f"{name}({', '.join(f'{k}={v!r}' for k, v in args.items())})"


def _allocate(rng, scenario: Scenario) -> str:
    most = scenario.args["slots"]
    one_node = scenario.args.get("nodes", 1) != 2
    one_bundle = _shape(rng, scenario)
    kind = rng.choice(["alternating", "Sizes", "Sizes", "uniform", "top"])
    if kind == "alternating":
        return kind
    if kind == "Sizes":
        spread = rng.random() < 0.4
        if not one_node and not spread:
            most //= 2
        sizes = [rng.randint(0, most) for _ in range(rng.randint(1, 4))]
        numbers = ", ".join(map(str, sizes))
        how = f"spread={spread}"
        if not spread and rng.random() < 0.3:
            how = "as_dict=True"
        return f"Sizes({numbers}, {how})"
    # One bundle has to fit on one node.
    add_bundles = not (one_node and one_bundle) or rng.random() < 0.5
    args = f"add_bundles={add_bundles}"
    if rng.random() < 0.2:
        args += ', reserve_resources={"CPU": 1}'
    if rng.random() < 0.2:
        times = rng.choice([-1, 1, 2])
        step = '{"CPU": 1}'
        if "GPU" in repr(scenario.args.get("resources")):
            step = rng.choice([step, '{"GPU": 1}', '{"CPU": 1, "GPU": 1}'])
        args += f", increase_by={step}, increase_by_times={times}"
    if kind == "uniform":
        return f"DistributeResources({args})"
    return f"DistributeResourcesToTopJob({args})"


def _shape(rng, scenario: Scenario) -> bool:
    """Draw what trials have in the beginning, and say whether that is one bundle."""
    args = scenario.args
    roll = rng.random()
    if roll < 0.1:
        args["resources"] = {"CPU": 2}
    elif roll < 0.2:
        args["resources"] = Source('tune.PlacementGroupFactory([{"CPU": 1}] * 2)')
        return False
    elif roll < 0.3 and args.get("nodes", 1) == 1:
        args["nodes"] = [{"CPU": args["slots"], "GPU": rng.choice([1, 2, 4])}]
        args["resources"] = {"CPU": 1, "GPU": 1}
    return True


def draw_resources(rng):
    """Resources that change, over every scheduler.

    Args:
        rng: What it is drawn from.

    Returns:
        The scenario.
    """
    scenario = Scenario("resources", "reallocating")
    args = scenario.args
    common(rng, scenario, max_trials=6)
    args["slots"] = rng.randint(2, 5)
    args.pop("reuse_actors", None)  # the scheduler refuses it
    base = _base(rng, scenario)
    scenario.scheduler_args = {"base": Source(base)}
    step = rng.choice([1, 2, 3]) if "'t'" in base else 1
    trainable(rng, scenario, step=step, pauses_often=True)
    args["stop"] = {"training_iteration": rng.randint(2, 6)}
    checkpointing(rng, scenario)
    if rng.random() < 0.15:
        args["max_concurrent"] = rng.randint(1, 4)
    if rng.random() < 0.1:
        args["buffer_length"] = 3
        args["env"] = {"TUNE_RESULT_BUFFER_MIN_TIME_S": "3"}
    draw_faults(rng, scenario, share=0.5)
    allocate = _allocate(rng, scenario)
    scenario.scheduler_args["allocate"] = Source(allocate)
    return scenario
