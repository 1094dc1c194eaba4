"""A run never hangs in silence."""

import pytest
from virtual_cluster import (
    Cluster,
    Costs,
    Experiment,
    InvariantViolation,
    Options,
    ScriptedScheduler,
    VirtualCluster,
)

from ray.tune import Callback, TuneError
from ray.tune.schedulers import ResourceChangingScheduler
from ray.tune.search import Searcher


def _never(controller):
    return None


def _warnings(caplog):
    said = [record.message for record in caplog.records]
    return [message for message in said if "seems to have stalled" in message]


def _stalling_cluster(stall_timeout_s=600, **kwargs):
    """Two trials are paused and never chosen; the third one ends."""

    def decide(controller, trial, result):
        if trial.trial_id.endswith("2"):
            return "CONTINUE"
        return "PAUSE" if result["training_iteration"] == 2 else "CONTINUE"

    return VirtualCluster.of(
        ScriptedScheduler(decide, _never),
        num_samples=3,
        slots=2,
        stop={"training_iteration": 4},
        stall_timeout_s=stall_timeout_s,
        detect_hangs=False,
        **kwargs,
    )


@pytest.mark.hang
@pytest.mark.fixes("stall")
@pytest.mark.timeout(20)
@pytest.mark.parametrize("reuse_actors", [False, True])
def test_stalled_run_ends_with_an_error_that_lists_unfinished_trials(
    reuse_actors, caplog
):
    cluster = _stalling_cluster(reuse_actors=reuse_actors)
    with pytest.raises(TuneError, match="has stalled") as info:
        for _ in range(2000):
            cluster.step()
    stalled_for = cluster.clock.now - 8
    assert 590 <= stalled_for < 660
    message = str(info.value)
    for trial in cluster.trials[:2]:
        assert (
            f"- {trial}: PAUSED, paused by a decision of ScriptedScheduler, "
            f"last result: training_iteration=2, score="
        ) in message
    assert str(cluster.trials[2]) not in message
    assert "TUNE_STALL_TIMEOUT_S" in message
    assert len(_warnings(caplog)) == 4  # after 60, 120, 240 and 480 s


@pytest.mark.fixes("stall")
@pytest.mark.timeout(20)
def test_stalled_run_can_be_restored():
    schedulers = [_stalling_cluster()._make_scheduler()]
    cluster = VirtualCluster(
        Experiment(
            lambda: schedulers.pop() if schedulers else ScriptedScheduler(),
            num_samples=3,
            stop={"training_iteration": 4},
            stall_timeout_s=30,
            checkpoint_period=1e9,
        ),
        Cluster(slots=2),
        options=Options(detect_hangs=False),
    )
    with pytest.raises(TuneError, match="has stalled"):
        for _ in range(2000):
            cluster.step()
    cluster.restart_driver()
    record = cluster.run(max_events=100)
    assert record.statuses() == ["TERMINATED"] * 3
    # It went on from the checkpoints of the pause.
    iterations = [
        [result["training_iteration"] for result in results]
        for results in record.results.values()
    ]
    assert sorted(iterations) == [[1, 2, 3, 4]] * 3


@pytest.mark.timeout(20)
def test_stalled_run_waits_forever_if_told_so(caplog):
    cluster = _stalling_cluster(stall_timeout_s=0)
    for _ in range(3000):
        cluster.step()
    assert cluster.clock.now > 2000
    warnings = _warnings(caplog)
    assert len(warnings) == 6
    assert all("It waits forever" in warning for warning in warnings)


@pytest.mark.fixes("stall")
def test_invalid_stall_timeout_is_refused_before_anything_runs():
    with pytest.raises(ValueError, match="TUNE_STALL_TIMEOUT_S.*'soon'"):
        _stalling_cluster(stall_timeout_s="soon").start()


