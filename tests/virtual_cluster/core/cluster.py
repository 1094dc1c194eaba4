"""A virtual cluster: one Tune experiment, run without Ray, event by event."""

import os
import random
import shutil
import tempfile
import weakref
from contextlib import contextmanager
from typing import Any, Callable, Dict, List, Optional, Union

from ..faults.injector import FaultInjector
from ..faults.plan import HookFault
from ..invariants import invariants_of
from ..workloads import trainables
from ..workloads.trainables import ClassTrainable, VirtualTrainable
from . import observe
from .activation import (
    Activation,
    OrderRandom,
    VirtualUUID,
    make_trials_hash_stably,
)
from .actors import BlockedForever
from .clock import VirtualClock, VirtualTime
from .fake_ray import FakeRay
from .monitor import Monitor
from .observe import ObservedController, ObservedEventManager
from .order import SeededChooser
from .record import RunRecord
from .resources import VirtualResourceManager
from .runtime import Runtime
from .set_up import environment, maker, nodes_of, samples, set_up
from .settings import Cluster, Experiment, Faults, Options, grouped
from ray.tune import ResumeConfig
from ray.tune.error import TuneError
from ray.tune.schedulers import FIFOScheduler, TrialScheduler

# How long, in virtual seconds, it must be quiet before a run is said to hang. The
# last one is longer than the 600 s after which Tune kills actors that do not stop.
_QUIET = (1.0, 61.0, 700.0)


