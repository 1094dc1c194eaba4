"""Searchers for tests: one that remembers what it was told, and two of Ray's.

Ray's ``HEBOSearch`` and ``TuneBOHB`` run with their own code over a stand-in for the
library that suggests.
"""

import pickle
import random
from typing import Dict, List, Optional, Tuple
from unittest import mock

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

    Args:
        seed: The seed.
    """

    def __init__(self, seed: int = 0):
        self.rng = random.Random(seed)
        self.told: List = []

    def suggest(self, n_suggestions: int):
        return pandas.DataFrame(
            {"x": [self.rng.random() for _ in range(n_suggestions)]}
        )

    def observe(self, points, values) -> None:
        self.told.append((points, values))

    def get_config(self, budget):
        return {"x": self.rng.random()}, {}

    def new_result(self, job) -> None:
        self.told.append(job)


class HEBOStandIn(hebo_search.HEBOSearch):
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


class BOHBStandIn(bohb_search.TuneBOHB):
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

    def set_search_properties(self, metric, mode, config, **spec):
        return True
