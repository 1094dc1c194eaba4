"""What modules of Tune see as ``ray``."""

from typing import Dict

import ray
from .actors import Actor, ActorClass, ObjectRef
from .runtime import Runtime


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
