"""All brackets of ASHA by promotion, and how far each trial has got in them.

A trial has one state here, and the scheduler keeps no other. What changes the ladder is
a command; what answers a question changes nothing. A question about a trial that is
about to pause, but has not yet, names it as ``pausing``.
"""

import enum
import math
from collections import OrderedDict
from typing import Dict, List, Optional

from ray.tune.schedulers._asha_rungs import Rung
from ray.tune.schedulers._milestones import Number, milestones

# How many trials a rung keeps beyond those that may be promoted from it, as long as no
# trial is complete: any of those that were promoted may fail.
RESERVE = 32


class TrialState(enum.Enum):
    """What a trial does, as far as is known."""

    PENDING = "pending"
    RUNNING = "running"
    SAVING = "saving"  # was told to pause, and was not seen paused
    INTERRUPTED = "interrupted"  # paused by somebody else
    OVER = "over"  # is past a `max_t` that was lowered, and is to be stopped
    FAILED = "failed"  # for good, unless it is added again
    PAUSED = "paused"  # at its milestone, to be promoted
    ENDED = "ended"


_NOT_REPORTING = (TrialState.PAUSED, TrialState.ENDED)


class TrialProgress:
    """How far a trial has got.

    Args:
        bracket: The number of its bracket.
        state: What it does.
    """

    __slots__ = ("bracket", "level", "state", "has_reached_max_t", "stopped_at")

    def __init__(self, bracket: int, state: TrialState):
        self.bracket = bracket
        # The number of the highest rung that has its record, -1 for none.
        self.level = -1
        self.state = state
        self.has_reached_max_t = False
        self.stopped_at: Optional[Number] = None


class Bracket:
    """The rungs that one group of trials goes through.

    Args:
        rungs: The rungs, ascending by milestone. May be empty.
    """

    def __init__(self, rungs: List[Rung]):
        self.rungs = rungs
        self.num_trials = 0
        # How many trials may report, by one more than their level.
        self.reporting = [0] * (len(rungs) + 1)


