"""Schedulers for tests: one that does what it is told, and two that explore."""

from typing import Callable, Optional

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
