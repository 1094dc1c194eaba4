"""Checks the order of starts of a run against successive halving by promotion.

In the runs that are checked nothing but training takes time, so that a trial that is
given a slot runs at the moment at which that is decided.

This knows nothing of the scheduler. It reads what happened in a run, and keeps the
records of each rung as Algorithm 2 of Li et al. (MLSys 2020, arXiv 1810.05934) does.
"""

from dataclasses import dataclass
from typing import Callable, Dict, List, Optional, Set, Tuple

_ENDED = ("TERMINATED", "ERROR")


@dataclass
class Starts:
    """What was started in a run, and what should not have been.

    Attributes:
        order: ``(trial number, "new" or the milestone promoted from)``, in order.
        wrong: A sentence for each start that is not according to the order.
    """

    order: List[Tuple[int, object]]
    wrong: List[str]


class _Rungs:
    def __init__(self, milestones, eta):
        self.eta = eta
        self.records: Dict[int, Dict[int, float]] = {m: {} for m in milestones}
        self.promoted: Dict[int, Set[int]] = {m: set() for m in milestones}
        # Ended while they waited: their places pass on, but they count in n.
        self.gone: Set[int] = set()

    def top(self, trial: int) -> Optional[int]:
        """The highest milestone at which a trial is recorded."""
        return max((m for m in self.records if trial in self.records[m]), default=None)

    def promotable(self, paused: Set[int]) -> Dict[int, List[int]]:
        """The trials that may be promoted, by milestone."""
        result = {}
        for milestone, record in self.records.items():
            places = len(record) // self.eta
            ranked = sorted(
                (
                    t
                    for t in record
                    if t not in self.gone
                    or self.top(t) != milestone
                    or t in self.promoted[milestone]
                ),
                key=lambda t: -record[t],
            )
            waiting = [
                t
                for t in ranked[:places]
                if t in paused
                and t not in self.promoted[milestone]
                and self.top(t) == milestone
            ]
            if waiting:
                result[milestone] = waiting
        return result


def check_starts(
    record,
    curve: Callable,
    milestones: List[int],
    eta: int,
    eager: bool,
    metric: str = "score",
) -> Starts:
    """Replay a run of the virtual cluster.

    Args:
        record: The record of the run.
        curve: The learning curve, ``f(config, iteration)``; more is better.
        milestones: The milestones, without ``max_t``.
        eta: The reduction factor.
        eager: Whether promotions come before new trials, highest rung first. Else
            they come after all new trials, lowest rung first.
        metric: Key of what the curve returns.

    Returns:
        What was started, and what was wrong with it.
    """
    numbers = {trial.trial_id: i for i, trial in enumerate(record.trials)}
    configs = {i: trial.config for i, trial in enumerate(record.trials)}
    rungs = _Rungs(milestones, eta)
    status: Dict[int, str] = {}
    trained: Dict[int, int] = {}
    retried: Set[int] = set()
    waiting: Dict[int, float] = {}  # resumed at that time, and not running yet
    starts = Starts([], [])

    def paused():
        return {t for t, s in status.items() if s == "PAUSED"}

    def note(trial, what, wrong):
        starts.order.append((trial, what))
        if wrong:
            starts.wrong.append(f"start {len(starts.order)}: {wrong}")

    def promote(trial, now_paused):
        milestone = rungs.top(trial)
        if milestone is None:
            return
        allowed = rungs.promotable(now_paused)
        order = sorted(allowed, reverse=eager)
        wrong = None
        active = [t for t, s in status.items() if s in ("PENDING", "RUNNING")]
        if not allowed:
            # A fallback runs when nothing else is left to do.
            if set(active) - {trial}:
                wrong = f"trial {trial} is not promotable at {milestone}"
        elif order[0] != milestone:
            wrong = f"trial {trial} of {milestone}, but {allowed} come first"
        elif trial not in allowed[milestone]:
            wrong = f"trial {trial} is not among the best of {milestone}: {allowed}"
        elif not eager and len(trained) < len(record.trials):
            wrong = f"trial {trial} is promoted before all trials have started"
        rungs.promoted[milestone].add(trial)
        note(trial, milestone, wrong)

    for event in record.events:
        trial = numbers.get(event.trial)
        if trial is None:
            continue
        if event.kind == "status":
            before, now = status.get(trial), event.detail
            waiting.pop(trial, None)
            if now == "PENDING" and before == "PAUSED":
                promote(trial, paused())
                waiting[trial] = event.time
            elif now == "PENDING" and before in _ENDED:
                retried.add(trial)
            elif now == "RUNNING" and before == "PAUSED":
                promote(trial, paused())
            elif now == "RUNNING" and trial not in trained:
                wrong = None
                if eager and rungs.promotable(paused()) and trial not in retried:
                    wrong = f"trial {trial} is new, but {rungs.promotable(paused())}"
                late = [t for t, since in waiting.items() if since < event.time]
                if late and trial not in retried:
                    wrong = f"trial {trial} is new, but {late} have been promoted"
                trained[trial] = 0
                note(trial, "new", wrong)
            if now in _ENDED:
                rungs.gone.add(trial)
            else:
                rungs.gone.discard(trial)
            status[trial] = now
        elif event.kind == "train" and event.detail.startswith("iteration"):
            iteration = int(event.detail.split()[-1])
            top = rungs.top(trial)
            if top is not None and iteration > top and top == trained.get(trial):
                if trial not in rungs.promoted[top] and trial not in retried:
                    # It went on in place. That was decided with its last result.
                    rungs.promoted[top].add(trial)
                    starts.order.append((trial, top))
            trained[trial] = iteration
            if iteration in rungs.records:
                score = curve(configs[trial], iteration)[metric]
                rungs.records[iteration].setdefault(trial, score)
    return starts
