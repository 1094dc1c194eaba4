"""The rung arithmetic of ASHAv2 against a naive reading of the paper's rule."""

import math
import pickle
import sys

import pytest
from asha_stand_in import floor_of
from hypothesis import given, settings, strategies as st

from ray.tune.schedulers._asha_rungs import Ladder, Rung, milestones

NAN = float("nan")

# Few values, so that there are ties, and all that floats have in store.
scores = st.one_of(
    st.integers(-3, 3).map(float),
    st.floats(allow_nan=False),
    st.sampled_from([NAN, None, float("inf"), -float("inf")]),
)
etas = st.one_of(
    st.integers(2, 5), st.floats(1.05, 6, allow_nan=False), st.just(2.718281828)
)


def is_number(score):
    return score is not None and not math.isnan(score)


class NaiveRung:
    """Sorts all that it knows for every question."""

    def __init__(self, eta):
        self.eta = eta
        self.scores = {}
        self.waiting = set()
        self.parked = set()
        self.left = set()

    def record(self, name, score):
        self.scores[name] = score
        self.waiting.add(name)

    def ranking(self):
        in_order = list(self.scores)
        return sorted(
            (n for n in in_order if is_number(self.scores[n]) and n not in self.left),
            key=lambda n: (-self.scores[n], in_order.index(n)),
        )

    def best(self):
        return self.ranking()[: floor_of(len(self.scores), self.eta)]

    def promotable(self):
        return [n for n in self.best() if n in self.waiting]

    def next_promotion(self):
        return next((n for n in self.promotable() if n in self.parked), None)

    def best_parked(self):
        return next((n for n in self.ranking() if n in self.parked), None)

    def cutoff(self):
        best = self.best()
        return self.scores[best[-1]] if best else None

    def hopeless(self, most, reserve):
        limit = floor_of(most, self.eta) + reserve
        good = set(self.ranking()[:limit])
        return self.waiting - good

    def leave(self, name):
        self.waiting.discard(name)
        self.parked.discard(name)


ops = st.lists(
    st.tuples(
        st.sampled_from(
            ["record"] * 6
            + ["park"] * 4
            + ["promote", "promote", "retire", "finish", "unpark", "revive", "lose"]
        ),
        st.integers(0, 10**6),
        scores,
    ),
    max_size=80,
)


@settings(max_examples=400, deadline=None)
@given(etas, ops)
def test_rung_like_the_naive_one(eta, ops):
    rung, naive = Rung(1, eta), NaiveRung(eta)
    ended = promoted = 0
    lost = set()
    for op, pick, score in ops:
        name = None
        if op == "record":
            name = f"t{len(naive.scores)}"
            assert rung.record(name, score)
            assert not rung.record(name, 1e300), "a record is never overwritten"
            naive.record(name, score)
        elif op == "revive":
            if naive.left:
                name = sorted(naive.left)[pick % len(naive.left)]
                rung.revive(name)
                naive.left.discard(name)
                naive.waiting.add(name)
                lost.discard(name)
                ended -= 1
        elif op == "lose":
            most, reserve = len(naive.scores) + 20, 2 + pick % 3
            new = rung.hopeless(most, reserve)
            assert not lost & set(new), "each is returned only once"
            lost |= set(new)
            assert set(new) <= naive.hopeless(most, reserve) <= lost
        elif op == "promote" and (naive.next_promotion() or naive.best_parked()):
            name = naive.next_promotion() or naive.best_parked()
            rung.promote(name)
            naive.leave(name)
            promoted += 1
        elif op != "promote" and naive.waiting:
            name = sorted(naive.waiting)[pick % len(naive.waiting)]
            getattr(rung, op)(name)
            if op == "park":
                naive.parked.add(name)
            elif op == "unpark":
                naive.parked.discard(name)
            else:
                naive.leave(name)
                ended += 1
                if op == "retire":
                    naive.left.add(name)

        assert len(rung) == len(naive.scores)
        assert rung.next_promotion() == naive.next_promotion()
        assert rung.best_parked() == naive.best_parked()
        assert rung.has_promotable == bool(naive.promotable())
        assert rung.cutoff == naive.cutoff()
        counts = rung.counts
        assert counts.recorded == sum(counts[1:-1])
        assert counts.paused == len(naive.parked)
        assert counts.promoted == promoted
        assert counts.ended == ended
        assert set(rung.paused()) == naive.parked
        if pick % 7 == 0:
            rung = pickle.loads(pickle.dumps(rung))


