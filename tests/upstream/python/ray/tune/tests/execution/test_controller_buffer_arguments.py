import inspect

from ray.tune.tests.execution.utils import TestingTrial, create_execution_test_objects
from ray.tune.trainable import Trainable


def test_buffer_time_and_length_reach_the_trainable(monkeypatch):
    """The length is the number of results, the time is in seconds."""
    monkeypatch.setenv("TUNE_RESULT_BUFFER_LENGTH", "4")
    monkeypatch.setenv("TUNE_RESULT_BUFFER_MIN_TIME_S", "100")
    controller, actor_manager, _ = create_execution_test_objects()
    controller.add_trial(TestingTrial("trainable", stub=True))
    controller.step()
    tracked_actor, _, _ = actor_manager.added_actors[0]
    controller._actor_started(tracked_actor)

    _, _, method_name, args, kwargs, _, _ = actor_manager.scheduled_futures[-1]
    assert method_name == "train_buffered"
    signature = inspect.signature(Trainable.train_buffered)
    arguments = signature.bind(None, *args, **(kwargs or {})).arguments
    assert arguments["max_buffer_length"] == 4
    assert arguments["buffer_time_s"] == 100


if __name__ == "__main__":
    import sys

    import pytest

    sys.exit(pytest.main(["-v", __file__]))
