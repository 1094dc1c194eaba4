"""The brackets of ASHAv2, and how far each trial has got in them."""

import copy
import math
import pickle
import random
import sys

import pytest

from ray.tune.schedulers._asha_ladder import Ladder, TrialState


def test_brackets_start_higher():
    ladder = Ladder(1, 81, 3, num_brackets=6)
    starts = [[r.milestone for r in b.rungs] for b in ladder.brackets]
    assert starts == [[1, 3, 9, 27], [3, 9, 27], [9, 27], [27], [], []]


def test_a_jump_records_in_each_rung_and_waits_in_the_last():
    ladder = Ladder(1, 81, 3)
    ladder.add("a", 0)
    ladder.record("a", 0.5, 1.0)
    assert ladder.rung_of("a") is None
    ladder.record("a", 10, 2.0)
    rungs = ladder.brackets[0].rungs
    assert [len(r) for r in rungs] == [1, 1, 1, 0]
    assert [r.counts.promoted for r in rungs] == [1, 1, 0, 0]
    assert [r.counts.fallbacks for r in rungs] == [0, 0, 0, 0]
    assert ladder.is_due("a", 10)
    assert not ladder.is_due("a", 8.9)
    ladder.record("a", 11, 5.0)
    assert rungs[2].score("a") == 2.0


def test_fractional_time():
    ladder = Ladder(0.5, 10.0, 2)
    ladder.add("a", 0)
    ladder.record("a", 0.49, 1.0)
    assert not ladder.is_due("a", 0.49)
    ladder.record("a", 0.75, 1.0)
    assert ladder.is_due("a", 0.75)
    ladder.promote("a")
    assert not ladder.is_due("a", 0.9)
    ladder.record("a", 1.0, 1.0)
    assert ladder.is_due("a", 1.0)


def pause_at(ladder, name, time, score, bracket=0):
    if name not in ladder:
        ladder.add(name, bracket)
    ladder.record(name, time, score)
    ladder.move(name, TrialState.PAUSED)


def test_order_of_promotions_goes_by_milestone_across_brackets():
    ladder = Ladder(1, 81, 3, num_brackets=2)
    for bracket, start in ((0, 1), (1, 3)):
        for i in range(3):
            pause_at(ladder, f"b{bracket}t{i}", start, float(i), bracket)
    assert ladder.next_promotion(lowest_first=True) == "b0t2"
    assert ladder.next_promotion(lowest_first=False) == "b1t2"
    assert ladder.next_fallback() == "b1t2"


def test_fallback_is_the_best_number_of_the_highest_rung():
    ladder = Ladder(1, 81, 3)
    assert ladder.next_fallback() is None
    pause_at(ladder, "low", 1, 9.0)
    pause_at(ladder, "nan", 9, None)
    assert ladder.next_fallback() == "low"
    pause_at(ladder, "a", 3, 1.0)
    pause_at(ladder, "b", 3, 2.0)
    assert ladder.next_fallback() == "b"
    ladder.add("new", 0)
    assert ladder.next_fallback() is None, "there is something else to do"


def test_who_may_come_counts_for_who_waits_in_vain():
    ladder = Ladder(1, 81, 3, reserve=0)
    for i in range(5):
        pause_at(ladder, f"t{i}", 1, float(-i))
    ladder.expect(None)
    assert ladder.unpromotable() == []
    ladder.expect(10)
    assert ladder.unpromotable() == []
    ladder.expect(4)
    assert ladder.unpromotable() == ["t4", "t3"]
    for name in ("t4", "t3"):
        ladder.end(name)
    ladder.add("new", 0)
    ladder.expect(3)
    assert ladder.unpromotable() == []
    ladder.end("new")
    ladder.expect(3)
    assert ladder.unpromotable() == ["t2"]
    assert ladder.is_unpromotable("t2") and not ladder.is_unpromotable("t1")


def test_reserve_is_kept_until_a_trial_is_complete():
    ladder = Ladder(1, 81, 3, reserve=1)
    for i in range(4):
        pause_at(ladder, f"t{i}", 1, float(i))
    ladder.expect(0)
    assert ladder.unpromotable() == ["t0", "t1"]
    assert ladder.promote("t3") is False
    ladder.expect(0)
    assert ladder.unpromotable() == ["t0", "t1"]
    ladder.record("t3", 81, None)
    ladder.expect(0)
    assert ladder.unpromotable() == ["t0", "t1"], "what has diverged is not complete"
    assert ladder.promote("t2") is True
    ladder.record("t2", 81, 1.0)
    assert ladder.num_reached_max_t == 2
    assert sorted(ladder.unpromotable()) == ["t0", "t1"]
    ladder.end("t2")
    ladder.end("t3")
    assert ladder.next_fallback() is None
    assert ladder.next_fallback(any_rung=True) == "t1"


def test_reserve_below_a_trial_that_ended_on_its_own():
    ladder = Ladder(1, 27, 3)

    def reserves():
        return [ladder._reserve_of(rung) for rung in ladder.brackets[0].rungs]

    ladder.add("a", 0)
    ladder.complete("a", 0.5, 1.0)
    ladder.add("b", 0)
    ladder.complete("b", 5, None)
    assert reserves() == [32, 32, 32]
    ladder.add("c", 0)
    ladder.complete("c", 2, 1.0)
    assert reserves() == [1, 32, 32]
    ladder.add("d", 0)
    ladder.complete("d", 5, 1.0)
    assert reserves() == [0, 1, 32]


