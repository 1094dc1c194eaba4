"""Nodes, and a resource manager that hands out their slots."""

from collections import deque
from dataclasses import dataclass
from typing import Deque, Dict, List, Optional, Tuple

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
        self._count = 0
        # Requests are compared by content, which is slow: each shape gets a number.
        self._shapes: Dict[ResourceRequest, int] = {}
        self._shape_of: Dict[int, Tuple[int, ResourceRequest]] = {}
        self._waiting: Dict[int, Deque] = {}  # shape -> order numbers
        self._request_of: Dict[int, ResourceRequest] = {}
        self._ready: Dict[int, Deque[_Grant]] = {}
        self._acquired: Dict[int, _Grant] = {}
        # Shapes that did not fit since resources were last freed.
        self._blocked = set()

    def _shape(self, request: ResourceRequest) -> int:
        entry = self._shape_of.get(id(request))
        if entry is None:
            shape = self._shapes.setdefault(request, len(self._shapes))
            self._request_of.setdefault(shape, request)
            self._waiting.setdefault(shape, deque())
            self._ready.setdefault(shape, deque())
            # The request is kept, so that its id stays its own.
            entry = self._shape_of[id(request)] = (shape, request)
        return entry[0]

    def _place(self, request: ResourceRequest) -> Optional[_Grant]:
        grant = _Grant(request)
        bundles = request._bundles
        if len(bundles) == 1:
            total = bundles[0]
        else:
            total = request.required_resources
        for node in self._nodes:
            # Pack: the whole request on one node, if possible.
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
        while self._reserve:
            shapes = [
                (queue[0], shape)
                for shape, queue in self._waiting.items()
                if queue and shape not in self._blocked
            ]
            if not shapes:
                return
            self._try_grant(min(shapes)[1])

    def _try_grant(self, shape: int) -> None:
        grant = self._place(self._request_of[shape])
        if grant is None:
            self._blocked.add(shape)
        else:
            self._waiting[shape].popleft()
            self._ready[shape].append(grant)

    def request_resources(self, resource_request: ResourceRequest):
        shape = self._shape(resource_request)
        self._count += 1
        self._waiting[shape].append(self._count)
        if self._reserve and shape not in self._blocked:
            self._try_grant(shape)

    def cancel_resource_request(self, resource_request: ResourceRequest):
        shape = self._shape(resource_request)
        if self._waiting[shape]:
            self._waiting[shape].pop()
        else:
            self._release(self._ready[shape].pop())
            self.resources_changed()

    def has_resources_ready(self, resource_request: ResourceRequest) -> bool:
        shape = self._shape(resource_request)
        if self._reserve:
            return bool(self._ready[shape])
        if not self._waiting[shape] or shape in self._blocked:
            return False
        grant = self._place(resource_request)
        if grant is None:
            self._blocked.add(shape)
            return False
        self._release(grant)
        return True

    def acquire_resources(self, resource_request: ResourceRequest):
        if not self.has_resources_ready(resource_request):
            return None
        shape = self._shape(resource_request)
        if self._reserve:
            grant = self._ready[shape].popleft()
        else:
            grant = self._place(resource_request)
            self._waiting[shape].popleft()
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
        return sum(map(len, self._waiting.values()))

    @property
    def num_ready(self) -> int:
        """The number of requests that hold resources which no actor uses yet."""
        return sum(map(len, self._ready.values()))

    def clear(self):
        for grants in self._ready.values():
            for grant in grants:
                self._release(grant)
            grants.clear()
        for grant in self._acquired.values():
            self._release(grant)
        for queue in self._waiting.values():
            queue.clear()
        self._acquired.clear()
        self._blocked.clear()
