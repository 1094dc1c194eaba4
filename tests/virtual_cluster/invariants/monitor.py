"""What must hold after every event (section 8 of the design), and who broke it.

The monitor sees what the driver asks of the actors, which futures it watches, and what
the scheduler decides. It knows nothing else of the controller, so that it judges stock
Tune and the repaired one alike.

Exemptions of "each result is handled exactly once, in order" (rule 4):

* the actor died before the result was handled;
* the trial had been told to stop before;
* somebody paused the trial without a checkpoint while the task was in flight;
* a task of the same actor that came before it failed, so that the trial goes back to
  its last checkpoint anyway;
* the driver died.
"""

from typing import Any, Dict, List, NamedTuple, Optional

from ..faults.plan import HookFault
from ray.tune.experiment import Trial
from ray.tune.result import RESULT_DUPLICATE

_TRAIN = ("train", "train_buffered")
# A run cannot go on after these, so that they cannot be ignored.
_TERMINAL = ("hang", "blocked", "spin", "endless")
_WORK = ("train", "train_buffered", "save", "restore", "reset")
_POSITIVE = (0).__lt__

# Stock Ray breaks these so often that they hide what else is wrong there: see
# ``tests/conftest.py``.
COMMON_ON_STOCK = frozenset(
    {
        "actor-wasted",
        "bracket-changed",
        "buffer-length",
        "checkpoint-overwritten",
        "driver-waits",
        "failure-not-its-own",
        "last-result-open",
        "log-incomplete",
        "outside-space",
        "pause-unsaid",
        "restarted",
        "scheduler-not-told",
        "searcher-not-told",
        "stale-config",
    }
)
never_checked: set = set()  # by any monitor, whatever it is told to ignore
# What further invariants may listen to. The first argument is the monitor.
HOOKS = (
    "after_step",
    "at_end",
    "driver_died",
    "on_act",
    "on_decision",
    "on_failure",
    "on_first_train",
    "on_hook",
    "on_result",
    "on_searcher_complete",
    "on_status",
    "on_submit",
    "on_told",
    "on_wait",
    "on_warning",
)


class Event(NamedTuple):
    """Something that happened.

    Args:
        number: The number of events handled so far.
        time: Virtual seconds.
        kind: What happened.
        trial: The trial's id, or None.
        detail: More about it.
    """

    number: int
    time: float
    kind: str
    trial: Optional[str]
    detail: str

    def __str__(self) -> str:
        return (
            f"{self.number:5d} {self.time:10.3f}  {self.kind:<14} "
            f"{self.trial or '-':<12} {self.detail}"
        ).rstrip()


class InvariantViolation(AssertionError):
    """An invariant was broken.

    Args:
        rule: A short name of the invariant.
        what: What was broken.
        trial: The id of the trial that broke it, or None.
        events: The last events that led there.
        number: The number of events handled by then.
    """

    def __init__(self, rule: str, what: str, trial: Optional[str], events, number):
        self.rule = rule
        self.what = what
        self.trial = trial
        self.events = list(events)
        self.number = number
        lines = "\n".join(f"  {event}" for event in self.events)
        super().__init__(
            f"[{rule}] {what}"
            + (f" (trial {trial})" if trial else "")
            + f", after {number} events. The last of what happened:\n{lines}"
        )


class _View:
    """What the monitor knows of one trial."""

    __slots__ = (
        "trial",
        "in_flight",
        "stop",
        "failed",
        "failed_seq",
        "loose_pause",
        "last_handled",
        "restored",
        "trained",
        "status",
    )

    def __init__(self):
        self.trial = None
        self.in_flight: Dict[str, int] = {}
        self.stop: Optional[str] = None  # who decided it
        self.failed = False
        self.failed_seq = None  # the task that failed on the current actor
        self.loose_pause = -1  # tasks up to this one may be dropped
        self.last_handled = None
        self.restored = None
        self.trained = None  # the incarnation that was seen to train
        self.status = None


class _Views(dict):
    """The views by trial id; each is made when it is first asked for."""

    def __missing__(self, trial_id) -> _View:
        view = self[trial_id] = _View()
        return view


