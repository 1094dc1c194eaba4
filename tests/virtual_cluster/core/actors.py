"""A stand-in for the Ray runtime: object refs, actors, ``wait``, ``get``, ``kill``.

Actors execute their tasks one after the other, as Ray's do. A task is carried out, in
the driver's process, when the virtual clock gets to the moment at which it ends.
"""

import copy
import heapq
import os
import random
from collections import deque
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Tuple, Union

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError
from ray.train._internal.session import _TrainingResult
from ray.tune import Checkpoint
from ray.tune.result import (
    DEBUG_METRICS,
    DONE,
    RESULT_DUPLICATE,
    SHOULD_CHECKPOINT,
    STDERR_FILE,
    STDOUT_FILE,
    TRIAL_INFO,
)

Cost = Union[float, Tuple[float, float], Callable[[Dict, int], float]]


@dataclass
class Costs:
    """How long things take, in virtual seconds.

    Each is a number, a pair ``(low, high)`` to draw from, or a function of the trial's
    config and the iteration.

    Args:
        start: To start an actor.
        train: One training iteration.
        save: To save a checkpoint.
        restore: To restore from a checkpoint.
        reset: To reset an actor for another trial.
        stop: To stop an actor.
        jitter: Each cost is multiplied by a number drawn from ``1 ± jitter``.
    """

    start: Cost = 1.0
    train: Cost = 1.0
    save: Cost = 0.1
    restore: Cost = 0.1
    reset: Cost = 0.1
    stop: Cost = 0.1
    jitter: float = 0.0


class BlockedForever(Exception):
    """``ray.get`` was called for a task that can never end."""


class TaskFault(RuntimeError):
    """What a task raises when a fault says so."""


class ObjectRef(int):
    """A future, and the task that it stands for.

    It hashes and compares as its number, so that the order in sets does not depend on
    addresses. Being a number, it does so without a call of Python code.
    """

    def __new__(cls, seq, actor, method, args, kwargs):
        return super().__new__(cls, seq)

    def __init__(self, seq, actor, method, args, kwargs):
        self.seq = seq
        self.actor = actor
        self.method = method
        self.args = args
        self.kwargs = kwargs
        self.trial_id = actor.trial_id
        self.incarnation = actor.incarnation
        self.done = False
        self.value = None
        self.error = None
        self.fault = None

    def __repr__(self):
        return f"<{self.method} #{self.seq} of {self.trial_id}>"

    def __reduce__(self):
        raise TypeError("A virtual object ref cannot be serialized.")


class _Method:
    __slots__ = ("_actor", "_name")

    def __init__(self, actor, name):
        self._actor = actor
        self._name = name

    def remote(self, *args, **kwargs):
        return self._actor._runtime.submit(self._actor, self._name, args, kwargs)


class ActorClass:
    """What ``ray.remote`` makes of a class."""

    def __init__(self, runtime, cls, node=None):
        self._runtime = runtime
        self._cls = cls
        self._node = node

    def on_node(self, node):
        return ActorClass(self._runtime, self._cls, node)

    def remote(self, config=None, storage=None, **kwargs):
        return Actor(self._runtime, self._cls, self._node, config or {}, storage)


