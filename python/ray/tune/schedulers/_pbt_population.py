"""The arithmetic of a population: who clones whom, and when all meet again.

Pure code: it knows scores and times, and nothing of trials' statuses or of the
controller, so that it can be tested by itself.
"""

import math
from typing import Hashable, Iterable, List, Tuple, TypeVar

K = TypeVar("K", bound=Hashable)


def quantiles(
    scores: Iterable[Tuple[K, float]], fraction: float
) -> Tuple[List[K], List[K]]:
    """Return the losers and the winners of a population.

    A score that is not a number is worse than all others, and always a loser's.

    Args:
        scores: Pairs of member and score. Of equal scores, the later one is the better.
        fraction: The fraction of the population that loses, and that wins.

    Returns:
        The losers, from the worst up, and the winners, up to the best. Both are empty
        if nobody could clone or be cloned.
    """
    ranked = sorted(
        scores,
        key=lambda item: (0, 0) if math.isnan(item[1]) else (1, item[1]),
    )
    if len(ranked) <= 1 or fraction == 0:
        return [], []
    # Rounded, as 30 * 0.1 is a little more than 3.
    size = max(1, math.ceil(round(len(ranked) * fraction, 9)))
    size = min(size, len(ranked) // 2)
    num_nan = sum(math.isnan(score) for _, score in ranked)
    winners = [k for k, score in ranked[len(ranked) - size :] if not math.isnan(score)]
    if not winners:
        return [], []
    return [k for k, _ in ranked[: max(size, num_nan)]], winners


def next_sync_time(sync: float, interval: float, times: Iterable[float]) -> float:
    """Return when a synchronous population meets next.

    Trials that are ahead of the meeting wait for the others, so that there has to be
    one that is not.

    Args:
        sync: When it has met last.
        interval: The perturbation interval.
        times: The times of the trials from which they go on.

    Returns:
        The time of the next meeting.
    """
    times = list(times)
    following = max([sync + interval, *times])
    if times and min(times) >= following:
        following = max(times) + interval
    return following
