"""The rung arithmetic of ASHA by promotion, apart from trials and controllers.

Trials are names here and results are scores, of which the greater is the better.
Nothing is sorted and nothing is scanned: a rung keeps the few orders that it is asked
for in heaps, whose outdated entries are dropped when they surface, so that a decision
costs O(log n) in the number of results, and everything pickles.

The algorithm is Algorithm 2 of Li et al., "A System for Massively Parallel
Hyperparameter Tuning", MLSys 2020 (https://arxiv.org/abs/1810.05934).
"""

import math
from decimal import Context, Decimal
from fractions import Fraction
from heapq import heappop, heappush
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple, Union

Number = Union[int, float]

# A ladder this high is a slip of the pen (`reduction_factor=1.0001`).
MAX_RUNGS = 10_000

# How many of its paused trials a rung keeps beyond those that it may yet promote, as
# long as no trial is complete: any of those on their way may fail.
RESERVE = 32

# What became of a trial in the rung in which its result is recorded.
_WAITS = "waits"  # not promoted: paused, about to pause, or to return after a retry
_PROMOTED = "promoted"  # went on, by promotion or by a result beyond the next milestone
_DONE = "done"  # ended where it was recorded, without a pause: keeps its place
_LEFT = "left"  # failed or was stopped while it waited: its place passes on


def milestones(
    grace_period: Number, max_t: Number, reduction_factor: Number
) -> List[Number]:
    """Returns ``grace_period * reduction_factor**k`` for all that lie below ``max_t``.

    Args:
        grace_period: The lowest milestone.
        max_t: Where trials end; no milestone itself.
        reduction_factor: The ratio of a milestone to the one below.

    Returns:
        The milestones, ascending. Whole numbers where the arguments are whole.

    Raises:
        ValueError: If there are more than ``MAX_RUNGS``.
    """
    if isinstance(grace_period, int) and isinstance(reduction_factor, int):
        at, factor = grace_period, reduction_factor
        multiply, given = int.__mul__, int
    else:
        # In decimals, as the arguments were written: 0.1 * 3 is 0.3, not a float above.
        multiply, given = Context(prec=40).multiply, float
        at, factor = Decimal(str(grace_period)), Decimal(str(reduction_factor))

    found = []
    while given(at) < max_t:
        if len(found) == MAX_RUNGS:
            raise ValueError(
                f"reduction_factor={reduction_factor} makes more than {MAX_RUNGS} "
                f"rungs between grace_period={grace_period} and max_t={max_t}. "
                "Choose a greater one, 3 or 4 for example."
            )
        found.append(given(at))
        at = multiply(at, factor)
    return found


class _Record:
    """One result in a rung. ``score`` is None for NaN."""

    __slots__ = ("score", "order", "state", "best", "kept", "parked")

    def __init__(self, score: Optional[float], order: int):
        self.score = score
        self.order = order
        self.state = _WAITS
        self.best = False  # among the best floor(n / eta)
        self.kept = False  # among the best that the rung can ever promote
        self.parked = False  # paused, so that it may be chosen


class RungCounts(NamedTuple):
    """Where the trials recorded in a rung are; ``recorded`` is the sum of the rest."""

    recorded: int
    paused: int
    promoted: int
    ended: int
    # Saving, to pause then, or on the way back here after a retry.
    underway: int
    # How many of those promoted held no place: nothing else was left to do.
    fallbacks: int