class Actor:
    """A handle of an actor, and the trainable that lives in it."""

    def __init__(self, runtime, cls, node, config, storage):
        self._runtime = runtime
        self.number = runtime.next_actor_number()
        self.node = node
        self.error: Optional[RayActorError] = None
        self.died_at: Optional[int] = None  # number of the last task until then
        self.queue = deque()
        self.busy_until = runtime.clock.now
        self.trainable = runtime.trainables[cls.__name__]
        # Counts the trials that lived here: tasks of different ones are not ordered
        # among each other.
        self.incarnation = (self.number, 0)
        self.trial_id = None
        self._load(config, storage)
        self.fresh()
        if node is not None:
            node.actors[self.number] = self
            if not node.up:
                runtime.kill(self, "node is down")
        runtime.submit(self, "start", (), {})

    def _load(self, config: Dict, storage) -> None:
        info = config.pop(TRIAL_INFO, None)
        config.pop(STDOUT_FILE, None)
        config.pop(STDERR_FILE, None)
        if info is not None:
            self.trial_id = info.trial_id
        self.config = config
        self.storage = copy.copy(storage)

    def fresh(self) -> None:
        self.iteration = 0  # what Tune counts
        self.progress = 0  # what the user's code has trained
        self.time_total = 0.0
        self.time_since_restore = 0.0
        self.iterations_since_restore = 0
        self.state: Dict[str, Any] = {}
        self.last_result: Optional[Dict] = None
        self.last_training_result: Optional[_TrainingResult] = None

    def __getattr__(self, name):
        if name.startswith("_") and not name.startswith("__ray"):
            raise AttributeError(name)
        method = _Method(self, name)
        self.__dict__[name] = method
        return method

    def __deepcopy__(self, memo):
        return self

    def __reduce__(self):
        raise TypeError("A virtual actor handle cannot be serialized.")

    def __repr__(self):
        return f"<actor {self.number}>"


