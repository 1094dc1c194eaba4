"""Which trial gets the next free slot, and when the scheduler is asked."""

import random
import sys

import pytest
from promotion_order import check_starts
from virtual_cluster import (
    ClassTrainable,
    Cluster,
    Costs,
    Experiment,
    Faults,
    Options,
    ScriptedScheduler,
    VirtualCluster,
    actor_death,
    task_error,
)

from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler

RESERVE = pytest.mark.parametrize("reserve", [True, False])


def started(record):
    """The numbers of the trials, in the order in which they started to run."""
    numbers = {trial.trial_id: i for i, trial in enumerate(record.trials)}
    return [
        numbers[event.trial]
        for event in record.events
        if event.kind == "status" and event.detail == Trial.RUNNING
    ]


def curve(config, iteration):
    return {"score": config["x"] * iteration}


@pytest.mark.fixes("promotion-queued-last")
@RESERVE
@pytest.mark.parametrize("slots", [1, 2])
def test_chosen_trial_gets_the_next_slot(slots, reserve):
    # Trial 0 pauses early, and is to go on before any other is started.
    def decide(controller, trial, result):
        if result["training_iteration"] >= 3:
            return "STOP"
        is_first = trial is controller.get_trials()[0]
        return "PAUSE" if is_first and result["training_iteration"] == 1 else "CONTINUE"

    def choose(controller):
        first = controller.get_trials()[0]
        return first if first.status == Trial.PAUSED else None

    record = VirtualCluster(
        Experiment(ScriptedScheduler(decide, choose), num_samples=8),
        Cluster(slots=slots, reserve=reserve),
    ).run(max_events=500)
    first, again = [i for i, number in enumerate(started(record)) if number == 0]
    assert again <= slots
    assert record.iterations() == [3] * 8


@pytest.mark.fixes("idle-actor-to-newcomer")
@RESERVE
@pytest.mark.parametrize("seed", range(5))
def test_idle_actor_goes_to_the_trial_that_asked_first(seed, reserve):
    # Two slots, and four places: two trials wait when an actor becomes idle. A trial
    # that is suggested in that step is not to get it.
    def decide(controller, trial, result):
        number = controller.get_trials().index(trial)
        return "STOP" if result["training_iteration"] > number % 3 else "CONTINUE"

    record = VirtualCluster(
        Experiment(
            ScriptedScheduler(decide, lambda controller: None),
            num_samples=12,
            max_concurrent=4,
            reuse_actors=True,
        ),
        Cluster(slots=2, reserve=reserve),
        options=Options(seed=seed),
    ).run(max_events=500)
    order = started(record)
    # Two that start at the same time may do so in either order.
    assert all(abs(order.index(number) - number) <= 1 for number in range(12)), order


@pytest.mark.fixes("promotion-committed-early")
@RESERVE
def test_choice_rests_on_the_newest_results(reserve):
    # 0 and 1 pause; 2 runs for longer, in the only slot. What it reports says which of
    # the two is to be resumed.
    best = {"paused": 0}

    def decide(controller, trial, result):
        number = controller.get_trials().index(trial)
        if result["training_iteration"] == 5:
            return "STOP"
        if number < 2:
            return "PAUSE" if result["training_iteration"] == 1 else "CONTINUE"
        if result["training_iteration"] == 3:
            best["paused"] = 1
        return "CONTINUE"

    def choose(controller):
        trials = controller.get_trials()
        for trial in trials:
            if trial.status == Trial.PENDING:
                return trial
        for trial in (trials[best["paused"]], *trials):
            if trial.status == Trial.PAUSED:
                return trial
        return None

    record = VirtualCluster(
        Experiment(ScriptedScheduler(decide, choose), num_samples=3),
        Cluster(slots=1, reserve=reserve),
    ).run(max_events=500)
    assert started(record) == [0, 1, 2, 1, 0]


@pytest.mark.fixes("has-resources-always")
@RESERVE
def test_has_resources_for_trial_tells_the_truth(reserve):
    answers = {}

    def decide(controller, trial, result):
        others = [t for t in controller.get_trials() if t is not trial]
        answers[result["training_iteration"], trial.trial_id] = [
            (other.status, controller.trial_executor.has_resources_for_trial(other))
            for other in others
            if other.status in (Trial.PENDING, Trial.PAUSED)
        ]
        if result["training_iteration"] == 3:
            return "STOP"
        is_first = trial is controller.get_trials()[0]
        return "PAUSE" if is_first and result["training_iteration"] == 1 else "CONTINUE"

    VirtualCluster(
        Experiment(ScriptedScheduler(decide), num_samples=4),
        Cluster(slots=1, reserve=reserve),
    ).run(max_events=500)
    # The only slot is the reporting trial's.
    assert {a for pairs in answers.values() for _, a in pairs} == {False}
    assert (Trial.PAUSED, False) in [p for pairs in answers.values() for p in pairs]


