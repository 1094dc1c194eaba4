import numpy as np

from ray.train.tests.util import mock_storage_context
from ray.tune.experiment import Trial
from ray.tune.schedulers import AsyncHyperBandScheduler


def make_trial():
    return Trial("trainable", stub=True, storage=mock_storage_context())


def test_retried_trial_stays_in_its_bracket():
    """`on_trial_add` is called again when a trial is retried or restored."""
    np.random.seed(0)
    scheduler = AsyncHyperBandScheduler(
        metric="value", mode="max", max_t=81, reduction_factor=3, brackets=4
    )
    trials = [make_trial() for _ in range(10)]
    for trial in trials:
        scheduler.on_trial_add(None, trial)
    brackets = {t: scheduler._trial_info[t.trial_id] for t in trials}
    for trial in trials:
        scheduler.on_trial_add(None, trial)
    assert brackets == {t: scheduler._trial_info[t.trial_id] for t in trials}


def test_completed_trial_without_metric_is_forgotten():
    scheduler = AsyncHyperBandScheduler(metric="value", mode="max")
    trial = make_trial()
    scheduler.on_trial_add(None, trial)
    scheduler.on_trial_complete(None, trial, {"training_iteration": 1})
    assert trial.trial_id not in scheduler._trial_info


if __name__ == "__main__":
    import sys

    import pytest

    sys.exit(pytest.main(["-v", __file__]))