class Rung:
    """The results recorded at one milestone.

    Args:
        milestone: The time at which results are recorded here.
        reduction_factor: Of ``n`` recorded, the best ``floor(n / reduction_factor)``
            are promotable.
    """

    def __init__(self, milestone: Number, reduction_factor: Number):
        self.milestone = milestone
        self.reduction_factor = reduction_factor
        # As a ratio of integers, since 33 / 1.1 in floats is less than 30.
        eta = Fraction(str(reduction_factor))
        self._places_per, self._recorded_per = eta.denominator, eta.numerator
        self._records: Dict[str, _Record] = {}
        # The numbers among the records that hold a place or may get one, in two parts:
        # the best `places` of them, the worst on top, and the others, the best on top.
        self._best: List[Tuple[float, int, str]] = []
        self._rest: List[Tuple[float, int, str]] = []
        self._num_best = 0
        self._num_rest = 0
        self._num_promotable = 0
        # Those of them that may yet be promoted, worst on top.
        self._kept: List[Tuple[float, int, str]] = []
        self._num_kept = 0
        # Paused trials, the best on top.
        self._parked: List[Tuple[float, int, str]] = []
        self._num_parked = 0
        self._parked_nans: Dict[str, None] = {}
        self._new_nans: List[str] = []
        self._num_promoted = 0
        self._num_fallbacks = 0
        self._num_ended = 0

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, trial_id: str) -> bool:
        return trial_id in self._records

    @property
    def places(self) -> int:
        """How many of those recorded by now are promotable or promoted."""
        return self.places_of(len(self._records))

    def places_of(self, num_recorded: int) -> int:
        return num_recorded * self._places_per // self._recorded_per

    @property
    def has_promotable(self) -> bool:
        """Whether a trial holds a place and was not promoted; it need not be paused."""
        return self._num_promotable > 0

    @property
    def num_parked(self) -> int:
        """The number of paused trials with a number for a result."""
        return self._num_parked

    @property
    def counts(self) -> RungCounts:
        paused = self._num_parked + len(self._parked_nans)
        recorded = len(self._records)
        underway = recorded - paused - self._num_promoted - self._num_ended
        return RungCounts(
            recorded,
            paused,
            self._num_promoted,
            self._num_ended,
            underway,
            self._num_fallbacks,
        )

    @property
    def cutoff(self) -> Optional[float]:
        """The score of the last place, None while there is no place or no number."""
        self._surface(self._best, best=True)
        return self._best[0][0] if self._best else None

    def score(self, trial_id: str) -> Optional[float]:
        return self._records[trial_id].score

    def order(self, trial_id: str) -> int:
        return self._records[trial_id].order

    def waits(self, trial_id: str) -> bool:
        """Whether the trial is recorded and neither went on nor ended."""
        return self._records[trial_id].state == _WAITS

    def record(
        self, trial_id: str, score: Optional[float], order: Optional[int] = None
    ) -> bool:
        """Records a result, unless the trial has one here already.

        Args:
            trial_id: Whose result it is.
            score: The greater the better; None or NaN ranks below every number.
            order: By which ties break, the lower the better; it has to grow. None
                for the number of results that are here already.

        Returns:
            Whether it was recorded.
        """
        if trial_id in self._records:
            return False
        if score is not None and math.isnan(score):
            score = None
        if order is None:
            order = len(self._records)
        self._records[trial_id] = _Record(score, order)
        self._enter(trial_id)
        return True

    def holds_place(self, trial_id: str) -> bool:
        """Whether the trial is among the best ``places``."""
        return self._records[trial_id].best

    def promote(self, trial_id: str, is_fallback: bool = False) -> None:
        """Notes that the trial went on."""
        if self._leave_wait(trial_id, _PROMOTED):
            self._num_promoted += 1
            self._num_fallbacks += is_fallback

    def finish(self, trial_id: str) -> None:
        """Notes that the trial ended by itself where it was recorded."""
        if self._leave_wait(trial_id, _DONE):
            self._num_ended += 1

    def retire(self, trial_id: str) -> None:
        """Notes that a trial that waited failed or was stopped.

        Its record still counts; the place that it held passes to the next.
        """
        record = self._records[trial_id]
        if not self._leave_wait(trial_id, _LEFT):
            return
        self._num_ended += 1
        if record.kept:
            record.kept = False
            self._num_kept -= 1
        if record.best:
            record.best = False
            self._num_best -= 1
            self._fill_places()
        elif record.score is not None:
            self._drop_from_rest()

    def revive(self, trial_id: str) -> None:
        """Takes a trial back that was retired."""
        record = self._records[trial_id]
        if record.state == _LEFT:
            record.state = _WAITS
            self._num_ended -= 1
            self._enter(trial_id)

    def park(self, trial_id: str) -> None:
        """Notes that the trial is paused, so that it may be chosen."""
        record = self._records[trial_id]
        if record.state != _WAITS or record.parked:
            return
        record.parked = True
        if record.score is None:
            self._parked_nans[trial_id] = None
        else:
            self._num_parked += 1
            heappush(self._parked, (-record.score, record.order, trial_id))

    def unpark(self, trial_id: str) -> None:
        """Notes that the trial is not paused any more, but not promoted either."""
        record = self._records[trial_id]
        if not record.parked:
            return
        record.parked = False
        if record.score is None:
            del self._parked_nans[trial_id]
        else:
            self._num_parked -= 1
            if not self._num_parked:
                # All that is left is outdated. Not one by one, which would take O(n).
                self._parked = []

    def best_parked(self) -> Optional[str]:
        """The best of those paused, None if no paused trial has a number."""
        self._surface(self._parked, parked=True)
        return self._parked[0][2] if self._parked else None

    def next_promotion(self) -> Optional[str]:
        """The best of those that are paused and promotable."""
        trial_id = self.best_parked()
        # The places are for the best, so if this one has none, no other has.
        if trial_id is not None and self._records[trial_id].best:
            return trial_id
        return None

    @property
    def parked_nans(self) -> List[str]:
        """The paused trials without a number for a result."""
        return list(self._parked_nans)

    def hopeless(self, most: int, reserve: int) -> List[str]:
        """Gives up on trials that can never be promoted. Each is returned only once.

        Args:
            most: How many results can be recorded here at most.
            reserve: How many to keep beyond the places that ``most`` results give.

        Returns:
            Those that wait in vain: whose rank is worse than these places and the
            reserve, and every NaN.
        """
        lost = [nan for nan in self._new_nans if self.waits(nan)]
        self._new_nans = []
        limit = self.places_of(most) + reserve
        while self._num_kept > limit:
            self._surface(self._kept, kept=True)
            _, _, trial_id = heappop(self._kept)
            record = self._records[trial_id]
            record.kept = False
            self._num_kept -= 1
            if record.state == _WAITS:
                lost.append(trial_id)
        return lost

    def paused(self) -> List[str]:
        """The paused trials, the best first, those without a number last."""
        numbers = []
        while self._num_parked > len(numbers):
            self._surface(self._parked, parked=True)
            entry = heappop(self._parked)
            if not numbers or entry != numbers[-1]:
                numbers.append(entry)
        # They stay paused until they are retired. Sorted, so this is a heap again.
        self._parked = numbers
        return [trial_id for _, _, trial_id in numbers] + self.parked_nans

    def _enter(self, trial_id: str) -> None:
        """Ranks a trial that waits."""
        record = self._records[trial_id]
        if record.score is None:
            self._new_nans.append(trial_id)
            self._fill_places()
            return
        record.kept = True
        self._num_kept += 1
        heappush(self._kept, (record.score, -record.order, trial_id))
        heappush(self._rest, (-record.score, record.order, trial_id))
        self._num_rest += 1
        self._fill_places()
        self._surface(self._best, best=True)
        self._surface(self._rest, best=False)
        if self._best and self._rest:
            (worst, worst_order, _), (other, other_order, _) = (
                self._best[0],
                self._rest[0],
            )
            if (-other, -other_order) > (worst, worst_order):
                self._move_out()
                self._fill_places()

    def _leave_wait(self, trial_id: str, state: str) -> bool:
        record = self._records[trial_id]
        if record.state != _WAITS:
            return False
        self.unpark(trial_id)
        record.state = state
        if record.best:
            self._num_promotable -= 1
        return True

    def _fill_places(self) -> None:
        while self._num_best < self.places and self._num_rest:
            self._surface(self._rest, best=False)
            score, order, trial_id = heappop(self._rest)
            record = self._records[trial_id]
            record.best = True
            self._num_best += 1
            self._drop_from_rest()
            self._num_promotable += record.state == _WAITS
            heappush(self._best, (-score, -order, trial_id))

    def _move_out(self) -> None:
        score, order, trial_id = heappop(self._best)
        record = self._records[trial_id]
        record.best = False
        self._num_best -= 1
        self._num_promotable -= record.state == _WAITS
        heappush(self._rest, (-score, -order, trial_id))
        self._num_rest += 1

    def _drop_from_rest(self) -> None:
        self._num_rest -= 1
        if not self._num_rest:
            self._rest = []

    def _surface(self, heap: List[Tuple[float, int, str]], **wanted: bool) -> None:
        """Drops entries from the top of a heap that do not hold any more."""
        ((name, value),) = wanted.items()
        while heap:
            record = self._records[heap[0][2]]
            if getattr(record, name) == value and record.state != _LEFT:
                return
            heappop(heap)


