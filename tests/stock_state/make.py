"""Makes the files of this folder with stock Ray.

They are what stock Ray leaves behind: pickles of schedulers and search algorithms, as
`tuner.pkl` and the states of searchers have them, and whole experiments whose driver
was killed. Run it with the Python of an environment that has the stock wheel, which
`ci/red` makes:

    build/venv-stock/bin/python tests/stock_state/make.py

With `--pickles` the experiments are left as they are.
"""

import collections
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import types
from pathlib import Path

os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")
os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray
from ray import cloudpickle, tune
from ray.tune import schedulers, search
from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment import Trial
from ray.tune.search import basic_variant
from ray.tune.search.bohb import TuneBOHB
from ray.tune.search.optuna import OptunaSearch

FOLDER = Path(__file__).resolve().parent
# Is found again in the states, so it has a name that says nothing of a machine.
STORAGE = Path("/tmp/stock-ray")
SPACE = {"x": tune.uniform(0.0, 1.0)}


class _Controller:
    """As much of a controller as a scheduler needs to take in trials."""

    search_alg = None

    def __init__(self):
        self.trials = []

    def get_trials(self):
        return self.trials


def _without_paths(thing):
    """Takes the paths of source files out of functions that are pickled by value."""
    for name, value in list(vars(thing).items()):
        if isinstance(value, types.FunctionType):
            setattr(thing, name, _without_path(value))
        elif isinstance(value, collections.defaultdict):
            if isinstance(value.default_factory, types.FunctionType):
                value.default_factory = _without_path(value.default_factory)
        elif isinstance(value, schedulers.TrialScheduler):
            _without_paths(value)
    return thing


def _without_path(function):
    code = function.__code__
    code = code.replace(co_filename=Path(code.co_filename).name)
    used = {k: v for k, v in function.__globals__.items() if k in code.co_names}
    return types.FunctionType(
        code, used, function.__name__, function.__defaults__, function.__closure__
    )


def _parser_without_paths(parser):
    types_of = parser._registries["type"]
    types_of.update({k: _without_path(f) for k, f in types_of.items() if k is None})
    return parser


def _used(scheduler, num_trials=3):
    """Returns a scheduler that has taken in trials, as one that is used twice has."""
    controller = _Controller()
    for i in range(num_trials):
        trial = Trial("Curve", config={"x": 0.5}, trial_id=f"used_{i}", stub=True)
        trial.create_placement_group_factory()
        controller.trials.append(trial)
        scheduler.on_trial_add(controller, trial)
    return scheduler


def _used_searcher(searcher, num_trials=3):
    """Returns a searcher that has suggested trials."""
    searcher.set_search_properties("score", "max", SPACE)
    for i in range(num_trials):
        searcher.suggest(f"used_{i}")
    return searcher


