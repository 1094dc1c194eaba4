"""Keeps the state of the scheduler with that of the experiment."""

import json
import logging
import os
import re
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from ray.tune.execution.stopped_run import take_up_stopped_trials
from ray.tune.experiment import Trial
from ray.tune.result import EXPR_RESULT_FILE, TRAINING_ITERATION
from ray.tune.schedulers import TrialScheduler
from ray.tune.utils import flatten_dict

logger = logging.getLogger(__name__)

# The name of the scheduler's class, and the session string.
_FILE_TMPL = "scheduler-state-{}-{}.pkl"


def _save_scheduler(scheduler: TrialScheduler, dirpath: str, session_str: str) -> bool:
    """Write the state of the scheduler to a directory, atomically.

    Args:
        scheduler: Scheduler whose ``save()`` is called.
        dirpath: Local directory to write to.
        session_str: Identifies the run, as in the names of the other states.

    Returns:
        False if the scheduler keeps no state, i.e. does not implement ``save()``.
    """
    name = type(scheduler).__name__
    path = Path(dirpath, _FILE_TMPL.format(name, session_str))
    unfinished_path = path.with_suffix(".tmp")
    try:
        scheduler.save(unfinished_path.as_posix())
        os.replace(unfinished_path, path)
    except NotImplementedError:
        return False
    finally:
        unfinished_path.unlink(missing_ok=True)
    return True


def _find_scheduler_state(dirpath: str) -> Optional[Tuple[str, str]]:
    """Find the newest state of a scheduler.

    Args:
        dirpath: Local directory to look in.

    Returns:
        The name of the scheduler's class and the path of its state, None if there is
        no state.
    """
    prefix, suffix = _FILE_TMPL.split("{}-{}")
    found = []
    for path in Path(dirpath).glob(_FILE_TMPL.format("*", "*")):
        name, session_str = path.name[len(prefix) : -len(suffix)].split("-", 1)
        # The session string is a date, so the newest one is the last.
        found.append((session_str, name, path.as_posix()))
    return max(found)[1:] if found else None


def _read_results(trial: Trial) -> List[Dict]:
    """Read what a trial has reported from its log.

    Args:
        trial: Trial with its storage.

    Returns:
        The flattened results in their order. Of a trial that has no log, there is just
        the last one.
    """
    results = []
    try:
        path = Path(trial.path, EXPR_RESULT_FILE).as_posix()
        with trial.storage.storage_filesystem.open_input_stream(path) as f:
            lines = f.readall().decode(errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        try:
            results.append(flatten_dict(json.loads(line)))
        except ValueError:
            # The driver died as it was written.
            logger.warning(f"Skipping a line of {path} that is not complete.")
    last = trial.run_metadata.last_result
    if last and not any(
        r.get(TRAINING_ITERATION) == last.get(TRAINING_ITERATION) for r in results[-2:]
    ):
        results.append(flatten_dict(last))
    return results


def _creation_order(trials: List[Trial]) -> List[Trial]:
    """Sort trials by the number that their tags begin with, if they all do."""
    numbers = {t: re.match(r"\d+", t.experiment_tag or "") for t in trials}
    if not all(numbers.values()):
        return trials
    return sorted(trials, key=lambda t: int(numbers[t].group()))


def _restore_scheduler(
    scheduler: TrialScheduler,
    dirpath: str,
    trials: List[Trial],
    arguments: Optional[Dict[str, Any]] = None,
) -> bool:
    """Restore the scheduler from the newest state in a directory.

    Args:
        scheduler: Scheduler whose ``restore()`` is called. If there is no state of a
            scheduler of its class, its ``restore_from_results()`` is.
        dirpath: Local directory that a state may have been written to.
        trials: Trials of the experiment.
        arguments: Arguments of the scheduler that are others than in its state.

    Returns:
        Whether the scheduler knows what the paused trials wait for.
    """
    name = type(scheduler).__name__
    saved_name, path = _find_scheduler_state(dirpath) or (None, None)
    if saved_name not in (None, name):
        logger.warning(
            f"The run was begun with {saved_name}, and is resumed with {name}, which "
            f"starts from what the trials have reported."
        )
    if saved_name != name:
        return scheduler.restore_from_results(_creation_order(trials), _read_results)
    try:
        scheduler.restore(path)
    except NotImplementedError:
        return False
    except Exception:
        logger.exception(
            f"The state of {name} could not be restored. The scheduler starts from "
            f"what the trials have reported."
        )
        return scheduler.restore_from_results(_creation_order(trials), _read_results)
    if arguments:
        logger.info(f"The run is resumed with other arguments of {name}: {arguments}")
        scheduler.change_arguments(arguments)
        ended = [t for t in trials if t.is_finished() and scheduler.goes_on(t)]
        take_up_stopped_trials(trials, {t.trial_id: Trial.PAUSED for t in ended})
    return True
