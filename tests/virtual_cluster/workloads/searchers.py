"""Searchers for tests: one that remembers what it was told, and two of Ray's.

Ray's ``HEBOSearch`` and ``TuneBOHB`` run with their own code over a stand-in for the
library that suggests.
"""

import pickle
import random
from typing import Dict, List, Optional, Tuple
from unittest import mock

import numpy
import pandas

from ..core import observe
from ray.tune.search import Searcher
from ray.tune.search.bohb import bohb_search
from ray.tune.search.hebo import hebo_search


class RandomSearcher(observe.TellsMonitor, Searcher):
    """Suggests ``x`` at random; knows pause and resume, as BOHB's searcher does.

    Args:
        seed: The seed.
        limit: At most so many suggestions that have neither completed nor paused are
            out at once; 0 for no limit.
    """

    def __init__(self, seed: int = 0, limit: int = 0):
        super().__init__(metric="score", mode="max")
        self.rng = random.Random(seed)
        self.limit = limit
        self.open: List[str] = []
        self.paused: List[str] = []
        self.completed: Dict[str, Tuple[Optional[Dict], bool]] = {}

    def set_search_properties(self, metric, mode, config, **spec):
        return True

    def suggest(self, trial_id):
        if self.limit and len(self.open) >= self.limit:
            return None
        self.open.append(trial_id)
        return {"x": self.rng.random()}

    def on_trial_complete(self, trial_id, result=None, error=False):
        monitor = observe.current()
        if monitor is not None:
            monitor.tell("on_searcher_complete", trial_id, result, error)
        self.completed[trial_id] = (result, error)
        for group in (self.open, self.paused):
            if trial_id in group:
                group.remove(trial_id)

    def on_trial_pause(self, trial_id, result=None):
        monitor = observe.current()
        if monitor is not None:
            monitor.tell("on_searcher_pause", trial_id, result)
        self.on_pause(trial_id)

    def on_pause(self, trial_id):
        if trial_id in self.open:
            self.open.remove(trial_id)
            self.paused.append(trial_id)

    def on_unpause(self, trial_id):
        if trial_id in self.paused:
            self.paused.remove(trial_id)
            self.open.append(trial_id)

    def save(self, checkpoint_path):
        with open(checkpoint_path, "wb") as file:
            pickle.dump((self.rng, self.open, self.paused, self.completed), file)

    def restore(self, checkpoint_path):
        with open(checkpoint_path, "rb") as file:
            self.rng, self.open, self.paused, self.completed = pickle.load(file)


class RandomPoints:
    """Suggests as HEBO and as BOHB's config generator do, at random.

    What it is told it keeps as they do.

    Args:
        seed: The seed.
    """

    def __init__(self, seed: int = 0):
        self.rng = random.Random(seed)
        self.points: List[float] = []
        self.y = numpy.zeros((0, 1))
        self.configs: Dict[float, List[float]] = {}
        self.losses: Dict[float, List[float]] = {}

    def suggest(self, n_suggestions: int):
        return pandas.DataFrame(
            {"x": [self.rng.random() for _ in range(n_suggestions)]}
        )

    def observe(self, points, values) -> None:
        self.points.extend(points["x"])
        self.y = numpy.vstack([self.y, values.reshape(-1, 1)])

    def get_config(self, budget):
        return {"x": self.rng.random()}, {}

    def new_result(self, job) -> None:
        budget = job.kwargs["budget"]
        self.configs.setdefault(budget, []).append(job.kwargs["config"]["x"])
        self.losses.setdefault(budget, []).append(job.result["loss"])


class HEBOStandIn(observe.HasModel, hebo_search.HEBOSearch):
    """``HEBOSearch`` without HEBO.

    Args:
        max_concurrent: As there.
        seed: The seed.
    """

    def __init__(self, max_concurrent: int = 8, seed: int = 0):
        with mock.patch.object(hebo_search, "hebo", object()):
            super().__init__(metric="score", mode="max", max_concurrent=max_concurrent)
        self._metric_op = -1.0
        self._opt = RandomPoints(seed)

    def set_search_properties(self, metric, mode, config, **spec):
        return True

    def model(self):
        return _scores(self._opt.points, self._opt.y[:, 0].tolist())


class BOHBStandIn(observe.HasModel, bohb_search.TuneBOHB):
    """``TuneBOHB`` without HpBandSter and ConfigSpace.

    Args:
        max_concurrent: As there.
        seed: The seed.
    """

    def __init__(self, max_concurrent: int = 0, seed: int = 0):
        with mock.patch.object(bohb_search, "BOHB", object()):
            super().__init__(metric="score", mode="max", max_concurrent=max_concurrent)
        self._metric_op = -1.0
        self._space = object
        self.bohber = RandomPoints(seed)
        self.has_budgets = False

    def set_search_properties(self, metric, mode, config, **spec):
        return True

    def on_trial_result(self, trial_id, result):
        self.has_budgets |= "hyperband_info" in result
        super().on_trial_result(trial_id, result)

    def model(self):
        if self.has_budgets:
            return None
        configs, losses = self.bohber.configs, self.bohber.losses
        return _scores(*(sum(kept.values(), []) for kept in (configs, losses)))


def _scores(points: List[float], losses: List[float]) -> Dict[float, List[float]]:
    found: Dict[float, List[float]] = {}
    for point, loss in zip(points, losses, strict=True):
        found.setdefault(point, []).append(-loss)
    return found
