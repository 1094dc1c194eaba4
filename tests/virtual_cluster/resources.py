"""Nodes, and a resource manager that hands out their slots."""

from collections import deque
from dataclasses import dataclass
from typing import Dict, List, Optional, Tuple

from ray.air.execution import AcquiredResources, ResourceManager, ResourceRequest

_EPSILON = 1e-9


class Node:
    """A node of the virtual cluster.

    Args:
        number: Its number.
        total: What it has, e.g. ``{"CPU": 4}``.
    """

    def __init__(self, number: int, total: Dict[str, float]):
        self.number = number
        self.total = dict(total)
        self.used: Dict[str, float] = {}
        self.up = True
        self.actors = {}

    def fits(self, bundle: Dict[str, float]) -> bool:
        return self.up and all(
            self.used.get(k, 0.0) + v <= self.total.get(k, 0.0) + _EPSILON
            for k, v in bundle.items()
        )

    def add(self, bundle: Dict[str, float], sign: int) -> None:
        for k, v in bundle.items():
            self.used[k] = self.used.get(k, 0.0) + sign * v


class _Grant:
    """Bundles that were placed on nodes for one request."""

    __slots__ = ("request", "placement")

    def __init__(self, request: ResourceRequest):
        self.request = request
        self.placement: List[Tuple[Node, Dict[str, float]]] = []


@dataclass
class VirtualAcquiredResources(AcquiredResources):
    """Resources of one actor.

    Args:
        grant: Where its bundles are.
    """

    grant: Optional[_Grant] = None

    def annotate_remote_entities(self, entities):
        placement = self.grant.placement
        node = placement[0][0] if placement else None
        return [entity.on_node(node) for entity in entities]


class VirtualResourceManager(ResourceManager):
    """Hands out the nodes' resources in the order of the requests.

    With ``reserve`` it acts like placement groups: a request that fits reserves its
    bundles right away, before any actor uses them. Without, it acts like
    ``FixedResourceManager``: only actors use resources.

    Args:
        nodes: The nodes.
        reserve: Whether a request that is ready holds its resources.
    """

    def __init__(self, nodes: List[Node], reserve: bool = True):
        self._nodes = nodes
        self._reserve = reserve
        self._waiting = deque()
        self._num_waiting: Dict[ResourceRequest, int] = {}
        self._ready: Dict[ResourceRequest, List[_Grant]] = {}
        self._acquired: Dict[int, _Grant] = {}
        # Shapes that did not fit since resources were last freed.
        self._blocked = set()

    def _place(self, request: ResourceRequest) -> Optional[_Grant]:
        grant = _Grant(request)
        bundles = request._bundles
        for node in self._nodes:
            # Pack: the whole request on one node, if possible.
            total: Dict[str, float] = {}
            for bundle in bundles:
                for k, v in bundle.items():
                    total[k] = total.get(k, 0.0) + v
            if node.fits(total):
                node.add(total, 1)
                grant.placement.append((node, total))
                return grant
        if len(bundles) > 1:
            for bundle in bundles:
                node = next((n for n in self._nodes if n.fits(bundle)), None)
                if node is None:
                    self._release(grant)
                    return None
                node.add(bundle, 1)
                grant.placement.append((node, bundle))
            return grant
        return None

    @staticmethod
    def _release(grant: _Grant) -> None:
        for node, bundle in grant.placement:
            node.add(bundle, -1)
        grant.placement = []

    def resources_changed(self) -> None:
        """Grant what fits now; called when resources were freed or a node is back."""
        self._blocked.clear()
        if not self._reserve or not self._waiting:
            return
        kept = deque()
        while self._waiting:
            request = self._waiting.popleft()
            if request in self._blocked or not self._try_grant(request):
                kept.append(request)
        self._waiting = kept

    def _try_grant(self, request: ResourceRequest) -> bool:
        grant = self._place(request)
        if grant is None:
            self._blocked.add(request)
            return False
        self._num_waiting[request] -= 1
        self._ready.setdefault(request, []).append(grant)
        return True

    def request_resources(self, resource_request: ResourceRequest):
        self._num_waiting[resource_request] = (
            self._num_waiting.get(resource_request, 0) + 1
        )
        if not self._reserve:
            return
        if resource_request in self._blocked or not self._try_grant(resource_request):
            self._waiting.append(resource_request)

    def cancel_resource_request(self, resource_request: ResourceRequest):
        if self._num_waiting.get(resource_request):
            self._num_waiting[resource_request] -= 1
            if self._reserve:
                self._waiting.remove(resource_request)
        else:
            self._release(self._ready[resource_request].pop())
            self.resources_changed()

    def has_resources_ready(self, resource_request: ResourceRequest) -> bool:
        if self._reserve:
            return bool(self._ready.get(resource_request))
        if not self._num_waiting.get(resource_request):
            return False
        if resource_request in self._blocked:
            return False
        grant = self._place(resource_request)
        if grant is None:
            self._blocked.add(resource_request)
            return False
        self._release(grant)
        return True

    def acquire_resources(self, resource_request: ResourceRequest):
        if not self.has_resources_ready(resource_request):
            return None
        if self._reserve:
            grant = self._ready[resource_request].pop(0)
        else:
            grant = self._place(resource_request)
            self._num_waiting[resource_request] -= 1
        self._acquired[id(grant)] = grant
        return VirtualAcquiredResources(resource_request=resource_request, grant=grant)

    def free_resources(self, acquired_resource: VirtualAcquiredResources):
        grant = self._acquired.pop(id(acquired_resource.grant))
        self._release(grant)
        self.resources_changed()

    @property
    def num_acquired(self) -> int:
        """The number of actors that hold resources."""
        return len(self._acquired)

    @property
    def num_waiting(self) -> int:
        """The number of requests that hold no resources yet."""
        return sum(self._num_waiting.values())

    @property
    def num_ready(self) -> int:
        """The number of requests that hold resources which no actor uses yet."""
        return sum(map(len, self._ready.values()))

    def clear(self):
        for grant in [g for grants in self._ready.values() for g in grants]:
            self._release(grant)
        for grant in self._acquired.values():
            self._release(grant)
        self._waiting.clear()
        self._num_waiting.clear()
        self._ready.clear()
        self._acquired.clear()
        self._blocked.clear()