class _Climber:
    """Where a trial stands: the highest rung that has its record, -1 for none."""

    __slots__ = ("bracket", "level", "state", "at_end")

    def __init__(self, bracket: int):
        self.bracket = bracket
        self.level = -1
        self.state = _ACTIVE
        self.at_end = False


_ACTIVE = "active"  # will report, or may
_PARKED = "parked"  # paused at its rung
_GONE = "gone"


class Bracket:
    """The rungs that one group of trials climbs.

    Args:
        rungs: The rungs, ascending by milestone. May be empty.
    """

    def __init__(self, rungs: List[Rung]):
        self.rungs = rungs
        self.num_trials = 0
        # How many trials may report, by one more than their level.
        self.active = [0] * (len(rungs) + 1)

    def over(self) -> Iterator[Rung]:
        """The rungs that no trial can reach, and in which none is promotable."""
        below = 0
        for active, rung in zip(self.active, self.rungs, strict=False):
            below += active
            if below or rung.has_promotable:
                return
            yield rung

    def hopeless(self, unborn: int, reserve_of: Callable[[Rung], int]) -> List[str]:
        """The trials that can never be promoted, see ``Rung.hopeless``.

        Args:
            unborn: How many trials may yet come to this bracket.
            reserve_of: The number of trials to keep in reserve, by rung.

        Returns:
            The names of those not returned before.
        """
        lost = []
        coming = unborn
        for active, rung in zip(self.active, self.rungs, strict=False):
            coming += active
            lost += rung.hopeless(len(rung) + coming, reserve_of(rung))
            coming += rung.num_parked
        return lost


