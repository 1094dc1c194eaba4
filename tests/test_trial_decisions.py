"""The order of decisions, apart from the controller."""

import itertools

import pytest

_ORDER = ["NOOP", "CONTINUE", "PAUSE", "STOP"]
_PAIRS = list(itertools.product(_ORDER, repeat=2))


def _stronger(first, second):
    return _ORDER[max(_ORDER.index(first), _ORDER.index(second))]


@pytest.mark.parametrize("first, second", _PAIRS)
def test_stronger_decision_wins_in_both_orders(first, second):
    from ray.tune.execution.trial_decisions import stronger_decision

    assert stronger_decision(first, second) == _stronger(first, second)


@pytest.mark.parametrize("decision", _ORDER)
def test_any_decision_is_stronger_than_none(decision):
    from ray.tune.execution.trial_decisions import stronger_decision

    assert stronger_decision(None, decision) == decision
    assert stronger_decision(decision, None) == decision
    assert stronger_decision(None, None) is None


@pytest.mark.parametrize("decision", ["continue", "", 1, True])
def test_invalid_decision_is_named(decision):
    from ray.tune.execution.trial_decisions import stronger_decision

    with pytest.raises(ValueError, match=f"Invalid decision: {decision}.*CONTINUE"):
        stronger_decision("PAUSE", decision)


@pytest.mark.parametrize("first, second", _PAIRS)
def test_cached_decision_is_queued_when_the_save_resolved(first, second):
    from ray.tune.execution.trial_decisions import _TrialDecisions

    decisions = _TrialDecisions()
    decisions.cache("a", first)
    decisions.queue("a", second)
    decisions.save_resolved("a")
    assert decisions.cached == {}
    assert decisions.pop("a") == _stronger(first, second)
    assert decisions.pop("a") is None


@pytest.mark.parametrize("first, second", _PAIRS)
def test_queued_decision_waits_for_a_save(first, second):
    from ray.tune.execution.trial_decisions import _TrialDecisions

    decisions = _TrialDecisions()
    decisions.queue("a", first)
    decisions.cache("a", second)
    decisions.save_outstanding("a")
    assert decisions.queued == {}
    assert decisions.cached == {"a": _stronger(first, second)}


def test_decisions_of_one_trial_are_dropped():
    from ray.tune.execution.trial_decisions import _TrialDecisions

    decisions = _TrialDecisions()
    for trial_id in "ab":
        decisions.cache(trial_id, "STOP")
        decisions.queue(trial_id, "PAUSE")
    assert decisions.is_stopping("a")
    decisions.drop("a")
    assert not decisions.is_stopping("a")
    assert decisions.cached == {"b": "STOP"}
    assert decisions.queued == {"b": "PAUSE"}


if __name__ == "__main__":
    import sys

    sys.exit(pytest.main(["-v", __file__]))
