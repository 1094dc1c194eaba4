"""Errors of hooks are named, and can be caught as what they were."""

import pickle

import pytest


class _Picky(Exception):
    def __init__(self, one, two):
        super().__init__(one + two)

    def __str__(self):
        return "picky"


_ERRORS = [
    ValueError("what a pity"),
    KeyError("steps"),
    OSError(28, "No space left on device"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    StopIteration(3),
    _Picky("a", "b"),
]


def _raise_in_hook(error, trial="trial_1"):
    from ray.tune.execution.hook_errors import _name_hook

    with pytest.raises(Exception) as info:
        with _name_hook(object(), "on_trial_add", trial):
            raise error
    return info.value


@pytest.mark.parametrize("error", _ERRORS, ids=lambda error: type(error).__name__)
def test_error_is_named_and_keeps_its_type(error):
    from ray.tune import TuneError

    raised = _raise_in_hook(error)
    assert isinstance(raised, TuneError)
    assert isinstance(raised, type(error)) != isinstance(error, StopIteration)
    assert raised.__cause__ is error
    assert str(raised) == (
        f"`object.on_trial_add` raised an error for trial trial_1: "
        f"{type(error).__name__}: {error}"
    )


def test_hook_without_a_trial():
    raised = _raise_in_hook(ValueError("what a pity"), trial=None)
    assert str(raised) == (
        "`object.on_trial_add` raised an error: ValueError: what a pity"
    )


def test_name_of_the_innermost_hook_is_kept():
    error = _raise_in_hook(ValueError("what a pity"))
    assert _raise_in_hook(error, trial="trial_2") is error


def test_error_can_be_pickled():
    raised = _raise_in_hook(ValueError("what a pity"))
    assert str(pickle.loads(pickle.dumps(raised))) == str(raised)


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_interrupts_pass(interrupt):
    from ray.tune.execution.hook_errors import _name_hook

    with pytest.raises(interrupt):
        with _name_hook(object(), "on_trial_add"):
            raise interrupt


if __name__ == "__main__":
    import sys

    sys.exit(pytest.main(["-v", __file__]))
