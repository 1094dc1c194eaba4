"""Puts the virtual clock and runtime under Tune's modules, and takes them away again.

Only names inside of Tune's modules are replaced (``time``, ``ray``, ``random``,
``uuid`` and the event manager's class), and only while a cluster is active, so that a
test may use real Ray before and after.
"""

import logging
import os
import random
import sys
import time
import uuid
import zlib
from contextlib import contextmanager, nullcontext
from typing import Any, Dict, List, Tuple

import numpy as np

import ray

_RAY_PREFIXES = (
    "ray.tune.execution.",
    "ray.tune.schedulers",
    "ray.tune.search",
    "ray.tune.experiment.trial",
    "ray.tune.utils.resource_updater",
    "ray.air.execution._internal.",
    "ray.train._internal.session",
)
_TIME_PREFIXES = ("ray.tune.", "ray.air.execution.")
_SKIP = ("ray.tune.examples", "ray.tune.cli")


class VirtualUUID:
    """What Tune sees as ``uuid``: numbers that count up."""

    def __init__(self):
        self._count = 0

    def _next(self):
        self._count += 1
        # The first digits differ: Tune cuts trial ids off after eight.
        return uuid.UUID(hex=f"{self._count:08x}" + "0" * 24)

    def uuid4(self):
        return self._next()

    def uuid1(self, *args, **kwargs):
        return self._next()

    def __getattr__(self, name):
        return getattr(uuid, name)


class OrderRandom:
    """What the actor manager sees as ``random``: its shuffles are the runtime's."""

    def __init__(self, runtime, rng):
        self.shuffle = runtime.shuffle
        self._rng = rng

    def __getattr__(self, name):
        return getattr(self._rng, name)


@contextmanager
def silence():
    """Silence Ray's loggers. To set a level is slow, so do it once for many runs.

    Yields:
        Nothing.
    """
    logger = logging.getLogger("ray")
    level = logger.level
    logger.setLevel(_SILENT)
    try:
        yield
    finally:
        logger.setLevel(level)


_SILENT = logging.CRITICAL + 1

_sites_cache: Tuple[int, Dict[str, List]] = (0, {})


def _sites() -> Dict[str, List]:
    """Find the modules that hold the names to replace."""
    global _sites_cache
    if _sites_cache[0] == len(sys.modules):
        return _sites_cache[1]
    found: Dict[str, List] = {"ray": [], "time": [], "uuid": [], "time_functions": []}
    functions = {time.time: "time", time.monotonic: "monotonic", time.sleep: "sleep"}
    for name, module in list(sys.modules.items()):
        if not name.startswith("ray.") or name.startswith(_SKIP):
            continue
        names = getattr(module, "__dict__", {})
        if name.startswith(_RAY_PREFIXES) and names.get("ray") is ray:
            found["ray"].append(module)
        if name.startswith(_TIME_PREFIXES):
            if names.get("time") is time:
                found["time"].append(module)
            if names.get("uuid") is uuid:
                found["uuid"].append(module)
            for key, value in list(names.items()):
                if key != "time" and callable(value) and value in functions.keys():
                    found["time_functions"].append((module, key, functions[value]))
    _sites_cache = (len(sys.modules), found)
    return found


class _Hashes(dict):
    """The hashes of trials by their ids, of which all runs have much the same."""

    def __missing__(self, trial_id) -> int:
        value = self[trial_id] = zlib.crc32(str(trial_id).encode())
        return value


_hashes = _Hashes()


def _stable_trial_hash(trial) -> int:
    try:
        return _hashes[trial.trial_id]
    except AttributeError:  # It is being unpickled.
        return _hashes[None]


def make_trials_hash_stably() -> None:
    """Give trials a hash that depends on their id, not on their address.

    The order in which Tune goes through sets of trials would otherwise differ from
    run to run. This stays for the life of the process, since a set must not see the
    hash of its members change; equality stays identity.
    """
    from ray.tune.experiment import Trial

    if Trial.__hash__ is not _stable_trial_hash:
        Trial.__hash__ = _stable_trial_hash


