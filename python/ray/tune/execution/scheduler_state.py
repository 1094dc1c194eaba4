"""Keeps the state of the scheduler with that of the experiment."""

import os
from pathlib import Path
from typing import Optional

from ray.tune.schedulers import TrialScheduler

_FILE_TMPL = "scheduler-state-{}.pkl"


def _save_scheduler(scheduler: TrialScheduler, dirpath: str, session_str: str) -> bool:
    """Write the state of the scheduler to a directory, atomically.

    Args:
        scheduler: Scheduler whose ``save()`` is called.
        dirpath: Local directory to write to.
        session_str: Identifies the run, as in the names of the other states.

    Returns:
        False if the scheduler keeps no state, i.e. does not implement ``save()``.
    """
    path = Path(dirpath, _FILE_TMPL.format(session_str))
    unfinished_path = path.with_suffix(".tmp")
    try:
        scheduler.save(unfinished_path.as_posix())
        os.replace(unfinished_path, path)
    except NotImplementedError:
        return False
    finally:
        unfinished_path.unlink(missing_ok=True)
    return True


def _find_scheduler_state(dirpath: str) -> Optional[str]:
    """Return the path of the newest state of a scheduler, None if there is none.

    Args:
        dirpath: Local directory to look in.
    """
    # The session string is a date, so the newest one is the last by name.
    paths = sorted(Path(dirpath).glob(_FILE_TMPL.format("*")))
    return paths[-1].as_posix() if paths else None


def _restore_scheduler(scheduler: TrialScheduler, dirpath: str) -> bool:
    """Restore the scheduler from the newest state in a directory.

    Args:
        scheduler: Scheduler whose ``restore()`` is called.
        dirpath: Local directory that a state may have been written to.

    Returns:
        False if there is no state, or if the scheduler does not restore any.
    """
    path = _find_scheduler_state(dirpath)
    if path is None:
        return False
    try:
        scheduler.restore(path)
    except NotImplementedError:
        return False
    return True
