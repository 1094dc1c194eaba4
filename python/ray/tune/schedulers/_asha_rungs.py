"""A rung of ASHA by promotion, apart from trials, brackets and controllers.

Trials are names here and results are scores, of which the greater is the better. What
changes a rung is a command and returns nothing but whether it did; what answers a
question changes nothing. A question about a trial that is about to pause, but has not
yet, names it as ``pausing``.

The algorithm is Algorithm 2 of Li et al., "A System for Massively Parallel
Hyperparameter Tuning", MLSys 2020 (https://arxiv.org/abs/1810.05934).
"""

import enum
import math
from typing import Dict, List, NamedTuple, Optional

from ray.tune.schedulers._asha_ranking import Heap, Split
from ray.tune.schedulers._milestones import Number, as_ratio, share


class Standing(enum.Enum):
    """What became of a trial in the rung in which it is recorded."""

    WAITS = "waits"  # paused, about to pause, or to return after a retry
    PROMOTED = "promoted"  # or recorded at a later milestone without a promotion
    ENDED = "ended"  # with the result recorded here: its place is taken
    LEFT = "left"  # failed or was stopped while it waited: its place passes on


class Record:
    """The result of one trial in a rung. ``score`` is None for NaN."""

    __slots__ = ("score", "order", "standing")

    def __init__(self, score: Optional[float], order: int):
        self.score = score
        self.order = order
        self.standing = Standing.WAITS


class RungCounts(NamedTuple):
    """Where the trials recorded in a rung are.

    Attributes:
        recorded: All of them: the sum of the next four.
        paused: Paused, and neither promoted nor ended.
        promoted: Went on.
        ended: Ended here, on their own, stopped or failed.
        pausing: Saving, to pause then, or on the way back here after a retry.
        fallbacks: How many of those promoted held no place.
    """

    recorded: int
    paused: int
    promoted: int
    ended: int
    pausing: int
    fallbacks: int


