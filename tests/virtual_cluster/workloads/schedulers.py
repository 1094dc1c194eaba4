"""Schedulers for tests: one that does what it is told, and two that explore."""

from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler, TrialScheduler


class ScriptedScheduler(FIFOScheduler):
    """Decides as functions say; what is not given is as in FIFO.

    Args:
        decide: ``f(controller, trial, result) -> decision``.
        choose: ``f(controller) -> trial or None``.
        on_add: ``f(controller, trial)``.
        on_complete: ``f(controller, trial, result)``.
        on_remove: ``f(controller, trial)``.
        on_error: ``f(controller, trial)``.
    """

    def __init__(
        self,
        decide: Optional[Callable] = None,
        choose: Optional[Callable] = None,
        on_add: Optional[Callable] = None,
        on_complete: Optional[Callable] = None,
        on_remove: Optional[Callable] = None,
        on_error: Optional[Callable] = None,
    ):
        super().__init__()
        self._decide, self._choose = decide, choose
        self._on_add, self._on_complete = on_add, on_complete
        self._on_remove, self._on_error = on_remove, on_error

    def on_trial_result(self, tune_controller, trial, result):
        if self._decide is None:
            return TrialScheduler.CONTINUE
        return self._decide(tune_controller, trial, result)

    def choose_trial_to_run(self, tune_controller):
        if self._choose is None:
            return super().choose_trial_to_run(tune_controller)
        return self._choose(tune_controller)

    def on_trial_add(self, tune_controller, trial):
        if self._on_add is not None:
            self._on_add(tune_controller, trial)

    def on_trial_complete(self, tune_controller, trial, result):
        if self._on_complete is not None:
            self._on_complete(tune_controller, trial, result)

    def on_trial_remove(self, tune_controller, trial):
        if self._on_remove is not None:
            self._on_remove(tune_controller, trial)

    def on_trial_error(self, tune_controller, trial):
        if self._on_error is not None:
            self._on_error(tune_controller, trial)


class Act(NamedTuple):
    """Something that a :class:`PlannedScheduler` does.

    Args:
        hook: In which hook: ``"result"`` or ``"choose"``.
        nth: In the how-manieth call of it (from 1).
        what: ``"pause"``, ``"stop"``, ``"noop"``: return this decision. ``"save"``:
            save the trial, as PBT does. ``"choose"``: choose the trial, whatever its
            status. ``"pause_trial"``, ``"drop_trial"``,
            ``"stop_trial"``: call ``pause_trial``, ``pause_trial`` without a
            checkpoint, or ``stop_trial``.
        target: The number of the trial that is meant, in the order they were added;
            None for the one whose result it is.
    """

    hook: str
    nth: int
    what: str
    target: Optional[int] = None

    def __repr__(self) -> str:
        target = "" if self.target is None else f", {self.target}"
        return f"Act({self.hook!r}, {self.nth}, {self.what!r}{target})"


class PlannedScheduler(FIFOScheduler):
    """Uses what the controller offers to schedulers at moments that are given.

    Otherwise it lets trials run first in, first out, paused ones last, as FIFO does.

    Args:
        acts: What it does.
        choose_saving: Whether it chooses a trial that it has paused as soon as it has
            decided so, although the trial may still be saving.
        resumes: Whether it ever resumes a paused trial.
    """

    def __init__(
        self,
        acts: Sequence[Act] = (),
        choose_saving: bool = False,
        resumes: bool = True,
    ):
        super().__init__()
        self._resumes = resumes
        self._chosen: Optional[Trial] = None
        self._acts: Dict[Tuple[str, int], List[Act]] = {}
        for act in acts:
            self._acts.setdefault((act.hook, act.nth), []).append(act)
        self._calls = {"result": 0, "choose": 0}
        self._choose_saving = choose_saving
        self._paused: List[Trial] = []
        self._added: List[Trial] = []

    def on_trial_add(self, tune_controller, trial):
        if trial not in self._added:
            self._added.append(trial)

    def _act(self, tune_controller, hook: str, trial: Optional[Trial]) -> str:
        decision = TrialScheduler.CONTINUE
        self._calls[hook] += 1
        for act in self._acts.get((hook, self._calls[hook]), ()):
            target = trial
            if act.target is not None:
                if act.target >= len(self._added):
                    continue
                target = self._added[act.target]
            if target is None:
                continue
            if act.what in ("pause", "stop", "noop"):
                decision = getattr(TrialScheduler, act.what.upper())
                if act.what == "pause":
                    self._paused.append(target)
            elif act.what == "choose":
                self._chosen = target
            elif act.what == "save":
                if target.status == Trial.RUNNING:
                    tune_controller._schedule_trial_save(target, result=None)
            elif act.what == "stop_trial":
                tune_controller.stop_trial(target)
            else:
                tune_controller.pause_trial(
                    target, should_checkpoint=act.what == "pause_trial"
                )
        return decision

    def on_trial_result(self, tune_controller, trial, result):
        if trial in self._paused:
            self._paused.remove(trial)
        return self._act(tune_controller, "result", trial)

    def choose_trial_to_run(self, tune_controller):
        self._chosen = None
        self._act(tune_controller, "choose", None)
        if self._chosen is not None:
            return self._chosen
        if self._choose_saving:
            for trial in self._paused:
                if trial.is_saving and not trial.is_finished():
                    return trial
        trial = super().choose_trial_to_run(tune_controller)
        if trial is not None and trial.status == Trial.PAUSED and not self._resumes:
            return None
        return trial


