"""The pure parts of population based training."""

import math
import sys

import pytest
from hypothesis import given, settings, strategies as st

_scores = st.lists(
    st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.integers(-5, 5)),
    max_size=40,
)


@settings(deadline=None)
@given(_scores, st.floats(0, 0.5))
def test_quantiles(scores, fraction):
    from ray.tune.schedulers._pbt_population import quantiles

    lower, upper = quantiles(enumerate(scores), fraction)
    numbers = [i for i, score in enumerate(scores) if not math.isnan(score)]
    assert not set(lower) & set(upper)
    assert set(lower) | set(upper) <= set(numbers)
    if fraction and len(numbers) > 1:
        assert len(lower) == len(upper) >= 1
        assert max(scores[i] for i in lower) <= min(scores[i] for i in upper)
    elif fraction and len(scores) > len(numbers) == 1:
        # All others have diverged, and may clone it.
        assert (lower, upper) == ([], numbers)
    else:
        assert (lower, upper) == ([], [])


@pytest.mark.parametrize("count, fraction, size", [(30, 0.1, 3), (5, 0.25, 2)])
def test_size_of_a_quantile(count, fraction, size):
    from ray.tune.schedulers._pbt_population import quantiles

    lower, upper = quantiles(((i, i) for i in range(count)), fraction)
    assert lower == list(range(size))
    assert upper == list(range(count - size, count))


@settings(deadline=None)
@given(
    st.floats(0.1, 1e3),
    st.floats(0.1, 1e3),
    st.lists(st.floats(0, 1e5), min_size=1, max_size=10),
)
def test_next_sync_time(sync, interval, times):
    from ray.tune.schedulers._pbt_population import next_sync_time

    following = next_sync_time(sync, interval, times)
    assert following >= sync + interval
    # Somebody still has to get there, and nobody is beyond it but all.
    assert min(times) < following
    assert max(times) <= following


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
