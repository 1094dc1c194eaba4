"""The arithmetic of a population: who clones whom, and when all meet again.

Pure code: it knows scores and times, and nothing of trials' statuses or of the
controller, so that it can be tested on its own.
"""

import math
from typing import Hashable, Iterable, List, Optional, Tuple, TypeVar

K = TypeVar("K", bound=Hashable)


def has_diverged(score: Optional[float]) -> bool:
    """Return whether a score says that training has gone wrong.

    Args:
        score: The last score of a trial. None if it has none yet.

    Returns:
        Whether it is NaN.
    """
    return score is not None and math.isnan(score)


def quantiles(
    scores: Iterable[Tuple[K, float]], fraction: float
) -> Tuple[List[K], List[K]]:
    """Return the bottom and the top of a population.

    Members whose score is NaN are in neither, and do not count in their size.

    Args:
        scores: Pairs of member and score. Of equal scores, the later one is the better.
        fraction: The fraction of the population in each of the two.

    Returns:
        The bottom, from the worst up, and the top, up to the best. Both are empty if
        there is nobody to compare with. A single member is the top, and nobody the
        bottom, if all others have diverged.
    """
    scores = list(scores)
    ranked = [item for item in scores if not math.isnan(item[1])]
    ranked.sort(key=lambda item: item[1])
    members = [member for member, _ in ranked]
    if fraction == 0 or len(scores) <= 1:
        return [], []
    if len(members) == 1:
        return [], members
    # Rounded, as 30 * 0.1 is a little more than 3.
    size = max(1, math.ceil(round(len(members) * fraction, 9)))
    size = min(size, len(members) // 2)
    return members[:size], members[len(members) - size :]


def current_sync_time(first: float, interval: float, times: Iterable[float]) -> float:
    """Return when a synchronous population meets that has trained for a while.

    Args:
        first: When it meets first.
        interval: The perturbation interval.
        times: When each trial has met the others last, or waits for them now.

    Returns:
        The time of the first meeting that not all trials have got to.
    """
    times, sync = list(times), first
    while times and min(times) >= sync:
        sync = next_sync_time(sync, interval, times)
    return sync


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
