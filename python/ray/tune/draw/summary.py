"""Sums up what pausing has cost and saved."""

from dataclasses import dataclass
from typing import List, Optional

import numpy as np

from ray.tune.draw.history import History, RungHistory, as_number


@dataclass(frozen=True)
class Summary:
    """What pausing has cost and saved.

    Attributes:
        trials: The number of trials that started.
        trained: Iterations that all trials have trained.
        fifo: Iterations that they train if none is stopped; None if that is not known.
        stopping_asha: Iterations, at least, that the rule of ``ASHAScheduler`` would
            have trained on the same scores. It is not known how a trial that was
            stopped here would have done at its next milestone: it is taken to be
            stopped there.
        paused_s: Seconds that trials were paused, together.
        saving_s: Seconds from the decision to pause until the slot was free.
        restarting_s: Seconds from a promotion until the trial had its actor.
        num_pauses: The number of pauses.
    """

    trials: int
    trained: int
    fifo: Optional[int]
    stopping_asha: Optional[int]
    paused_s: float
    saving_s: float
    restarting_s: float
    num_pauses: int


def summarize(history: History) -> Summary:
    """Sum up a history.

    Args:
        history: Of an experiment, the whole of it or a part.

    Returns:
        The summary.
    """
    header = history.header
    max_t, eta = (as_number(header.get(key)) for key in ("max_t", "reduction_factor"))
    counts_iterations = header.get("time_attr") in (None, "training_iteration")
    fifo = stopping = None
    if max_t and counts_iterations:
        fifo = round(len(history.trials) * max_t)
        if header.get("scheduler") == "ASHAv2" and eta:
            stopping = _epochs_of_stopping(history, max_t, eta)
    promoted_at = {}
    for wait in history.waits:
        if wait.end is not None and wait.ended_by == "promote":
            promoted_at.setdefault(wait.trial, []).append(wait.end)
    restarting = 0.0
    for span in history.slots:
        if span.kind == "pause":
            before = [t for t in promoted_at.get(span.trial, ()) if t <= span.start]
            restarting += span.start - max(before, default=span.start)
    return Summary(
        trials=len(history.trials),
        trained=sum(history.iterations.values()),
        fifo=fifo,
        stopping_asha=stopping,
        paused_s=sum((w.end or history.end) - w.start for w in history.waits),
        saving_s=history.saving_s,
        restarting_s=restarting,
        num_pauses=len(history.waits),
    )


def _epochs_of_stopping(history: History, max_t: float, eta: float) -> int:
    """Return how many iterations the rule of ``ASHAScheduler`` would have trained."""
    sign = -1 if history.header.get("mode") == "min" else 1
    seen, epochs = set(), 0.0
    for bracket in {bracket for bracket, _ in history.rungs}:
        rungs = [
            rung for key, rung in sorted(history.rungs.items()) if key[0] == bracket
        ]
        alive: Optional[List[str]] = None
        for number, rung in enumerate(rungs):
            trials = list(rung.scores) if alive is None else alive
            seen.update(trials)
            alive, stopped = _apply_rule(rung, trials, eta, sign)
            epochs += stopped * rung.milestone
            if number == len(rungs) - 1:
                epochs += len(alive) * max_t
    for trial, iterations in history.iterations.items():
        if trial not in seen:
            epochs += iterations
    return round(epochs)


def _apply_rule(rung: RungHistory, trials: List[str], eta: float, sign: int):
    """Return those that go on, and how many are stopped."""
    recorded: List[float] = []
    alive, stopped = [], 0
    # Those whose score is known, in the order in which they came.
    for trial in [trial for trial in rung.scores if trial in set(trials)]:
        score = rung.scores[trial]
        value = float("nan") if score is None else sign * score
        known = [v for v in recorded if v == v]
        if known and not value >= np.percentile(known, (1 - 1 / eta) * 100):
            stopped += 1
        else:
            alive.append(trial)
        recorded.append(value)
    return alive, stopped + len([trial for trial in trials if trial not in rung.scores])


def describe_summary(summary: Summary) -> str:
    """Return a summary in words.

    Args:
        summary: The summary.

    Returns:
        The text.
    """
    trained = f"{summary.trials} trials have trained {summary.trained} iterations"
    others = []
    if summary.stopping_asha is not None:
        others.append(f"at least {summary.stopping_asha} by ASHAScheduler's rule")
    if summary.fifo is not None:
        others.append(f"{summary.fifo} without a scheduler that stops (FIFO)")
    compared = f"; it would have been {' and '.join(others)}" if others else ""
    return (
        f"{trained}{compared}.\nThere were {summary.num_pauses} pauses: trials were "
        f"paused for {summary.paused_s:.1f} s in all; saving for a pause took "
        f"{summary.saving_s:.1f} s of slots, and restarting after one "
        f"{summary.restarting_s:.1f} s."
    )