def _policy():
    path = STORAGE / "pbt_policy.txt"
    rows = [["0", "1", 2, 2, {"x": 0.5}, {"x": 0.6}]]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def _pickles():
    """Yields the names of the files, and what is in them."""
    from stock_workload import Same

    metric = {"metric": "score", "mode": "max"}
    mutations = {"hyperparam_mutations": {"x": tune.uniform(0.0, 1.0)}}
    hyperband = {"max_t": 9, "reduction_factor": 3, **metric}
    pbt = {"time_attr": "training_iteration", "perturbation_interval": 2, **metric}
    yield "FIFOScheduler", schedulers.FIFOScheduler()
    yield "AsyncHyperBandScheduler", schedulers.ASHAScheduler(max_t=9, **metric)
    yield "MedianStoppingRule", schedulers.MedianStoppingRule(**metric)
    for cls in (schedulers.HyperBandScheduler, schedulers.HyperBandForBOHB):
        yield cls.__name__, cls(**hyperband)
        yield f"{cls.__name__}-used", _used(cls(**hyperband))
    cls = schedulers.PopulationBasedTraining
    yield cls.__name__, cls(**pbt, **mutations)
    yield f"{cls.__name__}-used", _used(cls(**pbt, **mutations))
    pb2 = {**pbt, "hyperparam_bounds": {"x": [0.0, 1.0]}}
    yield "PB2", importlib.import_module("ray.tune.schedulers.pb2").PB2(**pb2)
    cls = schedulers.PopulationBasedTrainingReplay
    yield cls.__name__, cls(_policy())
    cls = schedulers.ResourceChangingScheduler
    yield cls.__name__, cls(schedulers.HyperBandScheduler(**hyperband))
    yield f"{cls.__name__}-used", _used(cls(schedulers.ASHAScheduler(**metric)))

    generator = search.BasicVariantGenerator(max_concurrent=2)
    yield "BasicVariantGenerator", generator
    base = TuneBOHB(seed=0)
    yield "ConcurrencyLimiter", search.ConcurrencyLimiter(base, max_concurrent=2)
    other = importlib.import_module("ray.tune.search.searcher").ConcurrencyLimiter
    yield "searcher.ConcurrencyLimiter", other(TuneBOHB(seed=0), 2)
    yield "Repeater", search.Repeater(TuneBOHB(seed=0), repeat=2)
    yield "TuneBOHB", TuneBOHB(seed=0)
    for name, wrap in {
        "ConcurrencyLimiter-used": lambda: search.ConcurrencyLimiter(Same(), 3),
        "Repeater-used": lambda: search.Repeater(TuneBOHB(seed=0), repeat=2),
        "OptunaSearch-used": lambda: OptunaSearch(seed=0),
    }.items():
        yield name, _used_searcher(wrap())
    yield "OptunaSearch", OptunaSearch(seed=0)
    yield from _without_packages()

    trial = Trial("Curve", config={"x": 0.5}, trial_id="trial", stub=True)
    trial.create_placement_group_factory()
    yield "Trial", trial


def _without_packages():
    """Yields searchers whose packages they need only once they have a space."""
    for path, name, package, arguments in [
        ("ax.ax_search", "AxSearch", "ax", {}),
        ("bayesopt.bayesopt_search", "BayesOptSearch", "byo", {}),
        ("hebo.hebo_search", "HEBOSearch", "hebo", {}),
        ("zoopt.zoopt_search", "ZOOptSearch", "zoopt", {"budget": 5}),
    ]:
        module = importlib.import_module(f"ray.tune.search.{path}")
        stand_in = types.SimpleNamespace(UtilityFunction=dict)
        setattr(module, package, getattr(module, package, None) or stand_in)
        yield name, getattr(module, name)(metric="score", mode="max", **arguments)


def _experiments():
    """Returns the schedulers, how many trials they get, and when the driver dies.

    The last is the number of results, and that of paused trials, at least.
    """
    iteration = {"time_attr": "training_iteration"}
    pbt = {
        "perturbation_interval": 2,
        "hyperparam_mutations": {"x": tune.uniform(0.0, 1.0)},
        "quantile_fraction": 0.5,
        **iteration,
    }
    hyperband = schedulers.HyperBandScheduler
    return {
        "asha": (schedulers.ASHAScheduler(max_t=9, reduction_factor=3), 6, (12, 0)),
        "bohb": (schedulers.HyperBandForBOHB(max_t=9), 9, (11, 1)),
        # For which stock makes other brackets.
        "hyperband": (hyperband(max_t=6), 8, (20, 2)),
        "median": (
            schedulers.MedianStoppingRule(
                grace_period=1, min_samples_required=2, hard_stop=False, **iteration
            ),
            6,
            (12, 2),
        ),
        "pbt": (schedulers.PopulationBasedTraining(**pbt), 4, (12, 2)),
        "pbt_synch": (
            schedulers.PopulationBasedTraining(synch=True, **pbt),
            4,
            (14, 2),
        ),
        "resource_changing": (
            schedulers.ResourceChangingScheduler(hyperband(max_t=9)),
            3,
            (6, 1),
        ),
    }


