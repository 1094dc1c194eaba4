"""The decisions that stand for a trial until they can be carried out."""

from typing import Dict, Optional

from ray.tune.schedulers import TrialScheduler

# A decision further to the right wins over those to its left.
_ORDER = (
    TrialScheduler.NOOP,
    TrialScheduler.CONTINUE,
    TrialScheduler.PAUSE,
    TrialScheduler.STOP,
)
_STRENGTH = {decision: strength for strength, decision in enumerate(_ORDER)}


def stronger_decision(first: Optional[str], second: Optional[str]) -> Optional[str]:
    """Return the one of two decisions that overrules the other.

    The order is NOOP < CONTINUE < PAUSE < STOP; it does not matter which of the
    two was made first.

    Args:
        first: A decision of the scheduler, or None.
        second: Another one, or None.

    Returns:
        The stronger of the two, None only if both are.

    Raises:
        ValueError: If one of them is not a decision.
    """
    for decision in (first, second):
        if decision is not None and decision not in _STRENGTH:
            raise ValueError(
                f"Invalid decision: {decision}. A scheduler's `on_trial_result` "
                f"has to return one of {', '.join(_ORDER)}."
            )
    if first is None or second is None:
        return second if first is None else first
    return max(first, second, key=_STRENGTH.__getitem__)


class _TrialDecisions:
    """Keeps what was decided for trials while it cannot be carried out.

    Attributes:
        cached: Decisions by trial id that wait for a save in flight.
        queued: Decisions by trial id of the results that are being processed.
    """

    def __init__(self):
        self.cached: Dict[str, str] = {}
        self.queued: Dict[str, str] = {}

    def cache(self, trial_id: str, decision: str) -> None:
        """Let a decision wait until the save of the trial has resolved."""
        self.cached[trial_id] = stronger_decision(self.cached.get(trial_id), decision)

    def queue(self, trial_id: str, decision: str) -> None:
        """Let a decision wait until all results at hand are processed."""
        self.queued[trial_id] = stronger_decision(self.queued.get(trial_id), decision)

    def save_resolved(self, trial_id: str) -> None:
        """Queue what had waited for the save."""
        if trial_id in self.cached:
            self.queue(trial_id, self.cached.pop(trial_id))

    def save_outstanding(self, trial_id: str) -> None:
        """Let what is queued wait for a save that was scheduled meanwhile."""
        if trial_id in self.queued:
            self.cache(trial_id, self.queued.pop(trial_id))

    def pop(self, trial_id: str) -> Optional[str]:
        """Return the decision to carry out now, if there is one."""
        return self.queued.pop(trial_id, None)

    def is_stopping(self, trial_id: str) -> bool:
        """Return whether it was decided to stop the trial."""
        return TrialScheduler.STOP in (
            self.cached.get(trial_id),
            self.queued.get(trial_id),
        )

    def drop(self, trial_id: str) -> None:
        """Forget what was decided for the actor that the trial had."""
        self.cached.pop(trial_id, None)
        self.queued.pop(trial_id, None)
