"""A resumed trial goes on from its last checkpoint (rule 5 of section 8)."""

import os
from typing import Dict, Optional, Set

from .private import pins_of
from ray.tune.schedulers import TrialScheduler


class ResumePoint:
    """A trial trains from its last registered checkpoint, which is what it says."""

    RULES = {
        "checkpoint-overwritten": "No two saves write to one place.",
        "resume-point": "A trial goes on from its last registered checkpoint.",
    }

    def __init__(self):
        # Trial id -> the checkpoint that its actor has loaded.
        self._loaded: Dict[str, Optional[str]] = {}

    def driver_died(self, monitor) -> None:
        self._loaded.clear()

    def on_submit(self, monitor, ref, view) -> None:
        if ref.method == "restore":
            checkpoint = ref.args[0].checkpoint
            self._loaded[ref.trial_id] = checkpoint.path if checkpoint else None
        elif ref.method in ("start", "reset"):
            self._loaded.pop(ref.trial_id, None)

    def on_first_train(self, monitor, ref, view) -> None:
        latest = view.trial.latest_checkpoint_result
        expected = latest.checkpoint.path if latest and latest.checkpoint else None
        loaded = self._loaded.get(ref.trial_id)
        if expected != loaded:
            monitor.broken(
                "resume-point",
                f"the trial trains from {_name(loaded)}, but its last registered "
                f"checkpoint is {_name(expected)}",
                ref.trial_id,
            )

    def on_restored(self, monitor, ref, content, metrics) -> None:
        said = metrics.get("training_iteration", 0)
        if said != content["progress"]:
            monitor.broken(
                "resume-point",
                f"the trial was restored from a checkpoint of iteration "
                f"{content['progress']} which is registered as that of iteration "
                f"{said}",
                ref.trial_id,
            )

    def on_overwritten(self, monitor, trial_id, path) -> None:
        monitor.broken(
            "checkpoint-overwritten",
            f"two saves have written to {_name(path)}; files of the first may be left "
            f"in the second",
            trial_id,
        )


def _name(path: Optional[str]) -> str:
    return "scratch" if path is None else "/".join(path.split("/")[-2:])


class CheckpointsThere:
    """The checkpoint that a trial is about to load exists.

    After a restore, a snapshot may name one that was deleted since.
    """

    RULES = {"checkpoint-gone": "A checkpoint that is about to be loaded exists."}

    def __init__(self):
        self._gone: Set[str] = set()
        self._restored = False

    def driver_died(self, monitor) -> None:
        self._restored = True

    def after_step(self, monitor, controller) -> None:
        if self._restored:
            self._restored = False
            for trial in controller.get_trials():
                checkpoint = trial.checkpoint
                if checkpoint and not os.path.exists(checkpoint.path):
                    self._gone.add(checkpoint.path)

    def on_submit(self, monitor, ref, view) -> None:
        if ref.method == "restore":
            self._judge(monitor, ref)

    def on_failure(self, monitor, ref) -> None:
        if ref.method == "restore":
            self._judge(monitor, ref)

    def _judge(self, monitor, ref) -> None:
        checkpoint = ref.args[0].checkpoint
        if checkpoint is None:
            return
        path = checkpoint.path
        if path not in self._gone and not self._restored and not os.path.exists(path):
            monitor.broken(
                "checkpoint-gone",
                "the checkpoint that the trial is about to load was deleted: "
                + _name(path),
                ref.trial_id,
            )


class NoPinLeft:
    """At the end nobody keeps a checkpoint from being deleted."""

    RULES = {"pin-left": "No checkpoint is pinned at the end."}

    def at_end(self, monitor, controller) -> None:
        for trial in controller.get_trials():
            left = pins_of(trial)
            if left:
                monitor.broken("pin-left", left, trial.trial_id)


class PausedStaysPaused:
    """A trial that was stored as PAUSED is PAUSED after the experiment was restored."""

    RULES = {"restored-pause": "A paused trial is PAUSED after a restore."}

    def on_restored_run(self, monitor, controller, last) -> None:
        if not controller.resumed:
            return
        if type(monitor.scheduler).save is TrialScheduler.save:
            # It cannot be restored, and would not know what the paused ones wait for.
            return
        for trial in controller.get_trials():
            if trial.trial_id in monitor.stored_paused and trial.status != "PAUSED":
                monitor.broken(
                    "restored-pause",
                    f"the trial was stored as PAUSED, and is {trial.status} after the "
                    f"experiment was restored",
                    trial.trial_id,
                )


class OwnConfig:
    """A trial is trained with the config that it has."""

    RULES = {"stale-config": "A trial is trained with its own config."}

    def on_first_train(self, monitor, ref, view) -> None:
        trial, actor = view.trial, ref.actor
        if actor.config != trial.config:
            monitor.broken(
                "stale-config",
                f"the trial has the config {trial.config}, but it is trained with "
                f"{actor.config}",
                trial.trial_id,
            )


INVARIANTS = (ResumePoint, CheckpointsThere, NoPinLeft, PausedStaysPaused, OwnConfig)