@pytest.mark.fixes("stall")
@pytest.mark.timeout(20)
@pytest.mark.parametrize("should_checkpoint", [True, False])
def test_message_names_the_hook_that_paused_a_trial(should_checkpoint):
    def a_hook_of_mine(controller, trial, result):
        controller.pause_trial(trial, should_checkpoint=should_checkpoint)
        return "NOOP"

    cluster = VirtualCluster(
        Experiment(
            ScriptedScheduler(a_hook_of_mine, _never), num_samples=1, stall_timeout_s=10
        ),
        options=Options(detect_hangs=False),
    )
    with pytest.raises(
        TuneError, match="paused by a call in ScriptedScheduler.on_trial_result,"
    ):
        for _ in range(200):
            cluster.step()


@pytest.mark.fixes("stall")
@pytest.mark.timeout(20)
def test_message_says_if_a_trial_was_paused_from_outside():
    cluster = VirtualCluster(
        Experiment(ScriptedScheduler(choose=_never), stall_timeout_s=10),
        options=Options(detect_hangs=False),
    )
    cluster.run_until(lambda: cluster.trials and cluster.trials[0].status == "RUNNING")
    cluster.pause_trial(cluster.trials[0])
    with pytest.raises(TuneError, match="paused by a call of `pause_trial`,"):
        for _ in range(200):
            cluster.step()


@pytest.mark.timeout(20)
def test_long_iteration_is_no_stall():
    record = VirtualCluster(
        Experiment(num_samples=1, stop={"training_iteration": 2}, stall_timeout_s=60),
        Cluster(costs=Costs(train=10_000)),
    ).run()
    assert record.statuses() == ["TERMINATED"]


class _Hesitant(Searcher):
    """Suggests one trial, and another after a while; then it is finished, or never."""

    def __init__(self, asked=0, until=None):
        super().__init__(metric="score", mode="max")
        self.asked, self.until = asked, until

    def set_search_properties(self, metric, mode, config, **spec):
        return True

    def suggest(self, trial_id):
        self.asked += 1
        if self.asked == 1 or self.asked == self.until:
            return {"x": 1}
        if self.until and self.asked > self.until:
            return Searcher.FINISHED
        return None

    def on_trial_complete(self, trial_id, result=None, error=False):
        pass


@pytest.mark.hang
@pytest.mark.fixes("stall")
@pytest.mark.timeout(20)
def test_searcher_that_never_says_that_it_is_finished_ends_the_run():
    cluster = VirtualCluster(
        Experiment(
            search_alg=_Hesitant(),
            num_samples=10,
            stop={"training_iteration": 2},
            stall_timeout_s=300,
        ),
        options=Options(detect_hangs=False),
    )
    with pytest.raises(
        TuneError, match="finished, but _Hesitant suggests none other, and does not say"
    ):
        for _ in range(1000):
            cluster.step()
    assert cluster.clock.now < 400


@pytest.mark.timeout(20)
def test_searcher_may_take_its_time():
    record = VirtualCluster(
        Experiment(
            search_alg=_Hesitant(until=100),
            num_samples=10,
            stop={"training_iteration": 2},
            stall_timeout_s=300,
        ),
        options=Options(detect_hangs=False),
    ).run()
    assert record.statuses() == ["TERMINATED"] * 2


class _Own(ScriptedScheduler):
    """Stands for a scheduler of Tune's."""


_Own.__module__ = "ray.tune.schedulers.own"


def _waiting_cluster(scheduler, **kwargs):
    """The user has not said when a stalled run is to end."""
    return VirtualCluster.of(
        scheduler,
        env={"TUNE_STALL_TIMEOUT_S": ""},
        detect_hangs=False,
        **{"stop": {"training_iteration": 4}, **kwargs},
    )


@pytest.mark.fixes("stall")
@pytest.mark.timeout(20)
def test_by_default_a_run_ends_where_nobody_might_wake_it(caplog):
    cluster = _waiting_cluster(_Own(lambda *_: "PAUSE", _never), num_samples=2)
    with pytest.raises(TuneError, match="BasicVariantGenerator is finished, and _Own"):
        for _ in range(2000):
            cluster.step()
    assert 600 <= cluster.clock.now < 660
    assert "It ends with an error in 540 s" in _warnings(caplog)[0]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("wrapped", [False, True])
