"""Each unfinished trial has an event to come (rule 1 of the design's section 8)."""

from ray.tune.experiment import Trial

_POSITIVE = (0).__lt__


class Progress:
    """Something can still happen, and the run comes to an end.

    What is noticed by the cluster itself, since no event tells of it, is said through
    ``Monitor.broken``: a driver that blocks or spins, and a run without end.
    """

    RULES = {
        "blocked": "The driver waits for nothing that can never come.",
        "endless": "A run ends.",
        "hang": "While trials are unfinished, an event can come.",
        "running-idle": "A trial that is RUNNING has a task in flight.",
        "spin": "The driver does not go on and on without an event.",
        "stall": "A run in which nothing can happen is ended, naming each trial.",
    }

    def on_touched(self, monitor, trial, view, controller) -> None:
        if trial.status == Trial.RUNNING and not any(
            map(_POSITIVE, view.in_flight.values())
        ):
            monitor.broken(
                "running-idle",
                "the trial is RUNNING, but no task of it is in flight, so no event can "
                "come",
                trial.trial_id,
            )

    def on_quiet(self, monitor, controller, seconds) -> None:
        unfinished = [t for t in controller.get_trials() if not t.is_finished()]
        lines = []
        for trial in unfinished[:8]:
            last = trial.run_metadata.last_result or {}
            lines.append(
                f"{trial.trial_id} {trial.status}"
                f" at iteration {last.get('training_iteration', 0)}"
                + (", saving" if trial.is_saving else "")
            )
        if len(unfinished) > 8:
            lines.append(f"and {len(unfinished) - 8} more")
        searcher = (
            "finished" if controller.search_alg.is_finished() else "gives no trial"
        )
        monitor.broken(
            "hang",
            f"no event can come any more ({seconds:.0f} s without one), the searcher "
            f"{searcher}, and {len(unfinished)} trials are unfinished: "
            + "; ".join(lines),
            unfinished[0].trial_id if unfinished else None,
        )

    def on_stalled(self, monitor, controller, exc) -> None:
        for trial in controller.get_trials():
            if not trial.is_finished() and trial.trial_id not in str(exc):
                monitor.broken(
                    "stall",
                    f"the error does not name the trial, which is {trial.status}",
                    trial.trial_id,
                )


INVARIANTS = (Progress,)
