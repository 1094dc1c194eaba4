"""A trial stops when, and only when, somebody decided so (rule 3 of section 8)."""

from ..core.monitor import TRAIN
from .private import fails_fast, stopper_ends_all
from ray.tune.experiment import Trial


class Stops:
    """A STOP is carried out, once it was decided, and never without a decision."""

    RULES = {
        "restarted": "A trial that is TERMINATED stays so.",
        "stop-lost": "A trial that was to be stopped is not PAUSED instead.",
        "train-after-stop": "No train starts after STOP was decided.",
        "unasked-stop": "Nobody is stopped without a decision.",
    }

    def on_submit(self, monitor, ref, view) -> None:
        if view.stop and ref.method in TRAIN:
            monitor.broken(
                "train-after-stop",
                f"a train was started after STOP had been decided ({view.stop})",
                ref.trial_id,
            )

    def on_stop_trial(self, monitor, trial, view) -> None:
        if monitor.in_action is trial and not view.stop:
            monitor.broken(
                "unasked-stop",
                "a STOP was carried out that nobody had decided for this actor",
                trial.trial_id,
            )

    def on_stop_all(self, monitor, controller) -> None:
        if (
            fails_fast(controller)
            and not monitor.num_failures
            and not stopper_ends_all(controller)
        ):
            monitor.broken(
                "unasked-stop",
                "the experiment is stopped as if a trial had failed, but none has "
                "since it was restored",
            )

    def on_status(self, monitor, trial, before, status) -> None:
        # Stock Ray sets one status after the other when a trial pauses.
        if before == Trial.TERMINATED and status != Trial.PAUSED:
            monitor.broken(
                "restarted",
                f"the trial was TERMINATED, and is {status} now",
                trial.trial_id,
            )

    def on_touched(self, monitor, trial, view, controller) -> None:
        status = trial.status
        if status == Trial.PAUSED:
            if view.stop and not view.failed:
                monitor.broken(
                    "stop-lost",
                    f"STOP had been decided ({view.stop}), but the trial is PAUSED",
                    trial.trial_id,
                )
        elif status == Trial.TERMINATED:
            if not view.stop and not monitor.stopping_all:
                monitor.broken(
                    "unasked-stop",
                    "the trial is TERMINATED, but nobody decided to stop it",
                    trial.trial_id,
                )


INVARIANTS = (Stops,)
