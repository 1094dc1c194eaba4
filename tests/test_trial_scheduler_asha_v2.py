"""ASHAv2 on its own: a small stand-in for the controller, no Ray."""

import copy
import inspect
import logging
import math
import pickle
import random
import sys
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from asha_stand_in import (
    CONTINUE,
    PAUSE,
    STOP,
    Controller,
    Search,
    asha,
    check_sums,
)

from ray import tune
from ray.tune.experiment import Trial
from ray.tune.result import DEFAULT_METRIC
from ray.tune.schedulers import ASHAScheduler
from ray.tune.schedulers.asha_v2 import ASHAv2

NAN = float("nan")


def start_trials(controller, n=None):
    """Starts trials in parallel, in order; the rest stays pending."""
    controller.fill()
    for trial in controller.trials[:n]:
        controller.start(trial)
    return controller.trials[:n]


# Arguments.


@pytest.mark.parametrize(
    "kwargs, shown",
    [
        ({"time_attr": ""}, "''"),
        ({"time_attr": 3}, "3"),
        ({"time_attr": None}, "None"),
        ({"metric": 5}, "5"),
        ({"metric": ""}, "''"),
        ({"mode": "maximum"}, "'maximum'"),
        ({"mode": 1}, "1"),
        ({"mode": ""}, "''"),
        ({"max_t": 0}, "0"),
        ({"max_t": -3}, "-3"),
        ({"max_t": NAN}, "nan"),
        ({"max_t": math.inf}, "inf"),
        ({"max_t": True}, "True"),
        ({"max_t": "100"}, "'100'"),
        ({"max_t": None}, "None"),
        ({"grace_period": 0}, "0"),
        ({"grace_period": NAN}, "nan"),
        ({"grace_period": math.inf}, "inf"),
        ({"grace_period": 101}, "101"),
        ({"grace_period": np.bool_(True)}, "True"),
        ({"reduction_factor": 1}, "1"),
        ({"reduction_factor": 0.5}, "0.5"),
        ({"reduction_factor": NAN}, "nan"),
        ({"reduction_factor": math.inf}, "inf"),
        ({"reduction_factor": "3"}, "'3'"),
        ({"reduction_factor": True}, "True"),
        ({"brackets": 0}, "0"),
        ({"brackets": 1.5}, "1.5"),
        ({"brackets": True}, "True"),
        ({"brackets": "1"}, "'1'"),
        ({"stop_last_trials": "no"}, "'no'"),
        ({"stop_last_trials": None}, "None"),
        ({"promotion": "late"}, "'late'"),
        ({"promotion": True}, "True"),
        ({"promotion": ""}, "''"),
    ],
)
def test_wrong_arguments(kwargs, shown):
    with pytest.raises(ValueError) as info:
        ASHAv2(**kwargs)
    assert shown in str(info.value)
    assert next(iter(kwargs)) in str(info.value)


def test_numpy_numbers_are_numbers():
    scheduler = ASHAv2(
        max_t=np.int64(81),
        grace_period=np.float32(1),
        reduction_factor=np.int32(3),
        brackets=np.int64(2),
    )
    assert len(scheduler._ladder.brackets) == 2


def test_drop_in_for_asha_scheduler():
    theirs = inspect.signature(ASHAScheduler).parameters
    ours = inspect.signature(ASHAv2).parameters
    assert list(ours)[: len(theirs)] == list(theirs)
    for name, parameter in theirs.items():
        assert ours[name].default == parameter.default, name
        assert ours[name].kind == parameter.kind, name
    added = [p for name, p in ours.items() if name not in theirs]
    assert all(p.kind == inspect.Parameter.KEYWORD_ONLY for p in added)
    # Positional, all of them.
    ASHAv2("training_iteration", "acc", "max", 81, 1, 3, 2, False)


def test_is_first_class():
    from ray.air._internal.usage import TUNE_SCHEDULERS
    from ray.tune import schedulers

    assert schedulers.ASHAv2 is ASHAv2
    assert "ASHAv2" in schedulers.__all__
    assert "ASHAv2" in TUNE_SCHEDULERS
    made = tune.create_scheduler(
        "asha_v2", metric="acc", mode="min", max_t=9, promotion="eager"
    )
    assert type(made) is ASHAv2
    assert "promotion=eager" in made.debug_string()
    assert ASHAv2.__doc__ and "stability" not in ASHAv2.__doc__.splitlines()[0]
    assert ASHAv2._annotated == "ASHAv2"


# Search properties.


def test_metric_and_mode_from_tune_config():
    scheduler, controller = ASHAv2(), SimpleNamespace(search_alg=None)
    with pytest.raises(ValueError, match="metric=None"):
        scheduler.on_trial_add(controller, Trial("__fake", stub=True))
    assert scheduler.set_search_properties("acc", "max")
    assert scheduler.metric == "acc"
    scheduler.on_trial_add(controller, Trial("__fake", stub=True))
    assert not scheduler.set_search_properties("loss", None)
    assert not scheduler.set_search_properties(None, "min")
    assert scheduler.set_search_properties(None, None)

    scheduler = ASHAv2()
    assert scheduler.set_search_properties(None, "max")
    assert scheduler.metric == DEFAULT_METRIC

    with pytest.raises(ValueError, match="'up'"):
        ASHAv2().set_search_properties("acc", "up")


