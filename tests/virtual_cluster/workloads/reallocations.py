"""Resources that change: by what can be written in a scenario."""

from typing import Dict, Union

from ray.tune import PlacementGroupFactory, schedulers

SIZES = (1, 2, 3, 4, 5)
ONE_BUNDLE = {n: PlacementGroupFactory([{"CPU": n}]) for n in SIZES}


def alternating(controller, trial, result, scheduler) -> PlacementGroupFactory:
    """Give a trial one and two CPUs in turn, two iterations each.

    Args:
        controller: The controller.
        trial: The trial.
        result: Its result.
        scheduler: The scheduler.

    Returns:
        What it is to have.
    """
    iteration = result.get("training_iteration", 0)
    number = int(trial.trial_id[-1], 16) if trial.trial_id else 0
    return ONE_BUNDLE[1 + (iteration // 2 + number) % 2]


class Sizes:
    """Gives a trial after each iteration as many CPUs as a list says, over and over.

    Args:
        *sizes: The numbers of CPUs; 0 for what it has.
        spread: Whether each CPU is a bundle of its own.
        as_dict: Whether what a trial is to have is a dictionary, as of old.
    """

    def __init__(self, *sizes: int, spread: bool = False, as_dict: bool = False):
        self.sizes = sizes
        self.spread = spread
        self.as_dict = as_dict

    def __call__(
        self, controller, trial, result, scheduler
    ) -> Union[None, Dict, PlacementGroupFactory]:
        size = self.sizes[result.get("training_iteration", 0) % len(self.sizes)]
        if not size:
            return None
        # Equal by value to others, but not the same.
        if self.as_dict:
            return {"cpu": size}
        if self.spread:
            return PlacementGroupFactory([{"CPU": 1}] * size)
        return PlacementGroupFactory([{"CPU": size}])


class Reallocating(schedulers.ResourceChangingScheduler):
    """A ``ResourceChangingScheduler`` that remembers what each trial is due."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.due: Dict[str, object] = {}

    def reallocate_trial_resources_if_needed(self, tune_controller, trial, result):
        new_resources = super().reallocate_trial_resources_if_needed(
            tune_controller, trial, result
        )
        self.due[trial.trial_id] = new_resources
        return new_resources


def reallocating(base=None, allocate=alternating) -> Reallocating:
    """Make a ``ResourceChangingScheduler``.

    Args:
        base: The scheduler below it; FIFO if None.
        allocate: Its allocation function.

    Returns:
        The scheduler.
    """
    return Reallocating(base_scheduler=base, resources_allocation_function=allocate)
