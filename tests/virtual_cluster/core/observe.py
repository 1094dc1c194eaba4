"""How the monitor gets to see what the real controller does.

The controller, the actor manager and the schedulers are the real ones. They are only
listened to: the event manager and the controller through subclasses that call
``super()``, a scheduler through its hooks while the cluster is active.
"""

import functools
from typing import Dict, List, Optional

from ray.air.execution._internal.event_manager import RayEventManager
from ray.tune.callback import Callback
from ray.tune.execution import tune_controller
from ray.tune.execution.tune_controller import TuneController

try:
    from ray.tune.execution import hook_errors
except ImportError:  # stock Ray
    hook_errors = None

_active = []
ENDS = ("on_trial_complete", "on_trial_remove")
_TOLD = ("on_trial_result", "on_trial_complete")


def current():
    """Return the monitor of the cluster that is active.

    Returns:
        The monitor, or None.
    """
    return _active[-1] if _active else None


class TellsMonitor:
    """A mark of searchers that tell the monitor of which pauses and ends they learn."""


class HasModel:
    """A searcher that says what it has learned."""

    def model(self) -> Optional[Dict[float, List[float]]]:
        """Return the scores that it knows, by ``x``; None if it does not say."""
        raise NotImplementedError


class ObservedEventManager(RayEventManager):
    """Tells the monitor which futures the driver watches."""

    def track_future(self, future, on_result=None, on_error=None):
        monitor = current()
        if monitor is not None:
            monitor.on_track(future)
        super().track_future(future, on_result=on_result, on_error=on_error)

    def discard_future(self, future):
        monitor = current()
        if monitor is not None and future in self._tracked_futures:
            monitor.on_discard(future)
        super().discard_future(future)

    def resolve_future(self, future):
        monitor = current()
        if monitor is None:
            return super().resolve_future(future)
        if not future.done:
            # The driver blocks, as ``ray.get`` would.
            monitor.runtime.get_quietly(future)
        if future in self._tracked_futures:
            monitor.on_resolving(future)
        super().resolve_future(future)
        monitor.on_resolved(future)


class MonitorCallback(Callback):
    """Tells the monitor which results are handled."""

    def on_trial_result(self, iteration, trials, trial, result, **info):
        monitor = current()
        if monitor is not None:
            monitor.on_result(trial, result)


class ObservedController(TuneController):
    """The real controller; tells the monitor what it is asked to do."""

    def add_trial(self, trial):
        monitor = current()
        monitor.runtime.trial_numbers.setdefault(
            trial.trial_id, len(monitor.runtime.trial_numbers)
        )
        monitor.on_trial(trial)
        super().add_trial(trial)

    def stop_trial(self, trial, *args, **kwargs):
        current().on_stop_trial(trial)
        return super().stop_trial(trial, *args, **kwargs)

    def pause_trial(self, trial, *args, **kwargs):
        should_checkpoint = args[0] if args else kwargs.get("should_checkpoint", True)
        current().on_pause_trial(trial, should_checkpoint)
        return super().pause_trial(trial, *args, **kwargs)

    def _set_trial_status(self, trial, status):
        super()._set_trial_status(trial, status)
        current().on_status(trial, trial.status)

    def save_to_dir(self):
        super().save_to_dir()
        _active[-1].on_saved(self._trials)

    def _execute_action(self, trial, *args, **kwargs):
        # What the hooks of the scheduler do to other trials meanwhile is their own.
        monitor = _active[-1]
        before, monitor.in_action = monitor.in_action, trial
        try:
            return super()._execute_action(trial, *args, **kwargs)
        finally:
            monitor.in_action = before

    def _stop_experiment_if_needed(self):
        monitor = _active[-1]
        monitor.in_stop_all = True
        stopping = monitor.stopping_all
        try:
            return super()._stop_experiment_if_needed()
        finally:
            monitor.in_stop_all = False
            if monitor.stopping_all and not stopping:
                monitor.tell("on_stop_all", self)


def scheduler_patches(scheduler, get_monitor):
    """Make the class patches through which a scheduler's decisions are seen.

    Args:
        scheduler: The scheduler.
        get_monitor: Returns the monitor.

    Returns:
        A list of ``(cls, name, value)``.
    """
    cls = type(scheduler)
    # A hook may call another one for the same trial: only the controller's call counts.
    inside = []

    def observed(name, tell):
        hook = getattr(cls, name)

        @functools.wraps(hook)
        def wrapper(self, tune_controller, *args, **kwargs):
            monitor = get_monitor()
            if monitor is None or self is not monitor.scheduler:
                return hook(self, tune_controller, *args, **kwargs)
            call = name in ENDS, args[0] if args else None
            if not (call[0] and call in inside):
                monitor.on_hook(name, call[1])
            if name in _TOLD:
                trial, *told = args
                result = told[0] if told else None
                monitor.tell("on_told", trial, result or {}, name != "on_trial_result")
            inside.append(call)
            try:
                answer = hook(self, tune_controller, *args, **kwargs)
            finally:
                inside.pop()
            if tell is not None:
                tell(monitor, answer, *args)
            return answer

        return cls, name, wrapper

    def tell_decision(monitor, decision, trial, result):
        monitor.on_decision(trial, result, decision)

    def tell_choice(monitor, trial):
        monitor.on_choice(trial)

    return [
        observed("on_trial_result", tell_decision),
        observed("choose_trial_to_run", tell_choice),
        observed("on_trial_add", None),
        observed("on_trial_error", None),
        observed("on_trial_complete", None),
        observed("on_trial_remove", None),
    ]


class _Listener:
    """The logger of a module, whose warnings and errors the monitor gets to see."""

    def __init__(self, logger, get_monitor):
        self._logger = logger
        self._get_monitor = get_monitor

    def warning(self, message, *args, **kwargs):
        monitor = self._get_monitor()
        if monitor is not None:
            monitor.tell("on_warning", str(message) % args if args else str(message))
        self._logger.warning(message, *args, **kwargs)

    def error(self, message, *args, **kwargs):
        monitor = self._get_monitor()
        if monitor is not None:
            monitor.errors.append(str(message) % args if args else str(message))
        self._logger.error(message, *args, **kwargs)

    def __getattr__(self, name):
        return getattr(self._logger, name)


def logger_patches(get_monitor):
    """Make the patches through which the controller's warnings and errors are seen.

    Args:
        get_monitor: Returns the monitor.

    Returns:
        A list of ``(module, name, value)``.
    """
    return [
        (module, "logger", _Listener(module.logger, get_monitor))
        for module in (tune_controller, hook_errors)
        if module is not None
    ]