class MilestoneScheduler(FIFOScheduler):
    """Synchronous successive halving, as people write it themselves.

    Every trial pauses at the milestone; when all have got there, the best go on to the
    next one and the others are stopped.

    Args:
        num_samples: How many trials there will be.
        milestones: Training iterations at which trials pause; the last one ends them.
        reduction_factor: One of so many goes on.
        metric: The metric, which is maximized.
    """

    def __init__(
        self,
        num_samples: int,
        milestones: Sequence[int] = (1, 2),
        reduction_factor: int = 2,
        metric: Optional[str] = None,
    ):
        super().__init__()
        self._metric = metric
        self._num_samples = num_samples
        self._milestones = list(milestones)
        self._eta = reduction_factor
        self._rung: Dict[Trial, int] = {}
        self._waiting: List[Dict[Trial, float]] = [{} for _ in self._milestones]
        self._expected = [num_samples] + [None] * len(self._milestones)
        self._promoted: List[Trial] = []
        self._known: Set[Trial] = set()
        self._failed: Dict[Trial, int] = {}

    def on_trial_add(self, tune_controller, trial):
        rung = self._failed.pop(trial, 0)
        if self._expected[rung] is not None and trial in self._known:
            self._expected[rung] += 1  # it failed and is tried again
        self._known.add(trial)
        self._rung[trial] = rung

    def on_trial_result(self, tune_controller, trial, result):
        rung = self._rung[trial]
        if trial in self._promoted:
            self._promoted.remove(trial)
        if result["training_iteration"] < self._milestones[rung]:
            return TrialScheduler.CONTINUE
        if rung == len(self._milestones) - 1:
            return TrialScheduler.STOP
        self._waiting[rung][trial] = result[self._metric]
        return TrialScheduler.PAUSE

    def _gone(self, trial):
        rung = self._rung.pop(trial, None)
        if rung is None:
            return
        self._waiting[rung].pop(trial, None)
        if self._expected[rung] is not None:
            self._expected[rung] -= 1
        if trial in self._promoted:
            self._promoted.remove(trial)

    def on_trial_complete(self, tune_controller, trial, result):
        self._gone(trial)

    def on_trial_remove(self, tune_controller, trial):
        self._gone(trial)

    def on_trial_error(self, tune_controller, trial):
        # One that is tried again is added again.
        self._failed[trial] = self._rung[trial]
        self._gone(trial)

    def choose_trial_to_run(self, tune_controller):
        for trial in tune_controller.get_trials():
            if trial.status == Trial.PENDING:
                return trial
        self._promote(tune_controller)
        for trial in self._promoted:
            if trial.status == Trial.PAUSED:
                return trial
        return None

    def _promote(self, tune_controller):
        for rung, waiting in enumerate(self._waiting):
            if not waiting or len(waiting) != self._expected[rung]:
                continue
            if any(trial.status != Trial.PAUSED for trial in waiting):
                continue
            ranked = sorted(
                waiting,
                key=lambda t: (-waiting[t], t.trial_id),  # noqa: B023
            )
            keep = max(1, len(ranked) // self._eta)
            self._waiting[rung] = {}
            self._expected[rung] = None
            self._expected[rung + 1] = keep
            for trial in ranked[:keep]:
                self._rung[trial] = rung + 1
                self._promoted.append(trial)
            for trial in ranked[keep:]:
                tune_controller.stop_trial(trial)
