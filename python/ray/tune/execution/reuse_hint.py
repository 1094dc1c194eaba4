"""Tells people who pause trials what it costs to do so without actor reuse."""

from typing import TYPE_CHECKING, Optional

from ray.tune.experiment import Trial
from ray.tune.trainable import FunctionTrainable

if TYPE_CHECKING:
    from ray.tune.schedulers import TrialScheduler


def get_reuse_hint(trial: Trial, scheduler: "TrialScheduler") -> Optional[str]:
    """Return what to say when a trial is paused without actor reuse.

    Args:
        trial: Trial that was paused.
        scheduler: Scheduler of the experiment.

    Returns:
        The message. None if there is nothing to say: class trainables support reuse
        only with a ``reset_config``, ``ResourceChangingScheduler`` does not support it,
        and ``tune.run`` warns of PBT by itself.
    """
    from ray.tune.schedulers import (
        PopulationBasedTraining,
        PopulationBasedTrainingReplay,
        ResourceChangingScheduler,
    )

    if isinstance(
        scheduler,
        (
            PopulationBasedTraining,
            PopulationBasedTrainingReplay,
            ResourceChangingScheduler,
        ),
    ):
        return None
    trainable_cls = trial.get_trainable_cls()
    if not isinstance(trainable_cls, type) or not issubclass(
        trainable_cls, FunctionTrainable
    ):
        return None
    return (
        f"{type(scheduler).__name__} pauses trials (the first is {trial}), and "
        "`reuse_actors` is not set. Each time that a trial is resumed, a new actor "
        "process is started for it, which takes seconds (imports included); with actor "
        "reuse it takes milliseconds. If your training function can be run again in "
        "the same process, set `tune.TuneConfig(reuse_actors=True)`."
    )
