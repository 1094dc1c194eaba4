"""Bracket arithmetic of HyperBand (Li et al., JMLR 18(185), 2018, Algorithm 1).

Pure code: it knows trial ids, times and values, and nothing of trials' statuses, of
the controller or of Ray, so that it can be tested on its own.
"""

import collections
import functools
import math
from fractions import Fraction
from typing import (
    Any,
    Dict,
    Iterable,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
)

from ray.tune.schedulers._milestones import Number, as_ratio, num_steps, share

# Below that, a bracket would have millions of rungs.
_LEAST_FACTOR = 1 + Fraction(1, 10**6)


class Rung(NamedTuple):
    """One row of a bracket: ``size`` trials are trained up to ``milestone``."""

    size: int
    milestone: Number


def validate(max_t: Number, reduction_factor: Number) -> None:
    """Check the two parameters of HyperBand.

    Args:
        max_t: The most units of time that a trial is trained for.
        reduction_factor: The factor ``eta`` by which a rung is reduced.

    Raises:
        ValueError: If no bracket can be made of them.
    """
    if not max_t > 0 or not math.isfinite(max_t):
        raise ValueError(f"`max_t` must be a positive number, got {max_t}.")
    if (
        not math.isfinite(reduction_factor)
        or as_ratio(reduction_factor) < _LEAST_FACTOR
    ):
        raise ValueError(
            "`reduction_factor` must be greater than 1 (by a millionth at least): a "
            "rung keeps one trial in `reduction_factor`. "
            f"Got {reduction_factor}; 3 is the usual choice."
        )


@functools.lru_cache(maxsize=64)
def max_halvings(max_t: Number, reduction_factor: Number) -> int:
    """Return how often the longest bracket is reduced, ``s_max`` in the paper.

    Args:
        max_t: The most units of time that a trial is trained for.
        reduction_factor: The factor ``eta`` by which a rung is reduced.

    Returns:
        The largest ``s`` with ``eta**s <= max_t``, and 0 for a ``max_t`` below one.
    """
    return num_steps(1, max_t, reduction_factor)


def num_configurations(max_t: Number, reduction_factor: Number, s: int) -> int:
    """Return how many trials the bracket ``s`` starts with, ``n`` in the paper.

    Args:
        max_t: The most units of time that a trial is trained for.
        reduction_factor: The factor ``eta`` by which a rung is reduced.
        s: How often the bracket is reduced.

    Returns:
        ``ceil((s_max + 1) / (s + 1) * eta**s)``.
    """
    times = Fraction(max_halvings(max_t, reduction_factor) + 1, s + 1)
    return math.ceil(times * as_ratio(reduction_factor) ** s)


def paper_rungs(max_t: Number, reduction_factor: Number, s: int) -> List[Rung]:
    """Return the bracket ``s`` to the letter of Algorithm 1.

    Args:
        max_t: The most units of time that a trial is trained for.
        reduction_factor: The factor ``eta`` by which a rung is reduced.
        s: How often the bracket is reduced.

    Returns:
        ``s + 1`` rungs of ``floor(n * eta**-i)`` trials, trained for
        ``max_t * eta**(i - s)`` units of time each, not rounded.
    """
    eta, end = as_ratio(reduction_factor), as_ratio(max_t)
    size = num_configurations(max_t, reduction_factor, s)
    return [
        Rung(share(size, eta**i), float(end / eta ** (s - i))) for i in range(s + 1)
    ]


