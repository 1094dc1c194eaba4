"""Remembers which idle actor still holds the state of which paused trial."""

from dataclasses import dataclass
from typing import Any, Dict, Optional

from ray.air.execution._internal import TrackedActor
from ray.tune.experiment import Trial
from ray.tune.result import TRAINING_ITERATION


@dataclass
class _State:
    """What an actor was doing when its trial paused."""

    tracked_actor: TrackedActor
    config: Dict[str, Any]
    tag: Optional[str]
    checkpoint: Any

    def is_state_of(self, trial: Trial) -> bool:
        """Return whether nobody has changed what the trial is to go on with."""
        return (
            self.tag == trial.experiment_tag
            and self.checkpoint is trial.latest_checkpoint_result
            and self.config.keys() == trial.config.keys()
            and all(self.config[key] is trial.config[key] for key in self.config)
        )


def _is_saved(trial: Trial) -> bool:
    """Return whether the last checkpoint of a trial is from its last result."""
    saved, reported = trial.latest_checkpoint_result, trial.run_metadata.last_result
    return bool(
        saved
        and reported
        and saved.metrics.get(TRAINING_ITERATION) == reported.get(TRAINING_ITERATION)
    )


class PausedActors:
    """Idle actors that hold the state of a paused trial.

    A trial that gets its own actor back needs no reset and no restore, if what it has
    trained is in its checkpoint, and unless someone gave it another config or another
    checkpoint meanwhile, as PBT does.
    """

    def __init__(self):
        self._states: Dict[Trial, _State] = {}
        self._trials: Dict[TrackedActor, Trial] = {}

    def add(self, trial: Trial, tracked_actor: TrackedActor) -> None:
        """Note that an idle actor holds the state of a trial.

        Args:
            trial: Trial that pauses.
            tracked_actor: Its actor, with no task in flight.
        """
        self.forget(trial)
        if not _is_saved(trial):
            # Whether actors are reused is not to change what a trial goes on from.
            return
        self._states[trial] = _State(
            tracked_actor=tracked_actor,
            config=dict(trial.config),
            tag=trial.experiment_tag,
            checkpoint=trial.latest_checkpoint_result,
        )
        self._trials[tracked_actor] = trial

    def get(self, trial: Trial) -> Optional[TrackedActor]:
        """Return the actor that holds the state of a trial.

        Args:
            trial: Paused trial.

        Returns:
            The actor, or None.
        """
        state = self._states.get(trial)
        return state and state.tracked_actor

    def discard(self, tracked_actor: TrackedActor) -> None:
        """Note that an actor is used for something else, or gone.

        Args:
            tracked_actor: Any actor.
        """
        trial = self._trials.pop(tracked_actor, None)
        if trial is not None:
            del self._states[trial]

    def forget(self, trial: Trial) -> None:
        """Note that a trial is not to go on in place.

        Args:
            trial: Any trial.
        """
        state = self._states.get(trial)
        if state is not None:
            self.discard(state.tracked_actor)

    def use(self, trial: Trial, tracked_actor: TrackedActor) -> bool:
        """Use an actor for a trial.

        Args:
            trial: Trial that starts.
            tracked_actor: Actor that it starts on.

        Returns:
            True if the trial can go on where it was, without a reset.
        """
        state = self._states.get(trial)
        in_place = (
            state is not None
            and state.tracked_actor == tracked_actor
            and state.is_state_of(trial)
        )
        self.discard(tracked_actor)
        return in_place
