"""What was begun with stock Ray is restored: see `stock_state/make.py`."""

import ast
import io
import json
import pickle
import subprocess
import sys
import tarfile
from functools import cached_property
from importlib import metadata
from pathlib import Path

import pytest
from virtual_cluster import VirtualCluster
from virtual_cluster.workloads.searchers import RandomSearcher

import ray
from ray import cloudpickle, tune
from ray.tune.experiment import Trial
from ray.tune.registry import register_trainable
from ray.tune.schedulers import TrialScheduler
from ray.tune.search import SearchAlgorithm, Searcher

FOLDER = Path(__file__).with_name("stock_state")
PATCHES = FOLDER.parents[1] / "patches"
FILES = sorted(path.name[:-4] for path in FOLDER.glob("*.pkl"))
EXPERIMENTS = sorted(path.name[:-7] for path in FOLDER.glob("*.tar.xz"))
MADE_WITH = json.loads((FOLDER / "made_with.json").read_text())
sys.path.insert(0, str(FOLDER))

import stock_workload  # noqa: E402
from stock_workload import Curve  # noqa: E402

# Classes that gain attributes, and are in no pickle.
NEVER_PICKLED = {
    "ray.tune.execution.tune_controller.TuneController": "its state is JSON",
    "ray.tune.execution.experiment_state._ExperimentCheckpointManager": "not stored",
    "ray.tune.experiment.trial._TemporaryTrialState": "a trial makes a new one",
    "ray.air.execution._internal.actor_manager.RayActorManager": "not in any state",
    **{
        f"ray.tune.experimental.output.{name}": "made anew for each run"
        for name in (
            "ProgressReporter",
            "TrainReporter",
            "TuneReporterBase",
            "TuneTerminalReporter",
        )
    },
    "ray.tune.search.search_generator.SearchGenerator": "stores a dictionary",
    "ray.tune.trainable.function_trainable.FunctionTrainable": "lives in an actor",
}
# Searchers that run only with packages that are not there.
NEED_PACKAGES = ("AxSearch", "BayesOptSearch", "HEBOSearch", "ZOOptSearch")


def _load(name):
    register_trainable("Curve", Curve)
    blob = (FOLDER / f"{name}.pkl").read_bytes()
    if _has_code(blob):
        _needs_the_same_python()
    return cloudpickle.loads(blob)


def _has_code(blob):
    return b"_make_function" in blob


def _needs_the_same_python():
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    if python != MADE_WITH["python"]:
        pytest.skip(f"has functions pickled by value, by Python {MADE_WITH['python']}")


# Which classes gain attributes


class _Classes:
    """The attributes of the classes below a folder, from their source.

    An attribute is what a method assigns to ``self``, and a cached property. Those of
    base classes, which are found by their names, count as well.
    """

    def __init__(self, root):
        self._own, self._bases = {}, {}
        for path in sorted(Path(root).rglob("*.py")):
            module = ".".join(path.relative_to(root).with_suffix("").parts)
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef):
                    name = f"ray.{module}.{node.name}"
                    self._own[name] = set(self._attributes(node))
                    self._bases[name] = [ast.unparse(base) for base in node.bases]

    def __iter__(self):
        return iter(self._own)

    def __contains__(self, name):
        return name in self._own

    @staticmethod
    def _attributes(node):
        for part in ast.walk(node):
            targets = getattr(part, "targets", None) or [getattr(part, "target", None)]
            for target in targets:
                if (
                    isinstance(target, ast.Attribute)
                    and isinstance(target.value, ast.Name)
                    and target.value.id == "self"
                ):
                    yield target.attr
            if isinstance(part, ast.FunctionDef):
                names = [ast.unparse(d).split(".")[-1] for d in part.decorator_list]
                if cached_property.__name__ in names:
                    yield part.name

    def attributes(self, name):
        found = set(self._own[name])
        module = name.rpartition(".")[0]
        for base in self._bases[name]:
            base = base.rpartition(".")[2]
            same = [f"{module}.{base}"]
            others = [n for n in self._own if n.endswith(f".{base}")]
            for other in [n for n in same if n in self._own] or others:
                if other != name:
                    found |= self.attributes(other)
        return found


