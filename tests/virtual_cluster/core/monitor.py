"""What happened in a run, and who listens to it.

The monitor sees what the driver asks of the actors, which futures it watches, and what
the scheduler decides. It keeps what several invariants need, and tells all of them what
happens. It judges nothing on its own.
"""

from typing import Dict, List, NamedTuple, Optional

from ..faults.plan import HookFault
from ray.tune.experiment import Trial
from ray.tune.result import RESULT_DUPLICATE

TRAIN = ("train", "train_buffered")
_WORK = ("train", "train_buffered", "save", "restore", "reset")
_NOT_WORK = ("get_auto_filled_metrics", "__ray_ready__")
# A run cannot go on after these, so that they cannot be ignored.
_TERMINAL = ("hang", "blocked", "spin", "endless")

never_checked: set = set()  # by any monitor, whatever it is told to ignore
# What invariants may listen to: each is called with the monitor and these arguments.
HOOKS = {
    "after_cleanup": "controller, resources: the controller has cleaned up",
    "after_step": "controller: it has done one step",
    "at_end": "controller: everything is finished, and nothing cleaned up yet",
    "driver_died": "what only the driver knew is lost",
    "on_act": "somebody else than the scheduler pauses a trial",
    "on_decision": "trial, result, decision: the scheduler has decided",
    "on_discard": "ref, view: the driver gives up a future",
    "on_failure": "ref: a task has failed",
    "on_first_train": "ref, view: an actor trains a trial for the first time",
    "on_hook": "hook, trial: a hook of the scheduler is called",
    "on_hook_failed": "exc, hook: the run has ended with what a hook raised",
    "on_overwritten": "trial_id, path: two saves have written there",
    "on_produced": "ref, result: a trainable has reported",
    "on_quiet": "controller, seconds: nothing is in flight, and nothing was started",
    "on_resolved": "ref, view: the driver has handled what came of a future",
    "on_resolving": "ref, view: the driver is about to handle a future",
    "on_restored": "ref, content, metrics: an actor has loaded a checkpoint",
    "on_restored_run": "controller, last: restored; after a hook raised: where it was",
    "on_result": "trial, result: the result is handled",
    "on_searcher_complete": "trial_id, result, error: the searcher is told of an end",
    "on_searcher_pause": "trial_id, result: the searcher is told of a pause",
    "on_stalled": "controller, exc: the run was ended since it stalled",
    "on_status": "trial, before, status: the status has changed",
    "on_stop_all": "controller: the whole experiment is being stopped",
    "on_stop_trial": "trial, view: stop_trial is called for an unfinished trial",
    "on_submit": "ref, view: the driver asks an actor for something",
    "on_told": "trial, result, has_ended: the scheduler is told of a result",
    "on_touched": "trial, view, controller: the step has changed something of it",
    "on_track": "ref, kind, count: the driver watches so many such tasks of a trial",
    "on_wait": "ref, seconds: the driver has waited, doing nothing else",
    "on_warning": "message: the controller warns",
}


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


class TrialView:
    """What the monitor knows of one trial.

    Attributes:
        trial: Tune's trial, once it is known.
        in_flight: How many tasks of each kind the driver watches.
        stop: Who decided to stop it; None if nobody has.
        failed: Whether a task has failed since its actor was started or reset.
        failed_seq: The number of the first one that did.
        loose_pause: Tasks up to this number may be dropped, since somebody has paused
            the trial without a checkpoint.
        trained: The incarnation of the actor that was seen to train.
        status: The status that was seen last.
    """

    __slots__ = (
        "trial",
        "in_flight",
        "stop",
        "failed",
        "failed_seq",
        "loose_pause",
        "trained",
        "status",
    )

    def __init__(self):
        self.trial = None
        self.in_flight: Dict[str, int] = {}
        self.stop: Optional[str] = None
        self.failed = False
        self.failed_seq: Optional[int] = None
        self.loose_pause = -1
        self.trained = None
        self.status = None


