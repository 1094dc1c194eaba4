import pytest

from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler
from ray.tune.tests.execution.utils import TestingTrial, create_execution_test_objects


@pytest.fixture
def saving():
    """A controller with a trial that saves, and is to be stopped after that."""
    controller, actor_manager, _ = create_execution_test_objects()
    trial = TestingTrial("trainable", stub=True)
    controller.add_trial(trial)
    controller.step()
    tracked_actor, _, _ = actor_manager.added_actors[0]
    controller._actor_started(tracked_actor)
    controller._schedule_trial_save(trial)
    controller._cached_trial_decisions[trial.trial_id] = TrialScheduler.STOP
    return controller, trial


def test_stop_outlives_a_pause_from_outside(saving):
    controller, trial = saving
    controller.pause_trial(trial)
    assert controller._cached_trial_decisions[trial.trial_id] == TrialScheduler.STOP


def test_decisions_do_not_outlive_a_pause_without_checkpoint(saving):
    controller, trial = saving
    del controller._cached_trial_decisions[trial.trial_id]
    controller._cached_trial_decisions[trial.trial_id] = TrialScheduler.CONTINUE
    controller.pause_trial(trial, should_checkpoint=False)
    assert trial.status == Trial.PAUSED
    assert trial.trial_id not in controller._cached_trial_decisions
    assert not trial.is_saving


if __name__ == "__main__":
    import sys

    import pytest

    sys.exit(pytest.main(["-v", __file__]))
