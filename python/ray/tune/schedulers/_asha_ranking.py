"""Rankings that a rung asks the same few questions of, at O(log n) each.

Nothing is sorted and nothing is scanned: a ranking is a heap whose outdated entries are
dropped when they come to the top, which happens in commands only. A query just looks.
"""

from heapq import heapify, heappop, heappush
from typing import Any, Dict, List, Optional, Set, Tuple

# What is ranked by, and the trial; the least comes first.
Entry = Tuple[Any, int, str]


class Heap:
    """The first of a set of entries, from which any member can be discarded."""

    __slots__ = ("_entries", "_members")

    def __init__(self):
        # May hold entries of trials that are no members any more, but not on top.
        self._entries: List[Entry] = []
        self._members: Set[str] = set()

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, trial_id: str) -> bool:
        return trial_id in self._members

    @property
    def first(self) -> Optional[Entry]:
        """The entry that comes first, None if there is none."""
        return self._entries[0] if self._entries else None

    def add(self, entry: Entry) -> None:
        """Add a trial that is not a member."""
        self._members.add(entry[2])
        heappush(self._entries, entry)

    def pop(self) -> Entry:
        """Remove the entry that comes first, and return it."""
        entry = heappop(self._entries)
        self._members.discard(entry[2])
        self._clean()
        return entry

    def discard(self, trial_id: str) -> bool:
        """Remove a trial. Return whether it was a member."""
        if trial_id not in self._members:
            return False
        self._members.discard(trial_id)
        if len(self._entries) > 2 * len(self._members) + 16:
            # Most are outdated. That many were discarded since, so it costs O(1) each.
            self._entries = list(
                {e[2]: e for e in self._entries if e[2] in self._members}.values()
            )
            heapify(self._entries)
        else:
            self._clean()
        return True

    def _clean(self) -> None:
        entries, members = self._entries, self._members
        while entries and entries[0][2] not in members:
            heappop(entries)


class Split:
    """The best ``size`` of a set of ranked trials, apart from the rest.

    A trial that is ranked either waits or does not; which of them wait is known for
    both parts.

    Args:
        size: How many belong to the best part; may be infinite.
    """

    __slots__ = ("size", "_inside", "_outside", "waiting_inside", "waiting_outside")

    def __init__(self, size: float = 0):
        self.size = size
        self._inside = Heap()  # The worst comes first.
        self._outside = Heap()  # The best comes first.
        # As sets, in a fixed order.
        self.waiting_inside: Dict[str, None] = {}
        self.waiting_outside: Dict[str, None] = {}

    def is_inside(self, trial_id: str) -> bool:
        """Return whether a trial belongs to the best part."""
        return trial_id in self._inside

    @property
    def worst_inside(self) -> Optional[Tuple[float, str]]:
        """The score and the name of the worst in the best part, None if it is empty."""
        entry = self._inside.first
        return entry and (entry[0], entry[2])

    def add(self, trial_id: str, score: float, order: int) -> None:
        """Rank a trial, which waits.

        Args:
            trial_id: The trial.
            score: The greater the better.
            order: By which ties break, the lower the better; that of no other trial.
        """
        inside = self._inside
        if len(inside) < self.size:
            inside.add((score, -order, trial_id))
            self.waiting_inside[trial_id] = None
            return
        if self.size > 0 and (score, -order) > inside.first[:2]:
            inside.add((score, -order, trial_id))
            self.waiting_inside[trial_id] = None
            self._move_out()
            return
        self._outside.add((-score, order, trial_id))
        self.waiting_outside[trial_id] = None

    def resize(self, size: float) -> None:
        """Change how many belong to the best part."""
        self.size = size
        inside, outside = self._inside, self._outside
        while len(inside) > size:
            self._move_out()
        while len(outside) and len(inside) < size:
            self._move_in()

    def stop_waiting(self, trial_id: str) -> None:
        """Note that a trial does not wait any more. It is still ranked."""
        self.waiting_inside.pop(trial_id, None)
        self.waiting_outside.pop(trial_id, None)

    def discard(self, trial_id: str) -> None:
        """Take a trial out of the ranking, in which another one moves up."""
        self.stop_waiting(trial_id)
        if self._inside.discard(trial_id):
            self.resize(self.size)
        else:
            self._outside.discard(trial_id)

    def _move_out(self) -> None:
        score, order, trial_id = self._inside.pop()
        self._outside.add((-score, -order, trial_id))
        if trial_id in self.waiting_inside:
            del self.waiting_inside[trial_id]
            self.waiting_outside[trial_id] = None

    def _move_in(self) -> None:
        score, order, trial_id = self._outside.pop()
        self._inside.add((-score, -order, trial_id))
        if trial_id in self.waiting_outside:
            del self.waiting_outside[trial_id]
            self.waiting_inside[trial_id] = None