class _Views(dict):
    """The views by trial id; each is made when it is first asked for."""

    def __missing__(self, trial_id) -> TrialView:
        view = self[trial_id] = TrialView()
        return view


class Monitor:
    """Watches a run, and remembers the first invariant that is broken.

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
        self.errors: List[str] = []  # that Tune has logged
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
        self.views = _Views()
        self._dirty: set = set()
        self.touched: set = set()  # the trials of recent steps; whoever reads it clears
        self._last_choice = None
        self.invariants: List = []
        self._rules: set = set()  # those that the invariants can say to be broken
        self._hooks: Dict[str, List] = {name: [] for name in HOOKS}

    # Bookkeeping

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
            rule: The name of the invariant.
            what: What was broken.
            trial: The id of the trial that broke it, or None.

        Raises:
            KeyError: If no invariant of this run has such a rule.
        """
        if rule not in self._rules:
            raise KeyError(f"{rule!r} is the rule of no invariant of this run")
        if self.violation is not None:
            return
        if rule not in self.ignore or rule in _TERMINAL:
            self.violation = InvariantViolation(
                rule, what, trial, self.events[-16:], self.number
            )

    def add(self, invariants) -> None:
        """Add invariants.

        Args:
            invariants: Objects with ``RULES`` and some of the hooks in ``HOOKS``.
        """
        self.invariants.extend(invariants)
        for invariant in invariants:
            self._rules.update(invariant.RULES)
            for name, hooks in self._hooks.items():
                if hasattr(type(invariant), name):
                    hooks.append(getattr(invariant, name))

    def tell(self, hook: str, *args) -> None:
        """Tell the invariants of something.

        Args:
            hook: One of ``HOOKS``.
            *args: Its arguments.
        """
        for method in self._hooks[hook]:
            method(self, *args)

    def driver_died(self) -> None:
        """Forget what only the driver knew."""
        self.tell("driver_died")
        self.views.clear()
        self._dirty.clear()
        self.touched.clear()
        self.stopping_all = False
        self.in_action = None
        self.num_failures = 0
        self.changes += 1

    # What the driver asks of actors

    def on_submit(self, ref) -> None:
        trial_id, method = ref.trial_id, ref.method
        if method in _NOT_WORK:
            return
        self.changes += 1
        view = self.views[trial_id]
        if method in ("start", "reset"):
            view.trained = view.failed_seq = None
            if view.stop and view.failed:
                # The decision was made for the actor that failed.
                view.stop = None
            view.failed = False
        self.tell("on_submit", ref, view)
        if method in TRAIN and view.trained != ref.incarnation:
            view.trained = ref.incarnation
            if view.trial is not None:
                self.tell("on_first_train", ref, view)
        self._dirty.add(trial_id)

    def on_fault(self, fault, ref) -> None:
        self.faults_fired.append(fault)
        self.log("fault", ref.trial_id, f"will hit {ref.method}: {fault!r}")

    # What futures the driver watches

    def on_track(self, ref) -> None:
        method = ref.method
        if method not in _WORK:
            return
        view = self.views[ref.trial_id]
        kind = "train" if method in TRAIN else method
        count = view.in_flight[kind] = view.in_flight.get(kind, 0) + 1
        self.tell("on_track", ref, kind, count)

    def _on_untrack(self, ref, view: TrialView) -> None:
        method = ref.method
        if method in _WORK:
            kind = "train" if method in TRAIN else method
            view.in_flight[kind] = view.in_flight.get(kind, 0) - 1
            self._dirty.add(ref.trial_id)

    def on_discard(self, ref) -> None:
        view = self.views[ref.trial_id]
        self._on_untrack(ref, view)
        self.tell("on_discard", ref, view)

    def on_resolving(self, ref) -> None:
        self.number += 1
        self.changes += 1
        self.runtime.idle_left = self.runtime.idle_steps
        view = self.views[ref.trial_id]
        self._on_untrack(ref, view)
        self._dirty.add(ref.trial_id)
        name = "started" if ref.method == "__ray_ready__" else ref.method
        if ref.error is None:
            detail = ""
            if ref.method == "reset" and ref.value is False:
                self.tell("on_failure", ref)
                self.num_failures += 1
            if ref.method == "train" and ref.value is not None:
                iteration = ref.value.get("training_iteration")
                detail = "end" if iteration is None else f"iteration {iteration}"
            self.log(name, ref.trial_id, detail)
            if ref.method in TRAIN and view.stop is None:
                values = ref.value if isinstance(ref.value, list) else [ref.value]
                if any(RESULT_DUPLICATE in value for value in values):
                    view.stop = "its function ended"
        else:
            self.tell("on_failure", ref)
            self.num_failures += 1
            view.failed = True
            if view.failed_seq is None:
                view.failed_seq = ref.seq
            self.log(name, ref.trial_id, f"FAILED: {_first_line(ref.error)}")

    def on_resolved(self, ref) -> None:
        self.tell("on_resolved", ref, self.views[ref.trial_id])

    # What was decided

    def on_trial(self, trial) -> None:
        view = self.views[trial.trial_id]
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
            raise HookFault(hook)
        self.tell("on_hook", hook, trial)

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

    def on_decision(self, trial, result: Dict, decision: str) -> None:
        iteration = result.get("training_iteration")
        self.decisions.append((self.clock.now, trial.trial_id, iteration, decision))
        if decision != "CONTINUE":
            self.log("decision", trial.trial_id, f"{decision} at iteration {iteration}")
        self.tell("on_decision", trial, result, decision)
        if decision == "STOP":
            self.stop_decided(trial, "the scheduler's decision")
        self._dirty.add(trial.trial_id)

    def stop_decided(self, trial, who: str) -> None:
        view = self.views[trial.trial_id]
        if view.stop is None:
            view.stop = who

    def on_result(self, trial, result: Dict) -> None:
        """A result is handled: Tune's callbacks are told of it.

        Args:
            trial: The trial.
            result: The result that the trainable sent.
        """
        self.results.setdefault(trial.trial_id, []).append(result)
        self.tell("on_result", trial, result)
        if result.get("done"):
            self.stop_decided(trial, "its result is marked done")

    def on_choice(self, trial) -> None:
        chosen = None if trial is None else (trial.trial_id, trial.status)
        if chosen is not None and chosen != self._last_choice:
            self.log("choice", trial.trial_id, trial.status)
        self._last_choice = chosen

    def on_status(self, trial, status: str) -> None:
        view = self.views[trial.trial_id]
        view.trial = trial
        if self.in_stop_all and status == Trial.TERMINATED:
            self.stopping_all = True
        if view.status != status:
            self.changes += 1
            self.tell("on_status", trial, view.status, status)
            view.status = status
            self.log("status", trial.trial_id, status)
            self._dirty.add(trial.trial_id)

    def on_stop_trial(self, trial) -> None:
        view = self.views[trial.trial_id]
        view.trial = trial
        if trial.is_finished():
            return
        self.tell("on_stop_trial", trial, view)
        if view.stop is None:
            self.log("stop_trial", trial.trial_id)
        self.stop_decided(trial, "stop_trial")

    def on_pause_trial(self, trial, should_checkpoint: bool) -> None:
        view = self.views[trial.trial_id]
        view.trial = trial
        if self.in_action is not trial:
            self.tell("on_act")
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
        dirty = self._dirty
        dirty.discard(None)
        self.touched |= dirty
        for trial_id in sorted(dirty) if len(dirty) > 1 else dirty:
            view = self.views.get(trial_id)
            if view is not None and view.trial is not None:
                self.tell("on_touched", view.trial, view, controller)
        dirty.clear()
        self.tell("after_step", controller)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1][:100] if lines else type(error).__name__