def test_has_resources_for_trial_when_there_are_some():
    answers = []

    def choose(controller):
        for trial in controller.get_trials():
            if trial.status == Trial.PENDING:
                answers.append(controller.trial_executor.has_resources_for_trial(trial))
                return trial
        return None

    VirtualCluster(
        Experiment(
            ScriptedScheduler(choose=choose),
            num_samples=2,
            stop={"training_iteration": 2},
        ),
        Cluster(slots=2),
    ).run(max_events=100)
    assert answers and answers[0]


@pytest.mark.fixes("asked-without-a-slot")
@RESERVE
def test_scheduler_is_asked_when_a_slot_is_free(reserve):
    class Counting(FIFOScheduler):
        asked = 0

        def choose_trial_to_run(self, tune_controller):
            running = sum(
                trial.status == Trial.RUNNING for trial in tune_controller.get_trials()
            )
            # Six wait, and have asked for their resources.
            self.asked += running == 2
            return super().choose_trial_to_run(tune_controller)

    scheduler = Counting()
    VirtualCluster(
        Experiment(scheduler, num_samples=8, stop={"training_iteration": 20}),
        Cluster(slots=2, reserve=reserve),
    ).run(max_events=1000)
    # Not once for each of 160 results.
    assert scheduler.asked <= 2


def test_pending_trials_are_prefetched():
    cluster = VirtualCluster(
        Experiment(num_samples=12, max_pending=5, stop={"training_iteration": 3}),
        Cluster(slots=2),
    ).start()
    cluster.run_until(lambda: len(started_now(cluster)) == 2)
    cluster.step()
    assert cluster.controller._actor_manager.num_pending_actors == 5


def started_now(cluster):
    return [t for t in cluster.trials if t.status == Trial.RUNNING]


def pause_at_one(choose_paused):
    def decide(controller, trial, result):
        if result["training_iteration"] >= 3:
            return "STOP"
        return "PAUSE" if result["training_iteration"] == 1 else "CONTINUE"

    def choose(controller):
        for status in (Trial.PENDING, Trial.PAUSED):
            for trial in controller.get_trials():
                if trial.status == status and (
                    status == Trial.PENDING or choose_paused(controller, trial)
                ):
                    return trial
        return None

    return ScriptedScheduler(decide, choose)


def test_autoscaling_sees_that_a_paused_trial_waits():
    # The first trial to be resumed is busy for long, on both CPUs.
    cluster = VirtualCluster(
        Experiment(
            pause_at_one(lambda controller, trial: True),
            configs=[{"x": 1}, {"x": 2}],
            resources=lambda config: {"CPU": 2},
        ),
        Cluster(slots=2),
    ).start()
    manager = cluster.controller._actor_manager
    cluster.run_until(lambda: len(cluster.trials) == 2)
    first, second = cluster.trials
    cluster.run_until(lambda: second.status == Trial.PAUSED)
    cluster.run_until(lambda: first.status == Trial.RUNNING)
    cluster.step()
    assert second.status == Trial.PAUSED
    assert manager.requested_resources == [second.placement_group_factory]
    assert manager.num_reserved() == 1
    cluster.run_until(second.is_finished)
    assert manager.num_reserved() == 0


def test_what_nobody_wants_is_given_back():
    # The slot of trial 1 is free when nobody is to be resumed any more.
    wanted = {"paused": True}

    def decide(controller, trial, result):
        if result["training_iteration"] >= 3:
            return "STOP"
        is_first = trial is controller.get_trials()[0]
        return "PAUSE" if is_first and result["training_iteration"] == 1 else "CONTINUE"

    def choose(controller):
        for status in (Trial.PENDING, Trial.PAUSED):
            for trial in controller.get_trials():
                if trial.status == status and (
                    status == Trial.PENDING or wanted["paused"]
                ):
                    return trial
        return None

    cluster = VirtualCluster(
        Experiment(
            ScriptedScheduler(decide, choose),
            configs=[{"x": 1}, {"x": 1}, {"x": 2}],
            resources=lambda config: {"CPU": config["x"]},
        ),
        Cluster(slots=2),
        options=Options(detect_hangs=False),
    ).start()
    manager = cluster.controller._actor_manager
    cluster.run_until(lambda: len(cluster.trials) == 3)
    first, second, third = cluster.trials
    cluster.run_until(lambda: first.status == Trial.PAUSED)
    cluster.run_until(lambda: third.status == Trial.RUNNING)
    cluster.step()
    assert manager.num_reserved() == 1
    wanted["paused"] = False
    cluster.run_until(third.is_finished)
    for _ in range(5):
        cluster.step()
    assert manager.num_reserved() == 0
    assert first.status == Trial.PAUSED
    wanted["paused"] = True
    cluster.run_until(first.is_finished)