@pytest.mark.parametrize("endless", [-1, sys.maxsize])
def test_deferred_promotion_of_an_endless_search(endless):
    with pytest.raises(ValueError, match="num_samples=-1"):
        asha(promotion="deferred").set_search_properties(
            None, None, num_samples=endless
        )
    for promotion in (None, "eager"):
        scheduler = asha(promotion=promotion)
        assert scheduler.set_search_properties(None, None, num_samples=endless)
        assert "promotion=eager" in scheduler.debug_string()


@pytest.mark.parametrize(
    "promotion, spec, expected",
    [
        (None, {}, "eager (search of unknown length)"),
        (None, {"num_samples": 8}, "deferred (8 samples, no time budget)"),
        (None, {"num_samples": 8, "time_budget_s": None}, "deferred (8 samples"),
        (None, {"num_samples": 8, "time_budget_s": 60}, "eager (time budget of 60 s)"),
        (None, {"num_samples": -1}, "eager (endless search)"),
        ("eager", {"num_samples": 8}, "eager;"),
        ("deferred", {"num_samples": 8, "time_budget_s": 60}, "deferred;"),
    ],
)
def test_which_promotion(promotion, spec, expected):
    scheduler = asha(promotion=promotion)
    assert scheduler.set_search_properties(None, None, **spec)
    assert f"promotion={expected}" in scheduler.debug_string()


def test_number_of_samples_of_the_search_algorithm_counts():
    # A grid search: num_samples=1 makes sixteen trials. And so does a resumed run,
    # which is told num_samples=1 whatever it was.
    scheduler = asha()
    scheduler.set_search_properties(None, None, num_samples=1)
    controller = Controller(scheduler, total=16)
    start_trials(controller, 3)
    for trial in controller.trials[:3]:
        assert controller.report(trial) == PAUSE
    assert scheduler.choose_trial_to_run(controller) is controller.trials[3]
    assert "deferred (16 samples" in scheduler.debug_string()

    endless = asha()
    endless.set_search_properties(None, None, num_samples=1)
    controller = Controller(endless, search=Search(100, endless=True), prefetch=4)
    trials = start_trials(controller, 3)
    assert [controller.report(t) for t in trials] == [PAUSE, PAUSE, CONTINUE]
    assert "eager (endless search)" in endless.debug_string()


# Whole runs.


@pytest.mark.parametrize("promotion", ["deferred", "eager"])
@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("mode", ["max", "min"])
def test_a_search_comes_to_its_end(promotion, slots, mode):
    sign = 1 if mode == "max" else -1
    scheduler = asha(promotion=promotion, mode=mode)
    controller = Controller(scheduler, lambda i, t: sign * i, total=27, slots=slots)
    controller.run()
    assert controller.statuses() == [Trial.TERMINATED] * 27
    assert controller.reached()[26] == 81
    assert all(n <= 1 for n in controller.stops.values())
    if promotion == "deferred":
        # Everyone was seen before anyone went on, so the places are exact.
        assert Counter(controller.reached()) == {1: 18, 3: 6, 9: 2, 81: 1}


def test_deferred_sees_everyone_before_anyone_goes_on():
    controller = Controller(asha(promotion="deferred"), total=9, slots=1).run()
    assert controller.order[:9] == [(i, 1) for i in range(9)]
    # From the lowest rung up; the last one did not have to pause.
    assert [i for i, t in controller.order[9:] if t == 2] == [8, 7, 6]
    assert controller.starts[controller.trials[8].trial_id] == 2


def test_eager_promotes_from_the_highest_rung_down():
    controller = Controller(asha(promotion="eager"), lambda i, t: -i, total=9, slots=1)
    controller.run()
    # The third result makes the first promotable, and it runs before the fourth trial.
    assert controller.order[:6] == [(0, 1), (1, 1), (2, 1), (0, 2), (0, 3), (3, 1)]


def test_the_next_to_run_goes_on_in_place():
    scheduler = asha(promotion="eager")
    controller = Controller(scheduler, total=9)
    a, b, c = start_trials(controller, 3)
    assert controller.report(a) == PAUSE
    assert controller.report(b) == PAUSE
    assert controller.report(c) == CONTINUE  # The best of three: promotable at once.
    assert scheduler.choose_trial_to_run(controller) is controller.trials[3]
    assert "3 recorded = 2 paused + 1 promoted" in scheduler.debug_string()


def test_the_next_to_run_in_deferred_order():
    scheduler = asha(promotion="deferred")
    controller = Controller(scheduler, total=3)
    trials = start_trials(controller)
    decisions = [controller.report(trial) for trial in trials]
    assert decisions == [PAUSE, PAUSE, CONTINUE]
    assert controller.statuses() == [Trial.PAUSED, Trial.PAUSED, Trial.RUNNING]