class Monitor:
    """Watches a run and remembers the first invariant that is broken.

    Args:
        clock: The virtual clock.
        runtime: The runtime.
        max_concurrent: The limit on trials that hold an actor; 0 for none.
        keep_events: Whether to keep all events, or only the last ones.
        ignore: Names of invariants not to check.
    """

    def __init__(self, clock, runtime, max_concurrent=0, keep_events=True, ignore=()):
        self.clock = clock
        self.runtime = runtime
        self.max_concurrent = max_concurrent
        self.ignore = frozenset(ignore) | never_checked
        self.violation: Optional[InvariantViolation] = None
        self.events: List[Event] = []
        self.num_dropped = 0  # of the first events, if not all are kept
        self.decisions: List = []
        self.results: Dict[str, List[Dict]] = {}
        self.faults_fired: List = []
        self.number = 0  # events handled
        self.changes = 0  # anything that can lead to a new event
        self.stopping_all = False  # the whole experiment is being stopped
        self.in_stop_all = False
        self.in_action = None  # the trial whose decision is carried out
        self.scheduler = None
        self.stored: set = set()  # the trials in the snapshot
        self.stored_paused: set = set()  # those of them that are PAUSED there
        self._saved = self.stored, self.stored_paused  # the same, before it is synced
        self.buffer_length = 1  # as Tune was told
        self.reuses_actors = False
        self.num_failures = 0  # that this driver has seen
        self._keep = keep_events
        self._views = _Views()
        self._dirty: set = set()
        self.touched: set = set()  # the trials of recent steps; whoever reads it clears
        self._pending: Dict[int, Any] = {}  # id(result) -> (result, ref, index)
        self._of_ref: Dict[Any, List[int]] = {}
        self._last_choice = None
        self.checks: List = []  # further invariants, see ``add_checks``
        self._hooks: Dict[str, List] = {name: [] for name in HOOKS}

    # Bookkeeping

    def view(self, trial_id: str) -> _View:
        return self._views[trial_id]

    def log(self, kind: str, trial: Optional[str], detail: str = "") -> None:
        """Note something that happened.

        Args:
            kind: What.
            trial: The trial's id, or None.
            detail: More about it.
        """
        self.events.append(Event(self.number, self.clock.now, kind, trial, detail))
        if not self._keep and len(self.events) > 400:
            del self.events[:200]
            self.num_dropped += 200

    def broken(self, rule: str, what: str, trial: Optional[str] = None) -> None:
        """Note that an invariant was broken; the first one counts.

        Args:
            rule: A short name of the invariant.
            what: What was broken.
            trial: The id of the trial that broke it, or None.
        """
        if self.violation is not None:
            return
        if rule not in self.ignore or rule in _TERMINAL:
            self.violation = InvariantViolation(
                rule, what, trial, self.events[-16:], self.number
            )

    def add_checks(self, checks) -> None:
        """Add further invariants.

        Args:
            checks: Objects that have some of the hooks in ``HOOKS``.
        """
        self.checks.extend(checks)
        for name, hooks in self._hooks.items():
            hooks.extend(getattr(c, name) for c in checks if hasattr(c, name))

    def _tell(self, hook: str, *args) -> None:
        for method in self._hooks[hook]:
            method(self, *args)

    def driver_died(self) -> None:
        """Forget what only the driver knew."""
        self._tell("driver_died")
        self._views.clear()
        self._dirty.clear()
        self.touched.clear()
        self._pending.clear()
        self._of_ref.clear()
        self.stopping_all = False
        self.in_action = None
        self.num_failures = 0
        self.changes += 1

    # What the driver asks of actors

    def on_submit(self, ref) -> None:
        trial_id, method = ref.trial_id, ref.method
        if method in ("get_auto_filled_metrics", "__ray_ready__"):
            return
        self.changes += 1
        view = self._views[trial_id]
        if method in ("start", "reset"):
            view.restored = view.trained = None
            view.failed_seq = None
            if view.stop and view.failed:
                # The decision was made for the actor that failed.
                view.stop = None
            view.failed = False
        elif method == "restore":
            checkpoint = ref.args[0].checkpoint
            view.restored = checkpoint.path if checkpoint else None
        elif method in _TRAIN:
            if view.stop:
                self.broken(
                    "train-after-stop",
                    f"a train was started after STOP had been decided ({view.stop})",
                    trial_id,
                )
            if view.trained != ref.incarnation:
                view.trained = ref.incarnation
                self._check_resumed(view, ref)
                if view.trial is not None:
                    self._tell("on_first_train", view.trial, ref.actor)
            if method == "train_buffered" and ref.args[1] > self.buffer_length:
                self.broken(
                    "buffer-length",
                    f"{ref.args[1]} results are to be buffered, where the buffer's "
                    f"length was set to {self.buffer_length}",
                    trial_id,
                )
        self._tell("on_submit", ref)
        self._dirty.add(trial_id)

    def _check_resumed(self, view: _View, ref) -> None:
        trial = view.trial
        if trial is None:
            return
        latest = trial.latest_checkpoint_result
        expected = latest.checkpoint.path if latest and latest.checkpoint else None
        if expected != view.restored:
            self.broken(
                "resume-point",
                f"the trial trains from {_name(view.restored)}, but its last "
                f"registered checkpoint is {_name(expected)}",
                ref.trial_id,
            )

    def on_restored(self, ref, content: Dict, metrics: Dict) -> None:
        said = metrics.get("training_iteration", 0)
        if said != content["progress"]:
            self.broken(
                "resume-point",
                f"the trial was restored from a checkpoint of iteration "
                f"{content['progress']} which is registered as that of iteration "
                f"{said}",
                ref.trial_id,
            )

    def on_overwritten(self, trial_id: str, path: str) -> None:
        self.broken(
            "checkpoint-overwritten",
            f"two saves have written to {_name(path)}; files of the first may be left "
            f"in the second",
            trial_id,
        )

    def on_fault(self, fault, ref) -> None:
        self.faults_fired.append(fault)
        self.log("fault", ref.trial_id, f"will hit {ref.method}: {fault!r}")

    def on_produced(self, ref, result: Dict) -> None:
        if ref.trial_id not in self._views:
            return
        key = id(result)
        refs = self._of_ref.setdefault(ref, [])
        self._pending[key] = (result, ref, len(refs))
        refs.append(key)

    # What futures the driver watches

    def on_track(self, ref) -> None:
        method = ref.method
        if method not in _WORK:
            return
        view = self._views[ref.trial_id]
        kind = "train" if method in _TRAIN else method
        count = view.in_flight[kind] = view.in_flight.get(kind, 0) + 1
        if count > 1 and kind in ("train", "save"):
            self.broken(
                f"two-{kind}s",
                f"{count} {kind} tasks of one trial are in flight",
                ref.trial_id,
            )

    def on_untrack(self, ref) -> None:
        method = ref.method
        if method in _WORK:
            view = self._views[ref.trial_id]
            kind = "train" if method in _TRAIN else method
            view.in_flight[kind] = view.in_flight.get(kind, 0) - 1
            self._dirty.add(ref.trial_id)

    def on_discard(self, ref) -> None:
        self.on_untrack(ref)
        produced = ref.done or ref.ready_at <= self.clock.now
        failed = ref.error is not None or ref.fault is not None
        if not produced or failed or ref.actor.error is not None:
            self._forget(ref)
            return
        view = self._views[ref.trial_id]
        if view.stop or self.stopping_all or ref.seq <= view.loose_pause:
            self._forget(ref)
            return
        if view.failed_seq is not None and ref.seq > view.failed_seq:
            self._forget(ref)
            return
        if ref.method in _TRAIN:
            self.broken(
                "result-lost",
                "a result that the trainable had reported was thrown away",
                ref.trial_id,
            )
        elif ref.method == "save":
            value = ref.value
            if not ref.done or value is None or value.checkpoint is not None:
                self.broken(
                    "checkpoint-lost",
                    "a checkpoint that the trainable had saved was thrown away",
                    ref.trial_id,
                )
        self._forget(ref)

    def _forget(self, ref) -> None:
        for key in self._of_ref.pop(ref, ()):
            self._pending.pop(key, None)

    def on_resolving(self, ref) -> None:
        self.number += 1
        self.changes += 1
        self.runtime.idle_left = self.runtime.idle_steps
        self.on_untrack(ref)
        view = self._views[ref.trial_id]
        self._dirty.add(ref.trial_id)
        name = "started" if ref.method == "__ray_ready__" else ref.method
        if ref.error is None:
            detail = ""
            if ref.method == "reset" and ref.value is False:
                self._tell("on_failure", ref)
                self.num_failures += 1
            if ref.method == "train" and ref.value is not None:
                iteration = ref.value.get("training_iteration")
                detail = "end" if iteration is None else f"iteration {iteration}"
            self.log(name, ref.trial_id, detail)
            if ref.method in _TRAIN and view.stop is None:
                values = ref.value if isinstance(ref.value, list) else [ref.value]
                if any(RESULT_DUPLICATE in value for value in values):
                    view.stop = "its function ended"
        else:
            self._forget(ref)  # of a buffer that failed nothing arrives
            self._tell("on_failure", ref)
            self.num_failures += 1
            view.failed = True
            if view.failed_seq is None:
                view.failed_seq = ref.seq
            self.log(name, ref.trial_id, f"FAILED: {_first_line(ref.error)}")

    def on_resolved(self, ref) -> None:
        left = self._of_ref.pop(ref, None)
        if not left:
            return
        view = self._views[ref.trial_id]
        for key in left:
            entry = self._pending.pop(key, None)
            if entry is None:
                continue
            if RESULT_DUPLICATE in entry[0]:
                continue
            if not (view.stop or self.stopping_all):
                self.broken(
                    "result-lost",
                    "a result that arrived was not handled",
                    ref.trial_id,
                )

    # What was decided

    def on_trial(self, trial) -> None:
        view = self._views[trial.trial_id]
        view.trial = trial
        view.status = trial.status
        if trial.is_finished():
            view.stop = "restored as finished"
        self.changes += 1
        self._dirty.add(trial.trial_id)

    def on_hook(self, hook: str, trial) -> None:
        """A hook of the scheduler is called; it raises if a fault hits it.

        Args:
            hook: Its name.
            trial: The trial that it is called for, or None.

        Raises:
            HookFault: If a fault hits it.
        """
        fault = self.runtime.faults.for_hook(hook)
        if fault is not None:
            self.faults_fired.append(fault)
            self.log("fault", trial and trial.trial_id, repr(fault))
            raise HookFault(f"fault in {hook}")
        self._tell("on_hook", hook, trial)

    def on_searcher_complete(self, trial_id, result, error) -> None:
        self._tell("on_searcher_complete", trial_id, result, error)

    def on_saved(self, trials) -> None:
        """The state of the experiment was written, but is not in the storage yet.

        Args:
            trials: Its trials.
        """
        paused = {t.trial_id for t in trials if t.status == Trial.PAUSED}
        self._saved = {t.trial_id for t in trials}, paused

    def on_synced(self) -> None:
        """What was written last is in the storage."""
        self.stored, self.stored_paused = self._saved

    def on_wait(self, ref, seconds: float) -> None:
        self._tell("on_wait", ref, seconds)

    def on_warning(self, message: str) -> None:
        self._tell("on_warning", message)

    def on_stop_all(self, controller) -> None:
        """The whole experiment is being stopped.

        Args:
            controller: The controller.
        """
        if (
            controller._fail_fast
            and not self.num_failures
            and not controller._stopper.stop_all()
        ):
            self.broken(
                "unasked-stop",
                "the experiment is stopped as if a trial had failed, but none has "
                "since it was restored",
            )

    def on_told(self, trial, result: Optional[Dict], has_ended: bool) -> None:
        """The scheduler is told of a result.

        Args:
            trial: The trial.
            result: The result.
            has_ended: Whether it is told so because the trial has ended.
        """
        self._tell("on_told", trial, result or {}, has_ended)

    def on_decision(self, trial, result: Dict, decision: str) -> None:
        iteration = result.get("training_iteration")
        self.decisions.append((self.clock.now, trial.trial_id, iteration, decision))
        if decision != "CONTINUE":
            self.log("decision", trial.trial_id, f"{decision} at iteration {iteration}")
        self._tell("on_decision", trial, result, decision)
        if decision == "STOP":
            self.stop_decided(trial, "the scheduler's decision")
        self._dirty.add(trial.trial_id)

    def stop_decided(self, trial, who: str) -> None:
        view = self._views[trial.trial_id]
        if view.stop is None:
            view.stop = who

    def on_result(self, trial, result: Dict) -> None:
        """A result is handled: Tune's callbacks are told of it.

        Args:
            trial: The trial.
            result: The result that the trainable sent.
        """
        self.results.setdefault(trial.trial_id, []).append(result)
        self._tell("on_result", trial, result)
        if result.get("done"):
            self.stop_decided(trial, "its result is marked done")
        entry = self._pending.pop(id(result), None)
        if entry is None:
            self.broken(
                "result-twice",
                f"the result of iteration {result.get('training_iteration')} was "
                f"handled twice, or after it had been given up",
                trial.trial_id,
            )
            return
        _, ref, index = entry
        order = (ref.actor.number, ref.seq, index)
        view = self._views[trial.trial_id]
        last = view.last_handled
        if last is not None and last[0] == order[0] and order < last:
            self.broken(
                "result-order",
                f"the result of iteration {result.get('training_iteration')} was "
                f"handled after a later one",
                trial.trial_id,
            )
        view.last_handled = order

    def on_choice(self, trial) -> None:
        chosen = None if trial is None else (trial.trial_id, trial.status)
        if chosen is not None and chosen != self._last_choice:
            self.log("choice", trial.trial_id, trial.status)
        self._last_choice = chosen

    def on_status(self, trial, status: str) -> None:
        view = self._views[trial.trial_id]
        view.trial = trial
        if self.in_stop_all and status == Trial.TERMINATED:
            self.stopping_all = True
        if view.status != status:
            if view.status == Trial.TERMINATED and status != Trial.PAUSED:
                # Stock Ray sets one status after the other when a trial pauses.
                self.broken(
                    "restarted",
                    f"the trial was TERMINATED, and is {status} now",
                    trial.trial_id,
                )
            self.changes += 1
            self._tell("on_status", trial, view.status, status)
            view.status = status
            self.log("status", trial.trial_id, status)
            self._dirty.add(trial.trial_id)

    def on_stop_trial(self, trial) -> None:
        view = self._views[trial.trial_id]
        view.trial = trial
        if trial.is_finished():
            return
        if self.in_action is trial and not view.stop:
            self.broken(
                "unasked-stop",
                "a STOP was carried out that nobody had decided for this actor",
                trial.trial_id,
            )
        if view.stop is None:
            self.log("stop_trial", trial.trial_id)
        self.stop_decided(trial, "stop_trial")

    def on_pause_trial(self, trial, should_checkpoint: bool) -> None:
        view = self._views[trial.trial_id]
        view.trial = trial
        if self.in_action is not trial:
            self._tell("on_act")
            self.log("pause_trial", trial.trial_id, f"save={should_checkpoint}")
            if not should_checkpoint:
                view.loose_pause = self.runtime._seq
        self._dirty.add(trial.trial_id)

    # After a step

    def after_step(self, controller) -> None:
        """Check what one step has touched.

        Args:
            controller: The controller.
        """
        trial_to_actor = controller._trial_to_actor
        dirty = self._dirty
        dirty.discard(None)
        self.touched |= dirty
        for trial_id in sorted(dirty) if len(dirty) > 1 else dirty:
            view = self._views.get(trial_id)
            trial = view.trial if view else None
            if trial is None:
                continue
            status = trial.status
            if status == Trial.RUNNING:
                if not any(map(_POSITIVE, view.in_flight.values())):
                    self.broken(
                        "running-idle",
                        "the trial is RUNNING, but no task of it is in flight, so no "
                        "event can come",
                        trial_id,
                    )
            elif status == Trial.PAUSED:
                if trial in trial_to_actor:
                    self.broken(
                        "paused-holds-actor",
                        "the trial is PAUSED and still holds an actor",
                        trial_id,
                    )
                if view.stop and not view.failed:
                    self.broken(
                        "stop-lost",
                        f"STOP had been decided ({view.stop}), but the trial is PAUSED",
                        trial_id,
                    )
            elif status == Trial.TERMINATED:
                if not view.stop and not self.stopping_all:
                    self.broken(
                        "unasked-stop",
                        "the trial is TERMINATED, but nobody decided to stop it",
                        trial_id,
                    )
        dirty.clear()
        if self.max_concurrent:
            manager = controller._actor_manager
            holding = [
                trial.trial_id
                for trial, actor in trial_to_actor.items()
                if manager.is_actor_started(actor) and not trial.is_finished()
            ]
            if len(holding) > self.max_concurrent:
                self.broken(
                    "max-concurrent",
                    f"{len(holding)} trials hold an actor, but "
                    f"max_concurrent={self.max_concurrent}",
                    holding[-1],
                )
        self._tell("after_step", controller)

    def nothing_left(self, controller, seconds: float) -> None:
        """Nothing is in flight and nothing was started for some time.

        Args:
            controller: The controller.
            seconds: For how many virtual seconds.
        """
        unfinished = [t for t in controller.get_trials() if not t.is_finished()]
        lines = []
        for trial in unfinished[:8]:
            last = trial.run_metadata.last_result or {}
            lines.append(
                f"{trial.trial_id} {trial.status}"
                f" at iteration {last.get('training_iteration', 0)}"
                + (", saving" if trial.is_saving else "")
            )
        if len(unfinished) > 8:
            lines.append(f"and {len(unfinished) - 8} more")
        searcher = (
            "finished" if controller.search_alg.is_finished() else "gives no trial"
        )
        self.broken(
            "hang",
            f"no event can come any more ({seconds:.0f} s without one), the searcher "
            f"{searcher}, and {len(unfinished)} trials are unfinished: "
            + "; ".join(lines),
            unfinished[0].trial_id if unfinished else None,
        )

    def at_end(self, controller, resources) -> None:
        """Everything is finished, nothing is cleaned up yet: what is left?

        Args:
            controller: The controller.
            resources: The resource manager.
        """
        for trial in controller.get_trials():
            if not trial.is_finished():
                self.broken(
                    "unfinished",
                    f"the run ended, the trial is {trial.status}",
                    trial.trial_id,
                )
        manager = controller._actor_manager
        for trial in controller._actor_to_trial.values():
            self.broken("actor-left", "a finished trial holds an actor", trial.trial_id)
        if manager.num_pending_actors:
            self.broken(
                "actor-left", f"{manager.num_pending_actors} actors are still asked for"
            )
        for ref in sorted(manager._actor_task_events.get_futures()):
            self.broken(
                "future-left", f"a {ref.method} is still waited for", ref.trial_id
            )
        self._tell("at_end", controller)
        for name in ("_cached_trial_decisions", "_queued_trial_decisions"):
            for trial_id, decision in getattr(controller, name, {}).items():
                self.broken("decision-left", f"{decision} is left in {name}", trial_id)

    def after_cleanup(self, controller, resources) -> None:
        """The controller has cleaned up: nothing may be held.

        Args:
            controller: The controller.
            resources: The resource manager.
        """
        manager = controller._actor_manager
        if manager.num_total_actors or resources.num_acquired:
            self.broken(
                "actor-left",
                f"{manager.num_total_actors} actors are left and "
                f"{resources.num_acquired} of them hold resources after cleanup",
            )
        cached = getattr(controller, "_actor_cache", None)
        if cached is not None and cached.num_cached_objects:
            self.broken("actor-left", f"{cached.num_cached_objects} actors are cached")


def _name(path: Optional[str]) -> str:
    return "scratch" if path is None else "/".join(path.split("/")[-2:])


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1][:100] if lines else type(error).__name__
