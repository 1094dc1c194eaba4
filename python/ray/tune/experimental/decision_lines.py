"""The lines by which a reporter tells what was decided for a trial."""

from typing import Any, Dict, Optional


def describe_decision(trial: Any, entry: Dict[str, Any]) -> Optional[str]:
    """Return the line for an entry of the log of decisions.

    Args:
        trial: The trial.
        entry: The entry, see :class:`ray.tune.execution.decision_log.DecisionLog`.

    Returns:
        None for an entry that is told otherwise, or to nobody.
    """
    action, rung = entry["action"], entry.get("rung")
    done = f"after {entry['iteration']} iterations"
    at = done if rung is None else f"at milestone {rung:g}"
    if action == "pause":
        text = f"paused {at}"
    elif action == "promote" and rung is not None:
        text = f"promoted from milestone {rung:g}"
    elif action == "promote":
        text = f"resumed {done}"
    elif action == "go_on":
        text = f"promoted in place, past milestone {rung:g}"
    elif action == "stop" and rung is not None:
        text = f"stopped {at}"
    else:
        return None
    known = [
        f"{key} {entry[key]:.6g}" if isinstance(entry[key], float) else None
        for key in ("score", "cutoff")
        if key in entry and rung is not None
    ]
    known = [item for item in known if item]
    if action != "pause" and entry.get("why"):
        known.append(str(entry["why"]))
    details = f" ({', '.join(known)})" if known else ""
    return f"Trial {trial} {text}{details}."
