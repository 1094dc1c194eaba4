from unittest.mock import MagicMock

import pytest

from ray.train.tests.util import mock_storage_context
from ray.tune.experiment import Trial
from ray.tune.schedulers import MedianStoppingRule, TrialScheduler


def make_trial():
    return Trial("trainable", stub=True, storage=mock_storage_context())


def make_result(time, value):
    return {"training_iteration": time, "value": value}


@pytest.mark.parametrize("times", [1, 3])
def test_median_stopping_rule_stops_a_trial_again(times):
    """A trial may report again, if it failed before it was stopped."""
    rule = MedianStoppingRule(
        metric="value",
        mode="max",
        time_attr="training_iteration",
        grace_period=1,
        min_samples_required=1,
    )
    controller = MagicMock()
    controller.get_live_trials.return_value = []
    good, bad = make_trial(), make_trial()
    for trial in (good, bad):
        rule.on_trial_add(controller, trial)
    for time in range(1, 4):
        rule.on_trial_result(controller, good, make_result(time, 10))
    assert (
        rule.on_trial_result(controller, bad, make_result(2, 0)) == TrialScheduler.STOP
    )
    for time in range(3, 3 + times):
        decision = rule.on_trial_result(controller, bad, make_result(time, 0))
        assert decision == TrialScheduler.STOP


if __name__ == "__main__":
    import sys

    import pytest

    sys.exit(pytest.main(["-v", __file__]))