def _begin_and_die(name):
    """Begins an experiment, and kills this process in the middle of it."""
    from stock_workload import Curve, trial_dirname

    scheduler, num_samples, (num_results, num_paused) = _experiments()[name]
    step = TuneController.step

    def step_and_die(controller):
        step(controller)
        trials = controller.get_trials()
        results = [trial.run_metadata.last_result for trial in trials]
        count = sum((r or {}).get("training_iteration", 0) for r in results)
        paused = sum(trial.status == Trial.PAUSED for trial in trials)
        if count >= num_results and paused >= num_paused:
            controller.checkpoint(force=True, wait=True)
            os.kill(os.getpid(), signal.SIGKILL)

    TuneController.step = step_and_die
    make_parser = basic_variant._make_parser
    basic_variant._make_parser = lambda: _parser_without_paths(make_parser())
    search_alg = TuneBOHB(seed=0) if name == "bohb" else None
    tune.Tuner(
        Curve,
        param_space=SPACE,
        tune_config=tune.TuneConfig(
            metric="score",
            mode="max",
            scheduler=_without_paths(scheduler),
            search_alg=search_alg,
            num_samples=num_samples,
            max_concurrent_trials=2 if name == "asha" else None,
            reuse_actors=name != "resource_changing",
            trial_dirname_creator=trial_dirname,
        ),
        run_config=tune.RunConfig(
            name=name, storage_path=str(STORAGE), stop={"training_iteration": 9}
        ),
    ).fit()
    raise SystemExit(f"{name}: the experiment has ended before the driver was killed.")


def _demand_no_paths(path):
    """A file that is kept says nothing of the machine."""
    content = path.read_bytes()
    for prefix in (sys.prefix, sys.base_prefix, str(FOLDER)):
        assert prefix.encode() not in content, (path, prefix)


def _pack(name):
    for path in (STORAGE / name).rglob("*"):
        if path.is_file():
            _demand_no_paths(path)

    def wanted(member):
        member.uid = member.gid = member.mtime = 0
        member.uname = member.gname = ""
        return None if "tfevents" in member.name else member

    with tarfile.open(FOLDER / f"{name}.tar.xz", "w:xz") as tar:
        tar.add(STORAGE / name, name, filter=wanted)


def main():
    if "+" in ray.__version__ or hasattr(schedulers, "ASHAv2"):
        raise SystemExit("This has to be run with stock Ray.")
    shutil.rmtree(STORAGE, ignore_errors=True)
    STORAGE.mkdir()
    for path in FOLDER.glob("*.pkl"):
        path.unlink()
    for name, thing in _pickles():
        (FOLDER / f"{name}.pkl").write_bytes(cloudpickle.dumps(_without_paths(thing)))
    for path in FOLDER.glob("*.pkl"):
        _demand_no_paths(path)
    if "--pickles" not in sys.argv:
        _make_experiments()
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    made_with = {"ray": ray.__version__, "python": python}
    (FOLDER / "made_with.json").write_text(json.dumps(made_with) + "\n")


def _make_experiments():
    for path in FOLDER.glob("*.tar.xz"):
        path.unlink()
    parent = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    ray.init(num_cpus=2, include_dashboard=False, _temp_dir=parent)
    address = ray.get_runtime_context().gcs_address
    env = {**os.environ, "RAY_ADDRESS": address}
    for name in _experiments():
        command = [sys.executable, __file__, name]
        code = subprocess.call(command, env=env, cwd=FOLDER, timeout=300)
        assert code == -signal.SIGKILL, (name, code)
        _pack(name)
        print(f"made {name}", flush=True)
    ray.shutdown()


if __name__ == "__main__":
    if sys.argv[1:] not in ([], ["--pickles"]):
        _begin_and_die(sys.argv[1])
    main()