@RESERVE
@pytest.mark.parametrize("reuse_actors", [False, True])
def test_two_shapes_share_a_cluster(reserve, reuse_actors):
    # Each shape's paused trials are resumed before pending ones of the same shape.
    def choose(controller):
        for trial in controller.get_trials():
            if trial.status == Trial.PAUSED:
                return trial
        return None

    def decide(controller, trial, result):
        if result["training_iteration"] >= 3:
            return "STOP"
        return "PAUSE"

    for seed in range(5):
        record = VirtualCluster(
            Experiment(
                ScriptedScheduler(decide, choose),
                configs=[{"x": i} for i in range(8)],
                reuse_actors=reuse_actors,
                resources=lambda config: {"CPU": 1 + config["x"] % 2},
            ),
            Cluster(slots=3, reserve=reserve, costs=Costs(jitter=0.3)),
            options=Options(seed=seed),
        ).run(max_events=1000)
        assert record.iterations() == [3] * 8


@RESERVE
def test_chosen_trial_takes_the_place_of_a_waiting_one_under_a_limit(reserve):
    # With a limit of 1, trial 1 (two CPUs) waits for the second CPU, which somebody
    # else has. It may not keep trial 0 from going on.
    resumed = []

    def decide(controller, trial, result):
        if result["training_iteration"] >= 3:
            return "STOP"
        is_first = trial is controller.get_trials()[0]
        return "PAUSE" if is_first and result["training_iteration"] == 1 else "CONTINUE"

    def choose(controller):
        trials = controller.get_trials()
        if len(trials) > 1 and trials[0].status == Trial.PAUSED:
            resumed.append(trials[1].status)
            return trials[0]
        return None

    cluster = VirtualCluster(
        Experiment(
            ScriptedScheduler(decide, choose),
            configs=[{"x": 1}, {"x": 2}],
            max_concurrent=1,
            resources=lambda config: {"CPU": config["x"]},
        ),
        Cluster(slots=1, reserve=reserve),
    ).start()
    cluster.run_until(
        lambda: cluster.trials and cluster.trials[0].status == Trial.TERMINATED
    )
    assert resumed[0] == Trial.PENDING
    assert cluster.trials[1].status == Trial.PENDING


@pytest.mark.fixes("reuse-out-of-order")
def test_pending_trials_start_on_idle_actors_in_their_order():
    record = VirtualCluster(
        Experiment(
            ScriptedScheduler(choose=lambda controller: None),
            num_samples=10,
            reuse_actors=True,
            stop={"training_iteration": 1},
        ),
        Cluster(slots=1),
    ).run(max_events=500)
    assert started(record) == list(range(10))


@pytest.mark.parametrize("max_pending", [1, 3])
def test_trial_that_has_asked_for_no_actor_starts_on_an_idle_one(max_pending):
    for seed in range(3):
        record = VirtualCluster(
            Experiment(
                ScriptedScheduler(choose=lambda controller: None),
                num_samples=10,
                reuse_actors=True,
                max_pending=max_pending,
                stop={"training_iteration": 1},
            ),
            Cluster(slots=3, costs=Costs(jitter=0.5)),
            options=Options(seed=seed),
        ).run(max_events=500)
        assert record.statuses() == [Trial.TERMINATED] * 10


@pytest.mark.parametrize("failures", [False, True])
@pytest.mark.parametrize("reuse_actors", [False, True])
@pytest.mark.parametrize("max_concurrent", [0, 2])
@pytest.mark.parametrize("slots", [1, 2, 8])
@pytest.mark.parametrize("promotion", ["deferred", "eager"])
def test_order_of_starts_is_that_of_the_paper(
    promotion, slots, max_concurrent, reuse_actors, failures
):
    from ray.tune.schedulers.asha_v2 import ASHAv2

    rng = random.Random(slots)
    faults = []
    if failures:
        faults = [
            task_error("train", trial=rng.randrange(32), nth=2),
            task_error("train", trial=rng.randrange(32), nth=1),
            actor_death("save", trial=rng.randrange(32), nth=1),
        ]
    configs = [{"x": rng.random(), "pace": rng.uniform(0.5, 1.5)} for _ in range(32)]
    record = VirtualCluster(
        Experiment(
            ASHAv2(max_t=27, grace_period=1, reduction_factor=3, promotion=promotion),
            configs=configs,
            trainable=ClassTrainable(curve),
            max_concurrent=max_concurrent,
            reuse_actors=reuse_actors,
            max_failures=1,
        ),
        Cluster(
            slots=slots,
            # Nothing but training takes time, so that each start is seen when it is
            # decided.
            costs=Costs(
                start=0,
                train=lambda config, iteration: config["pace"],
                save=0,
                restore=0,
                reset=0,
                stop=0,
            ),
        ),
        Faults(faults),
        Options(quiet=True),
    ).run(max_events=5000)
    starts = check_starts(record, curve, [1, 3, 9], 3, eager=promotion == "eager")
    assert starts.wrong == []
    assert max(record.iterations()) == 27
    assert sorted(t for t, what in starts.order if what == "new") == list(range(32))


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