class Ladder:
    """All brackets of an experiment and where its trials stand in them.

    Args:
        grace_period: The lowest milestone of bracket 0.
        max_t: Where trials end.
        reduction_factor: The ratio of milestones, and the inverse of the share of the
            trials that is promoted.
        num_brackets: Bracket ``s`` starts ``s`` rungs higher than bracket 0.
        reserve: How many trials a rung keeps beyond those that may be promoted from it,
            as long as no trial is complete.
    """

    def __init__(
        self,
        grace_period: Number,
        max_t: Number,
        reduction_factor: Number,
        num_brackets: int = 1,
        reserve: int = RESERVE,
    ):
        self.grace_period = grace_period
        self.reduction_factor = reduction_factor
        self.reserve = reserve
        self.brackets = [Bracket([]) for _ in range(num_brackets)]
        self._set_max_t(max_t)
        self._progress: Dict[str, TrialProgress] = {}
        # In the order of their turn. Those paused are in their rungs.
        self._in_state: Dict[TrialState, "OrderedDict[str, None]"] = {
            state: OrderedDict() for state in TrialState if state not in _NOT_REPORTING
        }
        self._num_recorded = 0
        self.num_reporting = 0
        self.num_paused = 0
        self.num_reached_max_t = 0
        # Whether a trial has reached `max_t` with a number.
        self._has_complete = False
        # The highest milestone of a trial that has ended on its own with a number.
        self._ended_at: Number = -math.inf

    def __len__(self) -> int:
        return len(self._progress)

    def __contains__(self, trial_id: str) -> bool:
        return trial_id in self._progress

    # Questions.

    @property
    def num_ended(self) -> int:
        """How many trials have ended."""
        return len(self._progress) - self.num_reporting - self.num_paused

    def unfinished(self) -> List[str]:
        """Return the names of all trials that have not ended."""
        return [t for t, p in self._progress.items() if p.state is not TrialState.ENDED]

    def bracket_of(self, trial_id: str) -> int:
        """Return the number of the trial's bracket."""
        return self._progress[trial_id].bracket

    def state_of(self, trial_id: str) -> Optional[TrialState]:
        """Return what the trial does, None if it was never added."""
        progress = self._progress.get(trial_id)
        return progress and progress.state

    def has_ended(self, trial_id: str) -> bool:
        """Return whether the trial has ended."""
        return self.state_of(trial_id) is TrialState.ENDED

    def stopped_at(self, trial_id: str) -> Optional[Number]:
        """Return at which ``max_t`` the trial was stopped, None if it was not."""
        progress = self._progress.get(trial_id)
        return progress and progress.stopped_at

    def is_paused(self, trial_id: str) -> bool:
        """Return whether the trial is paused at its milestone."""
        return self.state_of(trial_id) is TrialState.PAUSED

    def in_state(self, state: TrialState) -> List[str]:
        """Return the names of the trials in a state, other than paused and ended."""
        return list(self._in_state[state])

    def num_in_state(self, state: TrialState) -> int:
        """Return how many are in a state, other than paused and ended."""
        return len(self._in_state[state])

    def first_in_state(self, state: TrialState) -> Optional[str]:
        """Return whose turn it is in a state, other than paused and ended."""
        return next(iter(self._in_state[state]), None)

    def rung_of(self, trial_id: str) -> Optional[Rung]:
        """Return the highest rung in which the trial is recorded, None for none."""
        progress = self._progress[trial_id]
        if progress.level < 0:
            return None
        return self.brackets[progress.bracket].rungs[progress.level]

    def is_due(self, trial_id: str, time: Number) -> bool:
        """Return whether a trial at ``time`` stands at a rung and may not go on."""
        rung = self.rung_of(trial_id)
        return rung is not None and time >= rung.milestone and rung.waits(trial_id)

    def next_promotion(
        self, lowest_first: bool, pausing: Optional[str] = None
    ) -> Optional[str]:
        """Return the trial to promote next among those that are paused.

        Args:
            lowest_first: Whether to go from the lowest milestone up or from the
                highest down.
            pausing: A trial that counts as paused at its rung.

        Returns:
            The best promotable one of the first rung that has any.
        """
        rung_of_pausing = pausing and self.rung_of(pausing)
        for rung in self._ascending if lowest_first else self._descending:
            trial_id = rung.next_promotion(pausing if rung is rung_of_pausing else None)
            if trial_id is not None:
                return trial_id
        return None

    def next_fallback(
        self, any_rung: bool = False, pausing: Optional[str] = None
    ) -> Optional[str]:
        """Return the trial to promote when no trial may report and none is promotable.

        Args:
            any_rung: Whether those count, too, that would get no further than one that
                is complete.
            pausing: A trial that counts as paused at its rung.

        Returns:
            The best one that is paused at the highest milestone at which any is.
        """
        if self.num_reporting - (pausing is not None):
            return None
        rung_of_pausing = pausing and self.rung_of(pausing)
        best = None
        for rung in self._descending:
            if best is not None and rung.milestone < best[1].milestone:
                break
            if self._is_complete(rung) and not any_rung:
                break
            trial_id = rung.best_paused(pausing if rung is rung_of_pausing else None)
            if trial_id is None:
                continue
            rank = rung.score(trial_id), -rung.order(trial_id)
            if best is None or rank > best[0]:
                best = rank, rung, trial_id
        return best and best[2]

    def is_unpromotable(self, trial_id: str) -> bool:
        """Return whether the trial waits in vain, see ``expect``."""
        rung = self.rung_of(trial_id)
        return rung is not None and rung.is_unpromotable(trial_id)

    def unpromotable(self) -> List[str]:
        """Return the paused trials that wait in vain, see ``expect``."""
        return [t for rung in self._ascending for t in rung.unpromotable()]

    def paused_nans(self) -> List[str]:
        """Return the paused trials that have no number for a result."""
        return [t for rung in self._ascending for t in rung.paused_nans]

    # Commands.

    def add(self, trial_id: str, bracket: int) -> None:
        """Add a trial that has not reported, and is pending."""
        progress = TrialProgress(bracket, TrialState.PENDING)
        self._progress[trial_id] = progress
        self._in_state[TrialState.PENDING][trial_id] = None
        self.brackets[bracket].num_trials += 1
        self._count_reporting(progress, 1)

    def record(self, trial_id: str, time: Number, score: Optional[float]) -> None:
        """Record a result in each rung that the trial has reached by it.

        Args:
            trial_id: Whose result it is.
            time: When it was reported, in the units of the milestones.
            score: The greater the better; None or NaN ranks below every number.
        """
        progress = self._progress[trial_id]
        rungs = self.brackets[progress.bracket].rungs
        level = progress.level
        while level + 1 < len(rungs) and time >= rungs[level + 1].milestone:
            if level >= 0:
                rungs[level].promote(trial_id)
            level += 1
            rungs[level].record(trial_id, score, self._num_recorded)
            self._num_recorded += 1
        if level != progress.level:
            is_reporting = progress.state not in _NOT_REPORTING
            self._count_reporting(progress, -is_reporting)
            progress.level = level
            self._count_reporting(progress, is_reporting)
        if time >= self.max_t:
            self._reach_max_t(trial_id, score is not None)

    def expect(self, remaining_samples: Optional[int]) -> None:
        """Set how many trials may yet be added, and so which of them wait in vain.

        Of the ``n`` trials that can be recorded in a rung in the end, those wait on
        that are among the best ``floor(n / reduction_factor) + reserve``; of a rung
        beyond which a trial is complete, the reserve is zero.

        Args:
            remaining_samples: How many. None if that is not known.
        """
        for bracket in self.brackets:
            coming = math.inf if remaining_samples is None else remaining_samples
            for reporting, rung in zip(bracket.reporting, bracket.rungs, strict=False):
                coming += reporting
                if coming == math.inf:
                    rung.keep(coming)
                    continue
                most = rung.places_of(len(rung) + coming)
                rung.keep(most + self._reserve_of(rung))
                coming += rung.num_paused

    def move(self, trial_id: str, state: TrialState) -> None:
        """Set what a trial does, without a promotion.

        Args:
            trial_id: The trial. One that has ended is tried again.
            state: What it does, but for ended.
        """
        before = self._progress[trial_id].state
        if before is state:
            return
        rung = self.rung_of(trial_id)
        if rung is not None:
            if state is TrialState.PAUSED:
                rung.pause(trial_id)
            elif before in _NOT_REPORTING:
                rung.resume(trial_id)
                rung.reinstate(trial_id)
        self._set_state(trial_id, state)

    def requeue(self, trial_id: str) -> None:
        """Let the trial come last of those in its state, paused and ended apart."""
        queue = self._in_state.get(self._progress[trial_id].state)
        if queue is not None:
            queue.move_to_end(trial_id)

    def promote(self, trial_id: str, state: TrialState = TrialState.RUNNING) -> bool:
        """Let a trial go on from the rung at which it stands.

        Args:
            trial_id: The trial.
            state: What it does then.

        Returns:
            Whether it went on as a fallback, since it holds no place.
        """
        rung = self.rung_of(trial_id)
        is_fallback = not rung.holds_place(trial_id)
        rung.promote(trial_id, is_fallback)
        self._set_state(trial_id, state)
        return is_fallback

    def end(self, trial_id: str) -> None:
        """Note that a trial has ended: it failed or was stopped."""
        self._end(trial_id, keeps_place=False)

    def complete(self, trial_id: str, time: Number, score: Optional[float]) -> None:
        """Record the last result of a trial that has ended on its own.

        If the result is a number, no reserve is kept at lower milestones any more,
        since those that wait there would get no further, and where the trial was
        recorded last, one trial is.

        Args:
            trial_id: Whose result it is.
            time: When it was reported, in the units of the milestones.
            score: The greater the better; None or NaN ranks below every number.
        """
        progress = self._progress[trial_id]
        level = progress.level
        self.record(trial_id, time, score)
        self._end(trial_id, keeps_place=progress.level > level)
        rung = self.rung_of(trial_id)
        if rung is not None and score is not None:
            self._ended_at = max(self._ended_at, rung.milestone)

    def stop_at_max_t(self, trial_id: str) -> None:
        """Note that a trial has ended because it has reached ``max_t``."""
        self._progress[trial_id].stopped_at = self.max_t
        self._end(trial_id, keeps_place=False)

    def change_max_t(self, max_t: Number) -> None:
        """Go on with another ``max_t``: with more milestones, or with fewer.

        Results stay at the milestones that there still are. Which trials have reached
        ``max_t`` is not known then: they have to be added anew.

        Args:
            max_t: Where trials end from now on.
        """
        self._set_max_t(max_t)
        self.num_reporting = 0
        self.num_reached_max_t = 0
        self._has_complete = False
        for progress in self._progress.values():
            progress.has_reached_max_t = False
            most = len(self.brackets[progress.bracket].rungs) - 1
            progress.level = min(progress.level, most)
            if progress.state not in _NOT_REPORTING:
                self._count_reporting(progress, 1)

    def _reach_max_t(self, trial_id: str, is_number: bool) -> None:
        # No rung holds it any more.
        rung = self.rung_of(trial_id)
        if rung is not None:
            rung.promote(trial_id)
        progress = self._progress[trial_id]
        self.num_reached_max_t += not progress.has_reached_max_t
        progress.has_reached_max_t = True
        if is_number:
            self._has_complete = True

    def _set_max_t(self, max_t: Number) -> None:
        at = milestones(self.grace_period, max_t, self.reduction_factor)
        self.max_t = max_t
        for s, bracket in enumerate(self.brackets):
            bracket.rungs = bracket.rungs[: len(at[s:])]
            for milestone in at[s:][len(bracket.rungs) :]:
                bracket.rungs.append(Rung(milestone, self.reduction_factor))
            bracket.reporting = [0] * (len(bracket.rungs) + 1)
        # Rungs of the same milestone in the order of their brackets, both ways.
        rungs = [rung for bracket in self.brackets for rung in bracket.rungs]
        self._ascending = sorted(rungs, key=lambda rung: rung.milestone)
        self._descending = sorted(rungs, key=lambda rung: -rung.milestone)

    @property
    def _complete_at(self) -> Number:
        """The highest milestone of a trial that is complete, infinite at ``max_t``."""
        return math.inf if self._has_complete else self._ended_at

    def _is_complete(self, rung: Rung) -> bool:
        """Return whether a trial is complete that has got beyond this milestone."""
        return rung.milestone < self._complete_at

    def _reserve_of(self, rung: Rung) -> int:
        if self._is_complete(rung):
            return 0
        if rung.milestone == self._complete_at:
            return min(1, self.reserve)
        return self.reserve

    def _end(self, trial_id: str, keeps_place: bool) -> None:
        rung = self.rung_of(trial_id)
        if rung is not None:
            rung.end(trial_id, keeps_place)
        self._set_state(trial_id, TrialState.ENDED)

    def _set_state(self, trial_id: str, state: TrialState) -> None:
        progress = self._progress[trial_id]
        before = progress.state
        if before is state:
            return
        if before in self._in_state:
            del self._in_state[before][trial_id]
            self._count_reporting(progress, -1)
        self.num_paused += (state is TrialState.PAUSED) - (before is TrialState.PAUSED)
        progress.state = state
        if state in self._in_state:
            self._in_state[state][trial_id] = None
            self._count_reporting(progress, 1)

    def _count_reporting(self, progress: TrialProgress, by: int) -> None:
        self.brackets[progress.bracket].reporting[progress.level + 1] += by
        self.num_reporting += by