def test_fallback_goes_on_in_place():
    controller = Controller(asha(), total=1)
    (trial,) = start_trials(controller)
    for t in range(1, 81):
        assert controller.report(trial) == CONTINUE, t
    assert controller.report(trial) == STOP


@pytest.mark.parametrize("slots", [1, 2, 4])
@pytest.mark.parametrize("promotion", ["deferred", "eager"])
@pytest.mark.parametrize("max_t", [81, 100, 2, 1])
@pytest.mark.parametrize("eta", [2, 3, 2.5])
def test_someone_reaches_max_t(slots, promotion, max_t, eta):
    for total in range(1, 12):
        scheduler = asha(promotion=promotion, max_t=max_t, reduction_factor=eta)
        rng = random.Random(total)
        values = [rng.random() for _ in range(total)]
        controller = Controller(
            scheduler,
            lambda i, t, values=values: values[i],
            total=total,
            slots=slots,
            seed=0,
        ).run()
        assert max(controller.reached()) == max_t
        assert controller.statuses() == [Trial.TERMINATED] * total


@pytest.mark.parametrize("retries", [0, 2])
@pytest.mark.parametrize("fails_at", [1, 2, 3, 20])
@pytest.mark.parametrize("who", [0, 4, 8])
@pytest.mark.parametrize("slots", [1, 3])
def test_one_of_nine_fails(retries, fails_at, who, slots):
    controller = Controller(
        asha(), total=9, slots=slots, fails={(who, fails_at): 99}, retries=retries
    ).run()
    has_failed = max(controller.failures.values(), default=0) > retries
    assert (Trial.ERROR in controller.statuses()) == has_failed
    if fails_at == 1 or not has_failed or who != 8:
        assert max(controller.reached()) == 81


def troubled(seed, trouble=True):
    """A run drawn from a seed, with all that can go wrong."""
    rng = random.Random(seed)
    total = rng.randrange(1, 40)
    values = [rng.choice([NAN, None, 1, 2, 3, rng.random()]) for _ in range(total)]
    scheduler = asha(
        promotion=rng.choice([None, "deferred", "eager"]),
        reduction_factor=rng.choice([2, 3, 4, 2.5]),
        grace_period=rng.choice([1, 2]),
        max_t=rng.choice([9, 20, 27]),
        brackets=rng.choice([1, 1, 3]),
        stop_last_trials=rng.random() < 0.8,
        reserve=rng.choice([0, 1, 2, 5, None]),
        mode=rng.choice(["min", "max"]),
    )
    fails = {
        (rng.randrange(total), rng.randrange(1, 30)): rng.choice([1, 1, 9])
        for _ in range(rng.randrange(6))
    }
    ends = {i: rng.randrange(1, 35) for i in range(total) if rng.random() < 0.2}
    if not scheduler._stop_last_trials:
        ends = {i: ends.get(i, 33) for i in range(total)}
    search = Search(total, max_live=rng.choice([None, None, 1, 4]))
    if rng.random() < 0.3:
        search.total_samples = 0  # not known
    return Controller(
        scheduler,
        lambda i, t: values[i] if t < 5 or values[i] is None else values[i] + t % 3,
        slots=rng.choice([1, 2, 5]),
        fails=fails,
        retries=rng.choice([0, 1, 2]),
        ends=ends,
        checkpoints=rng.random() < 0.8,
        prefetch=rng.choice([1, 3, 200]),
        seed=seed,
        search=search,
        step=rng.choice([1, 1, 1, 2, 0.5]),
    )


@pytest.mark.parametrize("seed", range(100))
def test_all_rules_are_kept_in_all_kinds_of_trouble(seed):
    np.random.seed(seed)  # It draws the brackets.
    troubled(seed).watch().run()


# Records.


def test_a_result_past_several_milestones():
    scheduler = asha()
    controller = Controller(scheduler, total=9)
    (trial,) = start_trials(controller, 1)
    assert controller.report(trial, t=10) == PAUSE
    text = scheduler.debug_string()
    assert "Milestone 3: 1 recorded = 0 paused + 1 promoted" in text
    assert "Milestone 9: 1 recorded = 0 paused + 0 promoted + 0 ended + 1 about" in text
    scheduler.choose_trial_to_run(controller)
    assert "Milestone 9: 1 recorded = 1 paused" in scheduler.debug_string()


def test_a_record_is_never_overwritten():
    scheduler = asha(promotion="eager")
    controller = Controller(scheduler, total=9, retries=9)
    a, b, c = start_trials(controller, 3)
    assert controller.report(a, value=3.0) == PAUSE
    assert controller.report(b, value=2.0) == PAUSE
    assert controller.report(c, value=1.0) == PAUSE
    assert scheduler.choose_trial_to_run(controller) is a
    controller.start(a)
    controller.report(a, t=2)
    controller.fail(a)
    controller.start(a)
    # It starts over and is worse at the milestone this time. It was promoted already.
    assert controller.report(a, t=1, value=0.0) == CONTINUE
    assert "cutoff 3" in scheduler.debug_string()


