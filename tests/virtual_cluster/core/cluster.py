"""A virtual cluster: one Tune experiment, run without Ray, event by event."""

import contextlib
import os
import pickle
import random
import shutil
import tempfile
import warnings
import weakref
from contextlib import contextmanager
from typing import Any, Callable, Dict, List, Optional, Union

from ..faults.plan import Fault, FaultPlan, HookFault
from ..invariants import invariants_of
from ..workloads import trainables
from ..workloads.schedulers import Act
from ..workloads.trainables import ClassTrainable, VirtualTrainable
from . import observe
from .activation import (
    Activation,
    OrderRandom,
    VirtualUUID,
    make_trials_hash_stably,
)
from .actors import BlockedForever, FakeRay, Runtime
from .clock import VirtualClock, VirtualTime
from .monitor import Monitor
from .observe import MonitorCallback, ObservedController, ObservedEventManager
from .order import SeededChooser
from .record import RunRecord
from .resources import Node, VirtualResourceManager
from .settings import Cluster, Experiment, Faults, Options, grouped
from .storage import VirtualExperiment
from ray import cloudpickle, tune
from ray.tune import ResumeConfig
from ray.tune.error import TuneError
from ray.tune.execution.placement_groups import (
    PlacementGroupFactory,
    resource_dict_to_pg_factory,
)
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import (
    BasicVariantGenerator,
    ConcurrencyLimiter,
    Searcher,
    SearchGenerator,
)

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
        seed = self.seed = options.seed
        trainable = experiment.trainable
        if trainable is None or not isinstance(trainable, VirtualTrainable):
            trainable = ClassTrainable(trainable or trainables.saturating)
        self._trainable = trainable
        self._num_samples, self._space = _samples(experiment)
        self._resume_after = faults.resume_after
        self._detect_hangs = options.detect_hangs and not options.may_stall
        self._lag = cluster.lag
        self._lag_rng = random.Random(seed * 104729 + 3)
        self._reserve = cluster.reserve
        self.plan = FaultPlan(faults.faults)
        self._outside: Dict[int, List[Act]] = {}
        for act in faults.outside:
            self._outside.setdefault(act.nth, []).append(act)
        self._last_planned = max([self.plan.last_event, *self._outside])
        self._make_scheduler = _maker(experiment.scheduler or FIFOScheduler())
        self._make_search_alg = _maker(experiment.search_alg)
        self._make_callbacks = _maker(experiment.callbacks or [])

        self.clock = VirtualClock()
        self.nodes = _nodes(cluster)
        self.chooser = options.chooser or SeededChooser(seed)
        self.runtime = Runtime(
            self.clock,
            self.nodes,
            cluster.costs,
            self.plan,
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
        self._env = _environment(experiment, options)
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
            self._env,
            seed,
            options.quiet,
        )
        self._quiet = 0
        self._pending_nodes: List = []
        self._storage_full_until: Optional[int] = None
        self._num_seen = 0
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
            self._set_up(scheduler, resume)
            yield

    def _set_up(self, scheduler, resume_config: Optional[ResumeConfig]) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._set_up_quietly(scheduler, resume_config)

    def _set_up_quietly(self, scheduler, resume_config) -> None:
        from ray.tune.schedulers.util import (
            _set_search_properties_backwards_compatible as set_scheduler,
        )
        from ray.tune.search.util import (
            _set_search_properties_backwards_compatible as set_searcher,
        )

        if not scheduler.supports_buffered_results:
            os.environ["TUNE_RESULT_BUFFER_LENGTH"] = "1"
            self._env["TUNE_RESULT_BUFFER_LENGTH"] = "1"
        experiment = VirtualExperiment(
            "experiment",
            self._trainable.registered_name,
            stop=self.experiment.stop,
            time_budget_s=self.experiment.time_budget_s,
            config=dict(self._space),
            num_samples=self._num_samples,
            storage_path=self.storage_path,
            checkpoint_config=self.experiment.checkpoint_config,
            max_failures=self.experiment.max_failures,
            trial_dirname_creator=_trial_dirname,
        )
        placeholder = trainables.placeholder(self._trainable.registered_name)
        request = _resource_function(self.experiment.resources)
        placeholder.resource_function = staticmethod(request)
        search_alg = self._make_search_alg()
        if search_alg is None:
            search_alg = BasicVariantGenerator(
                points_to_evaluate=self.experiment.configs,
                max_concurrent=self.experiment.max_concurrent,
                random_state=self.seed,
            )
        elif self.experiment.max_concurrent and not isinstance(
            search_alg, ConcurrencyLimiter
        ):
            if isinstance(search_alg, Searcher):
                search_alg = ConcurrencyLimiter(
                    search_alg, self.experiment.max_concurrent
                )
        if isinstance(search_alg, Searcher):
            search_alg = SearchGenerator(search_alg)
        if hasattr(search_alg, "_uuid_prefix"):
            search_alg._uuid_prefix = "t_"
        metric, mode = self.experiment.metric, self.experiment.mode
        if not set_searcher(
            search_alg.set_search_properties,
            metric,
            mode,
            dict(self._space),
            **experiment.public_spec,
        ):
            raise ValueError("The searcher has a search space of its own already.")
        own = getattr(scheduler, "_metric", None) or getattr(scheduler, "metric", None)
        if own is not None and metric is not None:
            metric = mode = None
        if not set_scheduler(
            scheduler.set_search_properties, metric, mode, **experiment.public_spec
        ):
            raise ValueError(
                "The scheduler has a metric or mode of its own: pass metric=None."
            )
        self.monitor.buffer_length = int(self._env["TUNE_RESULT_BUFFER_LENGTH"])
        self.monitor.reuses_actors = self.experiment.reuse_actors
        period = self.experiment.checkpoint_period
        self.resource_manager = VirtualResourceManager(self.nodes, self._reserve)
        self.controller = ObservedController(
            search_alg=search_alg,
            scheduler=scheduler,
            stopper=experiment.stopper,
            resume_config=resume_config,
            fail_fast=self.experiment.fail_fast,
            checkpoint_period=1e9 if period is None else period,
            callbacks=[MonitorCallback(), *self._make_callbacks()],
            metric=self.experiment.metric,
            trial_checkpoint_config=experiment.checkpoint_config,
            storage=experiment.storage,
            reuse_actors=self.experiment.reuse_actors,
            resource_manager_factory=lambda: self.resource_manager,
        )
        if period is None:
            # Not even the first snapshot, and none that is forced if nobody restores.
            self.controller._checkpoint_manager._last_save_time = 0.0
            if not self.plan.snapshots and not self._resume_after:
                manager = self.controller._checkpoint_manager
                manager._sync_every_n_trial_checkpoints = None
        if not self.controller.resumed:
            search_alg.add_configurations([experiment])
            self.controller.update_max_pending_trials()
        self.controller.setup_experiments(
            experiments=[experiment], total_num_samples=search_alg.total_samples
        )

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
        self._apply_faults()
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
                self._hook_failed(exc, cause.hook)
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
            or self._pending_nodes
        ):
            if self._pending_nodes and self.runtime.next_time is None:
                self.clock.advance_to(self._pending_nodes[0][0])
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

    def _apply_faults(self) -> None:
        while self._pending_nodes and self._pending_nodes[0][0] <= self.clock.now:
            _, node = self._pending_nodes.pop(0)
            node.up = True
            self.monitor.log("node_back", None, f"node {node.number}")
            self.resource_manager.resources_changed()
        number = self.monitor.number
        if self._storage_full_until is not None and number >= self._storage_full_until:
            self._storage_full_until = None
            self._set_storage_full(False)
        for count in range(self._num_seen, min(number, self._last_planned) + 1):
            if count in self.plan.snapshots:
                self.controller.checkpoint(force=True, wait=True)
            for fault in self.plan.for_event(count):
                self._apply(fault)
            for act in self._outside.get(count, ()):
                self._act(act)
        self._num_seen = number + 1

    def _apply(self, fault: Fault) -> None:
        self.monitor.log("fault", None, repr(fault))
        self.monitor.faults_fired.append(fault)
        if fault.kind == "node_loss":
            node = self.nodes[fault.node % len(self.nodes)]
            if node.up:
                self.runtime.lose_node(fault.node)
                if fault.duration:
                    self._pending_nodes.append((self.clock.now + fault.duration, node))
                    self._pending_nodes.sort(key=lambda item: item[0])
        elif fault.kind == "storage_full":
            self._storage_full_until = self.monitor.number + int(fault.duration)
            self._set_storage_full(True)
        elif fault.kind == "driver_death":
            self._restart(moved=fault.moved)

    def _act(self, act: Act) -> None:
        trials = {
            self.runtime.trial_numbers[trial.trial_id]: trial
            for trial in self.controller.get_trials()
        }
        trial = trials.get(act.target)
        if trial is None:
            return
        if act.what == "stop_trial":
            self.controller.stop_trial(trial)
        else:
            self.controller.pause_trial(
                trial, should_checkpoint=act.what == "pause_trial"
            )

    def _set_storage_full(self, full: bool) -> None:
        self.runtime.storage_full = full
        self.controller._storage.syncer.full = full

    def restart_driver(self) -> None:
        """The driver dies now; a new one restores the experiment from its storage."""
        with self._started():
            self._restart()

    def _restart(
        self,
        resume_config: Optional[ResumeConfig] = None,
        moved: bool = False,
        last: Optional[Dict[str, int]] = None,
    ) -> None:
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
        self._set_up(scheduler, resume_config or ResumeConfig())
        self.monitor.tell("on_restored_run", self.controller, last)

    def _move(self) -> None:
        """Move the experiment to another directory, and what was saved with it."""
        before = os.path.join(self.storage_path, "experiment")
        self.storage_path = os.path.join(self.storage_path, f"moved{self.num_restarts}")
        after = os.path.join(self.storage_path, "experiment")
        self.runtime.move(before, after)

    def _hook_failed(self, exc: Exception, fault: str) -> None:
        """The run has ended with what a hook raised: is it named, and is all there?

        Args:
            exc: The error that ended the run.
            fault: The name of the hook that was hit.
        """
        self.monitor.tell("on_hook_failed", exc, fault)
        last = {
            trial.trial_id: (trial.last_result or {}).get("training_iteration", 0)
            for trial in self.controller.get_trials()
        }
        with contextlib.suppress(Exception):
            self.controller.cleanup()
        try:
            self._restart(last=last)
        except ValueError as error:  # Nothing of it was stored.
            self.monitor.broken("result-lost", f"the run cannot be restored: {error}")

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
            while self._resume_after and self.monitor.violation is None:
                self._resume_after -= 1
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
        self._restart(ResumeConfig(errored=ResumeConfig.ResumeType.RESUME))

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
                if self.experiment.checkpoint_period is not None or self.plan.snapshots:
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