@pytest.fixture(scope="module")
def gained(tmp_path_factory):
    """The attributes that each of stock's classes has gained, by the class's name."""
    package, before = Path(ray.__file__).parent, tmp_path_factory.mktemp("stock")
    for patch in [line for line in (PATCHES / "series").read_text().split() if line]:
        for line in (PATCHES / patch).read_text().splitlines():
            if line.startswith("+++ b/python/ray/"):
                name = line[len("+++ b/python/ray/") :].strip()
                target = before / "python" / "ray" / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes((package / name).read_bytes())
    patches = [str(PATCHES / name) for name in (PATCHES / "series").read_text().split()]
    command = ["git", "apply", "--reverse", "--unidiff-zero", *reversed(patches)]
    subprocess.run(command, cwd=before, check=True)
    ours = _Classes(package / "tune"), _Classes(package / "air")
    stock_root = before / "python" / "ray"
    stock = _Classes(stock_root)
    found = {}
    for name in stock:
        room = name.split(".")[1]
        mine = ours[room == "air"]
        short = name.replace(f"ray.{room}.", "ray.", 1)
        if short not in mine:
            continue
        extra = mine.attributes(short) - stock.attributes(name)
        if extra:
            found[name] = extra
    return found


class _Names(pickle.Unpickler):
    """Notes which classes a pickle names."""

    def __init__(self, blob):
        super().__init__(io.BytesIO(blob))
        self.names = set()

    def find_class(self, module, name):
        self.names.add(f"{module}.{name}")
        return super().find_class(module, name)


def _names_in(blob):
    register_trainable("Curve", Curve)
    names = _Names(blob)
    names.load()
    return names.names


def _objects(thing, seen=None):
    """All objects of Tune that can be reached from one."""
    seen = {} if seen is None else seen
    if id(thing) in seen:
        return seen.values()
    if isinstance(thing, dict):
        parts = [*thing.keys(), *thing.values()]
    elif isinstance(thing, (list, tuple, set)):
        parts = list(thing)
    elif type(thing).__module__.startswith("ray.") and hasattr(thing, "__dict__"):
        seen[id(thing)] = thing
        parts = list(vars(thing).values())
    else:
        return seen.values()
    for part in parts:
        _objects(part, seen)
    return seen.values()


def test_files_are_of_the_release_that_is_patched():
    assert metadata.version("ray").split("+")[0] == MADE_WITH["ray"]


def test_there_is_a_file_for_each_class_that_gains_attributes(gained):
    assert "ray.tune.search.repeater.Repeater" in gained
    assert "_paused_groups" in gained["ray.tune.search.repeater.Repeater"]
    _needs_the_same_python()
    named = set()
    for name in FILES:
        named |= _names_in((FOLDER / f"{name}.pkl").read_bytes())
    lacking = gained.keys() - named - NEVER_PICKLED.keys()
    assert not lacking, (
        f"These classes have attributes that stock's have not: {sorted(lacking)}. "
        "Let stock_state/make.py pickle one of each."
    )


@pytest.mark.parametrize("name", FILES)
def test_what_stock_has_pickled_lacks_no_attribute(name, gained):
    for thing in _objects(_load(name)):
        cls = type(thing)
        for attribute in gained.get(f"{cls.__module__}.{cls.__qualname__}", ()):
            assert hasattr(thing, attribute), (cls, attribute)


def test_class_without_a_file_is_found(tmp_path):
    for folder, body in [("stock", ""), ("ours", "        self._new = 1\n")]:
        path = tmp_path / folder / "tune" / "thing.py"
        path.parent.mkdir(parents=True)
        path.write_text(
            f"class Base:\n    def __init__(self):\n        self._old = 1\n{body}"
            "class Thing(Base):\n    pass\n"
        )
    stock, ours = _Classes(tmp_path / "stock"), _Classes(tmp_path / "ours")
    name = "ray.tune.thing.Thing"
    assert ours.attributes(name) - stock.attributes(name) == {"_new"}


# That they work


def _is_used(name):
    return name.endswith("-used")


