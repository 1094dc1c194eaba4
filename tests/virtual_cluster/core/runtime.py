"""A stand-in for the Ray runtime: tasks in virtual time, ``wait``, ``get``, ``kill``.

Actors execute their tasks one after the other, as Ray's do. A task is carried out, in
the driver's process, when the virtual clock gets to the moment at which it ends.
"""

import heapq
import os
import random
from typing import Dict, List, Optional

from .actors import Actor, BlockedForever, ObjectRef, TaskFault
from .methods import ActorMethods
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError
from ray.tune.result import TRIAL_INFO


class Runtime(ActorMethods):
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