def test_counts_of_a_ladder_add_up():
    ladder = Ladder(1, 81, 3)
    pause_at(ladder, "a", 1, 1.0)
    ladder.add("b", 0)
    ladder.add("c", 0)
    ladder.end("c")
    assert (ladder.num_reporting, ladder.num_paused, len(ladder)) == (1, 1, 3)
    assert ladder.num_ended == 1
    ladder.move("c", TrialState.PENDING)
    ladder.promote("a")
    assert (ladder.num_reporting, ladder.num_paused) == (3, 0)
    ladder.record("a", 81, 1.0)
    ladder.record("a", 82, 1.0)
    assert ladder.num_reached_max_t == 1


def test_turns():
    ladder = Ladder(1, 81, 3)
    for name in "abc":
        ladder.add(name, 0)
    assert ladder.first_in_state(TrialState.PENDING) == "a"
    for name in "bca":
        ladder.move(name, TrialState.RUNNING)
    assert ladder.first_in_state(TrialState.PENDING) is None
    assert ladder.in_state(TrialState.RUNNING) == ["b", "c", "a"]
    ladder.requeue("b")
    assert ladder.in_state(TrialState.RUNNING) == ["c", "a", "b"]
    ladder.end("a")
    ladder.requeue("a")
    assert ladder.in_state(TrialState.RUNNING) == ["c", "b"]


def at(ladder):
    return [[rung.milestone for rung in b.rungs] for b in ladder.brackets]


def test_greater_max_t_adds_milestones():
    ladder = Ladder(1, 9, 3, 3)
    ladder.add("a", 0)
    ladder.move("a", TrialState.RUNNING)
    ladder.record("a", 9, 1.0)
    ladder.stop_at_max_t("a")
    ladder.add("b", 2)
    assert at(ladder) == [[1, 3], [3], []]
    assert ladder.num_reached_max_t == 1
    ladder.change_max_t(28)
    assert at(ladder) == [[1, 3, 9, 27], [3, 9, 27], [9, 27]]
    assert ladder.num_reached_max_t == 0
    assert ladder.stopped_at("a") == 9 and ladder.stopped_at("b") is None
    assert ladder.rung_of("a").milestone == 3
    assert (ladder.num_reporting, ladder.num_ended) == (1, 1)
    # It waits where it had ended.
    ladder.record("a", 9, 1.0)
    ladder.move("a", TrialState.PAUSED)
    assert ladder.next_fallback() is None, "the other one may report"
    ladder.end("b")
    assert ladder.next_fallback() == "a"


def test_lower_max_t_removes_milestones():
    ladder = Ladder(1, 28, 3, 2)
    for i, name in enumerate("abc"):
        ladder.add(name, 0)
        ladder.move(name, TrialState.RUNNING)
        ladder.record(name, 1, float(i))
    ladder.record("c", 9, 2.0)
    ladder.move("c", TrialState.PAUSED)
    ladder.change_max_t(9)
    assert at(ladder) == [[1, 3], [3]]
    assert ladder.rung_of("c").milestone == 3
    assert ladder.brackets[0].reporting == [0, 2, 0]
    assert [r.counts.recorded for r in ladder.brackets[0].rungs] == [3, 1]
    assert ladder.num_reporting == 2 and ladder.num_paused == 1
    # It is past the end.
    ladder.record("c", 9, 2.0)
    assert ladder.num_reached_max_t == 1
    ladder.move("c", TrialState.OVER)
    assert ladder.in_state(TrialState.OVER) == ["c"]
    ladder.end("c")
    assert ladder.num_ended == 1 and ladder.rung_of("c").counts.promoted == 1


def random_ladder(seed):
    """A ladder to which all kinds of things have happened, and the trials that run."""
    rng = random.Random(seed)
    ladder = Ladder(1, 27, rng.choice([2, 3]), rng.choice([1, 2]), rng.choice([0, 2]))
    time = {}
    for _ in range(rng.randrange(5, 120)):
        running = ladder.in_state(TrialState.RUNNING)
        if rng.random() < 0.3 or not time:
            name = f"t{len(time)}"
            time[name] = 0
            ladder.add(name, rng.randrange(len(ladder.brackets)))
            ladder.move(name, TrialState.RUNNING)
        elif running and rng.random() < 0.8:
            name = rng.choice(running)
            time[name] += rng.choice([1, 1, 1, 4])
            score = None if rng.random() < 0.1 else float(rng.randrange(5))
            ladder.record(name, time[name], score)
            if ladder.is_due(name, time[name]) and rng.random() < 0.7:
                ladder.move(name, TrialState.PAUSED)
            elif rng.random() < 0.05:
                ladder.end(name)
        else:
            name = ladder.next_promotion(rng.random() < 0.5) or ladder.next_fallback()
            if name is not None:
                ladder.promote(name)
        ladder.expect(rng.choice([None, 0, 3, 10]))
    return ladder


@pytest.mark.parametrize("seed", range(200))
def test_what_would_be_if_a_trial_paused(seed):
    ladder = random_ladder(seed)
    before = pickle.dumps(ladder)
    for name in ladder.in_state(TrialState.RUNNING):
        if not ladder.is_due(name, math.inf):
            continue
        paused = copy.deepcopy(ladder)
        paused.move(name, TrialState.PAUSED)
        for lowest_first in (True, False):
            assert ladder.next_promotion(
                lowest_first, pausing=name
            ) == paused.next_promotion(lowest_first)
        for any_rung in (True, False):
            assert ladder.next_fallback(any_rung, pausing=name) == paused.next_fallback(
                any_rung
            )
        assert ladder.is_unpromotable(name) == (name in paused.unpromotable())
    assert pickle.dumps(ladder) == before, "a question changes nothing"


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