class Ladder:
    """All brackets of an experiment and where its trials stand in them.

    Args:
        grace_period: The lowest milestone of bracket 0.
        max_t: Where trials end.
        reduction_factor: The ratio of milestones, and the inverse of the share of the
            trials that is promoted.
        num_brackets: Bracket ``s`` starts ``s`` rungs higher than bracket 0.
    """

    def __init__(
        self,
        grace_period: Number,
        max_t: Number,
        reduction_factor: Number,
        num_brackets: int = 1,
    ):
        at = milestones(grace_period, max_t, reduction_factor)
        self.max_t = max_t
        self.brackets = [
            Bracket([Rung(milestone, reduction_factor) for milestone in at[s:]])
            for s in range(num_brackets)
        ]
        # Rungs of the same milestone in the order of their brackets, both ways.
        rungs = [rung for bracket in self.brackets for rung in bracket.rungs]
        self._ascending = sorted(rungs, key=lambda rung: rung.milestone)
        self._descending = sorted(rungs, key=lambda rung: -rung.milestone)
        self._climbers: Dict[str, _Climber] = {}
        self._num_recorded = 0
        self.num_active = 0
        self.num_parked = 0
        # How many trials have got to `max_t`.
        self.num_finished = 0
        self.reserve = RESERVE
        # The highest milestone of a trial that is complete, infinite at `max_t`.
        self._complete_at: Number = -math.inf

    def __len__(self) -> int:
        return len(self._climbers)

    def __contains__(self, trial_id: str) -> bool:
        return trial_id in self._climbers

    def unfinished(self) -> List[str]:
        """The names of all trials that have not ended."""
        return [t for t, c in self._climbers.items() if c.state != _GONE]

    def add(self, trial_id: str, bracket: int) -> None:
        """Adds a trial that has not reported."""
        self._climbers[trial_id] = _Climber(bracket)
        self.brackets[bracket].num_trials += 1
        self._count_active(self._climbers[trial_id], 1)

    def is_active(self, trial_id: str) -> bool:
        return self._is(trial_id, _ACTIVE)

    def is_parked(self, trial_id: str) -> bool:
        return self._is(trial_id, _PARKED)

    def is_gone(self, trial_id: str) -> bool:
        return self._is(trial_id, _GONE)

    def rung_of(self, trial_id: str) -> Optional[Rung]:
        """The highest rung in which the trial is recorded."""
        climber = self._climbers[trial_id]
        if climber.level < 0:
            return None
        return self.brackets[climber.bracket].rungs[climber.level]

    def next_rung(self, trial_id: str) -> Optional[Rung]:
        """The rung that the trial is recorded in next."""
        climber = self._climbers[trial_id]
        rungs = self.brackets[climber.bracket].rungs
        return rungs[climber.level + 1] if climber.level + 1 < len(rungs) else None

    def record(self, trial_id: str, time: Number, score: Optional[float]) -> bool:
        """Records a result in each rung that the trial has reached by it.

        Args:
            trial_id: Whose result it is.
            time: When it was reported, in the units of the milestones.
            score: The greater the better; None or NaN ranks below every number.

        Returns:
            Whether it was the first at or past a milestone.
        """
        climber = self._climbers[trial_id]
        rungs = self.brackets[climber.bracket].rungs
        level = climber.level
        while level + 1 < len(rungs) and time >= rungs[level + 1].milestone:
            if level >= 0:
                rungs[level].promote(trial_id)
            level += 1
            rungs[level].record(trial_id, score, self._num_recorded)
            self._num_recorded += 1
        if level == climber.level:
            return False
        if climber.state == _ACTIVE:
            self._count_active(climber, -1)
            climber.level = level
            self._count_active(climber, 1)
        else:
            climber.level = level
        return True

    def is_due(self, trial_id: str, time: Number) -> bool:
        """Whether a trial that is at ``time`` stands at a rung and may not go on."""
        rung = self.rung_of(trial_id)
        return rung is not None and time >= rung.milestone and rung.waits(trial_id)

    def get_to_end(self, trial_id: str, is_number: bool = True) -> None:
        """Notes that a trial has got to ``max_t``, where no rung holds it any more.

        Args:
            trial_id: Which.
            is_number: Whether its result is a number. If not, it is of no use, and
                others are still kept in reserve.
        """
        self.promote(trial_id)
        climber = self._climbers[trial_id]
        self.num_finished += not climber.at_end
        climber.at_end = True
        if is_number:
            self._complete_at = math.inf

    def end_by_itself(self, trial_id: str) -> None:
        """Notes that a trial has ended by itself, with a number for its last result.

        Those that wait at lower milestones are not kept in reserve any more, since they
        would get no further, and where it was recorded last, one is.
        """
        rung = self.rung_of(trial_id)
        if rung is not None:
            self._complete_at = max(self._complete_at, rung.milestone)

    def is_complete(self, rung: Rung) -> bool:
        """Whether a trial is complete that has got further than this milestone."""
        return rung.milestone < self._complete_at

    def promote(self, trial_id: str, is_fallback: bool = False) -> None:
        """Lets a trial go on from the rung at which it stands."""
        rung = self.rung_of(trial_id)
        if rung is not None:
            rung.promote(trial_id, is_fallback)
        self._set(trial_id, _ACTIVE)

    def park(self, trial_id: str) -> None:
        """Notes that a trial is paused at its rung."""
        self.rung_of(trial_id).park(trial_id)
        self._set(trial_id, _PARKED)

    def activate(self, trial_id: str) -> None:
        """Notes that a trial may report, without a promotion: a retry, for example."""
        rung = self.rung_of(trial_id)
        if rung is not None:
            rung.unpark(trial_id)
            rung.revive(trial_id)
        self._set(trial_id, _ACTIVE)

    def retire(self, trial_id: str, by_itself: bool = False) -> None:
        """Notes that a trial has ended.

        Args:
            trial_id: Which.
            by_itself: Whether it ended by itself with the result that was just
                recorded. Then it keeps its place; else the place passes on.
        """
        rung = self.rung_of(trial_id)
        if rung is not None:
            if by_itself:
                rung.finish(trial_id)
            else:
                rung.retire(trial_id)
        self._set(trial_id, _GONE)

    def next_promotion(self, lowest_first: bool) -> Optional[str]:
        """The trial to promote next among those that are paused.

        Args:
            lowest_first: Whether to go from the lowest milestone up or from the
                highest down.

        Returns:
            The best promotable one of the first rung that has any.
        """
        for rung in self._ascending if lowest_first else self._descending:
            trial_id = rung.next_promotion()
            if trial_id is not None:
                return trial_id
        return None

    def survivor(self, any_rung: bool = False) -> Optional[str]:
        """The best of those paused at the highest milestone at which any is.

        Args:
            any_rung: Whether those count, too, that would get no further than one that
                is complete.
        """
        best = None
        for rung in self._descending:
            if best is not None and rung.milestone < best[1].milestone:
                break
            if self.is_complete(rung) and not any_rung:
                break
            trial_id = rung.best_parked()
            if trial_id is None:
                continue
            rank = rung.score(trial_id), -rung.order(trial_id)
            if best is None or rank > best[0]:
                best = rank, rung, trial_id
        return best and best[2]

    def diverged(self) -> List[str]:
        """The paused trials that have no number for a result."""
        return [trial_id for rung in self._ascending for trial_id in rung.parked_nans]

    def hopeless(self, unborn: int) -> List[str]:
        """The trials that can never be promoted, each once.

        Args:
            unborn: How many trials may yet be added.

        Returns:
            Their names. They still count as waiting until they are retired.
        """
        return [
            trial_id
            for bracket in self.brackets
            for trial_id in bracket.hopeless(unborn, self._reserve_of)
        ]

    def losers(self) -> List[str]:
        """The paused trials of all rungs that are over, when no trial will be added.

        Those in reserve are left out.

        Returns:
            Their names. They still count as paused until they are retired.
        """
        lost = []
        for bracket in self.brackets:
            for rung in bracket.over():
                if self.is_complete(rung):
                    lost += rung.paused()
                else:
                    lost += rung.hopeless(len(rung), self._reserve_of(rung))
        return lost

    def _reserve_of(self, rung: Rung) -> int:
        if self.is_complete(rung):
            return 0
        return 1 if rung.milestone == self._complete_at else self.reserve

    def _is(self, trial_id: str, state: str) -> bool:
        climber = self._climbers.get(trial_id)
        return climber is not None and climber.state == state

    def _set(self, trial_id: str, state: str) -> None:
        climber = self._climbers[trial_id]
        if climber.state == state:
            return
        self.num_parked += (state == _PARKED) - (climber.state == _PARKED)
        if climber.state == _ACTIVE:
            self._count_active(climber, -1)
        climber.state = state
        if state == _ACTIVE:
            self._count_active(climber, 1)

    def _count_active(self, climber: _Climber, by: int) -> None:
        self.brackets[climber.bracket].active[climber.level + 1] += by
        self.num_active += by
