"""What is stored, and said, of a run that is stopped before all of it is done."""

import hashlib
import logging
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Dict, List, Optional

from ray import cloudpickle
from ray.tune.experiment import Trial
from ray.tune.result import DONE
from ray.tune.stopper import CombinedStopper, Stopper, TimeoutStopper

logger = logging.getLogger(__name__)


@dataclass
class StoppedRun:
    """A run as it was when it was stopped.

    Trials that are stopped with the whole experiment are neither finished nor failed,
    although their status says so, and the search algorithm and the scheduler are told
    so. A run that is restored goes on from here.

    Attributes:
        reason: Why the run was stopped, as a part of a sentence.
        statuses: The statuses of the unfinished trials, by trial id.
        state_files: The files of the search algorithm, the scheduler and the
            callbacks: their content by name.
    """

    reason: str
    statuses: Dict[str, str] = field(default_factory=dict)
    state_files: Dict[str, bytes] = field(default_factory=dict)

    @classmethod
    def capture(
        cls, reason: str, trials: List[Trial], save_states: Callable[[str], None]
    ) -> "StoppedRun":
        """Note how a run stands that is about to be stopped.

        Args:
            reason: Why it is stopped, as a part of a sentence.
            trials: All trials.
            save_states: Saves the states of the search algorithm, the scheduler and
                the callbacks to a folder.

        Returns:
            How it stands.
        """
        statuses = {
            trial.trial_id: (
                Trial.PAUSED if trial.status == Trial.PAUSED else Trial.PENDING
            )
            for trial in trials
            if not trial.is_finished()
        }
        with tempfile.TemporaryDirectory() as folder:
            save_states(folder)
            state_files = {
                path.relative_to(folder).as_posix(): path.read_bytes()
                for path in Path(folder).rglob("*")
                if path.is_file()
            }
        return cls(reason, statuses, state_files)

    def write_state_files(self, folder: str) -> None:
        """Write the states of the search algorithm, the scheduler and the callbacks.

        Args:
            folder: Where to.
        """
        for name, content in self.state_files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def take_up_stopped_trials(trials: List[Trial], statuses: Dict[str, str]) -> None:
    """Give restored trials back the statuses that they had when their run was stopped.

    Args:
        trials: The restored trials.
        statuses: Those of the trials that were unfinished, by trial id.
    """
    for trial in trials:
        status = statuses.get(trial.trial_id)
        if status is None or trial.status != Trial.TERMINATED:
            continue
        trial.set_status(status)
        if trial.run_metadata.last_result.get(DONE):
            trial.run_metadata.last_result = {
                **trial.run_metadata.last_result,
                DONE: False,
            }


def fingerprint_stopper(stopper: Stopper) -> Optional[str]:
    """Tell stoppers apart by how they were made.

    Args:
        stopper: Stopper that has not been used yet.

    Returns:
        A text that is the same for a stopper of the same class and arguments; None
        if that cannot be known.
    """
    try:
        state = cloudpickle.dumps(vars(stopper))
    except Exception as e:
        logger.debug(f"{type(stopper).__name__} cannot be pickled: {e}")
        return None
    name = f"{type(stopper).__module__}.{type(stopper).__qualname__}"
    return f"{name}:{hashlib.sha256(state).hexdigest()}"


def renew_time_budget(stopper: Stopper) -> None:
    """Give a time budget anew that is used up, as its run is meant to go on.

    Args:
        stopper: Stopper of a run that is restored.
    """
    if isinstance(stopper, CombinedStopper):
        for part in stopper._stoppers:
            renew_time_budget(part)
    elif isinstance(stopper, TimeoutStopper) and stopper._budget <= 0:
        stopper._budget = stopper._timeout_seconds


def describe_stopper(stopper: Stopper) -> str:
    """Name the stopper that has ended a run.

    Args:
        stopper: Stopper of the run.

    Returns:
        A part of a sentence.
    """
    if isinstance(stopper, CombinedStopper):
        named = [describe_stopper(part) for part in stopper._stoppers]
        return next((name for name in named if "time budget" in name), named[0])
    if isinstance(stopper, TimeoutStopper) and stopper._budget <= 0:
        return f"the time budget of {stopper._timeout_seconds:g} s"
    return f"the stopper `{type(stopper).__name__}`"


def describe_what_is_left(
    trials: List[Trial], total_samples: int, stopped: StoppedRun
) -> Optional[str]:
    """Say what was not tried to its end in a run that was stopped.

    Args:
        trials: All trials.
        total_samples: How many trials there were to be.
        stopped: How the run stood when it was stopped.

    Returns:
        A text, None if all trials were complete.
    """
    waiting = {trial.trial_id for trial in trials if not trial.has_started}
    unfinished = set(stopped.statuses) - waiting
    is_endless = total_samples >= sys.maxsize
    num_undrawn = 0 if is_endless else max(0, total_samples - len(trials))
    left = []
    if unfinished:
        left.append(f"{len(unfinished)} trial(s) were stopped before their end")
    if waiting:
        left.append(f"{len(waiting)} trial(s) were pending and have never started")
    if num_undrawn:
        left.append(f"{num_undrawn} trial(s) were never suggested")
    if not left:
        return None
    total = "" if is_endless else f" of {max(total_samples, len(trials))}"
    return (
        f"The run was ended by {stopped.reason}: {len(trials) - len(waiting)}{total} "
        f"trial(s) have started; {', '.join(left)}. A run that is restored goes on "
        f"with them."
    )
