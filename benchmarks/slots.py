#!/usr/bin/env python3
"""How trials get slots: the order of starts, idle slots, the cost of a pause.

    python benchmarks/slots.py                      # the Ray that is installed
    python benchmarks/slots.py --beside PYTHON      # and that of another environment
    python benchmarks/slots.py --only order,idle    # without starting Ray

Stock Ray has no ASHAv2: there a plain scheduler promotes by the same rule, which is
also shown for the patched build.
"""

import argparse
import itertools
import json
import logging
import os
import random
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "tests"))

from promotion_order import check_starts  # noqa: E402
from virtual_cluster import (
    ClassTrainable,
    Cluster,
    Costs,
    Experiment,
    Faults,
    Options,
    VirtualCluster,
    actor_death,
    task_error,
)

import ray  # noqa: E402
from ray import tune  # noqa: E402
from ray.tune.experiment import Trial  # noqa: E402
from ray.tune.schedulers import FIFOScheduler  # noqa: E402

try:
    from ray.tune.schedulers.asha_v2 import ASHAv2
except ImportError:
    ASHAv2 = None

PARTS = ("order", "idle", "pause")
ETA = 3


class PlainPromotion(FIFOScheduler):
    """Promotes as the paper does, sorting everything each time it is asked.

    Args:
        max_t: The iteration at which a trial is complete.
        eager: Whether promotions come before new trials.
    """

    def __init__(self, max_t, eager):
        super().__init__()
        self.max_t, self.eager = max_t, eager
        self.milestones = milestones(max_t)
        self.records = {milestone: {} for milestone in self.milestones}
        self.promoted = {milestone: set() for milestone in self.milestones}

    def set_search_properties(self, metric, mode, **spec):
        return True

    def on_trial_result(self, tune_controller, trial, result):
        iteration = result["training_iteration"]
        if iteration >= self.max_t:
            return "STOP"
        if iteration in self.records and trial not in self.records[iteration]:
            self.records[iteration][trial] = result["score"]
            return "PAUSE"
        return "CONTINUE"

    def _promotable(self):
        for milestone in sorted(self.milestones, reverse=self.eager):
            record = self.records[milestone]
            ranked = sorted(record, key=lambda trial: -record[trial])
            for trial in ranked[: len(record) // ETA]:
                # Paused for this milestone, not for a later one.
                later = [m for m in self.milestones if m > milestone]
                if trial.status == Trial.PAUSED and not any(
                    trial in self.records[m] for m in later
                ):
                    return trial
        return None

    def choose_trial_to_run(self, tune_controller):
        pending = [
            trial
            for trial in tune_controller.get_trials()
            if trial.status == Trial.PENDING
        ]
        best = self._promotable()
        if best and (self.eager or not pending):
            return best
        if pending:
            return pending[0]
        if tune_controller.search_alg.is_finished() and not any(
            trial.status == Trial.RUNNING for trial in tune_controller.get_trials()
        ):
            for trial in list(tune_controller.get_trials()):
                if trial.status == Trial.PAUSED:
                    tune_controller.stop_trial(trial)
        return None


def milestones(max_t):
    """Return the milestones below ``max_t``."""
    found, milestone = [], 1
    while milestone < max_t:
        found.append(milestone)
        milestone *= ETA
    return found


def make_scheduler(name, max_t, eager):
    """Make one of the two schedulers."""
    if name == "plain":
        return PlainPromotion(max_t, eager)
    promotion = "eager" if eager else "deferred"
    return ASHAv2(
        max_t=max_t, grace_period=1, reduction_factor=ETA, promotion=promotion
    )


def linear(config, iteration):
    """A learning curve."""
    return {"score": config["x"] * iteration}


def order(name):
    """Count the starts that are not in the paper's order.

    Args:
        name: Which scheduler.

    Returns:
        A list of rows.
    """
    rows = []
    for eager, slots, limit, reuse, fail in itertools.product(
        (False, True), (1, 2, 8), (0, 2), (False, True), (False, True)
    ):
        rng = random.Random(slots)
        faults = [
            task_error("train", trial=rng.randrange(32), nth=2),
            actor_death("save", trial=rng.randrange(32), nth=1),
        ]
        configs = [
            {"x": rng.random(), "pace": rng.uniform(0.5, 1.5)} for _ in range(32)
        ]
        cluster = VirtualCluster(
            Experiment(
                make_scheduler(name, 27, eager),
                configs=configs,
                trainable=ClassTrainable(linear),
                max_concurrent=limit,
                reuse_actors=reuse,
                max_failures=1,
            ),
            Cluster(
                slots=slots,
                costs=Costs(
                    start=0,
                    train=lambda config, iteration: config["pace"],
                    save=0,
                    restore=0,
                    reset=0,
                    stop=0,
                ),
            ),
            Faults(faults if fail else []),
            Options(quiet=True),
        )
        row = {
            "scheduler": name,
            "promotion": "eager" if eager else "deferred",
            "slots": slots,
            "limit": limit or "-",
            "reuse": reuse,
            "failures": fail,
        }
        try:
            record = cluster.run(max_events=5000)
            starts = check_starts(record, linear, milestones(27), ETA, eager)
            row.update(starts=len(starts.order), wrong=len(starts.wrong))
        except Exception as error:
            row.update(starts="-", wrong=getattr(error, "rule", type(error).__name__))
        rows.append(row)
    return rows


def idle(name):
    """Measure which share of the slots' time nobody trains in.

    Args:
        name: Which scheduler.

    Returns:
        A list of rows.
    """
    rows = []
    for slots, reuse, start in itertools.product((1, 8), (False, True), (3.0,)):
        trained = []

        def train(config, iteration, trained=trained):
            trained.append(1.0)
            return 1.0

        def run(costs, name=name, slots=slots, reuse=reuse):
            return VirtualCluster(
                Experiment(
                    make_scheduler(name, 81, eager=False),
                    num_samples=81,
                    trainable=ClassTrainable(),
                    reuse_actors=reuse,
                ),
                Cluster(slots=slots, costs=costs),
                options=Options(quiet=True),
            ).run(max_events=20000)

        row = {"scheduler": name, "slots": slots, "reuse": reuse, "start_s": start}
        try:
            free = run(Costs(start=0, train=1, save=0, restore=0, reset=0, stop=0))
            record = run(
                Costs(
                    start=start,
                    train=train,
                    save=0.02,
                    restore=0.02,
                    reset=0.01,
                    stop=0.1,
                )
            )
            row.update(
                hours=round(record.time / 3600, 3),
                epochs=len(trained),
                idle=f"{1 - sum(trained) / (slots * record.time):.1%}",
                # A few slots are all that is needed toward the end.
                idle_if_all_were_free=f"{1 - len(trained) / (slots * free.time):.1%}",
                actor_starts=sum(event.kind == "started" for event in record.events),
            )
        except Exception as error:
            row.update(idle=getattr(error, "rule", type(error).__name__))
        rows.append(row)
    return rows


class PauseAlways(FIFOScheduler):
    """Pauses at each result, or never."""

    def __init__(self, pause, iterations):
        super().__init__()
        self.pause, self.iterations = pause, iterations

    def on_trial_result(self, tune_controller, trial, result):
        if result["training_iteration"] >= self.iterations:
            return "STOP"
        return "PAUSE" if self.pause else "CONTINUE"


def count(config):
    """A training function that trains nothing, and has a checkpoint each time."""
    first = 0
    checkpoint = tune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as directory:
            with open(os.path.join(directory, "epoch")) as f:
                first = int(f.read())
    for epoch in itertools.count(first + 1):
        with tempfile.TemporaryDirectory() as directory:
            with open(os.path.join(directory, "epoch"), "w") as f:
                f.write(str(epoch))
            tune.report(
                {"epoch": epoch}, checkpoint=tune.Checkpoint.from_directory(directory)
            )


class Clock(tune.Callback):
    """Notes when results arrive."""

    def __init__(self):
        self.times = []

    def on_trial_result(self, iteration, trials, trial, result, **info):
        self.times.append(time.perf_counter())


def pause():
    """Measure on real Ray what a result costs, with and without a pause.

    Returns:
        A list of rows.
    """
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    rows = []
    for what, trials, does_pause, reuse, iterations in (
        ("report", 1, False, True, 60),
        ("pause, resume at once, reuse", 1, True, True, 60),
        ("pause, resume another, reuse", 2, True, True, 30),
        ("pause, resume at once", 1, True, False, 4),
    ):
        clock = Clock()
        with tempfile.TemporaryDirectory() as path:
            tune.Tuner(
                count,
                tune_config=tune.TuneConfig(
                    num_samples=trials,
                    scheduler=PauseAlways(does_pause, iterations),
                    reuse_actors=reuse,
                ),
                run_config=tune.RunConfig(
                    storage_path=path, callbacks=[clock], verbose=0
                ),
            ).fit()
        gaps = sorted(b - a for a, b in itertools.pairwise(clock.times))
        rows.append({"what": what, "median_ms": round(1000 * gaps[len(gaps) // 2], 1)})
    ray.shutdown()
    base = rows[0]["median_ms"]
    for row in rows:
        row["over_report_ms"] = round(row["median_ms"] - base, 1)
    return rows


def measure(parts):
    """Run the parts that were asked for.

    Args:
        parts: Names of the parts.

    Returns:
        Rows by the name of the part.
    """
    names = ["plain"] + (["ASHAv2"] if ASHAv2 else [])
    found = {}
    if "order" in parts:
        found["order"] = [row for name in names for row in order(name)]
    if "idle" in parts:
        found["idle"] = [row for name in names for row in idle(name)]
    if "pause" in parts:
        found["pause"] = pause()
    return found


def show(title, found):
    """Print what was found."""
    print(f"== {title}")
    for part, rows in found.items():
        print(f"-- {part}")
        if part == "order":
            rows = summarize(rows)
        columns = list(dict.fromkeys(key for row in rows for key in row))
        widths = [
            max(len(c), *(len(str(row.get(c, ""))) for row in rows)) for c in columns
        ]
        print("  ".join(c.ljust(w) for c, w in zip(columns, widths, strict=True)))
        for row in rows:
            cells = (
                str(row.get(c, "")).ljust(w)
                for c, w in zip(columns, widths, strict=True)
            )
            print("  ".join(cells).rstrip())


def summarize(rows):
    """Add up the rows of one scheduler, promotion and number of slots."""
    sums = {}
    for row in rows:
        key = (row["scheduler"], row["promotion"], row["slots"])
        total = sums.setdefault(
            key, {"runs": 0, "starts": 0, "wrong": 0, "did_not_end": 0}
        )
        total["runs"] += 1
        if isinstance(row["wrong"], int):
            total["starts"] += row["starts"]
            total["wrong"] += row["wrong"]
        else:
            total["did_not_end"] += 1
    names = ("scheduler", "promotion", "slots")
    return [
        {**dict(zip(names, key, strict=True)), **total} for key, total in sums.items()
    ]


def main(argv=None):
    """Run the benchmark.

    Args:
        argv: The command line.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(PARTS), help="parts to run")
    parser.add_argument("--beside", help="a Python with another Ray, to compare")
    parser.add_argument("--json", action="store_true", help="print rows as JSON")
    args = parser.parse_args(argv)
    logging.disable(logging.CRITICAL)
    os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
    found = measure(args.only.split(","))
    if args.json:
        print(json.dumps(found))
        return
    show(f"ray of {sys.executable}", found)
    if args.beside:
        output = subprocess.run(
            [args.beside, os.path.abspath(__file__), "--json", "--only", args.only],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout
        show(f"ray of {args.beside}", json.loads(output.strip().splitlines()[-1]))


if __name__ == "__main__":
    main()
