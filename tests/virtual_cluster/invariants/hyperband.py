"""Every bracket of HyperBand completes (rules 1 and 7 of the design's section 8)."""

from .private import (
    base_of,
    bracket_size,
    bracket_trials,
    bracket_waits_for_nobody,
    hyperband_brackets,
)
from ray.tune.experiment import Trial
from ray.tune.schedulers import HyperBandScheduler


class BracketsAreNotStranded:
    """No bracket of HyperBand waits for an event that cannot come.

    A bracket is processed when one of its trials reports or is removed. When all of
    its trials are paused at the milestone and none is to go on, nobody will ever wake
    them. The scheduler gets two steps of the controller to do so.
    """

    RULES = {"stranded": "No bracket waits, all paused, for what cannot come."}

    def __init__(self):
        self._suspect = {}
        self._awake = {}  # id of a bracket -> one of its trials that is not paused

    @staticmethod
    def applies(scheduler) -> bool:
        # A trial that only BOHB's searcher knows of may still join its brackets.
        return type(base_of(scheduler)) is HyperBandScheduler

    def after_step(self, monitor, controller) -> None:
        suspects = {}
        search_goes_on = not controller.search_alg.is_finished()
        for bracket in hyperband_brackets(base_of(monitor.scheduler)):
            left = bracket_trials(bracket)
            # Few brackets are looked through: one trial is enough.
            awake = self._awake.get(id(bracket))
            if awake is not None and awake.status != Trial.PAUSED and awake in left:
                continue
            awake = next((t for t in left if t.status != Trial.PAUSED), None)
            self._awake[id(bracket)] = awake
            if (
                left
                and awake is None
                and bracket_waits_for_nobody(bracket, search_goes_on)
            ):
                suspects[id(bracket)] = bracket_size(bracket), left
        for key, (size, left) in suspects.items():
            if self._suspect.get(key, 0) < 2:
                continue
            monitor.broken(
                "stranded",
                f"the {len(left)} of {size} trials that are left in a bracket are "
                f"paused at its milestone, and none of them is to go on",
                left[0].trial_id,
            )
        self._suspect = {key: self._suspect.get(key, 0) + 1 for key in suspects}


INVARIANTS = (BracketsAreNotStranded,)