def _samples(experiment: Experiment):
    """The number of trials, and the search space."""
    configs, space = experiment.configs, experiment.param_space
    if configs is not None:
        keys = sorted({key for config in configs for key in config})
        space = {
            key: tune.choice([c[key] for c in configs if key in c]) for key in keys
        }
        return len(configs), space
    return experiment.num_samples, (
        {"x": tune.uniform(0, 1)} if space is None else space
    )


def _nodes(cluster: Cluster) -> List[Node]:
    totals, slots = cluster.nodes, cluster.slots
    if isinstance(totals, int):
        share = [slots // totals + (i < slots % totals) for i in range(totals)]
        totals = [{"CPU": count} for count in share]
    return [Node(i, total) for i, total in enumerate(totals)]


def _environment(experiment: Experiment, options: Options) -> Dict[str, str]:
    env = {
        "TUNE_STALL_TIMEOUT_S": str(experiment.stall_timeout_s),
        "TUNE_RESULT_BUFFER_LENGTH": str(experiment.buffer_length),
        "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    }
    if experiment.max_pending is not None:
        env["TUNE_MAX_PENDING_TRIALS_PG"] = str(experiment.max_pending)
    if options.quiet:
        env["TUNE_PRINT_ALL_TRIAL_ERRORS"] = "0"
    env.update(experiment.env or {})
    return env


def _cause(exc: Optional[BaseException], *kinds: type) -> Optional[BaseException]:
    """Find what an error came of, if that is of one of these kinds."""
    # Exactly: Tune may derive a class of its own from that of an error.
    while exc is not None and type(exc) not in kinds:
        exc = exc.__cause__ or exc.__context__
    return exc


def _trial_dirname(trial) -> str:
    return trial.trial_id


def _pg_factory(resources) -> PlacementGroupFactory:
    if isinstance(resources, PlacementGroupFactory):
        return resources
    return resource_dict_to_pg_factory({k.lower(): v for k, v in resources.items()})


def _resource_function(resources: Any) -> Callable[[Dict], PlacementGroupFactory]:
    # Requests are compared by content, which is slow, unless they are the same object.
    known: Dict[str, PlacementGroupFactory] = {}

    def request(config: Dict) -> PlacementGroupFactory:
        # A PlacementGroupFactory can be called too; that would start Ray.
        if isinstance(resources, PlacementGroupFactory) or not callable(resources):
            wanted = resources
        else:
            wanted = resources(config)
        if isinstance(wanted, PlacementGroupFactory):
            key = str(wanted._bundles) + wanted.strategy
        else:
            key = str(wanted)
        if key not in known:
            known[key] = _pg_factory({"CPU": 1} if wanted is None else wanted)
        return known[key]

    return request


def _maker(thing: Any) -> Callable[[], Any]:
    """Make a function that returns a thing as it was before the first run of it."""
    if callable(thing) and not isinstance(thing, (TrialScheduler, Searcher)):
        return thing
    if thing is None or isinstance(thing, (list, tuple)) and not thing:
        return lambda: thing
    try:
        blob = cloudpickle.dumps(thing)
    except Exception:
        blob = None
    first = [thing]

    def make():
        if first:
            return first.pop()
        if blob is None:
            raise pickle.PicklingError(
                f"{type(thing).__name__} cannot be pickled, so the experiment cannot "
                "be restored: pass a function that makes it."
            )
        return cloudpickle.loads(blob)

    return make
