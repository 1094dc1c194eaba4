"""What the invariants read of Ray that is private to it, each by a name of its own.

Stock Ray and the patched build are told apart by what they have, and an object that
looks like neither raises :class:`UnknownShape`: a name that changes in Ray breaks here,
loudly, and nowhere else.
"""

from fractions import Fraction
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from ..core.builds import ASHA_V2, is_whole
from ..core.observe import HasModel
from ray.tune.experiment import Trial
from ray.tune.search import ConcurrencyLimiter, Searcher, SearchGenerator
from ray.tune.search.optuna import OptunaSearch


class UnknownShape(TypeError):
    """An object of Ray has not what an invariant reads of it.

    Args:
        thing: The object.
        wanted: What it should have.
    """

    def __init__(self, thing: Any, wanted: str):
        super().__init__(
            f"{type(thing).__module__}.{type(thing).__name__} has no {wanted}: mend "
            f"what reads it in {__name__}, or the invariant is blind."
        )


def _read(thing: Any, name: str) -> Any:
    try:
        return getattr(thing, name)
    except AttributeError:
        raise UnknownShape(thing, name) from None


# The controller


def trial_to_actor(controller) -> Dict[Trial, Any]:
    """Return the actor that each trial holds, or has asked for."""
    return _read(controller, "_trial_to_actor")


def actor_to_trial(controller) -> Dict[Any, Trial]:
    """Return the trial of each actor."""
    return _read(controller, "_actor_to_trial")


def is_actor_started(controller, actor) -> bool:
    """Whether an actor runs."""
    return _read(controller, "_actor_manager").is_actor_started(actor)


def num_pending_actors(controller) -> int:
    """Return how many actors are asked for."""
    return _read(_read(controller, "_actor_manager"), "num_pending_actors")


def num_actors(controller) -> int:
    """Return how many actors there are."""
    return _read(_read(controller, "_actor_manager"), "num_total_actors")


def num_idle_actors(controller) -> int:
    """Return how many actors are kept to be reused."""
    return _read(_read(controller, "_actor_cache"), "num_cached_objects")


def tasks(controller) -> List:
    """Return the futures of tasks that are waited for."""
    events = _read(_read(controller, "_actor_manager"), "_actor_task_events")
    return sorted(events.get_futures())


def decisions_that_stand(controller) -> List[Tuple[str, str, str]]:
    """Return the decisions that were not carried out yet.

    Returns:
        ``(where, trial id, decision)`` of each.
    """
    return [
        (name, trial_id, decision)
        for name in ("_cached_trial_decisions", "_queued_trial_decisions")
        for trial_id, decision in _read(controller, name).items()
    ]


def callbacks(controller) -> List:
    """Return the callbacks of the run."""
    return _read(_read(controller, "_callbacks"), "_callbacks")


def fails_fast(controller) -> bool:
    """Whether the first failure ends the run."""
    return bool(_read(controller, "_fail_fast"))


def stopper_ends_all(controller) -> bool:
    """Whether the user's stopper ends the run now."""
    return _read(controller, "_stopper").stop_all()


def searcher(controller) -> Tuple[Optional[Searcher], bool]:
    """Return the searcher, without what limits it.

    Returns:
        The searcher, and whether it is limited. The searcher is None for a search
        algorithm, and where a limiter waits for a batch to be complete before it tells
        the searcher.
    """
    found, is_limited = controller.search_alg, False
    if not isinstance(found, SearchGenerator):
        return None, False
    found = found.searcher
    while isinstance(found, ConcurrencyLimiter):
        if found.batch:
            return None, True
        found, is_limited = found.searcher, True
    return found, is_limited


def model_of(searcher: Optional[Searcher]) -> Optional[Dict[float, List[float]]]:
    """Return what a searcher's model knows, where that can be looked up.

    Args:
        searcher: The searcher.

    Returns:
        The scores that it has for each value of its parameter ``x``. None if it has no
        such parameter, or says nothing of them.
    """
    if not isinstance(searcher, OptunaSearch):
        return searcher.model() if isinstance(searcher, HasModel) else None
    paused = vars(searcher).get("_observations", {})  # not so on stock Ray
    found: Dict[float, List[float]] = {}
    for trial in _read(searcher, "_ot_study").get_trials(deepcopy=False):
        if "x" not in trial.params:
            return None
        values = trial.values
        if trial.number in paused:
            values = [*paused[trial.number].values, *(values or ())]
        if values:
            found.setdefault(trial.params["x"], []).extend(values)
    return found


# Trials


def pins_of(trial: Trial) -> Optional[str]:
    """Say what keeps a checkpoint of a trial from being deleted, or of which it does.

    Stock Ray has nothing of the kind.

    Args:
        trial: The trial.

    Returns:
        What is left, or None.
    """
    state = vars(trial.temporary_state)
    for name in ("checkpoint_pins", "source_trial"):
        if name not in state:
            if is_whole():
                raise UnknownShape(trial.temporary_state, name)
            return None
    if state["checkpoint_pins"]:
        return "a checkpoint of it is still pinned"
    if state["source_trial"] is not None:
        return "it still pins a checkpoint"
    return None


