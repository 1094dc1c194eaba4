"""What it costs to store the state of an experiment.

    build/venv/bin/python benchmarks/snapshots.py
    build/venv/bin/python benchmarks/snapshots.py --trials 100 --json figures.json

A search of so many trials on 25 slots runs on the virtual cluster; each trial reports a
result a second and saves a checkpoint with it. The state is stored every 10 virtual
seconds, which is the default period. The program prints, per search and save:

    state       the size of the whole state, in MB
    written     what a save writes of the states of trials, in MB
    loop        how long the training loop stands still, mean and longest, in ms of CPU
    background  how long the thread that uploads is busy, in ms of CPU
    share       the part of the loop's time that saving takes, at the default period

With ``num_to_keep=1`` a save is forced by each checkpoint. The virtual clock does not
see what that costs; in a real run such saves get at most 1% of the loop's time.

It runs on stock Ray, too, with an interpreter that has it.
"""

import argparse
import contextlib
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Dict, List

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from virtual_cluster import VirtualCluster  # noqa: E402
from virtual_cluster.core import storage as virtual_storage  # noqa: E402

from ray.tune import CheckpointConfig  # noqa: E402
from ray.tune.execution import experiment_state  # noqa: E402
from ray.tune.logger import CSVLoggerCallback, JsonLoggerCallback  # noqa: E402
from ray.tune.schedulers import ASHAScheduler  # noqa: E402

PERIOD_S = 10.0


class _Clock:
    """Adds up how long functions take."""

    def __init__(self):
        self.seconds: Dict[str, float] = {}

    def timed(self, name, function):
        def call(*args, **kwargs):
            begin = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                elapsed = time.thread_time() - begin
                self.seconds[name] = self.seconds.get(name, 0.0) + elapsed

        return call


class _Meter:
    """Measures each save of a run."""

    def __init__(self):
        self.clock = _Clock()
        self.loop_ms: List[float] = []
        self.background_ms: List[float] = []
        self.written: List[int] = []

    def install(self):
        manager = experiment_state._ExperimentCheckpointManager
        syncer = virtual_storage.VirtualSyncer
        syncer.sync_up = self.clock.timed("background", syncer.sync_up)
        with contextlib.suppress(ImportError):
            from ray.tune.execution import snapshot_storage

            storage = snapshot_storage._SnapshotStorage
            storage.store = self.clock.timed("background", storage.store)
            write = snapshot_storage._write_segment

            def write_segment(*args):
                segment = write(*args)
                self.written.append(segment.num_bytes)
                return segment

            snapshot_storage._write_segment = write_segment
        sync = manager.sync_up_experiment_state

        def sync_up(manager, save_fn, force=False, wait=False):
            saved = []
            before = self.clock.seconds.get("background", 0.0)
            begin = time.thread_time()
            sync(manager, lambda: saved.append(save_fn()), force=force, wait=wait)
            elapsed = time.thread_time() - begin
            if saved and not wait:
                background = self.clock.seconds.get("background", 0.0) - before
                self.loop_ms.append(1000 * (elapsed - background))
                self.background_ms.append(1000 * background)

        manager.sync_up_experiment_state = sync_up


def _state_size(folder: Path) -> int:
    snapshots = folder / "experiment_snapshots"
    if snapshots.is_dir():
        return sum(p.stat().st_size for p in snapshots.rglob("*") if p.is_file())
    return sum(p.stat().st_size for p in folder.iterdir() if p.is_file())


def _scheduler():
    try:
        from ray.tune.schedulers import ASHAv2
    except ImportError:
        return ASHAScheduler(max_t=81, reduction_factor=3)
    return ASHAv2(max_t=81, reduction_factor=3)


def measure(num_trials: int, num_to_keep, meter: _Meter) -> Dict:
    """Run one search.

    Args:
        num_trials: The number of trials.
        num_to_keep: As in ``CheckpointConfig``.
        meter: Measures the saves.

    Returns:
        The figures.
    """
    meter.loop_ms.clear()
    meter.background_ms.clear()
    meter.written.clear()
    cluster = VirtualCluster.of(
        _scheduler,
        num_samples=num_trials,
        slots=25,
        checkpoint_period=PERIOD_S,
        checkpoint_config=CheckpointConfig(
            num_to_keep=num_to_keep, checkpoint_frequency=1
        ),
        callbacks=lambda: [JsonLoggerCallback(), CSVLoggerCallback()],
        reuse_actors=True,
        keep_events=False,
        quiet=True,
        ignore=("promotion",),
    ).start()
    cluster.run(max_events=10**9)
    seconds = cluster.clock.now
    # The later half, in which most trials are there.
    loop = meter.loop_ms[len(meter.loop_ms) // 2 :]
    size = _state_size(Path(cluster.storage_path) / "experiment")
    figures = {
        "trials": num_trials,
        "num_to_keep": num_to_keep,
        "saves": len(meter.loop_ms),
        "virtual_seconds": round(seconds),
        "state_mb": round(size / 1e6, 2),
        "written_mb": round(statistics.mean(meter.written or [size]) / 1e6, 3),
        "loop_ms_mean": round(statistics.mean(loop), 2),
        "loop_ms_max": round(max(loop), 2),
        "background_ms_mean": round(statistics.mean(meter.background_ms), 2),
        "share_percent": round(sum(meter.loop_ms) / 10 / seconds, 3),
    }
    cluster.close()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, nargs="+", default=[100, 1_000, 10_000])
    parser.add_argument("--num-to-keep", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--json", help="where to write the figures")
    args = parser.parse_args()
    os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")
    meter = _Meter()
    meter.install()
    rows = []
    for num_trials in args.trials:
        for num_to_keep in args.num_to_keep:
            rows.append(measure(num_trials, num_to_keep or None, meter))
            if len(rows) == 1:
                print("  ".join(f"{name:>18}" for name in rows[0]))
            row = "  ".join(f"{value!s:>18}" for value in rows[-1].values())
            print(row, flush=True)
    if args.json:
        Path(args.json).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
