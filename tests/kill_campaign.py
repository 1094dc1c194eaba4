"""Kills the drivers of real searches at random moments, and compares what comes of it.

Each search runs on a real Ray, again and again, until it has got to its end: its driver
is killed (SIGKILL) several times, and restored each time by a new one. Nobody must be
able to tell: every trial ends as it does when nobody kills the driver, its log has each
row once, and no trial has an error. :func:`run` is the program; ``ci/kill-campaign`` is
its door.
"""

import argparse
import csv
import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Callable, Dict, List, Optional, Tuple

os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")
os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray  # noqa: E402
from ray import cloudpickle, tune  # noqa: E402
from ray.tune import schedulers  # noqa: E402

STEP_S = 0.12
NUM_TRIALS = 9


class Walk(tune.Trainable):
    """Trains as its number says; its checkpoint has the epoch, and nothing else."""

    def setup(self, config):
        self.number = config["number"]
        self.rate = config.get("rate", 1.0)
        self.epoch = 0

    def reset_config(self, new_config):
        self.setup(new_config)
        return True

    def step(self):
        time.sleep(STEP_S)
        self.epoch += 1
        # The order of the trials changes while they are trained.
        score = self.epoch * (1 + self.number % 4) + self.number % 7
        return {"score": score * self.rate, "epoch": self.epoch}

    def save_checkpoint(self, checkpoint_dir):
        Path(checkpoint_dir, "epoch").write_text(str(self.epoch))

    def load_checkpoint(self, checkpoint_dir):
        self.epoch = int(Path(checkpoint_dir, "epoch").read_text())


def _pbt(synch: bool):
    # One source, and one value to explore: nothing is drawn.
    return schedulers.PopulationBasedTraining(
        perturbation_interval=3,
        quantile_fraction=0.25,
        resample_probability=1.0,
        hyperparam_mutations={"rate": lambda: 1.5},
        synch=synch,
    )


def _bohb():
    return schedulers.HyperBandForBOHB(max_t=9, reduction_factor=3)


def _bohb_search(seed: int):
    from ray.tune.search.bohb import TuneBOHB

    return TuneBOHB(seed=seed)


@dataclasses.dataclass(frozen=True)
class Search:
    """A search that is killed.

    Attributes:
        scheduler: Makes the scheduler.
        num_trials: How many trials there are.
        max_t: When trials are stopped, if the scheduler does not do it.
        search_alg: Makes the search algorithm from a seed.
        is_repeatable: Whether a run of it takes the same course each time.
        jumps: Whether trials go on from those of others.
    """

    scheduler: Callable
    num_trials: int = NUM_TRIALS
    max_t: Optional[int] = None
    search_alg: Optional[Callable] = None
    is_repeatable: bool = True
    jumps: bool = False


SEARCHES = {
    "asha_v2-deferred": Search(
        lambda: schedulers.ASHAv2(max_t=9, reduction_factor=3, promotion="deferred")
    ),
    "asha_v2-eager": Search(
        lambda: schedulers.ASHAv2(max_t=9, reduction_factor=3, promotion="eager")
    ),
    "asha": Search(lambda: schedulers.ASHAScheduler(max_t=9, reduction_factor=3)),
    "hyperband": Search(
        lambda: schedulers.HyperBandScheduler(max_t=9, reduction_factor=3)
    ),
    "bohb": Search(_bohb, search_alg=_bohb_search, is_repeatable=False),
    "median": Search(
        lambda: schedulers.MedianStoppingRule(grace_period=2, min_samples_required=2),
        max_t=6,
    ),
    "pbt": Search(lambda: _pbt(False), 4, 9, is_repeatable=False, jumps=True),
    "pbt-synch": Search(lambda: _pbt(True), 4, 9, is_repeatable=False, jumps=True),
}


@dataclasses.dataclass
class Run:
    """One search, and how often its driver is killed.

    Attributes:
        name: The name of the search.
        seed: Determines when the driver is killed, and the circumstances.
        kills: How often.
    """

    name: str
    seed: int
    kills: int

    @property
    def search(self) -> Search:
        return SEARCHES[self.name]


def _space(search: Search) -> Dict:
    if search.search_alg is not None:
        return {"number": tune.randint(0, 1000)}
    space = {"number": tune.grid_search(list(range(search.num_trials)))}
    if search.jumps:
        space["rate"] = 1.0
    return space


