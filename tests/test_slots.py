"""Who may start next, reservations and idle actors, apart from the controller."""

import itertools
import sys
from collections import Counter
from types import SimpleNamespace

import pytest

from ray.exceptions import RayActorError
from ray.tune.execution.idle_actors import IdleActors
from ray.tune.execution.slot_admission import (
    ActorStatus,
    Admission,
    ResumedTrials,
    Supply,
    admit,
    choose_for_idle_actor,
    choose_to_withdraw,
    count_spare,
    is_below,
    starts_at_once,
)
from ray.tune.execution.slot_reservations import SlotReservations
from ray.tune.execution.trainable_support import TrainableSupport
from ray.tune.experiment import Trial
from ray.tune.utils.object_cache import _ObjectCache

NONE = ActorStatus.NONE
REQUESTED = ActorStatus.REQUESTED
STARTED = ActorStatus.STARTED


@pytest.mark.parametrize(
    "limit, count, below", [(None, 1000, True), (2, 1, True), (2, 2, False)]
)
def test_limit(limit, count, below):
    assert is_below(limit, count) is below


@pytest.mark.parametrize("supply", Supply)
def test_trial_starts_at_once_unless_it_would_have_to_wait(supply):
    waits = supply in (Supply.AWAITED, Supply.EXHAUSTED)
    assert starts_at_once(supply) is not waits


@pytest.mark.parametrize(
    "is_paused, status, has_idle_actor, has_room, admission",
    [
        # A pending trial asks, or uses an idle actor, if there is room for it.
        (False, NONE, False, True, Admission.START),
        (False, NONE, True, True, Admission.START),
        (False, NONE, True, False, Admission.REFUSE),
        # One that has asked already goes to the front, and takes no more room.
        (False, REQUESTED, False, False, Admission.MOVE_UP),
        (False, REQUESTED, True, True, Admission.MOVE_UP),
        # One that is starting is not to be touched.
        (False, STARTED, True, True, Admission.REFUSE),
        # A paused trial leaves the choice open until resources are ready.
        (True, NONE, False, True, Admission.RESERVE),
        (True, NONE, True, True, Admission.START),
        (True, NONE, False, False, Admission.REFUSE),
        # Its old actor is still saving, or being stopped.
        (True, STARTED, True, True, Admission.REFUSE),
        (True, REQUESTED, True, True, Admission.REFUSE),
    ],
)
def test_admission(is_paused, status, has_idle_actor, has_room, admission):
    assert admit(is_paused, status, has_idle_actor, has_room) is admission


@pytest.mark.parametrize(
    "is_paused, status, has_idle_actor",
    list(itertools.product([True, False], ActorStatus, [True, False])),
)
def test_without_room_nobody_asks_for_more(is_paused, status, has_idle_actor):
    admission = admit(is_paused, status, has_idle_actor, has_room=False)
    assert admission in (Admission.REFUSE, Admission.MOVE_UP)


@pytest.mark.parametrize(
    "statuses, resumed, withdrawn",
    [
        ({"a": REQUESTED, "b": REQUESTED, "c": STARTED}, [], "b"),
        ({"a": REQUESTED, "b": REQUESTED}, ["b"], "a"),
        ({"chosen": REQUESTED, "a": STARTED}, [], None),
        ({}, [], None),
    ],
)
def test_last_one_that_waits_gives_way(statuses, resumed, withdrawn):
    found = choose_to_withdraw(reversed(statuses), statuses.get, "chosen", resumed)
    assert found == withdrawn