def promote_all(rung):
    promoted = []
    while (name := rung.next_promotion()) is not None:
        rung.promote(name)
        promoted.append(name)
    return promoted


@pytest.mark.parametrize("eta", [2, 3, 4, 2.5, 1.5, math.e])
@pytest.mark.parametrize("rising", [True, False])
def test_exactly_floor_when_all_are_recorded_first(eta, rising):
    for n in range(1, 90):
        rung = Rung(1, eta)
        for i in range(n):
            rung.record(f"t{i}", float(i if rising else -i))
            rung.park(f"t{i}")
        places = floor_of(n, eta)
        best = list(range(n))[::-1] if rising else list(range(n))
        assert promote_all(rung) == [f"t{i}" for i in best[:places]]


@pytest.mark.parametrize(
    "n, places", [(2, 0), (4, 1), (7, 2), (9, 3), (27, 9), (81, 27)]
)
def test_places_with_eta_3(n, places):
    rung = Rung(1, 3)
    for i in range(n):
        rung.record(f"t{i}", float(i))
        rung.park(f"t{i}")
    assert len(promote_all(rung)) == places


@settings(max_examples=200, deadline=None)
@given(st.lists(scores, max_size=60), etas)
def test_streaming_is_algorithm_2(results, eta):
    # Get_job() of the paper: top_k(rung, |rung| / eta), less those promoted already.
    rung, seen, promoted = Rung(1, eta), [], []
    for i, score in enumerate(results):
        rung.record(f"t{i}", score)
        rung.park(f"t{i}")
        seen.append((f"t{i}", score))
        numbers = [(name, s) for name, s in seen if is_number(s)]
        top = sorted(numbers, key=lambda x: -x[1])[: floor_of(len(seen), eta)]
        candidates = [name for name, _ in top if name not in promoted]
        assert rung.next_promotion() == (candidates[0] if candidates else None)
        if candidates:
            rung.promote(candidates[0])
            promoted.append(candidates[0])


def test_streaming_can_promote_more_than_floor():
    rung, promoted = Rung(1, 3), 0
    for i in range(30):
        rung.record(f"t{i}", float(i))  # each better than all before
        rung.park(f"t{i}")
        promoted += len(promote_all(rung))
    assert promoted > 30 // 3


def test_ties_break_by_who_came_first():
    rung = Rung(1, 3)
    for i in range(6):
        rung.record(f"t{i}", 1.0)
        rung.park(f"t{i}")
    assert promote_all(rung) == ["t0", "t1"]


def test_nan_and_none_count_but_are_never_promoted():
    rung = Rung(1, 3)
    for i, score in enumerate([NAN, None, NAN, -float("inf"), None, NAN]):
        rung.record(f"t{i}", score)
        rung.park(f"t{i}")
    assert rung.places == 2
    assert promote_all(rung) == ["t3"]
    assert rung.best_parked() is None


def test_place_of_a_retired_one_passes_on():
    rung = Rung(1, 3)
    for i in range(7):
        rung.record(f"t{i}", float(-i))
        rung.park(f"t{i}")
    rung.retire("t0")
    assert promote_all(rung) == ["t1", "t2"]
    rung.retire("t1")  # It held no place any more: it was promoted.
    assert rung.next_promotion() is None
    assert rung.counts == (7, 4, 2, 1, 0, 0)


def test_place_of_one_that_ended_by_itself_does_not_pass_on():
    rung = Rung(1, 3)
    for i in range(6):
        rung.record(f"t{i}", float(-i))
    rung.finish("t0")
    for i in range(1, 6):
        rung.park(f"t{i}")
    assert promote_all(rung) == ["t1"]


def test_hopeless_never_those_in_reserve():
    rung = Rung(1, 4)
    rung.record("a", 1.0)
    assert rung.hopeless(most=2, reserve=1) == []
    rung.record("b", 2.0)
    assert rung.hopeless(most=2, reserve=2) == []
    assert rung.hopeless(most=2, reserve=1) == ["a"]
    rung.record("c", NAN)
    assert rung.hopeless(most=2, reserve=1) == ["c"]
    assert rung.hopeless(most=2, reserve=0) == ["b"]


