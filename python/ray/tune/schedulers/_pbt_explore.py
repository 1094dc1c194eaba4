"""Explores hyperparameters without leaving the space that the user gave.

Pure code, so that it can be tested on its own. The steps are those of population based
training (Jaderberg et al., arXiv 1711.09846): resample a value, or perturb it.
"""

import copy
import random
from numbers import Integral, Number
from typing import Any, Callable, Dict, Optional, Sequence

import numpy as np

from ray.tune.search.sample import (
    Categorical,
    Domain,
    Float,
    Function,
    Integer,
    Quantized,
)


def options_of(distribution: Any) -> Optional[Sequence]:
    """Return the values that a distribution allows, if it lists them.

    Args:
        distribution: A value of ``hyperparam_mutations``.

    Returns:
        The allowed values in their order, or None if they are not listed.
    """
    if isinstance(distribution, Categorical):
        return distribution.categories
    if isinstance(distribution, (list, tuple, np.ndarray)):
        return distribution
    return None


def validate_mutations(mutations: Dict, prefix: str = "") -> None:
    """Check a specification of mutations, nested ones included.

    Args:
        mutations: ``hyperparam_mutations`` of the scheduler.
        prefix: Where in the specification it is found, for messages.

    Raises:
        TypeError: If a value is of a type that cannot be explored.
        ValueError: If a value is an arbitrary ``tune.sample_from``, or allows nothing.
    """
    for key, value in mutations.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            validate_mutations(value, f"{name}/")
            continue
        if isinstance(value, Function):
            raise ValueError(
                "arbitrary tune.sample_from objects are not supported for "
                f"`hyperparam_mutations` values, but {name!r} is one. You must use "
                "other built in primitives like tune.uniform, tune.loguniform, etc."
            )
        options = options_of(value)
        if options is None and not isinstance(value, (Domain, Callable)):
            raise TypeError(
                "`hyperparam_mutations` values must be either a List, Tuple, Dict, a "
                f"tune search space object, or a callable, but {name!r} is "
                f"{value!r}."
            )
        if options is not None and len(options) == 0:
            raise ValueError(
                f"`hyperparam_mutations` allows no value for {name!r}. Give at least "
                "one."
            )


def index_of(value: Any, options: Sequence) -> Optional[int]:
    """Find a value in a list of options, whatever it is made of.

    Args:
        value: The value to look for.
        options: The allowed values.

    Returns:
        The index of the first option that equals the value, or None.
    """
    for i, option in enumerate(options):
        if option is value:
            return i
        if isinstance(value, np.ndarray) or isinstance(option, np.ndarray):
            same = np.array_equal(value, option)
        else:
            same = bool(option == value)
        if same:
            return i
    return None


def sample(distribution: Any) -> Any:
    """Draw a value from a distribution.

    Args:
        distribution: A value of ``hyperparam_mutations``, but not a dict.

    Returns:
        The value.
    """
    if isinstance(distribution, Domain):
        return distribution.sample(None)
    options = options_of(distribution)
    if options is not None:
        # A copy, so that nobody changes the specification by changing a config.
        return copy.deepcopy(options[random.randrange(len(options))])
    return distribution()


def fill_missing(config: Dict, mutations: Dict) -> Dict:
    """Sample the hyperparameters that a config lacks, in place.

    Args:
        config: The config of a trial.
        mutations: ``hyperparam_mutations`` of the scheduler.

    Returns:
        The values of the top-level keys that were filled, wholly or in part.
    """
    filled = {}
    for key, distribution in mutations.items():
        if isinstance(distribution, dict):
            if key not in config:
                config[key] = {}
            elif not isinstance(config[key], dict):
                continue
            if fill_missing(config[key], distribution) or not config[key]:
                filled[key] = config[key]
        elif key not in config:
            filled[key] = config[key] = sample(distribution)
    return filled


def bounded(value: float, domain: Domain) -> Any:
    """Bring a number into a domain: between its bounds, and on its grid.

    Args:
        value: The number.
        domain: A ``tune.uniform``, ``tune.qrandint``, or the like.

    Returns:
        The closest value that the domain can yield.
    """
    sampler = domain.get_sampler()
    lower, upper = domain.lower, domain.upper
    if isinstance(sampler, Quantized):
        lower = sampler._grid_index(lower, np.ceil)
        upper = sampler._grid_index(upper, np.floor)
        if isinstance(domain, Integer) and sampler.q == 1:
            # Only then is the upper bound exclusive
            upper -= 1
        index = min(max(round(value / sampler.q), lower), upper)
        return domain.cast(index * sampler.q)
    if isinstance(domain, Integer):
        return domain.cast(min(max(round(value), lower), upper - 1))
    return domain.cast(min(max(value, lower), upper))


def perturb(value: Any, distribution: Any, factor: float) -> Any:
    """Scale a value by a factor, within its distribution.

    Args:
        value: The value. One that is not a number is sampled anew instead.
        distribution: A domain or a function, as in ``hyperparam_mutations``.
        factor: What to multiply it by.

    Returns:
        The new value.
    """
    if not is_scalable(value):
        return sample(distribution)
    return _of_same_type(value, value * factor, distribution)


def resample(value: Any, distribution: Any) -> Any:
    """Sample a value anew.

    Args:
        value: The value so far, whose type is kept.
        distribution: A domain or a function, as in ``hyperparam_mutations``.

    Returns:
        The new value.
    """
    return _of_same_type(value, sample(distribution), distribution)


def is_scalable(value: Any) -> bool:
    """Return whether a value can be multiplied by a factor."""
    return isinstance(value, (Number, np.bool_))


def _of_same_type(value: Any, new_value: Any, distribution: Any) -> Any:
    if isinstance(value, (bool, np.bool_)):
        # Only sampling flips it, a factor does not
        return bool(new_value)
    if not isinstance(new_value, Number):
        return new_value
    is_bounded = isinstance(distribution, (Float, Integer))
    if isinstance(value, Integral):
        # It started out as an integer (e.g. `batch_size`) and stays one, unless
        # there is none in the space.
        rounded = int(round(new_value))
        if not is_bounded or bounded(rounded, distribution) == rounded:
            return rounded
    return bounded(new_value, distribution) if is_bounded else new_value
