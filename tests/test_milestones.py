"""Exact milestones and sizes of successive halving."""

import math
import sys
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ray.tune.schedulers._milestones import as_ratio, milestones, num_steps, share


@pytest.mark.parametrize(
    "number, ratio",
    [
        (3, Fraction(3)),
        (np.int64(4), Fraction(4)),
        (1.1, Fraction(11, 10)),
        (2.5, Fraction(5, 2)),
        (10 / 3, Fraction(10, 3)),
        (1 / 7, Fraction(1, 7)),
        (1e-7, Fraction(1, 10**7)),
        (math.e, Fraction("2.718281828459045")),
    ],
)
def test_a_number_is_the_ratio_that_was_meant(number, ratio):
    assert as_ratio(number) == ratio


@given(st.one_of(st.floats(1e-6, 1e6), st.integers(1, 10**9)))
def test_a_ratio_reads_as_its_number(number):
    assert float(as_ratio(number)) == number


@pytest.mark.parametrize(
    "eta, n, places",
    [
        (1.1, 33, 30),
        (1.1, 55, 50),
        (1.1, 66, 60),
        (2.2, 33, 15),
        (0.1 * 15, 3, 2),
        (10 / 3, 10, 3),
        (4, 10**18 + 3, 25 * 10**16),
    ],
)
def test_shares_are_exact_where_floats_are_not(eta, n, places):
    assert share(n, as_ratio(eta)) == places


@pytest.mark.parametrize(
    "grace, max_t, eta, expected",
    [
        (1, 81, 3, [1, 3, 9, 27]),
        (1, 82, 3, [1, 3, 9, 27, 81]),
        (1, 1000, 10, [1, 10, 100]),
        (1, 1001, 10, [1, 10, 100, 1000]),
        (1, 5**12, 5, [5**k for k in range(12)]),
        (3, 100, 4, [3, 12, 48]),
        (5, 5, 3, []),
        (1, 10, 2.5, [1, 2.5, 6.25]),
        (0.1, 2.7, 3, [0.1, 0.3, 0.9]),
        (0.1, 1, 1.1 / 0.55, [0.1, 0.2, 0.4, 0.8]),
        (1, 10**15, 10, [10**k for k in range(15)]),
        (60.0, 3600, 4, [60, 240, 960]),
    ],
)
def test_milestones(grace, max_t, eta, expected):
    assert milestones(grace, max_t, eta) == expected


@given(
    st.one_of(st.integers(1, 50), st.floats(0.01, 50)),
    st.one_of(st.integers(2, 12), st.floats(1.1, 12)),
    st.one_of(st.integers(50, 5000), st.floats(50, 5000)),
)
def test_milestones_are_all_below_max_t(grace, eta, max_t):
    at = milestones(grace, max_t, eta)
    assert all(m < max_t for m in at)
    assert at == sorted(set(at))
    for k, milestone in enumerate(at):
        assert milestone == pytest.approx(grace * eta**k, rel=1e-9)
    assert grace * eta ** len(at) >= max_t * (1 - 1e-9)


@pytest.mark.parametrize(
    "start, end, factor, steps",
    [
        (1, 243, 3, 5),  # log(243) / log(3) is 4.999...
        (1, 1000, 10, 3),  # log(1000) / log(10) is 2.999...
        (1, 999, 10, 2),
        (10, 1000, 10, 2),
        (0.1, 0.3, 3, 1),  # 0.1 * 3 is more than 0.3
        (1, 1.21, 1.1, 2),
        (1, 0.5, 3, 0),
        (2, 2, 3, 0),
    ],
)
def test_steps_are_counted_exactly(start, end, factor, steps):
    assert num_steps(start, end, factor) == steps


def test_too_many_milestones():
    with pytest.raises(ValueError, match="1.0000001"):
        milestones(1, 100, 1.0000001)


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