@settings(max_examples=200, deadline=None)
@given(st.lists(scores, min_size=1, max_size=40), etas)
def test_hopeless_are_never_promoted(results, eta):
    rung, lost = Rung(1, eta), set()
    for i, score in enumerate(results):
        rung.record(f"t{i}", score)
        rung.park(f"t{i}")
        lost |= set(rung.hopeless(most=len(results), reserve=0))
        assert not lost & set(promote_all(rung))


@pytest.mark.parametrize(
    "grace, max_t, eta, expected",
    [
        (1, 81, 3, [1, 3, 9, 27]),
        (1, 82, 3, [1, 3, 9, 27, 81]),
        (1, 1000, 10, [1, 10, 100]),
        (1, 1001, 10, [1, 10, 100, 1000]),
        (1, 5**12, 5, [5**k for k in range(12)]),
        (3, 100, 4, [3, 12, 48]),
        (5, 5, 3, []),
        (1, 10, 2.5, [1, 2.5, 6.25]),
        (0.1, 2.7, 3, [0.1, 0.3, 0.9]),
        (0.1, 1, 1.1 / 0.55, [0.1, 0.2, 0.4, 0.8]),
        (1, 10**15, 10, [10**k for k in range(15)]),
        (60.0, 3600, 4, [60, 240, 960]),
    ],
)
def test_milestones(grace, max_t, eta, expected):
    assert milestones(grace, max_t, eta) == expected


@given(
    st.one_of(st.integers(1, 50), st.floats(0.01, 50)),
    st.one_of(st.integers(2, 12), st.floats(1.1, 12)),
    st.one_of(st.integers(50, 5000), st.floats(50, 5000)),
)
def test_milestones_are_all_below_max_t(grace, eta, max_t):
    at = milestones(grace, max_t, eta)
    assert all(m < max_t for m in at)
    assert at == sorted(set(at))
    for k, milestone in enumerate(at):
        assert milestone == pytest.approx(grace * eta**k, rel=1e-9)
    assert grace * eta ** len(at) >= max_t * (1 - 1e-9)


def test_too_many_milestones():
    with pytest.raises(ValueError, match="1.0000001"):
        milestones(1, 100, 1.0000001)


def test_brackets_start_higher():
    ladder = Ladder(1, 81, 3, num_brackets=6)
    starts = [[r.milestone for r in b.rungs] for b in ladder.brackets]
    assert starts == [[1, 3, 9, 27], [3, 9, 27], [9, 27], [27], [], []]


def test_a_jump_records_in_each_rung_and_waits_in_the_last():
    ladder = Ladder(1, 81, 3)
    ladder.add("a", 0)
    assert not ladder.record("a", 0.5, 1.0)
    assert ladder.record("a", 10, 2.0)
    rungs = ladder.brackets[0].rungs
    assert [len(r) for r in rungs] == [1, 1, 1, 0]
    assert [r.counts.promoted for r in rungs] == [1, 1, 0, 0]
    assert ladder.is_due("a", 10)
    assert not ladder.is_due("a", 8.9)
    assert not ladder.record("a", 11, 5.0)
    assert rungs[2].score("a") == 2.0


def test_fractional_time():
    ladder = Ladder(0.5, 10.0, 2)
    ladder.add("a", 0)
    assert not ladder.record("a", 0.49, 1.0)
    assert ladder.record("a", 0.75, 1.0)
    assert ladder.is_due("a", 0.75)
    ladder.promote("a")
    assert not ladder.is_due("a", 0.9)
    assert ladder.record("a", 1.0, 1.0)


def park_at(ladder, name, time, score):
    if name not in ladder:
        ladder.add(name, 0)
    ladder.record(name, time, score)
    ladder.park(name)


def test_order_of_promotions_goes_by_milestone_across_brackets():
    ladder = Ladder(1, 81, 3, num_brackets=2)
    for bracket, start in ((0, 1), (1, 3)):
        for i in range(3):
            name = f"b{bracket}t{i}"
            ladder.add(name, bracket)
            ladder.record(name, start, float(i))
            ladder.park(name)
    assert ladder.next_promotion(lowest_first=True) == "b0t2"
    assert ladder.next_promotion(lowest_first=False) == "b1t2"
    assert ladder.survivor() == "b1t2"


