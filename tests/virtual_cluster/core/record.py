"""What became of a run."""

from typing import List, Optional

from ..core.monitor import InvariantViolation


class RunRecord:
    """What became of a run.

    Attributes:
        trials: Tune's trials, in the order they were added.
        controller: The (last) controller.
        results: The results handled, per trial id.
        decisions: ``(time, trial id, iteration, decision)`` for every result.
        events: Everything that happened (see ``invariants.Event``).
        num_events: How many events the driver handled.
        time: Virtual seconds until the last trial had finished.
        violation: The invariant that was broken, if ``check=False``; else None.
    """

    def __init__(self, cluster):
        self.controller = cluster.controller
        self.scheduler = cluster.scheduler
        self.trials = list(cluster.controller.get_trials())
        monitor = cluster.monitor
        self.results = monitor.results
        self.decisions = monitor.decisions
        self.events = monitor.events
        self.num_events = monitor.number
        self.time = cluster.clock.now if cluster.end is None else cluster.end
        self.violation: Optional[InvariantViolation] = monitor.violation
        self.faults_fired = monitor.faults_fired

    def statuses(self) -> List[str]:
        """Return the status of each trial.

        Returns:
            The statuses, in the order of the trials.
        """
        return [trial.status for trial in self.trials]

    def iterations(self) -> List[int]:
        """Return how far each trial got.

        Returns:
            The last training iteration of each trial; 0 if it reported nothing.
        """
        return [
            (trial.run_metadata.last_result or {}).get("training_iteration", 0)
            for trial in self.trials
        ]

    def transcript(self) -> str:
        """Return all that happened as text; the same bytes for the same seed.

        Returns:
            A line for each thing that happened.
        """
        return "\n".join(map(str, self.events)) + "\n"
