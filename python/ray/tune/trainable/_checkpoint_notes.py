"""What a training function did with checkpoints, on its way to the driver.

It is noted in the session of the worker, and travels with the next result. The driver
takes it out before anybody sees the result. A worker that does not note anything, as
one on a node with stock Ray, is not judged.
"""

from typing import Any, Dict

from ray.train._internal.session import _TrainSession, get_session
from ray.tune.result import RESULT_DUPLICATE

CHECKPOINT_NOTES = "__checkpoint_notes__"

# The notes: whether a checkpoint was handed to the function that it has not asked
# for, and the callback by which it reports.
UNREAD = "unread"
CALLBACK = "callback"

_STATE = "checkpoint_notes"


def note_loaded(session: _TrainSession) -> None:
    """Note that there is a checkpoint for the function to ask for.

    Args:
        session: The session of the function.
    """
    _update(session, {UNREAD: True})


def note_read(session: _TrainSession) -> None:
    """Note that the function has asked for its checkpoint.

    Args:
        session: The session of the function.
    """
    if (session.get_state(_STATE) or {}).get(UNREAD):
        _update(session, {UNREAD: False})


def note_callback(library: str, setting: str) -> None:
    """Note by which callback of ``ray.tune.integration`` the function reports.

    Args:
        library: Name of the module of the callback.
        setting: The argument that says when it saves checkpoints, as written in code.
    """
    session, callback = get_session(), [library, setting]
    if session is None:
        return
    if (session.get_state(_STATE) or {}).get("sent") != callback:
        _update(session, {CALLBACK: callback})


def attach_notes(result: Dict[str, Any]) -> Dict[str, Any]:
    """Return a result with what was noted since the one before.

    Args:
        result: Result of a training function. It is not changed.

    Returns:
        The result itself, if nothing was noted.
    """
    session = get_session()
    noted = session and session.get_state(_STATE)
    if not noted or RESULT_DUPLICATE in result:
        return result
    notes = {key: noted[key] for key in (UNREAD, CALLBACK) if noted.get(key)}
    if not notes:
        return result
    session.set_state(_STATE, {"sent": notes.get(CALLBACK, noted.get("sent"))})
    return {**result, CHECKPOINT_NOTES: notes}


def detach_notes(result: Dict[str, Any]) -> Dict[str, Any]:
    """Take what was noted out of a result.

    Args:
        result: Result that has arrived at the driver.

    Returns:
        The notes.
    """
    return result.pop(CHECKPOINT_NOTES, None) or {}


def _update(session: _TrainSession, notes: Dict[str, Any]) -> None:
    session.set_state(_STATE, {**(session.get_state(_STATE) or {}), **notes})