class VirtualCluster:
    """One experiment on a virtual cluster. See the package's docstring.

    Args:
        experiment: What is run.
        cluster: What it runs on.
        faults: What goes wrong.
        options: How the run is drawn, watched and judged.
    """

    def __init__(
        self,
        experiment: Experiment,
        cluster: Cluster = Cluster(),
        faults: Faults = Faults(),
        options: Options = Options(),
    ):
        make_trials_hash_stably()
        trainables.register()
        self.experiment, self.options = experiment, options
        self.settings = cluster
        seed = self.seed = options.seed
        trainable = experiment.trainable
        if trainable is None or not isinstance(trainable, VirtualTrainable):
            trainable = ClassTrainable(trainable or trainables.saturating)
        self.trainable = trainable
        self.num_samples, self.space = samples(experiment)
        self.resume_after = faults.resume_after
        self._detect_hangs = options.detect_hangs and not options.may_stall
        self._lag = cluster.lag
        self._lag_rng = random.Random(seed * 104729 + 3)
        self.faults = FaultInjector(self, faults)
        self._make_scheduler = maker(experiment.scheduler or FIFOScheduler())
        self.make_search_alg = maker(experiment.search_alg)
        self.make_callbacks = maker(experiment.callbacks or [])

        self.clock = VirtualClock()
        self.nodes = nodes_of(cluster)
        self.chooser = options.chooser or SeededChooser(seed)
        self.runtime = Runtime(
            self.clock,
            self.nodes,
            cluster.costs,
            self.faults.plan,
            {trainable.registered_name: trainable},
            self.chooser,
            seed,
        )
        self.runtime.idle_steps = cluster.idle_steps
        if not self._detect_hangs:
            self.runtime.quiet_wait = 1.0
        self.monitor = Monitor(
            self.clock,
            self.runtime,
            experiment.max_concurrent,
            options.keep_events,
            options.ignore,
        )
        self.runtime.monitor = self.monitor
        self.env = environment(experiment, options)
        self._own_root = experiment.storage_path is None
        storage_path = experiment.storage_path
        if storage_path is None:
            base = "/dev/shm" if os.path.isdir("/dev/shm") else None
            storage_path = tempfile.mkdtemp(prefix="virtual_cluster_", dir=base)
            self._finalizer = weakref.finalize(
                self, shutil.rmtree, storage_path, ignore_errors=True
            )
        self.storage_path = storage_path
        self._activation = Activation(
            FakeRay(self.runtime),
            VirtualTime(self.clock, self.runtime.stretch),
            VirtualUUID(),
            OrderRandom(self.runtime, self.chooser.rng),
            ObservedEventManager,
            [],
            self.env,
            seed,
            options.quiet,
        )
        self._quiet = 0
        self._steps_without_event = 0
        self.num_restarts = 0
        self.finished = False
        self.end: Optional[float] = None
        self.controller: Optional[ObservedController] = None
        self.scheduler: Optional[TrialScheduler] = None
        self.resource_manager: Optional[VirtualResourceManager] = None

    @classmethod
    def of(
        cls,
        scheduler: Union[None, TrialScheduler, Callable[[], TrialScheduler]] = None,
        **settings: Any,
    ) -> "VirtualCluster":
        """Make a cluster of single settings, where they come from somebody else.

        Args:
            scheduler: As in ``Experiment``.
            **settings: Fields of ``Experiment``, ``Cluster``, ``Faults`` and
                ``Options``, by name.

        Returns:
            The cluster.

        Raises:
            TypeError: If there is no such setting.
        """
        return cls(**grouped({"scheduler": scheduler, **settings}))

    # Life cycle

    @contextmanager
    def active(self):
        """Put the virtual clock and runtime under Tune; needed to call Tune directly.

        Yields:
            This cluster.
        """
        with self._activation:
            observe._active.append(self.monitor)
            try:
                yield self
            finally:
                observe._active.pop()

    def start(self) -> "VirtualCluster":
        """Make the controller; ``step`` and ``run`` do this when needed.

        Returns:
            This cluster.
        """
        if self.controller is None:
            with self._started():
                pass
        return self

    @contextmanager
    def _started(self):
        """Be active, with a controller."""
        if self.controller is not None:
            with self.active():
                yield
            return
        # Patches of the scheduler's class go in with the activation.
        scheduler = self.scheduler = self._make_scheduler()
        assert self._activation._depth == 0 or not self._activation.class_patches
        self._activation.class_patches = [
            *observe.scheduler_patches(scheduler, observe.current),
            *observe.logger_patches(observe.current),
        ]
        self.monitor.scheduler = scheduler
        self.monitor.add(invariants_of(scheduler))
        resume = (
            ResumeConfig()
            if self.experiment.resume is True
            else self.experiment.resume or None
        )
        with self.active():
            set_up(self, scheduler, resume)
            yield

    # Running

    def step(self) -> List:
        """Let the controller do one step, which handles at most one event.

        Returns:
            What happened in it.

        Raises:
            InvariantViolation: If an invariant was broken, and ``check``.
        """
        with self._started():
            return self._step()

    def _step(self) -> List:
        monitor, clock = self.monitor, self.clock
        self.faults.apply_due()
        if self.controller.is_finished():
            return []  # what was done from outside ended it
        probability, seconds = self._lag
        if probability and self._lag_rng.random() < probability:
            clock.advance_to(clock.now + self._lag_rng.uniform(0, seconds))
        seen = monitor.num_dropped + len(monitor.events)
        handled, changes = monitor.number, monitor.changes
        try:
            self.controller.step()
        except Exception as exc:
            cause = _cause(exc, BlockedForever, HookFault)
            if isinstance(cause, BlockedForever):
                monitor.broken("blocked", str(cause))
            elif cause is not None and monitor.violation is None:
                self.faults.hook_failed(exc, cause.hook)
            elif monitor.violation is None or not self.options.check:
                raise
        monitor.after_step(self.controller)
        if monitor.number == handled:
            self._steps_without_event += 1
            self._watch_for_quiet(changes)
        else:
            self._steps_without_event = 0
            self._quiet = 0
        watched = self._detect_hangs or self.options.may_stall
        if self._steps_without_event > 3000 and watched:
            monitor.broken("spin", "3000 steps of the controller without an event")
        self._raise_violation()
        happened = monitor.events[max(0, seen - monitor.num_dropped) :]
        if self.options.on_event is not None:
            for event in happened:
                self.options.on_event(self, event)
        return happened

    def _watch_for_quiet(self, changes: int) -> None:
        if (
            self.runtime.next_time is not None
            or self.monitor.changes != changes
            or self.faults.pending_nodes
        ):
            if self.faults.pending_nodes and self.runtime.next_time is None:
                self.clock.advance_to(self.faults.pending_nodes[0][0])
            self._quiet = 0
            return
        if not self._detect_hangs:
            if self.options.may_stall and (
                self._steps_without_event > 3 * self.experiment.stall_timeout_s + 10
            ):
                self.monitor.broken(
                    "stall",
                    f"nothing can happen any more, and the run does not end after "
                    f"{self.experiment.stall_timeout_s} s",
                )
            return
        if self._quiet < len(_QUIET):
            self.clock.advance_to(self.clock.now + _QUIET[self._quiet])
            self._quiet += 1
        elif not self.controller.is_finished():
            self.monitor.tell("on_quiet", self.controller, sum(_QUIET))

    def restart_driver(self) -> None:
        """The driver dies now; a new one restores the experiment from its storage."""
        with self._started():
            self.restart()

    def restart(
        self,
        resume_config: Optional[ResumeConfig] = None,
        moved: bool = False,
        last: Optional[Dict[str, int]] = None,
    ) -> None:
        """Restore the experiment with a new driver; for what makes one die.

        Args:
            resume_config: How it is restored.
            moved: Whether it is moved to another directory before.
            last: The iterations that had been handled when a hook raised.
        """
        self.num_restarts += 1
        self.runtime.lose_driver()
        if moved:
            self._move()
        self.monitor.driver_died()
        self.monitor.log("driver_death", None)
        self.resource_manager.clear()
        # Snapshots are named by the second.
        self.clock.advance_to(self.clock.now + 2.0)
        before, scheduler = self.scheduler, self._make_scheduler()
        if type(scheduler) is not type(before):
            self._activation.add_class_patches(
                observe.scheduler_patches(scheduler, observe.current)
            )
        self.monitor.scheduler = self.scheduler = scheduler
        set_up(self, scheduler, resume_config or ResumeConfig())
        self.monitor.tell("on_restored_run", self.controller, last)

    def _move(self) -> None:
        """Move the experiment to another directory, and what was saved with it."""
        before = os.path.join(self.storage_path, "experiment")
        self.storage_path = os.path.join(self.storage_path, f"moved{self.num_restarts}")
        after = os.path.join(self.storage_path, "experiment")
        self.runtime.move(before, after)

    def _stalled(self, exc: TuneError) -> None:
        monitor = self.monitor
        monitor.tell("on_stalled", self.controller, exc)
        self.finished = True
        self.end = self.clock.now
        self.controller.cleanup()
        monitor.tell("after_cleanup", self.controller, self.resource_manager)

    def run(self, max_events: int = 100_000) -> RunRecord:
        """Run the experiment to its end, and check what is left of it.

        Args:
            max_events: How many events may be handled; more break an invariant.

        Returns:
            The record of the run.

        Raises:
            InvariantViolation: If an invariant was broken, and ``check``.
        """
        with self._started():
            self._run_to_end(max_events)
            while self.resume_after and self.monitor.violation is None:
                self.resume_after -= 1
                self._resume_what_ended()
                self._run_to_end(max_events)
            return self._finish()

    def _run_to_end(self, max_events: int) -> None:
        monitor = self.monitor
        while not self.controller.is_finished() and not self.finished:
            try:
                self._step()
            except TuneError as exc:
                if not self.options.may_stall or "stalled" not in str(exc):
                    raise
                self._stalled(exc)
            if monitor.violation is not None:
                return
            if monitor.number >= max_events:
                monitor.broken("endless", f"no end after {max_events} events")
                return

    def _resume_what_ended(self) -> None:
        self.monitor.tell("at_end", self.controller)
        self.controller.checkpoint(force=True, wait=True)
        self.controller.cleanup()
        self.restart(ResumeConfig(errored=ResumeConfig.ResumeType.RESUME))

    def run_until(self, condition: Callable[[], bool], max_events: int = 100_000):
        """Step until a condition holds.

        Args:
            condition: Asked after every step.
            max_events: How many events may be handled.

        Raises:
            TimeoutError: If it does not hold after so many events.
        """
        with self._started():
            while not condition():
                if self.monitor.number >= max_events or self.controller.is_finished():
                    raise TimeoutError(
                        f"The condition did not hold within {self.monitor.number} "
                        f"events:\n" + "\n".join(map(str, self.monitor.events[-16:]))
                    )
                self._step()

    def finish(self) -> RunRecord:
        """End the run as ``tune.run`` does, and check what is left.

        Returns:
            The record of the run.

        Raises:
            InvariantViolation: If an invariant was broken, and ``check``.
        """
        with self._started():
            return self._finish()

    def _finish(self) -> RunRecord:
        monitor = self.monitor
        if not self.finished:
            self.finished = True
            self.end = self.clock.now
            if monitor.violation is None:
                monitor.tell("at_end", self.controller)
            if monitor.violation is None:
                if (
                    self.experiment.checkpoint_period is not None
                    or self.faults.plan.snapshots
                ):
                    self.controller.checkpoint(force=True, wait=True)
                self.controller.cleanup()
                monitor.tell("after_cleanup", self.controller, self.resource_manager)
        self._raise_violation()
        return RunRecord(self)

    def _raise_violation(self) -> None:
        if self.options.check and self.monitor.violation is not None:
            raise self.monitor.violation

    def close(self) -> None:
        """Delete what the cluster stored, unless ``storage_path`` was given."""
        if self._own_root:
            self._finalizer()

    def record(self) -> RunRecord:
        """Return the record as far as the run has got.

        Returns:
            The record.
        """
        return RunRecord(self)

    # For tests

    @property
    def trials(self) -> List:
        """Tune's trials, in the order that the controller has them."""
        return self.start().controller.get_trials()

    def call(self, function: Callable, *args, **kwargs) -> Any:
        """Call something of Tune while the cluster is active.

        Args:
            function: What to call.
            *args: Its arguments.
            **kwargs: Its keyword arguments.

        Returns:
            What it returns.
        """
        with self._started():
            return function(*args, **kwargs)

    def pause_trial(self, trial, should_checkpoint: bool = True) -> None:
        """Call the controller's ``pause_trial``, as a callback may.

        Args:
            trial: The trial.
            should_checkpoint: As there.
        """
        self.call(self.controller.pause_trial, trial, should_checkpoint)

    def stop_trial(self, trial) -> None:
        """Call the controller's ``stop_trial``, as a callback may.

        Args:
            trial: The trial.
        """
        self.call(self.controller.stop_trial, trial)

    def in_flight(self, trial) -> Dict[str, int]:
        """Return what the driver waits for of a trial.

        Args:
            trial: The trial.

        Returns:
            The number of tasks of each kind (``train``, ``save``, ...).
        """
        view = self.monitor.views[trial.trial_id]
        return {kind: n for kind, n in view.in_flight.items() if n > 0}


def _cause(exc: Optional[BaseException], *kinds: type) -> Optional[BaseException]:
    """Find what an error came of, if that is of one of these kinds."""
    # Exactly: Tune may derive a class of its own from that of an error.
    while exc is not None and type(exc) not in kinds:
        exc = exc.__cause__ or exc.__context__
    return exc