class Rung:
    """The results recorded at one milestone.

    Args:
        milestone: The time at which results are recorded here.
        reduction_factor: Of ``n`` recorded, the best ``floor(n / reduction_factor)``
            hold a place: they are promotable, or were promoted.
    """

    def __init__(self, milestone: Number, reduction_factor: Number):
        self.milestone = milestone
        self.reduction_factor = reduction_factor
        self._ratio = as_ratio(reduction_factor)
        self._records: Dict[str, Record] = {}
        # Those with a number that have not left: who holds a place, and who is kept.
        self._places = Split()
        self._kept = Split(math.inf)
        self._paused = Heap()  # The best comes first.
        self._paused_nans: Dict[str, None] = {}
        self._num_promoted = 0
        self._num_fallbacks = 0
        self._num_ended = 0

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, trial_id: str) -> bool:
        return trial_id in self._records

    # Questions.

    @property
    def places(self) -> int:
        """How many of those recorded by now hold a place."""
        return self.places_of(len(self._records))

    def places_of(self, num_recorded: int) -> int:
        """Return how many hold a place when so many are recorded."""
        return share(num_recorded, self._ratio)

    @property
    def num_paused(self) -> int:
        """The number of paused trials with a number for a result."""
        return len(self._paused)

    @property
    def paused_nans(self) -> List[str]:
        """The paused trials without a number for a result."""
        return list(self._paused_nans)

    @property
    def counts(self) -> RungCounts:
        """Where the trials recorded here are."""
        recorded = len(self._records)
        paused = len(self._paused) + len(self._paused_nans)
        return RungCounts(
            recorded,
            paused,
            self._num_promoted,
            self._num_ended,
            recorded - paused - self._num_promoted - self._num_ended,
            self._num_fallbacks,
        )

    @property
    def cutoff(self) -> Optional[float]:
        """The score of the last place, None while there is no place or no number."""
        worst = self._places.worst_inside
        return worst and worst[0]

    def score(self, trial_id: str) -> Optional[float]:
        """Return the recorded score, None for NaN."""
        return self._records[trial_id].score

    def order(self, trial_id: str) -> int:
        """Return by what ties of this trial break, the lower the better."""
        return self._records[trial_id].order

    def waits(self, trial_id: str) -> bool:
        """Return whether the trial is recorded and neither went on nor ended."""
        return self._records[trial_id].standing is Standing.WAITS

    def holds_place(self, trial_id: str) -> bool:
        """Return whether the trial is among the best ``places``."""
        return self._places.is_inside(trial_id)

    def best_paused(self, pausing: Optional[str] = None) -> Optional[str]:
        """Return the best of those paused, None if none of them has a number."""
        entry = self._paused.first
        best = entry and entry[2]
        if pausing is None:
            return best
        record = self._records[pausing]
        if record.score is None or record.standing is not Standing.WAITS:
            return best
        if entry is None or (-record.score, record.order) < entry[:2]:
            return pausing
        return best

    def next_promotion(self, pausing: Optional[str] = None) -> Optional[str]:
        """Return the best of those that are paused and hold a place."""
        trial_id = self.best_paused(pausing)
        # The places are for the best, so if this one has none, no other has.
        if trial_id is not None and self._places.is_inside(trial_id):
            return trial_id
        return None

    def is_unpromotable(self, trial_id: str) -> bool:
        """Return whether the trial waits in vain, see ``keep``."""
        record = self._records[trial_id]
        if record.standing is not Standing.WAITS:
            return False
        if record.score is None:
            return self._kept.size != math.inf
        return trial_id in self._kept.waiting_outside

    def unpromotable(self) -> List[str]:
        """Return the paused trials that wait in vain, see ``keep``, the worst first."""
        if self._kept.size == math.inf:
            return []
        found = [t for t in self._kept.waiting_outside if t in self._paused]
        found.sort(key=lambda t: (self._records[t].score, -self._records[t].order))
        return [*self._paused_nans, *found]

    # Commands.

    def record(
        self, trial_id: str, score: Optional[float], order: Optional[int] = None
    ) -> bool:
        """Record a result, unless the trial has one here already.

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
        if score is not None and score != score:
            score = None
        if order is None:
            order = len(self._records)
        self._records[trial_id] = Record(score, order)
        self._rank(trial_id)
        places = self.places
        if places != self._places.size:
            self._places.resize(places)
        return True

    def keep(self, number: float) -> None:
        """Set how many of the best are to wait on. All others wait in vain.

        Args:
            number: How many, of those that have not left, those promoted included.
                Infinite if it is not known how many there will be; else every NaN
                waits in vain, too.
        """
        if number != self._kept.size:
            self._kept.resize(number)

    def pause(self, trial_id: str) -> None:
        """Note that a trial that waits is paused."""
        record = self._records[trial_id]
        if record.standing is not Standing.WAITS:
            return
        if record.score is None:
            self._paused_nans[trial_id] = None
        elif trial_id not in self._paused:
            self._paused.add((-record.score, record.order, trial_id))

    def resume(self, trial_id: str) -> None:
        """Note that a trial is not paused any more, but not promoted either."""
        self._paused.discard(trial_id)
        self._paused_nans.pop(trial_id, None)

    def promote(self, trial_id: str, is_fallback: bool = False) -> None:
        """Note that a trial that waits went on.

        Args:
            trial_id: The trial.
            is_fallback: Whether it is promoted although it holds no place.
        """
        if self._stop_waiting(trial_id, Standing.PROMOTED):
            self._num_promoted += 1
            self._num_fallbacks += is_fallback

    def end(self, trial_id: str, keeps_place: bool) -> None:
        """Note that a trial that waits has ended.

        Args:
            trial_id: The trial.
            keeps_place: Whether it ended on its own with the result recorded here. Else
                it failed or was stopped: its record still counts, but the place that it
                held passes to the next.
        """
        standing = Standing.ENDED if keeps_place else Standing.LEFT
        if not self._stop_waiting(trial_id, standing):
            return
        self._num_ended += 1
        if not keeps_place:
            self._places.discard(trial_id)
            self._kept.discard(trial_id)

    def reinstate(self, trial_id: str) -> None:
        """Take back a trial that has left: it is tried again, and waits."""
        record = self._records[trial_id]
        if record.standing is Standing.LEFT:
            record.standing = Standing.WAITS
            self._num_ended -= 1
            self._rank(trial_id)

    def _rank(self, trial_id: str) -> None:
        record = self._records[trial_id]
        if record.score is not None:
            self._places.add(trial_id, record.score, record.order)
            self._kept.add(trial_id, record.score, record.order)

    def _stop_waiting(self, trial_id: str, standing: Standing) -> bool:
        record = self._records[trial_id]
        if record.standing is not Standing.WAITS:
            return False
        self.resume(trial_id)
        record.standing = standing
        self._places.stop_waiting(trial_id)
        self._kept.stop_waiting(trial_id)
        return True