def test_scheduler_of_a_user_may_resume_by_its_own_clock(wrapped, caplog):
    def choose(controller):
        waiting = [t for t in controller.get_trials() if not t.is_finished()]
        pending = [trial for trial in waiting if trial.status == "PENDING"]
        return (pending or waiting)[0] if pending or cluster.clock.now > 5000 else None

    def pause_once(controller, trial, result):
        return "PAUSE" if result["training_iteration"] == 1 else "CONTINUE"

    scheduler = ScriptedScheduler(pause_once, choose)
    if wrapped:
        scheduler = ResourceChangingScheduler(scheduler, None)
    cluster = _waiting_cluster(scheduler, num_samples=2)
    assert cluster.run().statuses() == ["TERMINATED"] * 2
    warnings = _warnings(caplog)
    name = "ResourceChangingScheduler" if wrapped else "ScriptedScheduler"
    assert len(warnings) == 7
    assert all(f"on waiting, as {name} may" in warning for warning in warnings)


@pytest.mark.timeout(20)
def test_search_algorithm_may_wait_for_a_person(caplog):
    cluster = _waiting_cluster(None, search_alg=_Hesitant(until=3000), num_samples=10)
    assert cluster.run().statuses() == ["TERMINATED"] * 2
    assert cluster.clock.now > 2900
    assert "All 1 trial(s) are finished, but _Hesitant suggests" in caplog.text


@pytest.mark.timeout(20)
def test_nothing_is_said_of_trials_where_there_are_none(caplog):
    class Late(_Hesitant):
        def suggest(self, trial_id):
            return super().suggest(trial_id) if cluster.clock.now > 200 else None

    cluster = _waiting_cluster(None, search_alg=Late(until=2), num_samples=2)
    assert cluster.run().statuses() == ["TERMINATED"] * 2
    assert "No trial exists yet: Late suggests none, and does not" in caplog.text
    assert "are finished, but" not in caplog.text


@pytest.mark.timeout(20)
def test_time_budget_ends_a_stalled_run():
    cluster = _waiting_cluster(
        _Own(lambda *_: "PAUSE", _never), num_samples=2, time_budget_s=2000
    )
    assert cluster.run().statuses() == ["TERMINATED"] * 2
    assert cluster.clock.now > 2000


class _Slow:
    """Whatever is asked of it takes 50 s."""

    def __init__(self, clock):
        self._clock = clock

    def __call__(self, *args, **kwargs):
        self._clock[0].advance_to(self._clock[0].now + 50)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("hook", ["suggest", "choose_trial_to_run", "on_step_end"])
def test_time_in_hooks_does_not_count(hook, caplog):
    clock = []
    slow = _Slow(clock)

    class Slow(_Hesitant):
        def suggest(self, trial_id):
            if self.asked and hook == "suggest":
                slow()
            return super().suggest(trial_id)

    def choose(controller):
        [trial] = controller.get_trials() or [None]
        if trial is not None and trial.status == "PENDING":
            return trial
        if hook == "choose_trial_to_run":
            slow()
        return None

    class Step(Callback):
        def on_step_end(self, iteration, trials, **info):
            if hook == "on_step_end":
                slow()

    cluster = VirtualCluster(
        Experiment(
            ScriptedScheduler(lambda *_: "PAUSE", choose),
            search_alg=Slow(),
            num_samples=2,
            callbacks=lambda: [Step()],
            stall_timeout_s=100,
        ),
        options=Options(detect_hangs=False),
    )
    clock.append(cluster.clock)
    cluster.run_until(lambda: cluster.trials and cluster.trials[0].status == "PAUSED")
    for _ in range(50):
        cluster.step()
    assert cluster.clock.now > 2000
    assert not _warnings(caplog)
    with pytest.raises(TuneError, match="has stalled"):
        for _ in range(100):
            cluster.step()
    assert len(_warnings(caplog)) == 1