class Activation:
    """Everything that is replaced while a cluster is active; a context manager.

    Args:
        fake_ray: Stands in for ``ray``.
        virtual_time: Stands in for ``time``.
        virtual_uuid: Stands in for ``uuid``.
        order_random: Stands in for ``random`` in the actor and event managers.
        event_manager_cls: Stands in for ``RayEventManager``.
        class_patches: Attributes of classes to replace: ``(cls, name, value)``.
        env: Environment variables.
        seed: Seed of the global generators of ``random`` and ``numpy``.
        quiet: Whether to silence Ray's loggers.
    """

    def __init__(
        self,
        fake_ray,
        virtual_time,
        virtual_uuid,
        order_random,
        event_manager_cls,
        class_patches,
        env: Dict[str, str],
        seed: int,
        quiet: bool,
    ):
        self._fake_ray = fake_ray
        self._time = virtual_time
        self._uuid = virtual_uuid
        self._random = order_random
        self._event_manager_cls = event_manager_cls
        self.class_patches = class_patches
        self._env = env
        self._quiet = quiet
        self._depth = 0
        self._undo: List[Tuple[Any, str, Any]] = []
        self._inside = (
            random.Random(seed).getstate(),
            np.random.RandomState(seed % 2**32).get_state(),
        )

    def add_class_patches(self, patches) -> None:
        """Replace further attributes of classes, from now on.

        Args:
            patches: A list of ``(cls, name, value)``.
        """
        self.class_patches = [*self.class_patches, *patches]
        for cls, name, value in patches:
            self._replace(cls, name, value)

    def _replace(self, owner, name, value) -> None:
        self._undo.append((owner, name, owner.__dict__.get(name, _MISSING)))
        setattr(owner, name, value)

    def __enter__(self):
        self._depth += 1
        if self._depth > 1:
            return self
        from ray.air.execution._internal import actor_manager, event_manager

        sites = _sites()
        for module in sites["ray"]:
            self._replace(module, "ray", self._fake_ray)
        for module in sites["time"]:
            self._replace(module, "time", self._time)
        for module, name, function in sites["time_functions"]:
            self._replace(module, name, getattr(self._time, function))
        for module in sites["uuid"]:
            self._replace(module, "uuid", self._uuid)
        for module in (actor_manager, event_manager):
            if hasattr(module, "random"):
                self._replace(module, "random", self._random)
        self._replace(actor_manager, "RayEventManager", self._event_manager_cls)
        for cls, name, value in self.class_patches:
            self._replace(cls, name, value)
        self._old_env = {key: os.environ.get(key) for key in self._env}
        os.environ.update(self._env)
        self._outside = random.getstate(), np.random.get_state()
        _set_random(self._inside)
        self._silence = silence() if self._quiet and not _is_silent() else nullcontext()
        self._silence.__enter__()
        return self

    def __exit__(self, *exc_info):
        self._depth -= 1
        if self._depth:
            return
        for owner, name, value in reversed(self._undo):
            if value is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
        self._undo.clear()
        for key, value in self._old_env.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value
        self._inside = random.getstate(), np.random.get_state()
        _set_random(self._outside)
        self._silence.__exit__(None, None, None)
        _forget_virtual_resources()


_MISSING = object()


def _is_silent() -> bool:
    return logging.getLogger("ray").level >= _SILENT


def _set_random(states) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])


def _forget_virtual_resources() -> None:
    """Empty Tune's caches of what the cluster has."""
    from ray.tune.execution import insufficient_resources_manager as module

    for name in (
        "_get_cluster_resources_no_autoscaler",
        "_get_insufficient_resources_warning_msg",
    ):
        clear = getattr(getattr(module, name, None), "cache_clear", None)
        if clear:
            clear()
