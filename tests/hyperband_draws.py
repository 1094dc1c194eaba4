"""Experiments with HyperBand or BOHB, drawn from a seed, and how they ended.

Used by ``test_trial_scheduler_hyperband.py`` and ``benchmarks/hyperband_sweep.py``.
"""

import math
import pickle
import random
from dataclasses import dataclass, field
from typing import Any, Dict, List

from virtual_cluster import (
    ClassTrainable,
    Cluster,
    Costs,
    Experiment,
    Faults,
    FunctionTrainable,
    Options,
    VirtualCluster,
    actor_death,
    driver_death,
    slow_task,
    task_error,
)

from ray.tune.callback import Callback
from ray.tune.schedulers import HyperBandForBOHB, HyperBandScheduler
from ray.tune.search import Searcher

# The invariants that say whether a run ends. The others are the controller's affair.
HANG_RULES = ("hang", "stranded", "endless", "spin", "blocked", "unfinished")
OTHER_RULES = (
    "actor-left",
    "checkpoint-lost",
    "decision-left",
    "future-left",
    "max-concurrent",
    "paused-holds-actor",
    "result-lost",
    "result-order",
    "result-twice",
    "resume-point",
    "stop-lost",
    "train-after-stop",
    "two-saves",
    "two-trains",
    "unasked-stop",
)


class DrawingSearcher(Searcher):
    """Draws ``x``; has the pause hooks of ``TuneBOHB``, which stock's BOHB calls.

    Args:
        seed: The seed.
    """

    def __init__(self, seed: int):
        super().__init__(metric="score", mode="max")
        self._rng = random.Random(seed)

    def set_search_properties(self, metric, mode, config, **spec):
        return True

    def suggest(self, trial_id):
        return {"x": self._rng.random()}

    def on_trial_complete(self, trial_id, result=None, error=False):
        pass

    def save(self, checkpoint_path):
        with open(checkpoint_path, "wb") as file:
            pickle.dump(self._rng.getstate(), file)

    def restore(self, checkpoint_path):
        with open(checkpoint_path, "rb") as file:
            self._rng.setstate(pickle.load(file))

    def on_pause(self, trial_id):
        pass

    def on_unpause(self, trial_id):
        pass


class PausingCallback(Callback):
    """Pauses a trial now and then, as somebody else's code may.

    Args:
        probability: With how many results.
        seed: The seed.
    """

    def __init__(self, probability: float, seed: int):
        self._probability = probability
        self._rng = random.Random(seed)
        self.cluster = None

    def on_trial_result(self, iteration, trials, trial, result, **info):
        if self._rng.random() < self._probability:
            self.cluster.controller.pause_trial(trial)


@dataclass
class Draw:
    """One experiment.

    Args:
        seed: Determines all of it.
        scheduler: ``"hyperband"`` or ``"bohb"``.
        max_t: As of the scheduler.
        eta: Its ``reduction_factor``.
        stop_last_trials: As of the scheduler.
        step: By how much the time attribute grows with an iteration.
        trials: The number of trials.
        slots: The number of slots.
        limit: The concurrency limit, 0 for none.
        searcher: Whether a ``Searcher`` gives the trials, one at a time.
        function: Whether a function is trained.
        save: Seconds that a save takes; an iteration takes one.
        length: Iterations after which each trial ends by itself.
        nan: The share of results that are NaN.
        gaps: The share of results without the metric.
        max_failures: How often a trial is retried.
        faults: What goes wrong.
        reuse_actors: As in ``TuneConfig``.
        pausing: The share of results after which a callback pauses the trial.
        restart: Whether the driver dies once.
    """

    seed: int
    scheduler: str
    max_t: int
    eta: float
    stop_last_trials: bool
    step: int
    trials: int
    slots: int
    limit: int
    searcher: bool
    function: bool
    save: float
    length: Any
    nan: float
    gaps: float
    max_failures: int
    reuse_actors: bool
    pausing: float
    restart: bool
    faults: List = field(default_factory=list)

    def parameters(self) -> Dict:
        """Return what the run depends on.

        Returns:
            The fields that are not at their plainest value.
        """
        plain = {"nan": 0, "gaps": 0, "length": None, "faults": [], "pausing": 0}
        return {
            name: value
            for name, value in vars(self).items()
            if value is not False and plain.get(name, self) != value
        }