@pytest.mark.timeout(20)
def test_search_algorithm_for_which_all_waits_is_asked_once_a_second():
    searcher = _Hesitant()
    cluster = _waiting_cluster(None, search_alg=searcher, num_samples=10).start()
    cluster.run_until(lambda: cluster.trials and cluster.trials[0].is_finished())
    asked, begin = searcher.asked, cluster.clock.now
    cluster.runtime.quiet_wait = 0  # waits take their 0.1 s
    while cluster.clock.now < begin + 100:
        cluster.step()
    assert 90 <= searcher.asked - asked <= 101
    assert cluster.trials[0].is_finished()


@pytest.mark.fixes("stop-request-unseen")
@pytest.mark.timeout(20)
def test_request_to_stop_is_seen_while_the_searcher_gives_nothing():
    cluster = VirtualCluster(
        Experiment(
            search_alg=_Hesitant(), num_samples=10, stop={"training_iteration": 2}
        ),
        options=Options(detect_hangs=False),
    )
    cluster.run_until(lambda: cluster.trials and cluster.trials[0].is_finished())
    cluster.controller.request_stop_experiment()
    before = cluster.clock.now
    cluster.run(max_events=10)
    assert cluster.clock.now - before < 10


def test_actor_manager_waits_when_there_is_nothing_to_wait_for():
    # The virtual clock only goes on when somebody waits.
    cluster = _stalling_cluster(stall_timeout_s=0)
    cluster.run_until(
        lambda: (
            [trial.status for trial in cluster.trials].count("RUNNING") == 0
            and len(cluster.trials) == 3
            and not cluster.controller._actor_manager.live_actors
        )
    )
    cluster.runtime.quiet_wait = 0
    with cluster.active():
        before = cluster.clock.now
        assert not cluster.controller._actor_manager.next(timeout=0.1)
        assert cluster.clock.now - before == pytest.approx(0.1)
        before = cluster.clock.now
        assert not cluster.controller._actor_manager.next(timeout=0)
        assert not cluster.controller._actor_manager.next(timeout=None)
        assert cluster.clock.now == before


@pytest.mark.hang
@pytest.mark.fixes("idle-after-noop")
@pytest.mark.parametrize("decision", ["NOOP", None])
def test_noop_that_would_leave_a_trial_idle_continues_it(decision, caplog):
    record = VirtualCluster(
        Experiment(
            ScriptedScheduler(lambda *_: decision),
            num_samples=2,
            stop={"training_iteration": 4},
        ),
        Cluster(slots=1),
    ).run(max_events=100)
    assert record.statuses() == ["TERMINATED"] * 2
    [warning] = [r for r in caplog.records if "returned NOOP" in r.message]
    assert "ScriptedScheduler returned NOOP for trial virtual_class_t_0" in (
        warning.message
    )


@pytest.mark.parametrize("should_checkpoint", [True, False])
def test_noop_of_a_scheduler_that_paused_the_trial_is_not_remarked_upon(
    should_checkpoint, caplog
):
    def decide(controller, trial, result):
        if result["training_iteration"] == 1 and not trial.has_checkpoint():
            if should_checkpoint:
                controller.pause_trial(trial)
                return "NOOP"
            return "PAUSE"
        return "CONTINUE"

    record = VirtualCluster(
        Experiment(
            ScriptedScheduler(decide), num_samples=1, stop={"training_iteration": 3}
        )
    ).run(max_events=100)
    assert record.statuses() == ["TERMINATED"]
    assert "NOOP" not in caplog.text


def test_hang_would_be_noticed():
    # The invariant that other tests lean on can fail.
    cluster = VirtualCluster(
        Experiment(ScriptedScheduler(lambda *_: "PAUSE", _never), num_samples=1)
    )
    with pytest.raises(InvariantViolation, match="no event can come"):
        cluster.run(max_events=100)


if __name__ == "__main__":
    import sys

    sys.exit(pytest.main(["-v", __file__]))
