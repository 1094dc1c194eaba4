"""A search with one slot, under ASHAScheduler and under ASHAv2.

Sixteen configurations of a neural network are trained on scikit-learn's handwritten
digits, epoch by epoch and one at a time, as if each took all of the hardware. Both
schedulers get the same configurations, in the same order and with the same seeds.

With one slot, ``ASHAScheduler`` compares a trial with nothing but those that came
before it: the first one has nobody to be compared with and trains to the end, however
bad it is, and so does each that is better than those before. ``ASHAv2`` pauses a trial
at each milestone, sees all of them there, and resumes the best third.

When ASHAv2 is the better choice: few slots, since one trial takes all of the hardware,
and training that is expensive compared with a checkpoint.

When it is not: many slots and cheap trials. ``ASHAScheduler`` needs no checkpoints and
pays for no pause and resume, which cost more than they save where an epoch takes
milliseconds, and with many trials at a time it has enough of them to compare with.
Nor can ASHAv2 help where the trainable cannot save and load a checkpoint.

Run it with ``python -m ray.tune.examples.asha_v2_example [--smoke-test]``. It needs
scikit-learn, two CPUs, and a minute or two.
"""

import argparse
import collections
import logging
import os
import pickle
import shutil
import tempfile
import time

import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler, ASHAv2
from ray.tune.search import BasicVariantGenerator

SEED = 11


class Digits(tune.Trainable):
    """A multi-layer perceptron that learns handwritten digits, an epoch a step."""

    def setup(self, config):
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split
        from sklearn.preprocessing import StandardScaler

        images, digits = load_digits(return_X_y=True)
        train, self.valid, self.train_digits, self.valid_digits = train_test_split(
            images, digits, test_size=0.3, stratify=digits, random_state=SEED
        )
        scaler = StandardScaler().fit(train)
        self.train_images = scaler.transform(train)
        self.valid = scaler.transform(self.valid)
        self.reset_config(config)

    def reset_config(self, new_config):
        from sklearn.neural_network import MLPClassifier

        # Everything that is random is in the model, and so in its checkpoint.
        self.model = MLPClassifier(
            hidden_layer_sizes=[new_config["width"]] * new_config["depth"],
            learning_rate_init=new_config["learning_rate"],
            alpha=new_config["alpha"],
            batch_size=new_config["batch_size"],
            solver="sgd",
            momentum=new_config["momentum"],
            random_state=SEED,
        )
        self.best = 0.0
        return True

    def step(self):
        self.model.partial_fit(
            self.train_images, self.train_digits, classes=list(range(10))
        )
        accuracy = self.model.score(self.valid, self.valid_digits)
        self.best = max(self.best, accuracy)
        return {"accuracy": accuracy, "best_accuracy": self.best}

    def save_checkpoint(self, checkpoint_dir):
        with open(os.path.join(checkpoint_dir, "model.pkl"), "wb") as f:
            pickle.dump((self.model, self.best), f)

    def load_checkpoint(self, checkpoint_dir):
        with open(os.path.join(checkpoint_dir, "model.pkl"), "rb") as f:
            self.model, self.best = pickle.load(f)


PARAM_SPACE = {
    "width": tune.choice([16, 32, 64, 128]),
    "depth": tune.choice([1, 2]),
    "learning_rate": tune.loguniform(1e-4, 1e-1),
    "alpha": tune.loguniform(1e-6, 1e-1),
    "batch_size": tune.choice([32, 64, 128]),
    "momentum": tune.uniform(0.0, 0.95),
}


class Epochs(tune.Callback):
    """Counts what was trained, whoever trained it."""

    def __init__(self):
        self.total = 0
        self.reached = {}
        self.best = 0.0

    def on_trial_result(self, iteration, trials, trial, result, **info):
        # Trials are numbered as they were created.
        number = int(trial.trial_id.rsplit("_", 1)[-1])
        self.total += 1
        self.reached[number] = result["training_iteration"]
        self.best = max(self.best, result["best_accuracy"])


def search(scheduler, num_samples, storage_path):
    """Run the search; return what was trained and how many seconds it took."""
    epochs = Epochs()
    tuner = tune.Tuner(
        tune.with_resources(Digits, {"cpu": 1}),
        param_space=PARAM_SPACE,
        tune_config=tune.TuneConfig(
            metric="accuracy",
            mode="max",
            num_samples=num_samples,
            search_alg=BasicVariantGenerator(random_state=SEED),
            scheduler=scheduler,
            # A trial that is resumed finds a running process.
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(
            name=type(scheduler).__name__,
            storage_path=storage_path,
            callbacks=[epochs],
            verbose=0,
        ),
    )
    start = time.monotonic()
    results = tuner.fit()
    seconds = time.monotonic() - start
    for error in results.errors:
        raise error
    return epochs, seconds


def print_table(rows):
    """Print rows of strings; the first column to the left, others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for number, (first, *others) in enumerate(rows):
        cells = [first.ljust(widths[0])]
        cells += [cell.rjust(w) for cell, w in zip(others, widths[1:], strict=True)]
        print("  ".join(cells))
        if not number:
            print("  ".join("-" * width for width in widths))


def main(num_samples=16, max_t=81):
    arguments = {"max_t": max_t, "grace_period": 1, "reduction_factor": 3}
    schedulers = {
        "ASHAScheduler": ASHAScheduler(**arguments),
        "ASHAv2": ASHAv2(**arguments),
    }
    storage_path = tempfile.mkdtemp(prefix="asha_v2_example_")
    found = {}
    try:
        for name, scheduler in schedulers.items():
            print(f"{num_samples} configurations under {name} ...", flush=True)
            found[name] = search(scheduler, num_samples, storage_path)
    finally:
        shutil.rmtree(storage_path, ignore_errors=True)

    print()
    print_table(
        [
            [
                "scheduler",
                "epochs trained",
                "seconds",
                "best validation accuracy",
                f"reached max_t={max_t}",
            ]
        ]
        + [
            [
                name,
                str(epochs.total),
                f"{seconds:.1f}",
                f"{epochs.best:.4f}",
                str(sum(t >= max_t for t in epochs.reached.values())),
            ]
            for name, (epochs, seconds) in found.items()
        ]
    )

    print("\nEpochs that each trial reached, in the order in which they were created:")
    print_table(
        [["trial", *map(str, range(num_samples))]]
        + [
            [name, *(str(epochs.reached.get(i, 0)) for i in range(num_samples))]
            for name, (epochs, _) in found.items()
        ]
    )
    for name, (epochs, _) in found.items():
        counts = sorted(collections.Counter(epochs.reached.values()).items())
        print(f"{name}: " + ", ".join(f"{n} to epoch {t}" for t, n in counts))

    print()
    print(schedulers["ASHAv2"].debug_string())
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--smoke-test", action="store_true", help="Finish quickly for testing"
    )
    args, _ = parser.parse_known_args()

    # Just the tables. Without these lines there is one line for each decision.
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"
    logging.getLogger("ray.tune").setLevel(logging.WARNING)
    # One slot.
    ray.init(
        num_cpus=1,
        include_dashboard=False,
        logging_level=logging.WARNING,
        log_to_driver=False,
    )
    try:
        if args.smoke_test:
            main(num_samples=6, max_t=9)
        else:
            main()
    finally:
        ray.shutdown()