def test_survivor_is_the_best_number_of_the_highest_rung():
    ladder = Ladder(1, 81, 3)
    assert ladder.survivor() is None
    park_at(ladder, "low", 1, 9.0)
    park_at(ladder, "nan", 9, NAN)
    assert ladder.survivor() == "low"
    park_at(ladder, "a", 3, 1.0)
    park_at(ladder, "b", 3, 2.0)
    assert ladder.survivor() == "b"


def test_a_rung_is_over_when_none_can_reach_it():
    ladder = Ladder(1, 81, 3)
    ladder.reserve = 1
    for i in range(4):
        park_at(ladder, f"t{i}", 1, float(i))
    ladder.add("late", 0)
    assert ladder.losers() == []
    ladder.retire("late")
    assert ladder.losers() == [], "one is promotable"
    ladder.promote("t3")
    assert ladder.losers() == ["t0", "t1"], "t2 is in reserve"
    ladder.get_to_end("t3")
    assert sorted(ladder.losers()) == ["t0", "t1", "t2"]


def test_a_rung_without_a_place_keeps_all_for_the_survivor():
    ladder = Ladder(1, 81, 4)
    for i in range(3):
        park_at(ladder, f"t{i}", 1, float(i))
    assert ladder.losers() == []
    for name in ("t2", "t1"):
        assert ladder.survivor() == name
        ladder.promote(name)
        ladder.retire(name)
    assert ladder.survivor() == "t0"


def test_who_may_come_counts_for_what_is_hopeless():
    ladder = Ladder(1, 81, 3)
    ladder.reserve = 0
    for i in range(5):
        park_at(ladder, f"t{i}", 1, float(-i))
    assert ladder.hopeless(unborn=10) == []
    assert ladder.hopeless(unborn=4) == ["t4", "t3"]
    for name in ("t4", "t3"):
        ladder.retire(name)
    assert ladder.hopeless(unborn=3) == ["t2"]
    assert ladder.hopeless(unborn=0) == ["t1"]


def test_counts_of_a_ladder_add_up():
    ladder = Ladder(1, 81, 3)
    park_at(ladder, "a", 1, 1.0)
    ladder.add("b", 0)
    ladder.add("c", 0)
    ladder.retire("c")
    assert (ladder.num_active, ladder.num_parked, len(ladder)) == (1, 1, 3)
    ladder.activate("c")
    ladder.promote("a")
    assert (ladder.num_active, ladder.num_parked) == (3, 0)
    ladder.get_to_end("a")
    ladder.get_to_end("a")
    assert ladder.num_finished == 1


class CountingScore(float):
    """A number that counts how often it is compared."""

    comparisons = 0

    def _count(name):  # noqa: N805
        compare = getattr(float, name)

        def counted(self, other):
            CountingScore.comparisons += 1
            return compare(self, other)

        return counted

    __lt__, __gt__, __eq__ = _count("__lt__"), _count("__gt__"), _count("__eq__")
    __le__, __ge__ = _count("__le__"), _count("__ge__")
    __hash__ = float.__hash__

    def __neg__(self):
        return CountingScore(float.__neg__(self))


@pytest.mark.parametrize("order", ["rising", "falling", "mixed"])
def test_cost_of_a_decision_is_logarithmic(order):
    costs = {}
    for n in (500, 8000):
        rung = Rung(1, 3)
        CountingScore.comparisons = 0
        for i in range(n):
            value = {"rising": i, "falling": -i, "mixed": i * 7919 % n}[order]
            rung.record(f"t{i}", CountingScore(value))
            rung.park(f"t{i}")
            rung.hopeless(most=2 * n, reserve=3)
            name = rung.next_promotion()
            if name is not None:
                rung.promote(name)
        costs[n] = CountingScore.comparisons / n
    # log2(8000) / log2(500) is 1.45; linear cost would give 16.
    assert costs[8000] < 2 * costs[500]


@pytest.mark.parametrize(
    "eta, n, places",
    [(1.1, 33, 30), (1.1, 55, 50), (1.1, 66, 60), (2.2, 33, 15), (0.1 * 15, 3, 2)],
)
def test_places_are_exact_where_floats_are_not(eta, n, places):
    assert Rung(1, eta).places_of(n) == places


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
