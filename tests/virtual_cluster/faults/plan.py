"""What goes wrong, and when. A plan of faults is a list; it is part of a run."""

from dataclasses import dataclass
from typing import Dict, Iterable, List, Optional, Tuple


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong. Use the functions below to make one.

    Args:
        kind: ``raise``, ``die``, ``preempt``, ``slow`` (faults of one task);
            ``node_loss``, ``storage_full``, ``driver_death`` (faults of the cluster);
            ``hook`` (a fault of the scheduler).
        method: The task that is hit: ``start``, ``train``, ``save``, ``restore``,
            ``reset`` or ``stop``. For ``hook``: the hook that raises.
        trial: Number of the trial that is hit, in the order they were added (from 0).
        nth: The how-manieth task of this kind and trial is hit (from 1).
        after: For faults of the cluster: the number of events after which it happens.
        factor: For ``slow``: how many times as long the task takes.
        node: For ``node_loss``: which node.
        duration: For ``node_loss``: virtual seconds until the node is back (0:
            never). For ``storage_full``: events until there is room again.
        stale: For ``driver_death``: how many events before it the last snapshot of the
            experiment was stored.
        moved: For ``driver_death``: whether the experiment is moved to another
            directory before it is restored.
    """

    kind: str
    method: Optional[str] = None
    trial: Optional[int] = None
    nth: int = 1
    after: Optional[int] = None
    factor: float = 10.0
    node: int = 0
    duration: float = 0
    stale: int = 0
    moved: bool = False

    def __repr__(self) -> str:
        if self.kind in ("raise", "die", "preempt"):
            names = {"raise": "task_error", "die": "actor_death"}
            name = names.get(self.kind, self.kind)
            return f"{name}({self.method!r}, trial={self.trial}, nth={self.nth})"
        if self.kind == "slow":
            return (
                f"slow_task({self.method!r}, trial={self.trial}, nth={self.nth}, "
                f"factor={self.factor})"
            )
        if self.kind == "driver_death":
            moved = ", moved=True" if self.moved else ""
            return f"driver_death(after={self.after}, stale={self.stale}{moved})"
        if self.kind == "hook":
            return f"hook_error({self.method!r}, nth={self.nth})"
        if self.kind == "storage_full":
            return f"storage_full(after={self.after}, duration={self.duration})"
        return (
            f"node_loss(after={self.after}, node={self.node}, duration={self.duration})"
        )


def task_error(method: str, trial: int, nth: int = 1) -> Fault:
    """The n-th such task of a trial raises.

    Args:
        method: The task that is hit.
        trial: The number of the trial.
        nth: Which of its tasks.

    Returns:
        The fault.
    """
    return Fault("raise", method, trial, nth)


def actor_death(method: str, trial: int, nth: int = 1) -> Fault:
    """The actor dies during the n-th such task of a trial.

    Args:
        method: The task that is hit.
        trial: The number of the trial.
        nth: Which of its tasks.

    Returns:
        The fault.
    """
    return Fault("die", method, trial, nth)


def preempt(method: str, trial: int, nth: int = 1) -> Fault:
    """As :func:`actor_death`, but Ray says that the node was preempted.

    Args:
        method: The task that is hit.
        trial: The number of the trial.
        nth: Which of its tasks.

    Returns:
        The fault.
    """
    return Fault("preempt", method, trial, nth)


def slow_task(method: str, trial: int, nth: int = 1, factor: float = 10.0) -> Fault:
    """The n-th such task of a trial takes ``factor`` times as long.

    Args:
        method: The task that is hit.
        trial: The number of the trial.
        nth: Which of its tasks.
        factor: How many times as long it takes.

    Returns:
        The fault.
    """
    return Fault("slow", method, trial, nth, factor=factor)


def node_loss(after: int, node: int = 0, duration: float = 5.0) -> Fault:
    """A node goes away after so many events, with every actor on it.

    Args:
        after: The number of events after which it happens.
        node: Which node.
        duration: Virtual seconds until it is back; 0 for never.

    Returns:
        The fault.
    """
    return Fault("node_loss", after=after, node=node, duration=duration)


def storage_full(after: int, duration: int = 10) -> Fault:
    """No checkpoint and no experiment state can be stored for some events.

    Args:
        after: The number of events after which it happens.
        duration: The number of events until there is room again.

    Returns:
        The fault.
    """
    return Fault("storage_full", after=after, duration=duration)


def driver_death(after: int, stale: int = 0, moved: bool = False) -> Fault:
    """The driver dies after so many events; the experiment is restored from disk.

    Args:
        after: The number of events after which it happens.
        stale: How many events before it the last snapshot was stored.
        moved: Whether the experiment is moved to another directory first.

    Returns:
        The fault.
    """
    return Fault("driver_death", after=after, stale=stale, moved=moved)


def hook_error(hook: str, nth: int = 1) -> Fault:
    """The n-th call of a hook of the scheduler raises; then the run is restored.

    Args:
        hook: The name of the hook, as ``on_trial_result``.
        nth: Which call of it.

    Returns:
        The fault.
    """
    return Fault("hook", hook, nth=nth)


class HookFault(Exception):
    """What a hook raises that a fault hits.

    Args:
        hook: The name of the hook.
    """

    def __init__(self, hook: str):
        super().__init__(f"fault in {hook}")
        self.hook = hook


class FaultPlan:
    """Finds the fault of a task or of an event quickly.

    Args:
        faults: The plan.
    """

    def __init__(self, faults: Iterable[Fault] = ()):
        self.faults: List[Fault] = list(faults)
        self._tasks: Dict[Tuple, Fault] = {}
        self._events: Dict[int, List[Fault]] = {}
        self._counts: Dict[Tuple, int] = {}
        self._methods = set()
        self._hooks: Dict[Tuple, Fault] = {}
        self.snapshots = set()  # after how many events a snapshot is stored
        self.last_event = -1  # after this one nothing of the above is due any more
        for fault in self.faults:
            if fault.after is not None:
                self._events.setdefault(fault.after, []).append(fault)
                self.last_event = max(self.last_event, fault.after)
                if fault.kind == "driver_death":
                    self.snapshots.add(max(0, fault.after - fault.stale))
            elif fault.kind == "hook":
                self._hooks[(fault.method, fault.nth)] = fault
            else:
                self._tasks[(fault.trial, fault.method, fault.nth)] = fault
                self._methods.add(fault.method)

    def for_task(self, trial: Optional[int], method: str) -> Optional[Fault]:
        """Count a task and return the fault that hits it, if any.

        Args:
            trial: The number of the trial.
            method: The task.

        Returns:
            The fault, or None.
        """
        if method not in self._methods:
            return None
        key = (trial, method)
        nth = self._counts[key] = self._counts.get(key, 0) + 1
        return self._tasks.get((trial, method, nth))

    def for_hook(self, hook: str) -> Optional[Fault]:
        """Count a call of a hook and return the fault that hits it, if any.

        Args:
            hook: The name of the hook.

        Returns:
            The fault, or None.
        """
        if not self._hooks:
            return None
        nth = self._counts[hook] = self._counts.get(hook, 0) + 1
        return self._hooks.get((hook, nth))

    def for_event(self, number: int) -> List[Fault]:
        """Return the cluster's faults that happen after this event.

        Args:
            number: The number of events so far.

        Returns:
            The faults.
        """
        return self._events.get(number, [])
