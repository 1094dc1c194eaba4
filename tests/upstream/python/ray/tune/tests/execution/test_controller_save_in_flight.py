import pytest

from ray.tune.experiment import Trial
from ray.tune.tests.execution.utils import TestingTrial, create_execution_test_objects


@pytest.fixture
def started():
    """A controller with a trial that has started, and its actor manager."""
    controller, actor_manager, _ = create_execution_test_objects()
    trial = TestingTrial("trainable", stub=True)
    controller.add_trial(trial)
    controller.step()
    tracked_actor, _, _ = actor_manager.added_actors[0]
    controller._actor_started(tracked_actor)
    assert trial.status == Trial.RUNNING
    return controller, actor_manager, trial


def num_saves(actor_manager):
    return [future[2] for future in actor_manager.scheduled_futures].count("save")


def test_second_save_is_the_one_in_flight(started):
    controller, actor_manager, trial = started
    first = controller._schedule_trial_save(trial)
    second = controller._schedule_trial_save(trial)
    assert first is second
    assert num_saves(actor_manager) == 1


def test_pause_uses_the_save_in_flight(started):
    controller, actor_manager, trial = started
    controller._schedule_trial_save(trial)
    controller.pause_trial(trial)
    assert num_saves(actor_manager) == 1


if __name__ == "__main__":
    import sys

    import pytest

    sys.exit(pytest.main(["-v", __file__]))
