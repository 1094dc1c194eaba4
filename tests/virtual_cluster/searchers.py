"""A searcher for tests that remembers what it was told."""

import pickle
import random
from typing import Dict, List, Optional, Tuple

from . import observe
from ray.tune.search import Searcher


class RandomSearcher(Searcher):
    """Suggests ``x`` at random; knows pause and resume, as BOHB's searcher does.

    Args:
        seed: The seed.
        limit: At most so many suggestions that have neither completed nor paused are
            out at once; 0 for no limit.
    """

    tells_monitor = True

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
            monitor.on_searcher_complete(trial_id, result, error)
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