class Runtime:
    """Time, actors and tasks.

    Args:
        clock: The clock.
        nodes: The nodes.
        costs: How long things take.
        faults: What goes wrong.
        trainables: The virtual trainable of each registered class name.
        chooser: Says which of several events that are ready at once comes first.
        seed: Seed of the costs that are drawn.
    """

    def __init__(self, clock, nodes, costs, faults, trainables, chooser, seed):
        self.clock = clock
        self.nodes = nodes
        self.costs = costs
        self.faults = faults
        self.trainables = trainables
        self.chooser = chooser
        self.monitor = None
        self.storage_full = False
        self.quiet_wait = 0.0  # how long a wait takes at least if nothing is to come
        self.idle_steps = 0
        self.idle_left = 0
        self.contents: Dict[str, Dict] = {}
        self.written: set = set()  # the checkpoints of this driver
        self.trial_numbers: Dict[str, int] = {}
        self._rng = random.Random(seed * 1000003 + 17)
        self._heap: List = []
        self._seq = 0
        self._num_actors = 0
        self._epoch = 0
        self._chosen = None
        self.num_tasks = 0

    def next_actor_number(self) -> int:
        self._num_actors += 1
        return self._num_actors

    def stretch(self, seconds: float) -> float:
        """Say how long it takes to wait for nothing in particular.

        Args:
            seconds: How long somebody wants to wait.

        Returns:
            The seconds that go by.
        """
        return seconds if self.next_time is not None else max(seconds, self.quiet_wait)

    # Tasks

    def _cost(self, actor: Actor, name: str) -> float:
        cost = getattr(self.costs, name, 0.0)
        if type(cost) is float or type(cost) is int:
            pass
        elif callable(cost):
            cost = cost(actor.config, actor.iteration + 1)
        elif isinstance(cost, tuple):
            cost = self._rng.uniform(*cost)
        if self.costs.jitter:
            cost *= self._rng.uniform(1 - self.costs.jitter, 1 + self.costs.jitter)
        return cost

    def submit(self, actor: Actor, method: str, args, kwargs) -> ObjectRef:
        """Enqueue a task on an actor.

        Args:
            actor: The actor.
            method: The name of the method.
            args: Its arguments.
            kwargs: Its keyword arguments.

        Returns:
            The task's future.
        """
        self._seq += 1
        self.num_tasks += 1
        if method == "reset":
            # From here on the actor belongs to the other trial.
            info = args[0].get(TRIAL_INFO)
            if info is not None:
                actor.trial_id = info.trial_id
            number, generation = actor.incarnation
            actor.incarnation = (number, generation + 1)
        ref = ObjectRef(self._seq, actor, method, args, kwargs)
        if self.monitor is not None:
            self.monitor.on_submit(ref)
        if actor.error is not None:
            ref.error, ref.done, ref.ready_at = actor.error, True, self.clock.now
            return ref
        if method in ("train", "train_buffered"):
            cost = self._cost(actor, "train")
            if method == "train_buffered":
                cost *= _num_buffered(cost, *args)
            name = "train"
        else:
            name = method
            cost = self._cost(actor, method) if hasattr(self.costs, method) else 0.0
        fault = self.faults.for_task(self.trial_numbers.get(ref.trial_id), name)
        if fault is not None:
            if fault.kind == "slow":
                cost *= fault.factor
            else:
                ref.fault = fault
                if self.monitor is not None:
                    self.monitor.on_fault(fault, ref)
        ref.ready_at = max(actor.busy_until, self.clock.now) + cost
        actor.busy_until = ref.ready_at
        actor.queue.append(ref)
        heapq.heappush(self._heap, (ref.ready_at, ref.seq, ref))
        return ref

    @property
    def next_time(self) -> Optional[float]:
        """When the next task ends; None if none is in flight."""
        heap = self._heap
        while heap and heap[0][2].done:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def carry_out(self) -> None:
        """Carry out all tasks that have ended by now."""
        heap = self._heap
        while heap and (heap[0][2].done or heap[0][0] <= self.clock.now):
            ref = heapq.heappop(heap)[2]
            if not ref.done:
                self._complete(ref)

    def _complete(self, ref: ObjectRef) -> None:
        actor = ref.actor
        actor.queue.popleft()
        fault = ref.fault
        ref.done = True
        if fault is not None and fault.kind in ("die", "preempt"):
            self.kill(
                actor, f"fault in {ref.method}", preempted=fault.kind == "preempt"
            )
            ref.error = actor.error
            return
        if fault is not None and ref.method == "start":
            ref.error = _task_error("start", TaskFault("fault in start"))
            self.kill(actor, "The actor's __init__ raised.", init_failed=True)
            return
        try:
            if fault is not None:
                raise TaskFault(f"fault in {ref.method}")
            handler = getattr(self, "_do_" + ref.method, None)
            if handler is not None:
                ref.value = handler(actor, ref, *ref.args, **ref.kwargs)
        except Exception as exc:
            ref.error = _task_error(ref.method, exc)

    def kill(
        self,
        actor: Actor,
        reason: str = "killed",
        *,
        preempted: bool = False,
        init_failed: bool = False,
    ) -> None:
        """End an actor; all of its tasks fail.

        Args:
            actor: The actor.
            reason: Why, for the error that its tasks raise.
            preempted: Whether the error says that its node was preempted.
            init_failed: Whether the error says that ``__init__`` failed.
        """
        if actor.error is not None:
            return
        actor.error = RayActorError(
            actor_id=f"{actor.number:032x}",
            error_msg=f"The actor died ({reason}).",
            actor_init_failed=init_failed,
            preempted=preempted,
        )
        actor.died_at = self._seq
        if actor.node is not None:
            actor.node.actors.pop(actor.number, None)
        for ref in actor.queue:
            ref.error, ref.done, ref.ready_at = actor.error, True, self.clock.now
        actor.queue.clear()

    # What actors do

    def _do_train(self, actor: Actor, ref: ObjectRef) -> Dict:
        trainable = actor.trainable
        length = trainable.end(actor.config)
        function = trainable.kind == "function"
        if function and length is not None and actor.progress >= length:
            result = {RESULT_DUPLICATE: True, SHOULD_CHECKPOINT: False}
            actor.last_training_result = _TrainingResult(None, dict(result))
            if self.monitor is not None:
                self.monitor.tell("on_produced", ref, result)
            return result
        metrics = trainable.metrics(actor.config, actor.progress + 1, actor.state)
        checkpoint = None
        if function and trainable.reports_checkpoint(actor.progress + 1):
            checkpoint = self._persist(actor, actor.progress + 1)
            metrics[SHOULD_CHECKPOINT] = True
        reported = dict(metrics)
        actor.progress += 1
        actor.iteration += 1
        actor.iterations_since_restore += 1
        took = metrics.get("time_this_iter_s", self._cost_seen(ref))
        actor.time_total += took
        actor.time_since_restore += took
        result = metrics
        if not function and length is not None and actor.progress >= length:
            result[DONE] = True
        result.setdefault(DONE, False)
        result.setdefault("training_iteration", actor.iteration)
        result.update(self._auto_filled(actor, took))
        actor.last_result = result
        if function:
            actor.last_training_result = _TrainingResult(checkpoint, reported)
        sent = dict(result)
        if self.monitor is not None:
            self.monitor.tell("on_produced", ref, sent)
        return sent

    def _cost_seen(self, ref: ObjectRef) -> float:
        cost = self.costs.train
        if isinstance(cost, (int, float)):
            return float(cost)
        return max(1e-3, ref.ready_at - self.clock.now) if ref.ready_at else 1.0

    def _do_train_buffered(self, actor, ref, buffer_time_s, max_buffer_length=1000):
        results: List[Dict] = []
        spent, cost = 0.0, max(1e-9, self._cost_seen(ref))
        while spent < buffer_time_s or not results:
            result = self._do_train(actor, ref)
            results.append(result)
            spent += cost
            if (
                result.get(DONE)
                or result.get(SHOULD_CHECKPOINT)
                or result.get(RESULT_DUPLICATE)
                or len(results) >= max_buffer_length
            ):
                break
        return results

    def _auto_filled(self, actor: Actor, took: Optional[float]) -> Dict:
        return {
            "trial_id": actor.trial_id,
            "date": "",
            "timestamp": int(self.clock.unix),
            "time_this_iter_s": took,
            "time_total_s": actor.time_total,
            "pid": actor.number,
            "hostname": f"node{actor.node.number if actor.node else 0}",
            "node_ip": f"10.0.0.{actor.node.number if actor.node else 0}",
            "config": actor.config,
            "time_since_restore": actor.time_since_restore,
            "iterations_since_restore": actor.iterations_since_restore,
        }

    def _do_get_auto_filled_metrics(self, actor, ref, debug_metrics_only=False, **_):
        filled = self._auto_filled(actor, None)
        if debug_metrics_only:
            filled = {k: v for k, v in filled.items() if k in DEBUG_METRICS}
        return filled

    def _do_get_current_ip_pid(self, actor, ref):
        return f"10.0.0.{actor.node.number if actor.node else 0}", actor.number

    def _persist(self, actor: Actor, progress: int) -> Checkpoint:
        if self.storage_full:
            raise OSError(28, "No space left on device (virtual storage)")
        storage = actor.storage
        storage._update_checkpoint_index({})
        path = storage.checkpoint_fs_path
        os.makedirs(path, exist_ok=True)
        if path in self.written and self.monitor is not None:
            self.monitor.tell("on_overwritten", actor.trial_id, path)
        self.written.add(path)
        self.contents[path] = {
            "trial_id": actor.trial_id,
            "progress": progress,
            "state": copy.deepcopy(actor.state),
        }
        return Checkpoint(path, filesystem=storage.storage_filesystem)

    def _do_save(self, actor: Actor, ref: ObjectRef) -> _TrainingResult:
        if actor.trainable.kind == "function":
            last = actor.last_training_result
            assert isinstance(last, _TrainingResult)
            assert actor.last_result
            return _TrainingResult(
                last.checkpoint, {**last.metrics, **actor.last_result}
            )
        metrics = dict(actor.last_result or {})
        return _TrainingResult(self._persist(actor, actor.progress), metrics)

    def _do_restore(self, actor: Actor, ref: ObjectRef, result: _TrainingResult):
        checkpoint, metrics = result.checkpoint, result.metrics
        actor.iteration = metrics.get("training_iteration", 0)
        actor.time_total = metrics.get("time_total_s", 0)
        actor.time_since_restore = 0.0
        actor.iterations_since_restore = 0
        content = self.contents.get(checkpoint.path)
        if content is None or not os.path.exists(checkpoint.path):
            raise ValueError(
                "Could not recover from checkpoint as it does not exist on storage "
                f"anymore: {os.path.basename(checkpoint.path)}"
            )
        actor.progress = content["progress"]
        actor.state = copy.deepcopy(content["state"])
        if self.monitor is not None:
            self.monitor.tell("on_restored", ref, content, metrics)

    def _do_reset(self, actor: Actor, ref: ObjectRef, config, storage=None) -> bool:
        actor._load(config, storage)
        if not actor.trainable.resettable:
            return False
        kept = actor.last_result, actor.last_training_result
        actor.fresh()
        # As Ray does: a class keeps its last result, a function its last report.
        if actor.trainable.kind == "function":
            actor.last_result, actor.last_training_result = {}, kept[1]
        else:
            actor.last_result = kept[0]
        return True

    # The functions of ``ray``

    def get(self, refs, *, timeout: Optional[float] = None):
        if isinstance(refs, list):
            return [self.get(ref, timeout=timeout) for ref in refs]
        begin = self.clock.now
        try:
            return self._get(refs, timeout)
        finally:
            if self.clock.now > begin and self.monitor is not None:
                self.monitor.tell("on_wait", refs, self.clock.now - begin)

    def _get(self, refs: ObjectRef, timeout: Optional[float]):
        self.carry_out()
        deadline = None if timeout is None else self.clock.now + timeout
        while not refs.done:
            upcoming = self.next_time
            if upcoming is None:
                raise BlockedForever(f"ray.get({refs}) blocks for good")
            if deadline is not None and upcoming > deadline:
                self.clock.advance_to(deadline)
                raise GetTimeoutError("Get timed out: some object(s) not ready.")
            self.clock.advance_to(upcoming)
            self.carry_out()
        if refs.error is not None:
            raise refs.error
        return refs.value

    def get_quietly(self, ref: ObjectRef) -> None:
        """Let the time pass until a task has ended.

        Args:
            ref: The task.
        """
        try:
            self._get(ref, None)
        except BlockedForever:
            raise
        except Exception:
            pass  # The caller gets it again.

    def wait(
        self, refs, *, num_returns: int = 1, timeout: Optional[float] = None, **kwargs
    ):
        """Wait as ``ray.wait`` does, but let the time to the next event pass at once.

        Args:
            refs: The futures.
            num_returns: How many to wait for.
            timeout: Seconds; with 0 no time passes. Otherwise the wait ends with the
                next event, however far away, after ``idle_steps`` waits that time out.
            **kwargs: Ignored.

        Returns:
            The futures that are ready, and those that are not.
        """
        self._epoch += 1
        self.carry_out()
        deadline = float("inf") if timeout is None else self.clock.now + timeout
        wanted = min(num_returns, len(refs))
        ready = _ready(refs, wanted)
        while len(ready) < wanted or not refs:
            upcoming = self.next_time
            if upcoming is None or timeout == 0:
                if timeout is None and refs:
                    raise BlockedForever(f"ray.wait({refs}) blocks for good")
                if timeout:
                    self.clock.advance_to(self.clock.now + self.stretch(timeout))
                break
            if self.idle_left > 0 and upcoming > deadline:
                self.idle_left -= 1
                self.clock.advance_to(deadline)
                break
            self.clock.advance_to(upcoming)
            if not refs:
                self.carry_out()
                break
            self.carry_out()
            ready = _ready(refs, wanted)
        if len(refs) == len(ready):
            return ready, []
        chosen = set(ready)
        return ready, [ref for ref in refs if ref not in chosen]

    # Order

    def shuffle(self, items: List) -> None:
        """Stand in for ``random.shuffle`` in the actor manager.

        Of the futures that will be ready first, the chooser picks one to be the first
        of the list. Other lists are shuffled from the seed.

        Args:
            items: The list to shuffle in place.
        """
        if len(items) < 2:
            if items and isinstance(items[0], ObjectRef):
                self._note_ready(items[0])
            return
        if not isinstance(items[0], ObjectRef):
            self.chooser.rng.shuffle(items)
            return
        self.carry_out()
        items.sort()
        # State futures come before task futures; where one of those is ready, the
        # order of the tasks does not matter now.
        if self._chosen == self._epoch:
            return
        candidates = [ref for ref in items if ref.done]
        if not candidates:
            soonest = min(ref.ready_at for ref in items)
            candidates = [ref for ref in items if ref.ready_at <= soonest]
        if len(candidates) == 1:
            first = candidates[0]
        else:
            first = candidates[self.chooser.choose(len(candidates))]
        if first.done:
            self._chosen = self._epoch
        items.remove(first)
        items.insert(0, first)

    def _note_ready(self, ref: ObjectRef) -> None:
        if ref.done:
            self._chosen = self._epoch

    # Nodes

    def lose_node(self, number: int) -> int:
        """A node goes away with its actors.

        Args:
            number: Which.

        Returns:
            How many actors it took along.
        """
        node = self.nodes[number % len(self.nodes)]
        node.up = False
        actors = list(node.actors.values())
        for actor in actors:
            self.kill(actor, "its node was lost")
        return len(actors)

    def move(self, before: str, after: str) -> None:
        """Move what was saved to another directory.

        Args:
            before: A directory.
            after: Its new path.
        """
        os.makedirs(os.path.dirname(after))
        if os.path.isdir(before):
            os.rename(before, after)
        self.contents = {
            after + path[len(before) :] if path.startswith(before) else path: content
            for path, content in self.contents.items()
        }

    def lose_driver(self) -> None:
        """All actors end with the driver, and nothing of it stays in flight."""
        for node in self.nodes:
            for actor in list(node.actors.values()):
                self.kill(actor, "its driver died")
        self._heap.clear()
        self.written.clear()  # The numbers of its last checkpoints are lost with it.