def test_a_retried_trial_that_waits_pauses_again():
    scheduler = asha(promotion="eager")
    controller = Controller(scheduler, total=9, retries=9)
    a, b = start_trials(controller, 2)
    assert controller.report(a, value=1.0) == PAUSE
    assert controller.report(b, value=2.0) == PAUSE
    # Its node goes down with the checkpoint, say.
    a.set_status(Trial.RUNNING)
    controller.running.append(a)
    controller.fail(a)
    controller.start(a)
    assert controller.report(a, t=0.5, value=9.0) == CONTINUE
    assert controller.report(a, t=1, value=9.0) == PAUSE
    assert "2 recorded" in scheduler.debug_string()


def test_brackets_are_kept_by_a_retry_and_drawn_as_stock_does():
    np.random.seed(3)
    theirs = ASHAScheduler("t", "acc", "max", 100, 1, 3, 4)
    ours = asha(max_t=100, brackets=4)
    controller = Controller(ours, total=50)
    trials = [Trial("__fake", stub=True) for _ in range(50)]
    state = np.random.get_state()
    for trial in trials:
        theirs.on_trial_add(controller, trial)
    np.random.set_state(state)
    for trial in trials:
        ours.on_trial_add(controller, trial)
    drawn = [ours._ladder.bracket_of(t.trial_id) for t in trials]
    assert drawn == [
        theirs._brackets.index(theirs._trial_info[t.trial_id]) for t in trials
    ]
    assert len(set(drawn)) > 2
    for trial in trials:
        ours.on_trial_error(controller, trial)
        ours.on_trial_add(controller, trial)
    assert drawn == [ours._ladder.bracket_of(t.trial_id) for t in trials]


def test_a_bracket_without_rungs_runs_to_max_t():
    scheduler = asha(max_t=5, grace_period=5)
    controller = Controller(scheduler, total=3).run()
    assert controller.reached() == [5, 5, 5]


def test_fractional_time_attr():
    scheduler = asha(time_attr="time_total_s", max_t=10.0, grace_period=0.5)
    controller = Controller(scheduler, total=9)
    (trial,) = start_trials(controller, 1)

    def report(t):
        return scheduler.on_trial_result(
            controller, trial, {"time_total_s": t, "acc": 1}
        )

    assert report(0.4999) == CONTINUE
    assert report(0.731) == PAUSE


@pytest.mark.parametrize("bad", [NAN, None])
def test_nan_is_never_promoted(bad):
    scheduler = asha(promotion="eager")
    controller = Controller(scheduler, total=99)
    trials = start_trials(controller, 6)
    for trial in trials[:5]:
        assert controller.report(trial, value=NAN if bad is None else bad) in (
            PAUSE,
            STOP,
        )
    assert scheduler.choose_trial_to_run(controller) is controller.trials[6]
    assert controller.report(trials[5], value=-1e9) == CONTINUE


def test_only_nan_ends_without_a_fallback():
    controller = Controller(asha(), lambda i, t: NAN, total=5).run()
    assert max(controller.reached()) == 1


def test_a_trial_that_ends_at_a_milestone_is_recorded_and_never_paused():
    scheduler = asha(promotion="eager")
    controller = Controller(scheduler, total=9, ends={0: 1, 1: 10})
    a, b = start_trials(controller, 2)
    assert controller.report(a) == "COMPLETE"
    assert controller.report(b, t=10) == "COMPLETE"
    text = scheduler.debug_string()
    assert "Milestone 1: 2 recorded = 0 paused + 1 promoted + 1 ended" in text
    assert "Milestone 9: 1 recorded = 0 paused + 0 promoted + 1 ended" in text
    check_sums(text, 9)


def test_results_without_time_or_metric_are_skipped(caplog):
    scheduler = asha()
    controller = Controller(scheduler, total=9)
    (trial,) = start_trials(controller, 1)
    with caplog.at_level(logging.WARNING):
        for result in (
            {"acc": 1.0},
            {"training_iteration": 5},
            {"training_iteration": NAN, "acc": 1.0},
            {"training_iteration": "later", "acc": 1.0},
            {"training_iteration": None, "acc": 1.0},
            {},
        ):
            for _ in range(3):
                decision = scheduler.on_trial_result(controller, trial, result)
                assert decision == CONTINUE
        scheduler.on_trial_complete(controller, trial, {"training_iteration": 5})
    assert len(caplog.records) == 3
    assert "'training_iteration'" in caplog.records[0].message
    assert str(trial) in caplog.records[1].message
    assert "'acc'" in caplog.records[1].message
    assert "Milestone 1: 0 recorded" in scheduler.debug_string()


def test_a_metric_that_is_no_number_ranks_as_nan(caplog):
    scheduler = asha(promotion="eager")
    controller = Controller(scheduler, total=9)
    a, b, c = start_trials(controller, 3)
    with caplog.at_level(logging.WARNING):
        controller.report(a, value="good")
        controller.report(b, value=[1, 2])
    assert len([r for r in caplog.records if "'good'" in r.message]) == 1
    assert controller.report(c, value=np.float32(1)) == CONTINUE


# Unpromotable trials, the reserve, fallback promotions.


