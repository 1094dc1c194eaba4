"""The order of events that are ready at once."""

import random
from typing import List, Sequence


class SeededChooser:
    """Picks among events that are ready at once, from a seed.

    Args:
        seed: The seed.
    """

    def __init__(self, seed: int):
        self.rng = random.Random(seed * 7919 + 5)

    def choose(self, count: int) -> int:
        return self.rng.randrange(count)


class ScriptedChooser(SeededChooser):
    """Picks as a list says, then the first; remembers how many there were.

    Args:
        script: The picks.
        limit: Of more ready events than this, only the first ones are picked among.
    """

    def __init__(self, script: Sequence[int] = (), limit: int = 3):
        super().__init__(0)
        self.script = list(script)
        self.limit = limit
        self.taken: List[int] = []
        self.counts: List[int] = []

    def choose(self, count: int) -> int:
        position = len(self.taken)
        count = min(count, self.limit)
        pick = self.script[position] if position < len(self.script) else 0
        pick = min(pick, count - 1)
        self.taken.append(pick)
        self.counts.append(count)
        return pick
