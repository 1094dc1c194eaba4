"""How a scheduler says what it has decided, and why."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.tune.execution.tune_controller import TuneController
    from ray.tune.experiment import Trial


def note_decision(
    tune_controller: "TuneController", trial: "Trial", action: str, **details: Any
) -> None:
    """Say what was decided for a trial, for the log of decisions.

    Args:
        tune_controller: The controller that was passed to the hook.
        trial: The trial.
        action: ``pause``, ``promote``, ``stop``, ``go_on`` or ``exploit``.
        **details: Some of ``why`` (a text), ``rung`` (the milestone at which the trial
            is), ``score`` (of the trial there), ``cutoff`` (the score that it takes to
            go on), ``bracket`` (its number).
    """
    note = getattr(tune_controller, "note_decision", None)
    if note is not None:
        note(trial, action, **details)