def test_unpromotable_trials_are_stopped_at_once():
    scheduler = asha(reserve=0)
    controller = Controller(scheduler, total=9, slots=1)
    trials = start_trials(controller, 9)
    decisions = [controller.report(t, value=9.0 - i) for i, t in enumerate(trials)]
    # Three of nine can be promoted. The first paused, the best, goes on last of all.
    assert decisions == [PAUSE] * 3 + [STOP] * 6
    scheduler.choose_trial_to_run(controller)
    assert sorted(controller.stops.values()) == [1] * 6
    # The search was told of each of them.
    assert len(controller.search_alg.completed) == 6


def test_unpromotable_trials_that_wait_are_stopped_when_a_better_one_comes():
    scheduler = asha(reserve=0)
    controller = Controller(scheduler, total=10)
    trials = start_trials(controller, 9)
    for i, trial in enumerate(trials[:5]):
        assert controller.report(trial, value=float(i)) == PAUSE
    assert controller.statuses()[:5] == [Trial.TERMINATED] * 2 + [Trial.PAUSED] * 3


def test_nothing_is_unpromotable_in_a_search_of_unknown_length():
    scheduler = asha()
    controller = Controller(scheduler, search=Search(50, endless=True), prefetch=20)
    trials = start_trials(controller, 20)
    for i, trial in enumerate(trials):
        assert controller.report(trial, value=-float(i)) == PAUSE


def test_unpromotable_waits_for_the_save():
    scheduler = asha(reserve=0)
    controller = Controller(scheduler, total=3)
    a, b, c = start_trials(controller)
    result = {"training_iteration": 1, "acc": 1.0}
    assert scheduler.on_trial_result(controller, a, result) == PAUSE  # and it saves
    assert controller.report(b, value=2.0) == PAUSE
    scheduler.choose_trial_to_run(controller)
    assert a.status == Trial.RUNNING and not controller.stops
    controller.pause_trial(a)
    scheduler.choose_trial_to_run(controller)
    assert a.status == Trial.TERMINATED and controller.stops[a.trial_id] == 1


def test_unpromotable_no_more_beyond_the_next_milestone():
    scheduler = asha(reserve=0)
    controller = Controller(scheduler, total=3)
    a, b, c = start_trials(controller)
    result = {"training_iteration": 1, "acc": 1.0}
    assert scheduler.on_trial_result(controller, a, result) == PAUSE  # and it saves
    assert controller.report(b, value=2.0) == PAUSE
    # It did not pause in the end, and is the first and the best at the next one.
    assert controller.report(a, t=3) == PAUSE
    assert "Milestone 3: 1 recorded" in scheduler.debug_string()


def unknown_length(total, reserve=1, **kwargs):
    """A search that ends before anyone knew how long it is."""
    search = Search(total)
    search.total_samples = 0
    return Controller(asha(reserve=reserve), search=search, **kwargs)


def test_the_end_of_a_rung_stops_those_that_wait():
    controller = unknown_length(6)
    trials = start_trials(controller)
    controller.search_alg.left = 1
    for i, trial in enumerate(trials):
        controller.report(trial, value=-float(i))
    scheduler = controller.scheduler
    assert scheduler.choose_trial_to_run(controller) is trials[0]
    controller.start(trials[0])
    assert scheduler.choose_trial_to_run(controller) is trials[1]
    controller.start(trials[1])
    assert scheduler.choose_trial_to_run(controller) is None
    assert controller.statuses()[2:6] == [Trial.PAUSED] * 4, "more may come"
    controller.search_alg.left = 0
    assert scheduler.choose_trial_to_run(controller) is None
    # The third is kept until someone has reached max_t.
    assert controller.statuses()[2:6] == [Trial.PAUSED] + [Trial.TERMINATED] * 3
    controller.report(trials[1], t=81)
    assert scheduler.choose_trial_to_run(controller) is None
    assert trials[2].status == Trial.TERMINATED


def five_and_one_late(**kwargs):
    """Five trials wait for a sixth one, by which two can be promoted, not one."""
    controller = unknown_length(6, reserve=0, **kwargs)
    trials = start_trials(controller)
    for i, trial in enumerate(trials[:5]):
        controller.report(trial, value=-float(i))
    return controller, trials


def who_waits(controller, first, last):
    controller.scheduler.choose_trial_to_run(controller)
    return [t.status == Trial.PAUSED for t in controller.trials[first:last]]


@pytest.mark.parametrize("status", [Trial.PENDING, Trial.RUNNING, Trial.PAUSED])
def test_an_unfinished_trial_below_may_come(status):
    controller, trials = five_and_one_late()
    late = trials[5]
    late.set_status(status)
    if status == Trial.PAUSED:  # by somebody else
        assert controller.scheduler.choose_trial_to_run(controller) is late
    assert who_waits(controller, 0, 5) == [True, True, False, False, False]
    late.set_status(Trial.RUNNING)
    controller.stop_trial(late)  # from outside
    assert who_waits(controller, 0, 5) == [True, False, False, False, False]


