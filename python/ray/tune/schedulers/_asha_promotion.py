"""Which promotion ASHAv2 uses where the user asks for none."""

from typing import NamedTuple, Optional, Union

DEFERRED = "deferred"
EAGER = "eager"

UNTOLD = (
    "promotion='deferred' promotes no trial before the last sample is drawn, and the "
    "search algorithm ({name}) does not learn from trials that are only paused: it "
    "samples next to at random. Leave out `promotion`, or pass promotion='eager', or "
    "use a search algorithm that learns from them, such as OptunaSearch. A search "
    "algorithm of your own can do so in `on_trial_pause`, and says so by "
    "`learns_from_pauses = True`. (Said once.)"
)


class Promotion(NamedTuple):
    """A choice.

    Args:
        name: ``"deferred"`` or ``"eager"``.
        why: Why, None if it was asked for.
    """

    name: str
    why: Optional[str]

    def __str__(self) -> str:
        why = f" ({self.why})" if self.why else ""
        return f"promotion={self.name}{why}"


def choose_promotion(
    asked: Optional[str],
    num_samples: Optional[int],
    is_endless: bool,
    time_budget_s: Union[int, float, None],
    learns_from_pauses: Optional[bool],
) -> Promotion:
    """Choose what runs next: new trials, or promoted ones.

    Deferred may never promote where the search has no known end. A search algorithm
    that learns only from trials that have ended would learn from the worst ones only.

    Args:
        asked: What the user asks for, if anything.
        num_samples: Number of samples, None if it is not known.
        is_endless: Whether there is no end to them.
        time_budget_s: Time budget of the search, in seconds.
        learns_from_pauses: Whether the search algorithm learns from paused trials. None
            if it learns from none, or there is none.

    Returns:
        The choice.
    """
    if asked is not None:
        return Promotion(asked, None)
    if num_samples is None:
        length = "endless search" if is_endless else "search of unknown length"
        return Promotion(EAGER, length)
    if time_budget_s:
        return Promotion(EAGER, f"time budget of {time_budget_s} s")
    if learns_from_pauses is False:
        return Promotion(EAGER, "the search algorithm does not learn from pauses")
    why = f"{num_samples} samples, no time budget"
    if learns_from_pauses:
        why += ", the search algorithm learns from pauses"
    return Promotion(DEFERRED, why)
