"""Which build of Ray runs: stock, ours, or ours with patches taken out."""

from ray.tune import schedulers

PATCHED = hasattr(schedulers, "ASHAv2")
ASHA_V2 = schedulers.ASHAv2 if PATCHED else None

_partial = False


def set_partial() -> None:
    """Say that this is our build without some of its patches.

    What it has of private names may then be stock's.
    """
    global _partial
    _partial = True


def is_whole() -> bool:
    """Whether this is our build with all of its patches."""
    return PATCHED and not _partial