def test_a_failed_trial_below_comes_only_if_it_is_retried():
    controller, trials = five_and_one_late(retries=1)
    assert controller.fail(trials[5]) == "RETRY"
    assert who_waits(controller, 0, 5) == [True, True, False, False, False]
    controller.start(trials[5])
    assert controller.fail(trials[5]) == "ERROR"
    assert who_waits(controller, 0, 5) == [True, False, False, False, False]


def test_fallbacks_take_turns_until_one_reaches_max_t():
    controller = unknown_length(2, reserve=None, fails={(1, 5): 1}).run()
    assert controller.statuses() == [Trial.TERMINATED, Trial.ERROR]
    assert controller.reached() == [81, 4]


def test_the_next_best_survives_when_the_leader_fails():
    controller = unknown_length(9, fails={(8, 40): 1}).run()
    assert controller.reached()[8] == 39
    assert max(controller.reached()) == 81


def test_no_fallback_once_one_has_reached_max_t():
    controller = unknown_length(2)
    a, b = start_trials(controller)
    controller.report(a, t=81)
    assert controller.report(b) == STOP
    assert controller.scheduler.choose_trial_to_run(controller) is None


def test_all_fail():
    fails = {(i, t): 9 for i in range(9) for t in (2, 5, 14, 30)}
    controller = Controller(asha(), total=9, fails=fails).run()
    assert controller.statuses() == [Trial.ERROR] * 9


@pytest.mark.parametrize("at", [1, 2, 9, 50])
def test_stop_criterion_before_max_t(at):
    controller = Controller(asha(), total=9, ends=dict.fromkeys(range(9), at)).run()
    assert max(controller.reached()) == at
    assert controller.statuses() == [Trial.TERMINATED] * 9


def test_stop_last_trials_false():
    controller = Controller(
        asha(stop_last_trials=False), total=9, ends=dict.fromkeys(range(9), 100)
    ).run()
    assert max(controller.reached()) == 100
    assert controller.scheduler._ladder.num_reached_max_t == 1


@pytest.mark.parametrize("promotion", ["deferred", "eager"])
def test_no_slot_is_idle_while_the_search_waits(promotion):
    # A limit that counts paused trials, as it is in stock Tune.
    search = Search(30, max_live=2)
    controller = Controller(asha(promotion=promotion), search=search, slots=1).run()
    assert max(controller.reached()) == 81


# Other owners of a pause, failures, no checkpoint.


@pytest.mark.parametrize("promotion", ["deferred", "eager"])
def test_a_pause_by_somebody_else_is_resumed_in_its_place(promotion):
    scheduler = asha(promotion=promotion)
    controller = Controller(scheduler, total=20, slots=2)
    trials = start_trials(controller, 8)
    for trial in trials[:6]:
        controller.report(trial)
    assert controller.report(trials[6], t=0.5) == CONTINUE
    controller.pause_trial(trials[6])
    for _ in range(3):
        assert scheduler.choose_trial_to_run(controller) is trials[6]
    controller.start(trials[6])
    assert scheduler.choose_trial_to_run(controller) is not trials[6]
    assert "7 recorded" not in scheduler.debug_string()


def test_a_pause_by_somebody_else_of_a_trial_that_goes_on():
    scheduler = asha(promotion="eager")
    controller = Controller(scheduler, total=20)
    a, b, c = start_trials(controller, 3)
    controller.report(a)
    controller.report(b)
    assert controller.report(c) == CONTINUE
    controller.pause_trial(c)  # ResourceChangingScheduler, for more resources
    assert scheduler.choose_trial_to_run(controller) is c


def test_a_pause_by_somebody_else_before_the_first_result():
    scheduler = asha()
    controller = Controller(scheduler, total=3)
    a, b, c = start_trials(controller)
    controller.pause_trial(b)
    assert scheduler.choose_trial_to_run(controller) is b


def test_many_run_and_one_of_them_is_paused_by_somebody_else():
    scheduler = asha()
    controller = Controller(scheduler, total=100)
    trials = start_trials(controller)
    for trial in trials:
        controller.report(trial, t=0.5)
    controller.pause_trial(trials[77])
    assert scheduler.choose_trial_to_run(controller) is trials[77]


def test_the_place_of_a_failed_one_passes_on_while_it_waits():
    scheduler = asha(promotion="deferred")
    controller = Controller(scheduler, total=9)
    trials = start_trials(controller, 8)
    for i, trial in enumerate(trials[:6]):
        assert controller.report(trial, value=-float(i)) in (PAUSE, STOP)
    controller.stop_trial(trials[0])  # from outside, while it is paused
    controller.stop_trial(trials[6])
    controller.stop_trial(trials[7])
    controller.stop_trial(controller.trials[8])
    # Two places of six, and the first is no candidate any more.
    for trial in trials[1:3]:
        assert scheduler.choose_trial_to_run(controller) is trial
        controller.start(trial)
    assert scheduler.choose_trial_to_run(controller) is None
    assert "6 recorded" in scheduler.debug_string()


