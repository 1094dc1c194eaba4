"""Each result is handled exactly once, in order (rule 4 of the design's section 8)."""

import json
import os
from typing import Any, Dict, List

from ..core.monitor import TRAIN
from .private import callbacks
from ray.tune.logger import JsonLoggerCallback
from ray.tune.result import RESULT_DUPLICATE


class Results:
    """What a trainable has produced is handled, exactly once, in order.

    Exempt is a result

    * whose actor died before it was handled;
    * whose trial had been told to stop before;
    * whose trial was paused by somebody without a checkpoint while the task was in
      flight;
    * behind a task of the same actor that failed, so that the trial goes back to its
      last checkpoint anyway;
    * whose driver died.
    """

    RULES = {
        "checkpoint-lost": "A checkpoint that was saved is not thrown away.",
        "result-lost": "A result that was reported is handled.",
        "result-order": "Results are handled in the order of their tasks.",
        "result-twice": "A result is handled once.",
    }

    def __init__(self):
        self._pending: Dict[int, Any] = {}  # id(result) -> (result, ref, index)
        self._of_ref: Dict[Any, List[int]] = {}
        self._last: Dict[str, tuple] = {}  # trial id -> what was handled last

    def driver_died(self, monitor) -> None:
        self._pending.clear()
        self._of_ref.clear()
        self._last.clear()

    def on_produced(self, monitor, ref, result) -> None:
        if ref.trial_id not in monitor.views:
            return
        key = id(result)
        refs = self._of_ref.setdefault(ref, [])
        self._pending[key] = (result, ref, len(refs))
        refs.append(key)

    def _forget(self, ref) -> None:
        for key in self._of_ref.pop(ref, ()):
            self._pending.pop(key, None)

    def on_discard(self, monitor, ref, view) -> None:
        produced = ref.done or ref.ready_at <= monitor.clock.now
        failed = ref.error is not None or ref.fault is not None
        is_exempt = (
            not produced
            or failed
            or ref.actor.error is not None
            or view.stop
            or monitor.stopping_all
            or ref.seq <= view.loose_pause
            or (view.failed_seq is not None and ref.seq > view.failed_seq)
        )
        if is_exempt:
            pass
        elif ref.method in TRAIN:
            monitor.broken(
                "result-lost",
                "a result that the trainable had reported was thrown away",
                ref.trial_id,
            )
        elif ref.method == "save":
            value = ref.value
            if not ref.done or value is None or value.checkpoint is not None:
                monitor.broken(
                    "checkpoint-lost",
                    "a checkpoint that the trainable had saved was thrown away",
                    ref.trial_id,
                )
        self._forget(ref)

    def on_failure(self, monitor, ref) -> None:
        self._forget(ref)  # of a buffer that failed nothing arrives

    def on_resolved(self, monitor, ref, view) -> None:
        for key in self._of_ref.pop(ref, ()):
            entry = self._pending.pop(key, None)
            if entry is None or RESULT_DUPLICATE in entry[0]:
                continue
            if not (view.stop or monitor.stopping_all):
                monitor.broken(
                    "result-lost",
                    "a result that arrived was not handled",
                    ref.trial_id,
                )

    def on_result(self, monitor, trial, result) -> None:
        trial_id = trial.trial_id
        entry = self._pending.pop(id(result), None)
        if entry is None:
            monitor.broken(
                "result-twice",
                f"the result of iteration {result.get('training_iteration')} was "
                f"handled twice, or after it had been given up",
                trial_id,
            )
            return
        _, ref, index = entry
        order = (ref.actor.number, ref.seq, index)
        last = self._last.get(trial_id)
        if last is not None and last[0] == order[0] and order < last:
            monitor.broken(
                "result-order",
                f"the result of iteration {result.get('training_iteration')} was "
                f"handled after a later one",
                trial_id,
            )
        self._last[trial_id] = order


class HookErrors:
    """What a hook of the scheduler raises ends the run, named, and loses no result."""

    RULES = {
        "hook-unnamed": "The log, or the error, names the hook that has raised it.",
        "result-lost": "A result that was handled is there after a restore.",
    }

    def on_hook_failed(self, monitor, exc, hook) -> None:
        # Further lines may be those of a traceback, which names every function.
        said = [text.split("\n")[0] for text in (*monitor.errors, str(exc))]
        if not any(hook in line.replace(f"fault in {hook}", "") for line in said):
            monitor.broken("hook-unnamed", f"neither log nor error names {hook}: {exc}")

    def on_restored_run(self, monitor, controller, last) -> None:
        if last is None:
            return  # It was no hook that ended the run.
        if not controller.resumed:
            monitor.broken("result-lost", "the run cannot be restored")
        for trial in controller.get_trials():
            iteration = (trial.last_result or {}).get("training_iteration", 0)
            if iteration < last.get(trial.trial_id, 0):
                monitor.broken(
                    "result-lost",
                    f"iteration {last[trial.trial_id]} was handled before the hook "
                    f"raised, and the restored trial is at {iteration}",
                    trial.trial_id,
                )


class LogIsComplete:
    """What was handled is in the log on disk, once and in order.

    Nothing is said where the driver died: another one has no log but what was synced.
    """

    RULES = {"log-incomplete": "What was handled is in the log, once and in order."}

    def __init__(self):
        self._has_died = False

    def driver_died(self, monitor) -> None:
        self._has_died = True

    def at_end(self, monitor, controller) -> None:
        if self._has_died or not any(
            isinstance(callback, JsonLoggerCallback)
            for callback in callbacks(controller)
        ):
            return
        for trial in controller.get_trials():
            handled = [
                result.get("training_iteration")
                for result in monitor.results.get(trial.trial_id, ())
                if RESULT_DUPLICATE not in result
            ]
            if not handled:
                continue
            logged = _logged(os.path.join(trial.local_path, "result.json"))
            if logged != handled:
                monitor.broken(
                    "log-incomplete",
                    f"the results of iterations {handled} were handled, and those of "
                    f"{logged} are in the log",
                    trial.trial_id,
                )


def _logged(path: str) -> List[int]:
    if not os.path.exists(path):
        return []
    with open(path) as file:
        return [json.loads(line).get("training_iteration") for line in file]


INVARIANTS = (Results, HookErrors, LogIsComplete)
