"""Invariants of single schedulers.

They look at what a scheduler keeps, and say nothing where it keeps something else.
"""

from ray.tune.experiment import Trial
from ray.tune.schedulers import HyperBandScheduler


class HyperBandStranded:
    """No bracket of HyperBand waits for an event that cannot come.

    A bracket is processed when one of its trials reports or is removed. When all of
    its trials are paused at the milestone and none is to go on, nobody will ever wake
    them. The scheduler gets two steps of the controller to do so.
    """

    def __init__(self):
        self._suspect = {}

    def __call__(self, monitor, controller) -> None:
        scheduler = monitor.scheduler
        if type(scheduler) is not HyperBandScheduler:
            return
        try:
            brackets = [b for band in scheduler._hyperbands for b in band if b]
            suspects = {}
            for bracket in brackets:
                live = list(bracket._live_trials)
                if (
                    live
                    and all(trial.status == Trial.PAUSED for trial in live)
                    and not bracket.trials_to_unpause
                    and bracket.cur_iter_done()
                ):
                    suspects[id(bracket)] = len(bracket._all_trials), live
        except (AttributeError, KeyError, TypeError):
            return
        for key, (size, live) in suspects.items():
            if self._suspect.get(key, 0) < 2:
                continue
            monitor.broken(
                "stranded",
                f"the {len(live)} of {size} trials that are left in a bracket are "
                f"paused at its milestone, and none of them is to go on",
                live[0].trial_id,
            )
        self._suspect = {key: self._suspect.get(key, 0) + 1 for key in suspects}


def checks():
    """Make the invariants of single schedulers.

    Returns:
        A list of functions ``f(monitor, controller)``.
    """
    return [HyperBandStranded()]
