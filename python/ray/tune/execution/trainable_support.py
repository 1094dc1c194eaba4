"""Says what a trainable class implements, before any actor of it has started."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict

from ray.tune.trainable import Trainable

if TYPE_CHECKING:
    from ray.tune.experiment import Trial
    from ray.tune.schedulers import TrialScheduler


@dataclass(frozen=True)
class TrainableSupport:
    """What the actors of a trainable can do.

    Attributes:
        reset: Whether one may be reset for another trial.
        save: Whether one can save its state when its trial pauses.
        load: Whether one can go on from a saved state.
    """

    reset: bool
    save: bool
    load: bool

    @property
    def pause(self) -> bool:
        """Whether a trial can go on where it was when it paused."""
        return self.save and self.load


_EVERYTHING = TrainableSupport(reset=True, save=True, load=True)


def get_trainable_support(trainable_cls: Any) -> TrainableSupport:
    """Return what a trainable class implements.

    Args:
        trainable_cls: The class. Of anything else, nothing is known.

    Returns:
        What it implements; everything, where that cannot be told. A method that is
        implemented may still fail.
    """
    if not isinstance(trainable_cls, type) or not issubclass(trainable_cls, Trainable):
        return _EVERYTHING

    def implements(*methods: str) -> bool:
        return any(
            getattr(trainable_cls, method) is not getattr(Trainable, method)
            for method in methods
        )

    return TrainableSupport(
        reset=implements("reset", "reset_config"),
        save=implements("save", "save_checkpoint"),
        load=implements("restore", "load_checkpoint"),
    )


class TrainableSupports:
    """What the trainables of an experiment implement; each is looked at once."""

    def __init__(self):
        self._by_name: Dict[str, TrainableSupport] = {}

    def get(self, trial: "Trial") -> TrainableSupport:
        """Return what the trainable of a trial implements.

        Args:
            trial: Any trial.

        Returns:
            What was found out of its class.
        """
        name = trial.trainable_name
        if name not in self._by_name:
            self._by_name[name] = get_trainable_support(trial.get_trainable_cls())
        return self._by_name[name]


def does_pause(scheduler: "TrialScheduler") -> bool:
    """Return whether a scheduler is one of Tune's that pause trials and resume them.

    Args:
        scheduler: Scheduler of the experiment.

    Returns:
        False also for a scheduler of which nothing is known.
    """
    from ray.tune.schedulers import (
        ASHAv2,
        HyperBandScheduler,
        PopulationBasedTraining,
        PopulationBasedTrainingReplay,
        ResourceChangingScheduler,
    )

    return isinstance(
        scheduler,
        (
            ASHAv2,
            HyperBandScheduler,
            PopulationBasedTraining,
            PopulationBasedTrainingReplay,
            ResourceChangingScheduler,
        ),
    )