def drive(run: Run, folder: str, address: str) -> None:
    """Be the driver of a search: begin it, or restore it, and run it to its end.

    Args:
        run: The search.
        folder: Where it is stored.
        address: The address of the Ray that it runs on.
    """
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    draw = random.Random(run.seed)
    os.environ["TUNE_GLOBAL_CHECKPOINT_S"] = draw.choice(["0", "0.4", "1.5"])
    num_to_keep = draw.choice([1, 2, None])
    reuse_actors = draw.random() < 0.7
    ray.init(
        address=address,
        log_to_driver=False,
        configure_logging=False,
    )
    search = run.search
    path = os.path.join(folder, "search")
    if tune.Tuner.can_restore(path):
        tuner = tune.Tuner.restore(path, trainable=Walk, param_space=_space(search))
    else:
        tuner = tune.Tuner(
            Walk,
            param_space=_space(search),
            tune_config=tune.TuneConfig(
                metric="score",
                mode="max",
                scheduler=search.scheduler(),
                search_alg=search.search_alg and search.search_alg(run.seed),
                num_samples=1 if search.search_alg is None else search.num_trials,
                # One after the other: so the order is the same each time.
                max_concurrent_trials=None if search.jumps else 1,
                reuse_actors=reuse_actors,
            ),
            run_config=tune.RunConfig(
                name="search",
                storage_path=folder,
                stop={"training_iteration": search.max_t} if search.max_t else None,
                checkpoint_config=tune.CheckpointConfig(
                    checkpoint_frequency=1, num_to_keep=num_to_keep
                ),
                verbose=0,
            ),
        )
    tuner.fit()