@pytest.mark.parametrize(
    "statuses, has_room, more_to_come, chosen",
    [
        # Who came first, whether it has asked for an actor or not.
        ({"a": REQUESTED, "b": NONE}, True, True, "a"),
        ({"a": NONE, "b": REQUESTED}, True, True, "a"),
        # Without room only those that count already.
        ({"a": NONE, "b": REQUESTED}, False, True, "b"),
        ({"a": NONE}, False, True, None),
        # One whose own actor is starting only where nobody else may come.
        ({"a": STARTED, "b": NONE}, True, True, "b"),
        ({"a": STARTED}, True, True, None),
        ({"a": STARTED, "b": STARTED}, True, False, "a"),
        ({}, True, False, None),
    ],
)
def test_idle_actor_goes_to_who_came_first(statuses, has_room, more_to_come, chosen):
    found = choose_for_idle_actor(statuses, statuses.get, has_room, more_to_come)
    assert found == chosen


@pytest.mark.parametrize(
    "paused, others_wait, limit, started, spare",
    [
        (3, False, None, 5, 3),
        (3, False, 4, 2, 2),
        (3, False, 4, 4, 0),
        (3, False, 4, 6, 0),
        (3, True, None, 0, 0),
        (0, False, None, 0, 0),
    ],
)
def test_as_many_actors_are_spared_as_may_be_used(
    paused, others_wait, limit, started, spare
):
    assert count_spare(paused, others_wait, limit, started) == spare


def resumed(*trials):
    found = ResumedTrials()
    for trial in trials:
        found.add(trial)
    return found


def test_resumed_trials_keep_the_order_of_the_choices():
    trials = resumed("a", "b", "c")
    queue = ["d", "c", "b", "a"]
    for trial in trials.order_behind("d"):
        queue.remove(trial)
        queue.insert(0, trial)
    assert queue == ["a", "b", "c", "d"]
    trials.discard("b")
    trials.discard("nobody")
    assert list(trials) == ["a", "c"]
    assert "a" in trials and "b" not in trials


@pytest.mark.parametrize(
    "statuses, shape, promised",
    [
        ({"a": REQUESTED}, "cpu", True),
        ({"a": REQUESTED}, "gpu", False),
        ({"a": STARTED}, "cpu", False),
        ({"a": NONE}, "cpu", False),
        ({}, "cpu", False),
    ],
)
def test_resources_are_promised_to_a_resumed_trial_that_waits(
    statuses, shape, promised
):
    shapes = {"a": "cpu"}
    assert resumed(*statuses).are_promised(shape, shapes.get, statuses.get) is promised


# Reservations


class Manager:
    """Counts the resources that are reserved; actors ask for none here."""

    def __init__(self):
        self.reserved = Counter()

    def reserve_resources(self, request):
        self.reserved[request] += 1

    def release_resources(self, request):
        self.reserved -= Counter([request])

    def is_requested(self, request):
        return self.reserved[request] > 0

    def num_reserved(self, request=None):
        return self.reserved.total() if request is None else self.reserved[request]

    @property
    def reserved_requests(self):
        return list(self.reserved.elements())


class FakeTrial(SimpleNamespace):
    """What of a trial is looked at."""

    __hash__ = object.__hash__

    def is_finished(self):
        return self.status == Trial.TERMINATED

    def get_trainable_cls(self):
        return SimpleNamespace(__name__="trainable")


def make_trial(shape="cpu", status=Trial.PAUSED):
    return FakeTrial(
        placement_group_factory=shape, status=status, trainable_name="trainable"
    )


def test_the_same_resources_are_reserved_once():
    manager = Manager()
    reservations = SlotReservations(lambda: manager)
    reservations.reserve("cpu")
    reservations.reserve("cpu")
    reservations.reserve("gpu")
    assert len(reservations) == 2
    assert reservations.has("cpu") and reservations.has("gpu")
    reservations.release("cpu")
    assert not reservations.has("cpu")
    reservations.release_all()
    assert not manager.reserved_requests
    assert not reservations.release_any()


