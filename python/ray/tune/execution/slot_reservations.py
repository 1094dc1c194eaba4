"""Reserves resources for trials that may be resumed."""

from collections import Counter
from typing import TYPE_CHECKING, Callable, Dict

from ray.air.execution import ResourceRequest
from ray.tune.experiment import Trial

if TYPE_CHECKING:
    from ray.air.execution._internal import RayActorManager


class SlotReservations:
    """Requests for resources that are made before it is known which trial uses them.

    Those that no paused trial could use any more are taken back.

    Args:
        get_manager: Returns the manager of the actors, of which they are requested.
    """

    def __init__(self, get_manager: Callable[[], "RayActorManager"]):
        self._get_manager = get_manager
        # What each paused trial wanted when it paused, and how many want the same.
        self._wanted: Dict[Trial, ResourceRequest] = {}
        self._num_paused: Counter = Counter()

    def __len__(self) -> int:
        return self._get_manager().num_reserved()

    def has(self, request: ResourceRequest) -> bool:
        """Return whether such resources are reserved.

        Args:
            request: The resources.

        Returns:
            True if at least one such request is reserved.
        """
        return self._get_manager().num_reserved(request) > 0

    def reserve(self, request: ResourceRequest) -> None:
        """Ask for resources that nobody asks for yet.

        Args:
            request: The resources.
        """
        manager = self._get_manager()
        if not manager.is_requested(request):
            manager.reserve_resources(request)

    def release(self, request: ResourceRequest) -> None:
        """Take back a reservation, if there is one.

        Args:
            request: The resources.
        """
        self._get_manager().release_resources(request)

    def release_any(self) -> bool:
        """Take back one reservation.

        Returns:
            False if there is none.
        """
        for request in self._get_manager().reserved_requests:
            self.release(request)
            return True
        return False

    def release_all(self) -> None:
        """Take back all reservations."""
        while self.release_any():
            pass

    def release_unless_paused(self, request: ResourceRequest) -> None:
        """Take back a reservation if no paused trial is left to use it.

        Args:
            request: The resources.
        """
        if not self._num_paused[request]:
            self.release(request)

    # Paused trials

    def num_paused(self, request: ResourceRequest) -> int:
        """Return how many paused trials want such resources.

        Args:
            request: The resources.

        Returns:
            The number of trials.
        """
        return self._num_paused[request]

    def has_unrequested(self) -> bool:
        """Return whether a paused trial wants resources that nobody has asked for."""
        manager = self._get_manager()
        return any(not manager.is_requested(request) for request in self._num_paused)

    def on_pause(self, trial: Trial) -> None:
        """Note that a trial is paused.

        Args:
            trial: The trial.
        """
        request = trial.placement_group_factory
        self._wanted[trial] = request
        self._num_paused[request] += 1

    def on_unpause(self, trial: Trial) -> None:
        """Note that a trial is not paused any more.

        Args:
            trial: Trial that was resumed, or has ended.
        """
        request = self._wanted.pop(trial, None)
        if request is None:
            return
        self._num_paused[request] -= 1
        if not self._num_paused[request]:
            del self._num_paused[request]
        if trial.is_finished():
            # Its resources may have been changed while it was paused.
            for wanted in (request, trial.placement_group_factory):
                self.release_unless_paused(wanted)
