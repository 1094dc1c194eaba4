"""What the experiments train that stock Ray has begun."""

import json
from pathlib import Path

from ray import tune
from ray.tune.search import Searcher


class Curve(tune.Trainable):
    """A learning curve that counts its steps, also across restores."""

    def setup(self, config):
        self.count = 0

    def step(self):
        self.count += 1
        return {"count": self.count, "score": self.config["x"] * self.count}

    def save_checkpoint(self, checkpoint_dir):
        Path(checkpoint_dir, "count.json").write_text(json.dumps(self.count))

    def load_checkpoint(self, checkpoint_dir):
        self.count = json.loads(Path(checkpoint_dir, "count.json").read_text())

    def reset_config(self, new_config):
        self.count = 0
        return True

    def train(self):
        result = super().train()
        # Nothing of the machine goes into the files.
        result.update(hostname="node", node_ip="127.0.0.1", pid=1)
        return result


class Same(Searcher):
    """Suggests the same to all, for as long as it is asked."""

    def suggest(self, trial_id):
        return {"x": 0.5}

    def on_trial_complete(self, trial_id, result=None, error=False):
        pass

    def save(self, checkpoint_path):
        Path(checkpoint_path).touch()

    def restore(self, checkpoint_path):
        pass


def trial_dirname(trial):
    """Names the directory of a trial."""
    return trial.trial_id
