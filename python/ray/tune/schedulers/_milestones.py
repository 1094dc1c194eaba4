"""Exact milestones and sizes of successive halving, for every scheduler that halves.

Floats are off by one where it counts: ``33 / 1.1`` is less than 30, and
``log(1000) / log(10)`` less than 3. So a factor is made a ratio of integers once, sizes
are computed from that in integers, and milestones by multiplication, in decimals:

- ``as_ratio(number)``: the ratio that a number was meant to be.
- ``share(count, ratio)``: ``floor(count / ratio)``, exact.
- ``num_steps(start, end, factor)``: the logarithm, rounded down, exact.
- ``milestones(grace_period, max_t, reduction_factor)``: those of one bracket.

Pure code: it knows nothing of trials, of the controller or of Ray.
"""

from decimal import Context, Decimal
from fractions import Fraction
from numbers import Rational
from typing import List, Union

Number = Union[int, float]

# More milestones than that are a slip of the pen (`reduction_factor=1.0001`).
MAX_MILESTONES = 10_000

_DECIMALS = Context(prec=40)


def as_ratio(number: Number) -> Fraction:
    """Return the ratio that a number was meant to be.

    Args:
        number: A finite number. A float stands for the shortest decimal that reads as
            it (1.1 is 11/10), or for a ratio of small integers if that is the same
            float (``10 / 3``).

    Returns:
        The ratio.
    """
    if isinstance(number, Rational):
        return Fraction(number)
    written = Fraction(repr(float(number)))
    simple = written.limit_denominator(1000)
    return simple if float(simple) == float(number) else written


def share(count: int, ratio: Fraction) -> int:
    """Return ``floor(count / ratio)``: how many of ``count`` one in ``ratio`` are."""
    return count * ratio.denominator // ratio.numerator


def num_steps(start: Number, end: Number, factor: Number) -> int:
    """Return the largest ``k`` with ``start * factor**k <= end``.

    Args:
        start: A positive number.
        end: A finite number.
        factor: A number greater than one.

    Returns:
        The number of steps, and 0 if ``end`` is less than ``start``.
    """
    ratio, limit = as_ratio(factor), as_ratio(end) / as_ratio(start)
    # In integers, which are multiplied faster than ratios.
    power = ratio.numerator * limit.denominator
    bound = limit.numerator * ratio.denominator
    steps = 0
    while power <= bound:
        steps += 1
        power *= ratio.numerator
        bound *= ratio.denominator
    return steps


def milestones(
    grace_period: Number, max_t: Number, reduction_factor: Number
) -> List[Number]:
    """Return ``grace_period * reduction_factor**k`` for all that lie below ``max_t``.

    Args:
        grace_period: The lowest milestone, in units of time.
        max_t: Where trials end, in units of time; no milestone itself.
        reduction_factor: The ratio of a milestone to the one below.

    Returns:
        The milestones, ascending. Whole numbers where the arguments are whole.

    Raises:
        ValueError: If there are more than ``MAX_MILESTONES``.
    """
    if isinstance(grace_period, int) and isinstance(reduction_factor, int):
        at, factor = grace_period, reduction_factor
        multiply, given = int.__mul__, int
    else:
        at, factor = _as_decimal(grace_period), _as_decimal(reduction_factor)
        multiply, given = _DECIMALS.multiply, float

    found = []
    while given(at) < max_t:
        if len(found) == MAX_MILESTONES:
            raise ValueError(
                f"reduction_factor={reduction_factor} makes more than {MAX_MILESTONES} "
                f"milestones between grace_period={grace_period} and max_t={max_t}. "
                "Choose a greater one, 3 or 4 for example."
            )
        found.append(given(at))
        at = multiply(at, factor)
    return found


def _as_decimal(number: Number) -> Decimal:
    ratio = as_ratio(number)
    return _DECIMALS.divide(Decimal(ratio.numerator), Decimal(ratio.denominator))
