"""Actors and their tasks: handles, object refs, and what tasks cost."""

import copy
from collections import deque
from dataclasses import dataclass
from typing import Any, Callable, Dict, Optional, Tuple, Union

from ray.exceptions import RayActorError
from ray.train._internal.session import _TrainingResult
from ray.tune.result import (
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
        self.unread = False  # whether a function has not asked for its checkpoint

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