@pytest.mark.parametrize("name", [n for n in FILES if n != "Trial"])
def test_what_stock_has_pickled_runs_to_the_end(name, caplog):
    thing = _load(name)
    settings = {"scheduler": None, "search_alg": None}
    samples = 4
    if isinstance(thing, TrialScheduler):
        settings["scheduler"] = lambda: _load(name)
        if "BOHB" in name:
            settings["search_alg"] = lambda: RandomSearcher(0)
        own = getattr(thing, "_metric", None) or thing.metric
        if own:
            settings["metric"] = settings["mode"] = None
        if "Replay" in name:
            samples = 1
    elif isinstance(thing, (SearchAlgorithm, Searcher)):
        if name in NEED_PACKAGES or _is_used(name):
            pytest.skip("needs the package, or has suggested trials of its own")
        settings["search_alg"] = lambda: _load(name)
        settings["scheduler"] = tune.schedulers.HyperBandScheduler(
            max_t=9, reduction_factor=3
        )
    cluster = VirtualCluster.of(
        **settings,
        num_samples=samples,
        slots=2,
        stop={"training_iteration": 9},
        checkpoint_period=0,
    ).start()
    cluster.run_until(lambda: cluster.monitor.number >= 12)
    cluster.restart_driver()
    assert cluster.controller.resumed
    record = cluster.run(max_events=2000)
    assert record.statuses() == ["TERMINATED"] * samples
    assert "could not be saved" not in caplog.text


@pytest.mark.parametrize("name", [n for n in FILES if n != "Trial"])
def test_what_stock_has_pickled_can_be_pickled_again(name):
    thing = _load(name)
    again = cloudpickle.loads(cloudpickle.dumps(thing))
    assert vars(again).keys() == vars(thing).keys()


def test_state_of_a_limiter_that_stock_has_saved_is_taken_over():
    saved = _load("ConcurrencyLimiter-used")
    assert saved.live_trials == {"used_0", "used_1", "used_2"}
    saved.on_trial_pause("used_0")
    assert saved.live_trials == {"used_1", "used_2"}
    assert saved.paused_trials == {"used_0"}
    saved.on_trial_resume("used_0")
    assert saved.live_trials == {"used_0", "used_1", "used_2"}


def test_groups_of_a_repeater_that_stock_has_saved_can_pause():
    repeater = _load("Repeater-used")
    for trial_id in ("used_0", "used_1"):
        repeater.on_trial_pause(trial_id)
    assert repeater.searcher.paused == {"used_0"}
    repeater.on_trial_resume("used_1")
    assert repeater.searcher.paused == set()


def test_trials_of_an_earlier_experiment_are_forgotten():
    for name in ("HyperBandScheduler-used", "HyperBandForBOHB-used"):
        scheduler = _load(name)
        assert not scheduler._trial_info and scheduler._hyperbands == [[]]
    assert not _load("PopulationBasedTraining-used")._trial_state


def test_trial_that_stock_has_pickled_has_no_pinned_checkpoint():
    trial = _load("Trial")
    assert isinstance(trial, Trial)
    state = trial.temporary_state
    assert vars(state).keys() == vars(type(state)()).keys()


# Whole experiments


@pytest.mark.ray
@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiment_that_stock_has_begun_goes_on(
    name, tmp_path, ray_start_2_cpus, caplog
):
    _needs_the_same_python()
    # The workers do not find its module.
    cloudpickle.register_pickle_by_value(stock_workload)
    with tarfile.open(FOLDER / f"{name}.tar.xz") as tar:
        tar.extractall(tmp_path, filter="data")
    path = tmp_path / name
    before = _results(path)
    assert 0 < sum(map(len, before.values()))
    tuner = tune.Tuner.restore(str(path), trainable=Curve)
    results = tuner.fit()
    assert not results.errors
    assert "Restarting experiment" not in caplog.text
    assert "could not be restored" not in caplog.text
    after = _results(path)
    for trial_id, counts in before.items():
        assert after[trial_id][: len(counts)] == counts, "a result is lost"
        following = after[trial_id][len(counts) :]
        assert not following or following[0] <= max(counts, default=0) + 1, (
            "a step is lost"
        )
    assert len(after) == len(results) and all(after.values())
    assert max(counts[-1] for counts in after.values()) >= 6


def _results(path):
    found = {}
    for log in sorted(path.glob("*/result.json")):
        lines = log.read_text().splitlines()
        found[log.parent.name] = [json.loads(line)["count"] for line in lines]
    return found


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
