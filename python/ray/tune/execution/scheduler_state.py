"""Keeps the state of the scheduler with that of the experiment."""

import os
from pathlib import Path
from typing import Optional, Tuple

from ray.tune.schedulers import TrialScheduler

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


def _restore_scheduler(scheduler: TrialScheduler, dirpath: str) -> bool:
    """Restore the scheduler from the newest state in a directory.

    Args:
        scheduler: Scheduler whose ``restore()`` is called.
        dirpath: Local directory that a state may have been written to.

    Returns:
        False if there is no state, or if the scheduler does not restore any.

    Raises:
        ValueError: If the newest state is that of another class of scheduler.
    """
    found = _find_scheduler_state(dirpath)
    if found is None:
        return False
    saved_name, path = found
    name = type(scheduler).__name__
    if saved_name != name:
        raise ValueError(
            f"The run was saved with {saved_name}, but is restored with {name}. Pass "
            f"the same scheduler to go on with its state."
        )
    try:
        scheduler.restore(path)
    except NotImplementedError:
        return False
    return True
