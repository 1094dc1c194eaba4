"""Errors of hooks are raised as they are; the log names the hook and the trial."""

import logging

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


class _Scheduler:
    pass


@pytest.fixture
def calls():
    from ray.tune.execution.hook_errors import HookCalls

    return HookCalls()


def _raise_in_hook(calls, error, hook="on_trial_add", trial="trial_1"):
    with pytest.raises(type(error)) as info:
        with calls.call(_Scheduler(), hook, trial):
            raise error
    return info.value


def _said(caplog):
    return [r.message for r in caplog.records if r.levelno == logging.ERROR]


@pytest.mark.parametrize("error", _ERRORS, ids=lambda error: type(error).__name__)
def test_error_is_raised_as_it_is_and_logged(calls, error, caplog):
    assert _raise_in_hook(calls, error) is error
    assert error.__cause__ is None
    assert calls.has_raised(error)
    assert not calls.has_raised(ValueError("what a pity"))
    assert _said(caplog) == [
        f"`_Scheduler.on_trial_add` raised an error for trial trial_1: "
        f"{type(error).__name__}: {error}"
    ]


def test_hook_without_a_trial(calls, caplog):
    _raise_in_hook(calls, ValueError("what a pity"), "choose_trial_to_run", None)
    assert _said(caplog) == [
        "`_Scheduler.choose_trial_to_run` raised an error: ValueError: what a pity"
    ]


def test_error_is_logged_with_the_innermost_hook(calls, caplog):
    error = ValueError("what a pity")
    with pytest.raises(ValueError):
        with calls.call(_Scheduler(), "on_trial_result", "trial_2"):
            _raise_in_hook(calls, error)
            raise error
    [said] = _said(caplog)
    assert "on_trial_add" in said
    assert calls.has_raised(error)


def test_each_error_is_logged(calls, caplog):
    for text in "abc":
        _raise_in_hook(calls, ValueError(text))
    assert [said[-1] for said in _said(caplog)] == ["a", "b", "c"]


def test_hook_that_is_being_called_is_known(calls):
    assert calls.current is None
    with calls.call(_Scheduler(), "on_trial_result"):
        assert calls.current == "_Scheduler.on_trial_result"
        with calls.call(_Scheduler(), "on_trial_remove"):
            assert calls.current == "_Scheduler.on_trial_remove"
        assert calls.current == "_Scheduler.on_trial_result"
    assert calls.current is None
    _raise_in_hook(calls, ValueError("what a pity"))
    assert calls.current is None


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_interrupts_pass(calls, interrupt, caplog):
    with pytest.raises(interrupt):
        with calls.call(_Scheduler(), "on_trial_add"):
            raise interrupt
    assert not _said(caplog)
    assert calls.current is None


if __name__ == "__main__":
    import sys

    sys.exit(pytest.main(["-v", __file__]))
