#!/usr/bin/env python3
"""How well search algorithms and schedulers go together, in the virtual cluster.

    python benchmarks/searchers.py                        # the toy, all of it
    python benchmarks/searchers.py --problems lcdb        # pip install --no-deps lcdb
    python benchmarks/searchers.py --searchers optuna --slots 1 --seeds 5

No Ray runtime is started: only trials' learning curves are made up (``toy``) or looked
up (``lcdb``: accuracies of scikit-learn's learners on growing shares of real data sets,
Mohr et al., "LCDB 1.0", ECML PKDD 2022). Whatever suggests and decides is real.

Each row is a mean over seeds, with its standard error. ``deaf`` searchers are not told
with which results trials pause, as in stock Ray.

- ``last``: mean loss of the last third of 60 suggestions: of the toy, the distance to
  its optimum; of LCDB, by how much accuracy a learner ends below the best one. What a
  random search has is what it costs to have learned nothing.
- ``epochs``: what these 60 samples cost.
- ``found``: loss of the trial with the best last result when as many samples are drawn
  as cost about ``--epochs``, and ``after`` how many epochs that was.
"""

import argparse
import contextlib
import functools
import importlib.util
import itertools
import logging
import math
import os
import random
import statistics
import sys
import warnings
from concurrent.futures import ProcessPoolExecutor

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "tests"))

import numpy as np  # noqa: E402
from virtual_cluster import Costs, VirtualCluster  # noqa: E402

from ray import tune  # noqa: E402
from ray.tune.schedulers import (  # noqa: E402
    ASHAScheduler,
    FIFOScheduler,
    HyperBandForBOHB,
    HyperBandScheduler,
)

SAMPLES = 60
MAX_T, ETA = 27, 3
PROBLEMS = ("toy", "lcdb")
SEARCHERS = ("random", "optuna", "hyperopt", "bohb", "bayesopt")
SCHEDULERS = ("fifo", "asha", "hyperband", "bohb", "deferred", "eager", "default")
# Data sets on which nearly all learners of LCDB have complete curves.
DATASETS = 12


class Toy:
    """Two parameters, and curves that level off at the distance to an optimum.

    Args:
        seed: Not used: there is one toy.
    """

    optimum = {"x": 0.6, "y": -0.4}
    space = {"x": tune.uniform(-2, 2), "y": tune.uniform(-2, 2)}

    def __init__(self, seed):
        pass

    def loss(self, config):
        """Return the distance to the optimum."""
        return math.dist(
            *((point["x"], point["y"]) for point in (config, self.optimum))
        )

    def curve(self, config, iteration):
        """Return what is reported."""
        x, y = config["x"], config["y"]
        speed = 0.75 + 0.25 * math.sin(3 * x + 2 * y)
        noise = random.Random(repr((x, y, iteration))).gauss(0, 0.1)
        loss = self.loss(config) ** 2 + 2 * iteration**-speed
        return {"score": -loss - noise / math.sqrt(iteration)}


class LCDB:
    """Which learner of LCDB is best on a data set; what grows is the training set.

    Args:
        seed: Picks the data set.
    """

    def __init__(self, seed):
        datasets = _read_lcdb()
        names = sorted(datasets)
        self.learners = datasets[names[seed % len(names)]]
        self.space = {
            "learner": tune.choice(sorted(self.learners)),
            "split": tune.randint(0, 25),
        }
        ends = {
            name: statistics.mean(curve[-1] for curve in curves)
            for name, curves in self.learners.items()
        }
        self.ends = {name: max(ends.values()) - end for name, end in ends.items()}

    def loss(self, config):
        """Return by how much the learner ends below the best one."""
        return self.ends[config["learner"]]

    def curve(self, config, iteration):
        """Return the accuracy on the validation data of one split."""
        curves = self.learners[config["learner"]]
        return {"score": curves[config["split"] % len(curves)][iteration - 1]}


@functools.lru_cache(maxsize=1)
def _read_lcdb():
    """Read curves at ``MAX_T`` equal steps of the training set.

    Returns:
        A list of curves, one for each split, by data set and learner.
    """
    import pandas

    # Its code, which is not needed, imports much that is not installed.
    package = importlib.util.find_spec("lcdb")
    if package is None:
        raise SystemExit("There is no lcdb: pip install --no-deps lcdb")
    (folder,) = package.submodule_search_locations
    path = os.path.join(folder, "database-accuracy.csv")
    keys = ["openmlid", "learner", "outer_seed", "inner_seed"]
    table = pandas.read_csv(path, usecols=[*keys, "size_train", "score_valid"])
    table = table[table.outer_seed < 5]
    table = table[table.inner_seed < 5]
    found = {}
    for dataset, rows in table.groupby("openmlid"):
        top = rows.size_train.max()
        if top < 1000:
            continue
        sizes = np.arange(1, MAX_T + 1) * top / MAX_T
        learners = {}
        for (learner, _, _), curve in rows.groupby(keys[1:]):
            if curve.size_train.max() < top:
                continue
            curve = curve.sort_values("size_train")
            scores = np.interp(
                np.log(sizes), np.log(curve.size_train), curve.score_valid
            )
            learners.setdefault(learner, []).append(scores.tolist())
        learners = {name: c for name, c in learners.items() if len(c) >= 5}
        if len(learners) >= 16:
            found[dataset] = learners
        if len(found) == DATASETS:
            break
    return found


def make_problem(name, seed):
    """Make a problem by its name."""
    return {"toy": Toy, "lcdb": LCDB}[name](seed)