# Schedulers


def base_of(scheduler):
    """Return the scheduler below a ``ResourceChangingScheduler``, or itself."""
    return vars(scheduler).get("_base_scheduler", scheduler)


def asha_bracket(scheduler, trial_id: str) -> Optional[int]:
    """Return the number of the bracket of ASHA that a trial is in.

    Args:
        scheduler: An ``AsyncHyperBandScheduler``.
        trial_id: The trial.

    Returns:
        The number; None if the trial is in none.
    """
    bracket = _read(scheduler, "_trial_info").get(trial_id)
    if bracket is None:
        return None
    return _read(scheduler, "_brackets").index(bracket)


def hyperband_brackets(scheduler) -> List:
    """Return the brackets of HyperBand that have been made."""
    return [b for band in _read(scheduler, "_hyperbands") for b in band if b]


def bracket_trials(bracket) -> List[Trial]:
    """Return the trials that are left in a bracket of HyperBand."""
    return _read(bracket, "current_trials")()


def bracket_size(bracket) -> int:
    """Return how many trials there have been in a bracket of HyperBand."""
    parts = vars(bracket)
    if "_all_trials" in parts:  # stock
        return len(parts["_all_trials"])
    if "_trials" in parts:
        return len(parts["_trials"])
    raise UnknownShape(bracket, "_all_trials or _trials")


def bracket_waits_for_nobody(bracket, search_goes_on: bool) -> bool:
    """Whether a bracket is at its milestone, and lets nobody go on from it.

    Args:
        bracket: A bracket of HyperBand.
        search_goes_on: Whether the searcher may still suggest trials, for which a
            bracket waits that is not filled.
    """
    if search_goes_on and not _read(bracket, "filled")():
        return False
    return not _read(bracket, "trials_to_unpause") and _read(bracket, "cur_iter_done")()


class AshaV2Rules(NamedTuple):
    """What one instance of ``ASHAv2`` was told to do.

    Args:
        time_attr: The key of the time.
        metric: The key of the score.
        mode: ``"min"`` or ``"max"``.
        max_t: The time at which a trial ends.
        reduction_factor: One trial of so many goes on from a rung.
        milestones: Those of each bracket.
    """

    time_attr: str
    metric: str
    mode: str
    max_t: float
    reduction_factor: Fraction
    milestones: List[List]


def is_asha_v2(scheduler) -> bool:
    """Whether a scheduler is ``ASHAv2``, or derived from it."""
    return ASHA_V2 is not None and isinstance(scheduler, ASHA_V2)


def asha_v2_rules(scheduler) -> AshaV2Rules:
    """Return what an ``ASHAv2`` was told to do."""
    brackets = _read(_read(scheduler, "_ladder"), "brackets")
    factors = {_read(r, "reduction_factor") for b in brackets for r in b.rungs}
    # Without any rung there is nothing to promote.
    factor = Fraction(str(factors.pop())) if factors else Fraction(1)
    return AshaV2Rules(
        _read(scheduler, "_time_attr"),
        _read(scheduler, "_metric"),
        _read(scheduler, "_mode"),
        _read(scheduler, "_max_t"),
        factor,
        [[rung.milestone for rung in bracket.rungs] for bracket in brackets],
    )


def asha_v2_bracket(scheduler, trial_id: str) -> int:
    """Return the number of the bracket of ``ASHAv2`` that a trial is in."""
    return _read(_read(scheduler, "_ladder"), "bracket_of")(trial_id)


def explored_space(scheduler) -> Tuple[Dict, bool]:
    """Return the space that a population explores.

    Args:
        scheduler: PBT or PB2.

    Returns:
        The space, and whether it consists of PB2's bounds.
    """
    # PB2 is not imported, since it needs libraries that not everybody has.
    if any(cls.__name__ == "PB2" for cls in type(scheduler).__mro__):
        return _read(scheduler, "_hyperparam_bounds"), True
    return _read(scheduler, "_hyperparam_mutations"), False


def logs_policy(scheduler) -> bool:
    """Whether a population writes the policy of each trial to a file."""
    return _read(scheduler, "_log_config")


def replayed_policy(scheduler) -> List[Tuple[int, Dict]]:
    """Return ``(step, config)`` of each change that a replay makes."""
    return _read(scheduler, "_policy")


def is_resuming(scheduler, trial: Trial) -> bool:
    """Whether a ``ResourceChangingScheduler`` is going to resume a paused trial.

    Stock Ray's resumes each that it has paused.

    Args:
        scheduler: The scheduler.
        trial: The trial.

    Returns:
        Whether it is.
    """
    if "is_resuming" in dir(type(scheduler)):
        return scheduler.is_resuming(trial)
    if is_whole():
        raise UnknownShape(scheduler, "is_resuming")
    return True


def as_number(value: Any) -> Optional[float]:
    """Return a value as schedulers take it.

    Args:
        value: What a trainable has reported.

    Returns:
        The number; None if it is not a number, as None and NaN are not.
    """
    try:
        number = float(value)
    except Exception:  # A tensor raises a RuntimeError, 10**400 an OverflowError.
        return None
    return number if number == number else None