def test_a_choice_is_final_when_the_trial_starts(caplog):
    scheduler = asha(promotion="eager")
    controller = Controller(scheduler, total=9)
    a, b, c = start_trials(controller, 3)
    for trial, value in ((a, 3.0), (b, 2.0), (c, 1.0)):
        controller.report(trial, value=value)
    caplog.clear()
    with caplog.at_level(logging.INFO):
        for _ in range(5):
            assert scheduler.choose_trial_to_run(controller) is a
        assert "3 paused + 0 promoted" in scheduler.debug_string()
        assert not caplog.records
        a.set_status(Trial.PENDING)  # staged
        for _ in range(5):
            assert scheduler.choose_trial_to_run(controller) is not b
    assert "2 paused + 1 promoted" in scheduler.debug_string()
    assert len(caplog.records) == 1 and "promoted" in caplog.records[0].message


def test_a_better_one_turns_up_before_the_choice_starts():
    scheduler = asha(promotion="eager")
    controller = Controller(scheduler, total=20)
    trials = start_trials(controller, 4)
    for i, trial in enumerate(trials[:3]):
        controller.report(trial, value=-float(i))
    assert scheduler.choose_trial_to_run(controller) is trials[0]
    assert controller.report(trials[3], value=5.0) == CONTINUE
    assert scheduler.choose_trial_to_run(controller) is not trials[0]


def test_trial_without_a_checkpoint_starts_over():
    controller = Controller(asha(), total=9, checkpoints=False).run()
    assert max(controller.reached()) == 81


def test_stop_beats_a_pause_that_is_being_saved():
    scheduler = asha()
    controller = Controller(scheduler, total=9)
    a, b = start_trials(controller, 2)
    assert scheduler.on_trial_result(
        controller, a, {"training_iteration": 1, "acc": 1.0}
    ) == (PAUSE)
    controller.stop_trial(a)  # by a callback, while it saves
    assert a.status == Trial.TERMINATED
    assert "1 recorded = 0 paused + 0 promoted + 1 ended" in scheduler.debug_string()


def test_a_late_result_of_a_paused_trial_does_not_wake_it():
    scheduler = asha()
    controller = Controller(scheduler, total=9)
    (a, _) = start_trials(controller, 2)
    for t in (1, 2):
        result = {"training_iteration": t, "acc": 1.0}
        assert scheduler.on_trial_result(controller, a, result) == PAUSE


# One line for a decision, none for a step.


def test_log_lines(caplog):
    with caplog.at_level(logging.INFO, logger="ray.tune.schedulers.asha_v2"):
        controller = Controller(asha(), total=9).run()
    lines = [r.message for r in caplog.records if r.levelno == logging.INFO]
    made = [d for d in controller.decisions if d[2] != CONTINUE]
    went_on = [line for line in lines if "goes on" in line]
    promoted = [line for line in lines if "is promoted" in line]
    stopped = [line for line in lines if "is stopped" in line]
    assert len(lines) == len(made) + len(went_on) + len(promoted) + len(stopped)
    assert len(set(lines)) == len(lines)
    assert len(lines) < controller.num_results


# Saving and restoring.


def test_trials_that_were_never_added_do_no_harm():
    scheduler = asha(max_t=9)
    controller = Controller(scheduler, total=3)
    for _ in range(2):
        scheduler.on_trial_complete(controller, Trial("__fake", stub=True), {})
        scheduler.on_trial_remove(controller, Trial("__fake", stub=True))
        scheduler.on_trial_error(controller, Trial("__fake", stub=True))
        controller.run()
    assert scheduler.choose_trial_to_run(controller) is None
    check_sums(scheduler.debug_string(), 3)
    trial = Trial("__fake", stub=True)
    trial.set_status(Trial.RUNNING)
    scheduler.on_trial_result(controller, trial, {"training_iteration": 1, "acc": 1.0})
    check_sums(scheduler.debug_string(), 4)


def test_state_names_trials_by_id(tmp_path):
    scheduler = asha()
    controller = Controller(scheduler, total=9)
    for trial in start_trials(controller, 5):
        controller.report(trial)
    scheduler.save(str(tmp_path / "state"))
    state = pickle.loads((tmp_path / "state").read_bytes())
    assert "Trial" not in str(state)
    assert b"ray.tune.experiment" not in (tmp_path / "state").read_bytes()
    for copied in (copy.deepcopy(scheduler), pickle.loads(pickle.dumps(scheduler))):
        assert copied.debug_string() == scheduler.debug_string()


def restored(controller, tmp_path, status_of):
    """The driver dies; a new one restores the state and adds the trials again."""
    path = str(tmp_path / "scheduler.pkl")
    controller.scheduler.save(path)
    controller.scheduler = asha()
    controller.scheduler.set_search_properties(None, None, num_samples=1)
    controller.scheduler.restore(path)
    controller.running = []
    for trial in list(controller.trials):
        if not trial.is_finished():
            trial.set_status(status_of(trial.status))
        controller.scheduler.on_trial_add(controller, trial)
    return controller


def after(status):
    """What the statuses are after a restore that keeps pauses."""
    return Trial.PAUSED if status == Trial.PAUSED else Trial.PENDING


