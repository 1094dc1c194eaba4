"""Decides whether actors are worth resetting, and tells people how to reuse them."""

from typing import TYPE_CHECKING, Any, Optional

from ray.tune.experiment import Trial
from ray.tune.trainable import FunctionTrainable

if TYPE_CHECKING:
    from ray.tune.schedulers import TrialScheduler


# So many more resets than worked have to be refused before no more are tried.
MAX_REFUSED_RESETS = 3


class ResetRecord:
    """How many resets of the actors of a trainable have worked so far."""

    def __init__(self):
        self._balance = 0

    def add(self, worked: bool) -> None:
        """Count a reset.

        Args:
            worked: Whether the actor could be reset.
        """
        self._balance += 1 if worked else -1

    @property
    def is_worthwhile(self) -> bool:
        """Whether to try again. One that is refused costs time, and gains nothing."""
        return self._balance > -MAX_REFUSED_RESETS


def describe_missing_reset(trainable_cls: Any) -> str:
    """Return what to say of a class whose actors can never be reset.

    Args:
        trainable_cls: Trainable class that implements no ``reset_config``.

    Returns:
        The message.
    """
    return (
        f"`reuse_actors=True` has no effect: {trainable_cls.__name__} does not "
        "implement `reset_config()`, so that a new actor process is started for each "
        "trial. To reuse actors, implement `reset_config(new_config)`: apply the "
        "config, and return True."
    )


def describe_refused_reset(
    trial: Trial, trainable_cls: Any, exception: Optional[Exception] = None
) -> str:
    """Return what to say when the actor of one trial could not be reset for another.

    Args:
        trial: Trial that was to get the actor.
        trainable_cls: Its trainable class.
        exception: What the reset has raised, if it has.

    Returns:
        The message, with how to make reuse work.
    """
    if exception is not None:
        cause = getattr(exception, "cause", None) or exception
        reason = f"`reset_config()` has raised {type(cause).__name__}: {cause}"
        remedy = (
            "To reuse actors, mend `reset_config()`. If a config cannot be applied to "
            "a running actor, have it return False."
        )
    elif isinstance(trainable_cls, type) and issubclass(
        trainable_cls, FunctionTrainable
    ):
        reason = "the training function of the trial before had not returned in time"
        remedy = (
            "To reuse actors, let the function return soon after it was stopped in "
            "`tune.report()`, or give it longer: set the environment variable "
            "TUNE_FUNCTION_THREAD_TIMEOUT_S (2 seconds by default) on the workers."
        )
    else:
        reason = "`reset_config()` has not returned True"
        remedy = (
            "To reuse actors, have `reset_config(new_config)` apply the config and "
            "return True."
        )
    return (
        f"An actor could not be reset for trial {trial}: {reason}. The trial starts on "
        f"a new actor; this does not count as a failure of the trial. {remedy} "
        "Otherwise set `reuse_actors=False`."
    )


def get_reuse_hint(trial: Trial, scheduler: "TrialScheduler") -> Optional[str]:
    """Return what to say when a trial is paused without actor reuse.

    Args:
        trial: Trial that was paused.
        scheduler: Scheduler of the experiment.

    Returns:
        The message. None if there is nothing to say: class trainables support reuse
        only with a ``reset_config``, ``ResourceChangingScheduler`` does not support it,
        and ``tune.run`` warns of PBT on its own.
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