def bracket_rungs(max_t: Number, reduction_factor: Number, s: int) -> List[Rung]:
    """Return the bracket ``s`` as it is run.

    It differs from :func:`paper_rungs` in three ways. Sizes are rounded up, as
    ``HyperBandScheduler`` always has, which also keeps one trial at least. Milestones
    are whole units, rounded down, but for the last, which is ``max_t``. Rungs which
    come to lie at one milestone by that (a small reduction factor does it) are one
    rung, reduced once by all of their factors: milestones strictly increase.

    Args:
        max_t: The most units of time that a trial is trained for.
        reduction_factor: The factor ``eta`` by which a rung is reduced.
        s: How often the bracket is reduced.

    Returns:
        The rungs, from the first to the one at ``max_t``. There are none if the first
        milestone would be less than one unit: then there is no such bracket.
    """
    eta, end = as_ratio(reduction_factor), as_ratio(max_t)
    size = num_configurations(max_t, reduction_factor, s)
    # From the end to the start, in whole numbers: a power is one product away from
    # the one before, and floor(end / eta**k) is exact.
    first_at: Dict[int, int] = {}
    numerator, denominator = end.numerator, end.denominator
    for i in range(s - 1, -1, -1):
        numerator *= eta.denominator
        denominator *= eta.numerator
        first_at[numerator // denominator] = i
    if 0 in first_at:
        return []
    rungs = [
        Rung(math.ceil(size / eta**i), milestone)
        for milestone, i in sorted(first_at.items())
    ]
    return rungs + [Rung(math.ceil(size / eta**s), max_t)]


def released_rungs(max_t: Number, reduction_factor: Number, s: int) -> List[Rung]:
    """Return the bracket ``s`` as Ray up to 2.60.0 runs it.

    It differs from :func:`bracket_rungs` by what logarithms and powers of floats are
    rounded to. The last milestone, which may be lower there, is ``max_t``.

    Args:
        max_t: The most units of time that a trial is trained for.
        reduction_factor: The factor ``eta`` by which a rung is reduced.
        s: How often the bracket is reduced.

    Returns:
        The rungs. There are none if there is no such bracket.
    """
    longest = round(math.log(max_t) / math.log(reduction_factor))
    milestone = int(max_t * reduction_factor**-s)
    if milestone < 1:
        return []
    size = math.ceil((longest + 1) / (s + 1) * reduction_factor**s)
    rungs = []
    for _ in range(s):
        following = int(min(milestone * reduction_factor, max_t))
        if following > milestone:
            rungs.append(Rung(size, milestone))
        size, milestone = math.ceil(size / reduction_factor), following
    return [rung for rung in rungs if rung.milestone < max_t] + [Rung(size, max_t)]


class _Entry:
    """What a bracket knows of one of its trials."""

    __slots__ = ("time", "latest", "value", "waiting")

    def __init__(self):
        self.time = 0  # Of the latest result.
        self.latest = None  # Value of the latest result.
        self.value = None  # Value at the current milestone, None before it.
        self.waiting = False  # At the milestone, for the others.

    def __getstate__(self):
        return self.time, self.latest, self.value, self.waiting

    def __setstate__(self, state):
        self.time, self.latest, self.value, self.waiting = state


class Reduction(NamedTuple):
    """What becomes of the trials of a bracket that was reduced.

    Attributes:
        released: These have waited and go on to the next milestone.
        dropped: These are not among the best.
        finished: These have reached the end of the bracket.
    """

    released: List[str]
    dropped: List[str]
    finished: List[str]


def _as_value(value: Any) -> float:
    return math.nan if value is None else float(value)


class Bracket:
    """Successive halving of trials, known by their ids.

    A trial is *live* from :meth:`add` until it is removed, dropped or finished. A live
    trial that has reached the current milestone *waits* until all live ones have. Then
    the bracket is reduced. All of that is decided by what was reported to the bracket:
    a trial's status says nothing here, it changes at other moments than decisions do.

    Args:
        rungs: Sizes and milestones, see :func:`bracket_rungs`.
        stop_last_trials: Whether the trials end at the last milestone. They wait for
            each other there, too. If False, they go on without an end.
    """

    def __init__(self, rungs: Sequence[Rung], stop_last_trials: bool = True):
        if not rungs:
            raise ValueError("A bracket needs at least one rung.")
        self.rungs = list(rungs)
        self.stop_last_trials = stop_last_trials
        self.rung = 0
        self.num_admitted = 0
        self.num_reductions = 0
        # No trial may join any more although there is room.
        self.closed = False
        self.entries: Dict[str, _Entry] = {}
        # Were not among the best. If one of them comes back it is not added again.
        self.dropped_ids = set()
        self.progress = 0

    @property
    def size(self) -> int:
        """How many trials the current rung is for."""
        return self.rungs[self.rung].size

    @property
    def milestone(self) -> Number:
        """Up to where the trials are trained in the current rung."""
        return self.rungs[self.rung].milestone

    @property
    def endless(self) -> bool:
        """Whether the trials have no milestone any more."""
        return self.rung == len(self.rungs) - 1 and not self.stop_last_trials

    @property
    def filled(self) -> bool:
        """Whether no more trials can join.

        The place of a trial that has failed or ended is not given to another: a rung
        of ``n`` trials is one that ``n`` configurations were drawn for.
        """
        if self.closed or self.num_admitted >= self.rungs[0].size:
            return True
        return self.rung > 0 and len(self.entries) >= self.size

    @property
    def total_work(self) -> Number:
        """Units of time that the bracket takes if it is filled and nothing fails."""
        work, reached = 0, 0
        for size, milestone in self.rungs:
            work += size * (milestone - reached)
            reached = milestone
        return work

    @property
    def finished(self) -> bool:
        """Whether the bracket has no work left, as far as it is filled."""
        return self.filled and not self.entries

    def add(self, trial_id: str) -> None:
        """Add a trial, or add it again.

        Args:
            trial_id: Of a new trial, or of one that was in this bracket before. That
                one needs no new place.
        """
        if trial_id not in self.entries:
            self.entries[trial_id] = _Entry()

    def admit(self, trial_id: str) -> None:
        """Admit a new trial.

        Args:
            trial_id: Of a trial that was not in this bracket before.

        Raises:
            ValueError: If the bracket is filled.
        """
        if self.filled:
            raise ValueError(f"Cannot add trial {trial_id}: the bracket is filled.")
        self.num_admitted += 1
        self.add(trial_id)

    def report(self, trial_id: str, time: Number, value: Any) -> bool:
        """Record a result.

        Args:
            trial_id: Of a live trial.
            time: How far the trial is. It may skip milestones, and it may be less than
                before if the trial has restarted from an earlier checkpoint.
            value: To be maximized. None counts as NaN.

        Returns:
            Whether this is the trial's result at the current milestone. Later ones do
            not replace it, so that all are compared at the same point.
        """
        entry = self.entries[trial_id]
        self.progress += time - entry.time
        entry.time, entry.latest = time, _as_value(value)
        if self.endless or entry.time < self.milestone or entry.value is not None:
            return False
        entry.value = entry.latest
        return True

    def goes_on(self, trial_id: str) -> bool:
        """Return whether a live trial has a way to go in the current rung.

        Args:
            trial_id: Of a live trial.

        Returns:
            False if it is to wait at the current milestone.
        """
        return self.endless or self.entries[trial_id].time < self.milestone

    def wait(self, trial_id: str) -> None:
        """Let a live trial wait for the others.

        Args:
            trial_id: Of a live trial.
        """
        self.entries[trial_id].waiting = True

    def is_waiting(self, trial_id: str) -> bool:
        """Return whether a trial waits for the others.

        Args:
            trial_id: Of any trial.

        Returns:
            True if it is live and was told to wait.
        """
        entry = self.entries.get(trial_id)
        return entry is not None and entry.waiting

    def restart(self, trial_id: str) -> None:
        """Note that a live trial starts over from some checkpoint, and waits no more.

        What it has reported at the milestone stays.

        Args:
            trial_id: Of a live trial.
        """
        self.entries[trial_id].waiting = False

    def remove(self, trial_id: str) -> None:
        """Note that a trial has failed, ended, or was stopped from outside.

        Args:
            trial_id: Of any trial.
        """
        self.entries.pop(trial_id, None)

    def ready(self, more_to_come: bool = False) -> bool:
        """Return whether the bracket can be reduced now.

        Args:
            more_to_come: Whether a new trial may still join. A first rung that is not
                filled waits for it.

        Returns:
            True if all live trials are at the milestone.
        """
        if self.endless or not self.entries:
            return False
        if self.rung == 0 and more_to_come and not self.filled:
            return False
        return all(entry.value is not None for entry in self.entries.values())

    def reduce(self) -> Reduction:
        """Keep the best, once all live trials are at the milestone.

        If those that are kept have all skipped the next milestone, too, the bracket is
        reduced again, up to its end. NaN ranks below every number; of equals the one
        that was there first is kept.

        Returns:
            What becomes of the trials. Those of which nothing is said go on waiting.
        """
        dropped: List[str] = []
        finished: List[str] = []
        while self.ready():
            if self.rung == len(self.rungs) - 1:
                self.num_reductions += 1
                finished = list(self.entries)
                self.entries = {}
                break
            ranked = self._ranked(self.entries)
            dropped += ranked[self.rungs[self.rung + 1].size :]
            self._next_rung(dropped)
        released = [
            trial_id
            for trial_id, entry in self.entries.items()
            if entry.waiting and self.goes_on(trial_id)
        ]
        for trial_id in released:
            self.entries[trial_id].waiting = False
        return Reduction(released, dropped, finished)

    def _ranked(self, trial_ids: Iterable[str]) -> List[str]:
        """Sort trials from the best to the worst by their value at the milestone."""
        # Of equals the first that came is the first: the sort is stable.
        return sorted(trial_ids, key=lambda i: _rank(self.entries[i].value))

    def _next_rung(self, dropped: Iterable[str]) -> None:
        """Go on to the next rung without the dropped trials."""
        self.rung += 1
        self.num_reductions += 1
        self.dropped_ids.update(dropped)
        for trial_id in dropped:
            self.entries.pop(trial_id, None)
        for entry in self.entries.values():
            skipped = not self.endless and entry.time >= self.milestone
            entry.value = entry.latest if skipped else None

    def replay(
        self, reports: Dict[str, List[Tuple[Number, Any]]], ended: Set[str]
    ) -> None:
        """Bring a new bracket to where an earlier run of it was left.

        What can be seen of the reports holds, whatever the ranks say: a trial that
        has reported beyond a milestone was kept there. A reduction that nothing can be
        seen of is left to :meth:`reduce`.

        Args:
            reports: Times and values (to be maximized) that each trial has reported,
                in their order, by the ids of the trials, which are live.
            ended: The ids of those that train no more. None of them has failed.
        """
        ahead = {trial_id: collections.deque(r) for trial_id, r in reports.items()}
        while True:
            for trial_id, entry in self.entries.items():
                while ahead[trial_id] and (self.endless or entry.value is None):
                    self.report(trial_id, *ahead[trial_id].popleft())
            if self.rung == len(self.rungs) - 1:
                break
            went_on = {
                trial_id
                for trial_id in self.entries
                if any(time > self.milestone for time, _ in ahead[trial_id])
            }
            arrived = {i for i, e in self.entries.items() if e.value is not None}
            under_way = self.entries.keys() - ended - arrived
            if not went_on and (under_way or not arrived & ended):
                break
            room = self.rungs[self.rung + 1].size - len(went_on | under_way)
            rest = [i for i in self.entries if i in arrived - went_on - ended]
            kept = went_on | under_way | set(self._ranked(rest)[: max(room, 0)])
            for trial_id in ended - arrived:
                self.remove(trial_id)
            self._next_rung([i for i in self.entries if i not in kept])
        for trial_id in ended:
            self.remove(trial_id)


def _rank(value: Optional[float]):
    if math.isnan(value):
        return (1, 0.0)
    return (0, -value)