def draw(
    seed: int,
    callbacks: bool = False,
    restarts: bool = False,
    max_work: int = 1500,
) -> Draw:
    """Draw an experiment.

    Args:
        seed: The seed.
        callbacks: Whether trials may be paused by a callback.
        restarts: Whether the driver may die.
        max_work: About how many iterations there may be at most.

    Returns:
        The experiment.
    """
    rng = random.Random(seed)
    max_t = round(math.exp(rng.uniform(0, math.log(243))))
    if rng.random() < 0.2:
        max_t = rng.randint(1, 243)
    eta = rng.choice([2, 3, 4, rng.randint(2, 10), rng.uniform(1.1, 10)])
    if rng.random() < 0.3:
        eta = rng.uniform(1.1, 2)
    step = rng.choice([1, 1, 1, 2, 7, 30])
    iterations = max(1, max_t // step)
    trials = min(rng.choice([1, 2, 3, 8, 10, 20, 40, 80]), max_work // iterations + 1)
    faults = []
    if rng.random() < 0.5:
        for _ in range(rng.randint(1, max(1, trials // 3))):
            make = rng.choice([task_error, task_error, actor_death, slow_task])
            method = rng.choice(["train", "train", "save", "restore", "start"])
            nth = rng.randint(1, 2 * iterations) if method == "train" else 1
            if method == "start" and make is not actor_death:
                make = actor_death
            faults.append(make(method, trial=rng.randrange(trials), nth=nth))
    restart = restarts and rng.random() < 0.5
    if restart:
        faults.append(driver_death(after=rng.randint(1, trials * iterations)))
    return Draw(
        seed=seed,
        scheduler=rng.choice(["hyperband", "bohb"]),
        max_t=max_t,
        eta=eta if isinstance(eta, int) else round(eta, 3),
        stop_last_trials=rng.random() < 0.8,
        step=step,
        trials=trials,
        slots=rng.choice([1, 2, 4, 8]),
        limit=rng.choice([0, 0, 1, 2, 4]),
        searcher=rng.random() < 0.5,
        function=rng.random() < 0.3,
        save=rng.choice([0.0, 0.1, 0.3, 1.0, 3.0]),
        length=rng.choice([None, None, None, rng.randint(1, 2 * iterations)]),
        nan=rng.choice([0, 0, 0, 0.3, 1]),
        gaps=rng.choice([0, 0, 0, 0.3]),
        max_failures=rng.choice([0, 1, 3]),
        reuse_actors=rng.random() < 0.3,
        pausing=rng.choice([0, 0.05]) if callbacks else 0,
        restart=restart,
        faults=faults,
    )


def run(drawn: Draw, ignore=OTHER_RULES) -> str:
    """Run an experiment that was drawn.

    Args:
        drawn: The experiment.
        ignore: Names of invariants that are not checked.

    Returns:
        ``"ended"``, ``"crash: ..."`` or the invariant that was broken: ``"hang"`` and
        the like.
    """
    scheduler = {"hyperband": HyperBandScheduler, "bohb": HyperBandForBOHB}

    def curve(config, iteration):
        rng = random.Random(f"{config['x']} {iteration} {drawn.seed}")
        score = config["x"] * (1 - math.exp(-iteration / 9))
        if rng.random() < drawn.nan:
            score = math.nan
        result = {"score": score, "steps": iteration * drawn.step}
        if rng.random() < drawn.gaps:
            del result["score"]
        return result

    def make_scheduler():
        return scheduler[drawn.scheduler](
            time_attr="steps",
            max_t=drawn.max_t,
            reduction_factor=drawn.eta,
            stop_last_trials=drawn.stop_last_trials,
        )

    callback = PausingCallback(drawn.pausing, drawn.seed)
    trainable = FunctionTrainable if drawn.function else ClassTrainable
    cluster = VirtualCluster(
        Experiment(
            make_scheduler,
            num_samples=drawn.trials,
            trainable=trainable(curve, length=drawn.length),
            search_alg=(lambda: DrawingSearcher(drawn.seed))
            if drawn.searcher
            else None,
            max_concurrent=drawn.limit,
            max_failures=drawn.max_failures,
            reuse_actors=drawn.reuse_actors,
            stop=None if drawn.stop_last_trials else {"steps": drawn.max_t + 3},
            callbacks=lambda: [callback],
            env={"TUNE_DISABLE_STRICT_METRIC_CHECKING": "1"},
        ),
        Cluster(slots=drawn.slots, costs=Costs(save=drawn.save, jitter=0.3)),
        Faults(drawn.faults),
        Options(
            seed=drawn.seed, check=False, ignore=ignore, keep_events=False, quiet=True
        ),
    )
    callback.cluster = cluster
    try:
        record = cluster.run(max_events=60 * drawn.trials * drawn.max_t + 2000)
    except Exception as exc:
        lines = [line for line in str(exc).splitlines() if line.strip()]
        return f"crash: {type(exc).__name__}: {lines[-1] if lines else ''}"
    finally:
        cluster.close()
    if record.violation is None:
        return "ended"
    return f"{record.violation.rule}: {record.violation.what}"