def _fork(run: Run, folder: str, address: str, log: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        with open(log, "ab", buffering=0) as out:
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
        drive(run, folder, address)
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


def _wait(pid: int, seconds: float) -> Optional[int]:
    """Wait for a driver; None if it is not over after so long."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    return None


def _num_rows(folder: str) -> int:
    logs = Path(folder, "search").glob("*/result.json")
    return sum(path.read_bytes().count(b"\n") for path in logs)


def execute(run: Run, folder: str, address: str, timeout_s: float) -> Tuple[int, str]:
    """Run a search to its end, and kill its driver on the way.

    Args:
        run: The search.
        folder: Where to store it.
        address: The address of the Ray that it runs on.
        timeout_s: How long it may take with one driver.

    Returns:
        How often the driver was killed, and what went wrong, if anything.
    """
    os.makedirs(folder, exist_ok=True)
    draw = random.Random(run.seed * 31 + 7)
    log = Path(folder, "driver.log")
    kills = 0
    while True:
        pid = _fork(run, folder, address, log)
        if kills < run.kills:
            # The time begins when it does something.
            rows, deadline = _num_rows(folder), time.monotonic() + timeout_s
            code = None
            while code is None and time.monotonic() < deadline:
                code = _wait(pid, 0.1)
                if _num_rows(folder) > rows or draw.random() < 0.002:
                    break
            if code is None:
                code = _wait(pid, draw.uniform(0, 2.5))
            if code is None:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                kills += 1
                continue
        else:
            code = _wait(pid, timeout_s)
            if code is None:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return kills, f"it has not ended after {timeout_s} s"
        if code != 0:
            tail = log.read_text(errors="replace")[-3000:]
            return kills, f"the driver has ended with {code}: {tail}"
        return kills, ""


def outcome(run: Run, folder: str) -> Tuple[Dict, List[str]]:
    """Say how the trials of a search have ended, and what is wrong with them.

    Args:
        run: The search.
        folder: Where it is stored.

    Returns:
        Status and last epoch of each trial, by its number, and the faults.
    """
    analysis = tune.ExperimentAnalysis(os.path.join(folder, "search"))
    ends, faults = {}, []
    for trial in analysis.trials:
        number = trial.config["number"]
        last = trial.run_metadata.last_result
        ends[str(number)] = [trial.status, last.get("training_iteration", 0)]
        if trial.status != "TERMINATED":
            faults.append(f"trial {number} is {trial.status}")
        if last.get("epoch") != last.get("training_iteration"):
            faults.append(f"trial {number} is at epoch {last.get('epoch')} in {last}")
        faults += _faults_of_logs(run, number, last, trial.storage.trial_fs_path)
    if len(analysis.trials) != run.search.num_trials:
        faults.append(f"there are {len(analysis.trials)} trials")
    return ends, faults


def _faults_of_logs(run: Run, number: int, last: Dict, folder: str) -> List[str]:
    faults = []
    rows, csv_rows = [], []
    if Path(folder, "result.json").exists():
        lines = Path(folder, "result.json").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        with open(Path(folder, "progress.csv"), newline="") as f:
            csv_rows = list(csv.DictReader(f))
    iterations = [row["training_iteration"] for row in rows]
    if [int(row["training_iteration"]) for row in csv_rows] != iterations:
        faults.append(f"the logs of trial {number} differ")
    if run.search.jumps:
        if iterations[-1:] != [last.get("training_iteration")]:
            faults.append(f"the log of trial {number} ends at {iterations[-1:]}")
        for before, row in zip(rows, rows[1:], strict=False):
            follows = row["training_iteration"] == before["training_iteration"] + 1
            if not follows and row["iterations_since_restore"] != 1:
                faults.append(f"trial {number}: {iterations}")
    elif iterations != list(range(1, last.get("training_iteration", 0) + 1)):
        faults.append(f"the log of trial {number} has {iterations}")
    return faults


def run(
    names: List[str],
    kills: int,
    kills_per_search: int,
    seed: int,
    folder: str,
    address: str,
    timeout_s: float = 300.0,
    report: Callable[[str], None] = print,
) -> List[Dict]:
    """Run the campaign.

    Args:
        names: The searches, which take turns.
        kills: How many kills there are at least, in all.
        kills_per_search: How many at most in one search.
        seed: Determines everything that is drawn.
        folder: Where the searches are stored.
        address: The address of the Ray that they run on. This process must not have
            connected to it, as the drivers are forked from it.
        timeout_s: How long one driver may take.
        report: Prints a line.

    Returns:
        A record of each search.
    """
    records: List[Dict] = []
    expected: Dict[Tuple, Dict] = {}
    done = 0
    number = 0
    while done < kills or number < len(names):
        name = names[number % len(names)]
        one = Run(name, seed + number, kills_per_search)
        number += 1
        key = (name,)
        if one.search.is_repeatable and key not in expected:
            quiet = os.path.join(folder, f"{name}-uninterrupted")
            _, trouble = execute(Run(name, one.seed, 0), quiet, address, timeout_s)
            if trouble:
                raise RuntimeError(f"{name}, which nobody kills: {trouble}")
            expected[key], faults = outcome(one, quiet)
            if faults:
                raise RuntimeError(f"{name}, which nobody kills: {faults}")
        path = os.path.join(folder, f"{name}-{one.seed}")
        num_kills, trouble = execute(one, path, address, timeout_s)
        done += num_kills
        ends, faults = ({}, [trouble]) if trouble else outcome(one, path)
        if not trouble and key in expected and ends != expected[key]:
            faults.append(f"{ends} instead of {expected[key]}")
        records.append(
            {
                "search": name,
                "seed": one.seed,
                "kills": num_kills,
                "compared": key in expected,
                "faults": faults,
            }
        )
        verdict = "; ".join(faults) if faults else "as if nobody had killed it"
        report(f"{name:>18}  seed {one.seed}  {num_kills} kills: {verdict}")
        if not faults:
            shutil.rmtree(path)
    return records


def table(records: List[Dict]) -> str:
    """Compose the table of a campaign.

    Args:
        records: The searches.

    Returns:
        A line for each kind of search.
    """
    lines = [f"{'search':>18}  searches  kills  compared  with faults"]
    for name in dict.fromkeys(record["search"] for record in records):
        of_name = [record for record in records if record["search"] == name]
        lines.append(
            f"{name:>18}  {len(of_name):>8}  {sum(r['kills'] for r in of_name):>5}  "
            f"{sum(r['compared'] for r in of_name):>8}  "
            f"{sum(bool(r['faults']) for r in of_name):>11}"
        )
    kills = sum(record["kills"] for record in records)
    faults = sum(bool(record["faults"]) for record in records)
    lines.append(f"{'all':>18}  {len(records):>8}  {kills:>5}  {'':>8}  {faults:>11}")
    return "\n".join(lines)


def _run_with_ray_of_its_own(arguments: List[str]) -> int:
    """Start Ray, and the program in a process of its own, which forks drivers."""
    temp_dir = tempfile.mkdtemp(prefix="kc-", dir="/tmp")
    try:
        context = ray.init(
            num_cpus=3, include_dashboard=False, log_to_driver=False, _temp_dir=temp_dir
        )
        address = context.address_info["gcs_address"]
        command = [sys.executable, os.path.abspath(__file__), f"--address={address}"]
        return subprocess.run([*command, *arguments]).returncode
    finally:
        ray.shutdown()
        shutil.rmtree(temp_dir, ignore_errors=True)


def main(arguments: Optional[List[str]] = None) -> int:
    """Run the program.

    Args:
        arguments: Those of the command line.

    Returns:
        The exit code: 1 if a kill showed.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100, help="at least, in all")
    parser.add_argument("--per-search", type=int, default=4, help="at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default=",".join(SEARCHES), help="names, by comma")
    parser.add_argument("--folder", help="keeps the searches that failed")
    parser.add_argument("--json", help="where to write the records")
    parser.add_argument("--address", help="a Ray that runs already")
    args = parser.parse_args(arguments)
    if not args.address:
        return _run_with_ray_of_its_own(arguments or sys.argv[1:])
    records = run(
        args.only.split(","),
        args.kills,
        args.per_search,
        args.seed,
        args.folder or tempfile.mkdtemp(prefix="kill-campaign-"),
        args.address,
    )
    print(table(records))
    if args.json:
        Path(args.json).write_text(json.dumps(records, indent=1) + "\n")
    return int(any(record["faults"] for record in records))


if __name__ == "__main__":
    sys.exit(main())