def make_searcher(name, seed):
    """Make a searcher by its name; None for a random search."""
    if name == "random":
        return None
    if name == "optuna":
        from ray.tune.search.optuna import OptunaSearch

        return OptunaSearch(seed=seed)
    if name == "hyperopt":
        from ray.tune.search.hyperopt import HyperOptSearch

        return HyperOptSearch(random_state_seed=seed)
    if name == "bohb":
        from ray.tune.search.bohb import TuneBOHB

        return TuneBOHB(seed=seed)
    if name == "bayesopt":
        from ray.tune.search.bayesopt import BayesOptSearch

        return BayesOptSearch(random_state=seed)
    raise SystemExit(f"There is no searcher {name!r}: {', '.join(SEARCHERS)}.")


def make_scheduler(name):
    """Make a scheduler by its name."""
    if name == "fifo":
        return FIFOScheduler()
    if name in ("deferred", "eager", "default"):
        from ray.tune.schedulers import ASHAv2

        promotion = None if name == "default" else name
        return ASHAv2(max_t=MAX_T, reduction_factor=ETA, promotion=promotion)
    kinds = {
        "asha": ASHAScheduler,
        "hyperband": HyperBandScheduler,
        "bohb": HyperBandForBOHB,
    }
    return kinds[name](max_t=MAX_T, reduction_factor=ETA)


def deafen(searcher):
    """Keep a searcher from learning with what trials pause."""
    hook = getattr(searcher, "on_trial_pause", None)
    if hook:
        searcher.on_trial_pause = lambda trial_id, result=None: hook(trial_id)
    return searcher


def run(problem, searcher, scheduler, slots, seed, samples, deaf):
    """Run one search.

    Args:
        problem: Name of the problem.
        searcher: Name of the searcher.
        scheduler: Name of the scheduler.
        slots: How many trials run at the same time.
        seed: Seed of everything.
        samples: Number of samples.
        deaf: Whether the searcher is not told with what trials pause.

    Returns:
        Epochs, mean loss of the last third of the samples, loss of what was found.
    """
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    task = make_problem(problem, seed)
    random.seed(seed)
    np.random.seed(seed)
    search_alg = make_searcher(searcher, seed)
    rng = random.Random(seed)
    with contextlib.redirect_stdout(None):
        record = VirtualCluster.of(
            make_scheduler(scheduler),
            search_alg=deafen(search_alg) if deaf else search_alg,
            num_samples=samples,
            param_space=dict(task.space),
            trainable=task.curve,
            slots=slots,
            seed=seed,
            stop={"training_iteration": MAX_T},
            costs=Costs(
                start=0,
                train=lambda config, iteration: rng.uniform(0.9, 1.1),
                save=0,
                restore=0,
                reset=0,
                stop=0,
            ),
            quiet=True,
            keep_events=False,
            ignore=["learned-wrongly"] if deaf else [],
        ).run(max_events=1_000_000)
    losses = [task.loss(trial.config) for trial in record.trials]
    best = max(record.trials, key=lambda trial: trial.last_result["score"])
    return (
        sum(record.iterations()),
        statistics.mean(losses[-(len(losses) // 3) :]),
        task.loss(best.config),
    )


def measure(job):
    """Run one search of 60 samples, and one of about as many epochs as wanted."""
    problem, searcher, scheduler, slots, seed, deaf, epochs = job
    cost, last, _ = run(problem, searcher, scheduler, slots, seed, SAMPLES, deaf)
    samples = max(3, round(SAMPLES * epochs / cost))
    spent, _, found = run(problem, searcher, scheduler, slots, seed, samples, deaf)
    return cost, last, spent, found


def mean(values):
    """Return a mean and its standard error as text."""
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0
    return f"{statistics.mean(values):.3f} ±{error:.3f}"


def table(args, pool):
    """Yield the rows of the table.

    Args:
        args: The command line.
        pool: What runs the jobs.

    Yields:
        Lists of cells.
    """
    for problem, slots in itertools.product(args.problems, args.slots):
        for searcher, scheduler in itertools.product(args.searchers, args.schedulers):
            pauses = scheduler not in ("fifo", "asha")
            for deaf in (True, False) if pauses and searcher != "random" else (False,):
                jobs = [
                    (problem, searcher, scheduler, slots, seed, deaf, args.epochs)
                    for seed in range(args.seeds)
                ]
                cost, last, spent, found = zip(*pool(measure, jobs), strict=True)
                yield [
                    problem,
                    str(slots),
                    searcher + (" deaf" if deaf else ""),
                    scheduler,
                    mean(last),
                    f"{statistics.mean(cost):.0f}",
                    mean(found),
                    f"{statistics.mean(spent):.0f}",
                ]


def names(known):
    """Return a parser of comma-separated names."""

    def parse(text):
        chosen = text.split(",")
        for name in chosen:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name}: not of {', '.join(known)}")
        return chosen

    return parse


def main(argv=None):
    """Run the benchmark.

    Args:
        argv: The command line.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--problems", type=names(PROBLEMS), default=["toy"])
    parser.add_argument("--searchers", type=names(SEARCHERS), default=SEARCHERS)
    parser.add_argument("--schedulers", type=names(SCHEDULERS), default=SCHEDULERS)
    parser.add_argument("--slots", type=lambda t: map(int, t.split(",")), default=(2,))
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=500)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    args = parser.parse_args(argv)
    args.slots = list(args.slots)
    titles = [
        *("problem", "slots", "searcher", "scheduler", "last", "epochs"),
        *("found", "after"),
    ]
    row = "{:8} {:5} {:14} {:10} {:>14} {:>7} {:>14} {:>6}".format
    print(row(*titles))
    os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
    with ProcessPoolExecutor(args.jobs) as executor:
        pool = executor.map if args.jobs > 1 else map
        for cells in table(args, pool):
            print(row(*cells), flush=True)


if __name__ == "__main__":
    main()