def _ready(refs: List[ObjectRef], count: int) -> List[ObjectRef]:
    """The first futures that are ready, at most ``count``."""
    ready: List[ObjectRef] = []
    for ref in refs:
        if len(ready) == count:
            break
        if ref.done:
            ready.append(ref)
    return ready


def _num_buffered(cost: float, buffer_time_s: float, max_buffer_length: float) -> int:
    by_time = int(buffer_time_s / cost) + 1 if cost else 1000
    return max(1, min(int(max_buffer_length), by_time))


def _task_error(method: str, cause: Exception) -> Exception:
    error = RayTaskError(
        method,
        f"{type(cause).__name__}: {cause}",
        cause,
        proctitle="virtual",
        pid=1,
        ip="10.0.0.0",
    )
    return error.as_instanceof_cause()


class _ActorNamespace:
    ActorClass = ActorClass
    ActorHandle = Actor


class FakeRay:
    """What modules of Tune see as ``ray`` while a virtual cluster is active.

    Args:
        runtime: The runtime behind it.
    """

    ObjectRef = ObjectRef
    actor = _ActorNamespace

    def __init__(self, runtime: Runtime):
        self._runtime = runtime
        self.get = runtime.get
        self.wait = runtime.wait

    def kill(self, actor, no_restart=True):
        self._runtime.kill(actor)

    def cancel(self, ref, **kwargs):
        pass

    def is_initialized(self) -> bool:
        return True

    def cluster_resources(self) -> Dict[str, float]:
        total: Dict[str, float] = {}
        for node in self._runtime.nodes:
            if node.up:
                for k, v in node.total.items():
                    total[k] = total.get(k, 0.0) + v
        return total

    def remote(self, *args, **options):
        if args:
            return ActorClass(self._runtime, args[0])
        return lambda cls: ActorClass(self._runtime, cls)

    def __getattr__(self, name):
        return getattr(ray, name)