def test_reservation_lasts_while_a_paused_trial_may_use_it():
    manager = Manager()
    reservations = SlotReservations(lambda: manager)
    first, second = make_trial(), make_trial()
    reservations.on_pause(first)
    reservations.on_pause(second)
    assert reservations.num_paused("cpu") == 2
    assert reservations.has_unrequested()
    reservations.reserve("cpu")
    assert not reservations.has_unrequested()
    first.status = Trial.TERMINATED
    reservations.on_unpause(first)
    assert reservations.has("cpu")
    second.status = Trial.TERMINATED
    reservations.on_unpause(second)
    assert not reservations.has("cpu") and not reservations.has_unrequested()


def test_trial_is_counted_with_what_it_wanted_when_it_paused():
    manager = Manager()
    reservations = SlotReservations(lambda: manager)
    trial = make_trial("cpu")
    reservations.on_pause(trial)
    reservations.reserve("cpu")
    reservations.reserve("gpu")
    trial.placement_group_factory, trial.status = "gpu", Trial.TERMINATED
    reservations.on_unpause(trial)
    reservations.on_unpause(trial)
    assert reservations.num_paused("cpu") == reservations.num_paused("gpu") == 0
    assert not manager.reserved_requests


# Idle actors


class Supports:
    def __init__(self, reset=True):
        self.support = TrainableSupport(reset=reset, save=True, load=True)

    def get(self, trial):
        return self.support


def make_pool(*actors, reset=True):
    cache = _ObjectCache()
    cache.increase_max("cpu", len(actors))
    for actor in actors:
        cache.cache_object("cpu", actor)
    warned = []
    return IdleActors(cache, Supports(reset), lambda *args: warned.append(args)), warned


def test_longest_idle_actor_is_used_first():
    pool, _ = make_pool("first", "second")
    assert len(pool) == 2 and pool.has("cpu") and not pool.has("gpu")
    assert pool.pop(make_trial()) == "first"
    assert len(pool) == 1


@pytest.mark.parametrize(
    "exception, is_lost", [(RayActorError(), True), (ValueError(), False)]
)
def test_death_of_an_idle_actor_counts_once(exception, is_lost):
    pool, _ = make_pool("actor")
    trial = make_trial(status=Trial.PENDING)
    pool.pop(trial)
    assert pool.on_task_failed(trial, exception) is is_lost
    # What comes next is on another actor.
    assert not pool.on_task_failed(trial, RayActorError())


@pytest.mark.parametrize(
    "prove",
    [
        lambda pool, trial: pool.on_task_resolved(trial),
        lambda pool, trial: pool.require_new_actor(trial),
        lambda pool, trial: pool.on_status_change(trial),
    ],
    ids=["task", "new actor", "paused"],
)
def test_actor_that_was_heard_of_is_no_idle_one(prove):
    pool, _ = make_pool("actor")
    trial = make_trial(status=Trial.PAUSED)
    pool.pop(trial)
    prove(pool, trial)
    assert not pool.on_task_failed(trial, RayActorError())


def test_new_actor_is_required_until_the_trial_runs():
    pool, _ = make_pool("actor")
    trial = make_trial(status=Trial.PENDING)
    assert pool.has_one_for(trial)
    pool.require_new_actor(trial)
    pool.on_status_change(trial)
    assert not pool.has_one_for(trial)
    trial.status = Trial.RUNNING
    pool.on_status_change(trial)
    assert pool.has_one_for(trial)


def test_actors_are_kept_until_resets_are_refused_too_often():
    pool, warned = make_pool()
    trial = make_trial()
    assert pool.may_keep_actor_of(trial)
    assert [pool.on_reset(trial, worked=False) for _ in range(3)] == [True, True, False]
    assert not pool.may_keep_actor_of(trial)
    assert [topic for topic, _ in warned] == ["refused_reset"] * 3 + ["no_more_resets"]


def test_actors_that_cannot_be_reset_are_not_kept():
    pool, warned = make_pool(reset=False)
    assert not pool.may_keep_actor_of(make_trial())
    assert [topic for topic, _ in warned] == ["no_reset"]


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