@pytest.mark.parametrize("status_of", [after, lambda status: Trial.PENDING])
@pytest.mark.parametrize("at", [0, 1, 3, 7, 12, 20, 40, 70])
@pytest.mark.parametrize("promotion", ["deferred", "eager"])
def test_a_restored_search_goes_on(tmp_path, at, status_of, promotion):
    def fresh():
        return Controller(
            asha(promotion=promotion), lambda i, t: i * 7 % 13, total=13, slots=2
        )

    whole = fresh().run()
    controller = fresh()
    while controller.num_results < at:
        controller.fill()
        controller.start_all()
        controller.report(controller.running[0])
    before = controller.scheduler.debug_string().splitlines()[2:]
    restored(controller, tmp_path, status_of)
    if status_of is after:
        # What was about to pause is on its way there again.
        assert [
            line.split(" recorded")[0]
            for line in controller.scheduler.debug_string().splitlines()[2:]
        ] == [line.split(" recorded")[0] for line in before]
    controller.run()
    assert max(controller.reached()) == 81
    assert controller.statuses() == [Trial.TERMINATED] * 13
    if promotion == "deferred" and status_of is after:
        assert sorted(controller.reached()) == sorted(whole.reached())


def test_restore_without_the_trials_being_added_again(tmp_path):
    scheduler = asha()
    controller = Controller(scheduler, total=9)
    trials = start_trials(controller)
    for trial in trials[:6]:
        controller.report(trial)
    scheduler.save(str(tmp_path / "state"))
    controller.scheduler = asha()
    controller.scheduler.restore(str(tmp_path / "state"))
    lost = controller.trials.pop()  # no part of the experiment any more
    controller.running.remove(lost)
    controller.search_alg.live.discard(lost.trial_id)
    while controller.running:
        controller.report(controller.running[0])
    controller.start_all()
    assert controller.running
    check_sums(controller.scheduler.debug_string(), 9)


def test_a_fresh_scheduler_over_a_restored_experiment():
    # Stock Tune does not save the scheduler, and brings all trials back as pending.
    controller = Controller(asha(), total=9, slots=1)
    while controller.num_results < 20:
        controller.fill()
        controller.start_all()
        controller.report(controller.running[0])
    controller.scheduler = asha()
    controller.running = []
    for trial in controller.trials:
        if not trial.is_finished():
            trial.set_status(Trial.PENDING)
        controller.scheduler.on_trial_add(controller, trial)
    controller.run()
    assert max(controller.reached()) == 81


def test_a_failed_trial_is_resumed_with_the_experiment():
    controller = Controller(asha(), total=9, slots=1, fails={(8, 30): 1}).run()
    assert controller.statuses()[8] == Trial.ERROR
    trial = controller.trials[8]
    trial.set_status(Trial.PENDING)  # resume_errored=True
    controller.search_alg.live.add(trial.trial_id)
    del controller.search_alg.completed[trial.trial_id]
    controller.scheduler.on_trial_add(controller, trial)
    controller.run()
    assert controller.reached()[8] == 81


# Cost.


class CountingTrial:
    """Counts how often a status is read, which is what a scan would do."""

    reads = 0

    def __init__(self, trial_id):
        self.trial_id = trial_id
        self.last_result = {}
        self.checkpoint = "there"
        self._status = Trial.PENDING

    @property
    def status(self):
        CountingTrial.reads += 1
        return self._status

    def set_status(self, status):
        self._status = status

    def is_finished(self):
        return self._status in (Trial.TERMINATED, Trial.ERROR)


class CountingController:
    """One slot, no bookkeeping that costs anything."""

    def __init__(self, scheduler, total):
        self.scheduler = scheduler
        self.search_alg = Search(total)
        self.search_alg.left = 0

    def stop_trial(self, trial):
        self.scheduler.on_trial_remove(self, trial)
        trial.set_status(Trial.TERMINATED)

    def get_trials(self):
        raise AssertionError("a scan")

    get_live_trials = get_trials


@pytest.mark.parametrize("promotion", ["deferred", "eager"])
def test_cost_of_a_decision_is_flat(promotion):
    reads = {}
    for total in (300, 6000):
        scheduler = asha(promotion=promotion)
        controller = CountingController(scheduler, total)
        for i in range(total):
            scheduler.on_trial_add(controller, CountingTrial(str(i)))
        CountingTrial.reads = 0
        decisions, time = 0, Counter()
        while (trial := scheduler.choose_trial_to_run(controller)) is not None:
            trial.set_status(Trial.RUNNING)
            decision = CONTINUE
            while decision == CONTINUE:
                time[trial.trial_id] += 1
                value = int(trial.trial_id) * 7919 % total
                decision = scheduler.on_trial_result(
                    controller,
                    trial,
                    {"training_iteration": time[trial.trial_id], "acc": value},
                )
                decisions += 1
            trial.set_status(Trial.PAUSED if decision == PAUSE else Trial.TERMINATED)
        assert max(time.values()) == 81
        reads[total] = CountingTrial.reads / decisions
    assert reads[6000] < 1.2 * reads[300]


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
