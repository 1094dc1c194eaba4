"""Stands in for Ray's helpers of controller tests, which no wheel has.

What is used of them, under their names: a controller whose actors never exist. Tests
call what an actor would.
"""

import itertools
import os

from ray.air.execution import FixedResourceManager
from ray.air.execution._internal import RayActorManager
from ray.air.execution._internal.tracked_actor import TrackedActor
from ray.train.tests.util import mock_storage_context
from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment import Trial
from ray.tune.utils.resource_updater import _ResourceUpdater

_numbers = itertools.count(1)


class _Budget(FixedResourceManager):
    """So many resources, of no cluster."""

    def __init__(self, total_resources):
        self._allow_strict_pack = True
        self._total_resources = dict(total_resources)
        self._requested_resources = []
        self._used_resources = []


class _BudgetUpdater(_ResourceUpdater):
    def __init__(self, budget):
        self._budget = budget

    def get_num_cpus(self):
        return self._budget._total_resources.get("CPU", 0)

    def get_num_gpus(self):
        return self._budget._total_resources.get("GPU", 0)

    def update_avail_resources(self, *args, **kwargs):
        return None


class _Recorder(RayActorManager):
    """Takes notes of what is asked for, and starts nothing."""

    def __init__(self, resource_manager):
        super().__init__(resource_manager=resource_manager)
        self.added_actors = []
        self.removed_actors = []
        self.scheduled_futures = []

    def add_actor(
        self,
        cls,
        kwargs,
        resource_request,
        *,
        on_start=None,
        on_stop=None,
        on_error=None,
    ):
        number = next(_numbers)
        actor = TrackedActor(
            number, on_start=on_start, on_stop=on_stop, on_error=on_error
        )
        self._live_actors_to_ray_actors_resources[actor] = (number,)
        self.added_actors.append((actor, cls, kwargs))
        return actor

    def remove_actor(self, tracked_actor, kill=False, stop_future=None):
        self.removed_actors.append(tracked_actor)

    def schedule_actor_task(
        self,
        tracked_actor,
        method_name,
        args=None,
        kwargs=None,
        on_result=None,
        on_error=None,
        _return_future=False,
    ):
        number = next(_numbers)
        self.scheduled_futures.append(
            (number, tracked_actor, method_name, args, kwargs, on_result, on_error)
        )
        return number

    @property
    def num_actor_tasks(self):
        return len(self.scheduled_futures)

    def get_live_actors_resources(self):
        return {}

    def next(self, timeout=None):
        return None


class _NameCache:
    def get(self, trainable_name):
        return trainable_name


class TestingTrial(Trial):
    """A trial whose trainable is a name."""

    __test__ = False

    def __init__(self, *args, **kwargs):
        kwargs.setdefault("storage", mock_storage_context())
        super().__init__(*args, **kwargs)

    def get_trainable_cls(self):
        return self.trainable_name

    def create_placement_group_factory(self):
        self.placement_group_factory = self._default_placement_group_factory

    def set_ray_actor(self, ray_actor):
        return None


def create_execution_test_objects(
    max_pending_trials=8,
    resources=None,
    reuse_actors=True,
    tune_controller_cls=TuneController,
    **kwargs,
):
    """Make a controller, its actor manager, and its resource manager."""
    os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(max_pending_trials)
    kwargs.setdefault("storage", mock_storage_context())
    controller = tune_controller_cls(reuse_actors=reuse_actors, **kwargs)
    budget = _Budget(resources or {"CPU": 4})
    recorder = _Recorder(budget)
    controller._actor_manager = recorder
    controller._class_cache = _NameCache()
    controller._resource_updater = _BudgetUpdater(budget)
    return controller, recorder, budget
