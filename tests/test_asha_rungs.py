"""The rung arithmetic of ASHAv2 against a naive reading of the paper's rule."""

import math
import pickle
import sys

import pytest
from asha_stand_in import floor_of
from hypothesis import given, settings, strategies as st

from ray.tune.schedulers._asha_rungs import Rung

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
        self.paused = set()
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
        return next((n for n in self.promotable() if n in self.paused), None)

    def best_paused(self):
        return next((n for n in self.ranking() if n in self.paused), None)

    def cutoff(self):
        best = self.best()
        return self.scores[best[-1]] if best else None

    def unpromotable(self, number):
        """Those that wait in vain when so many of the best are kept."""
        if number == math.inf:
            return set()
        return self.waiting - set(self.ranking()[:number])

    def leave(self, name):
        self.waiting.discard(name)
        self.paused.discard(name)


ops = st.lists(
    st.tuples(
        st.sampled_from(
            ["record"] * 6
            + ["pause"] * 4
            + ["promote", "promote", "fail", "end", "resume", "reinstate", "keep"]
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
    ended = promoted = fallbacks = 0
    kept = math.inf
    for op, pick, score in ops:
        name = None
        if op == "record":
            name = f"t{len(naive.scores)}"
            assert rung.record(name, score)
            assert not rung.record(name, 1e300), "a record is never overwritten"
            naive.record(name, score)
        elif op == "reinstate":
            if naive.left:
                name = sorted(naive.left)[pick % len(naive.left)]
                rung.reinstate(name)
                naive.left.discard(name)
                naive.waiting.add(name)
                ended -= 1
        elif op == "keep":
            kept = math.inf if pick % 5 == 0 else pick % 20
            rung.keep(kept)
        elif op == "promote" and (naive.next_promotion() or naive.best_paused()):
            name = naive.next_promotion() or naive.best_paused()
            is_fallback = not rung.holds_place(name)
            rung.promote(name, is_fallback)
            naive.leave(name)
            promoted += 1
            fallbacks += is_fallback
        elif op != "promote" and naive.waiting:
            name = sorted(naive.waiting)[pick % len(naive.waiting)]
            if op == "pause":
                rung.pause(name)
                naive.paused.add(name)
            elif op == "resume":
                rung.resume(name)
                naive.paused.discard(name)
            else:
                rung.end(name, keeps_place=op == "end")
                naive.leave(name)
                ended += 1
                if op == "fail":
                    naive.left.add(name)

        before = pickle.dumps(rung)
        assert len(rung) == len(naive.scores)
        assert rung.next_promotion() == naive.next_promotion()
        assert rung.best_paused() == naive.best_paused()
        assert rung.cutoff == naive.cutoff()
        best, lost = naive.best(), naive.unpromotable(kept)
        for other in naive.scores:
            assert rung.holds_place(other) == (other in best)
            assert rung.is_unpromotable(other) == (other in lost)
        assert set(rung.unpromotable()) == lost & naive.paused
        counts = rung.counts
        assert counts.recorded == sum(counts[1:-1])
        assert counts.paused == len(naive.paused)
        assert counts.promoted == promoted
        assert counts.ended == ended
        assert counts.fallbacks == fallbacks
        # What would be if one paused?
        for pausing in sorted(naive.waiting)[:3]:
            paused = naive.paused
            naive.paused = paused | {pausing}
            assert rung.next_promotion(pausing) == naive.next_promotion()
            assert rung.best_paused(pausing) == naive.best_paused()
            naive.paused = paused
        assert pickle.dumps(rung) == before, "a question changes nothing"
        if pick % 7 == 0:
            rung = pickle.loads(before)


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
            rung.pause(f"t{i}")
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
        rung.pause(f"t{i}")
    assert len(promote_all(rung)) == places


@settings(max_examples=200, deadline=None)
@given(st.lists(scores, max_size=60), etas)
def test_streaming_is_algorithm_2(results, eta):
    # Get_job() of the paper: top_k(rung, |rung| / eta), less those promoted already.
    rung, seen, promoted = Rung(1, eta), [], []
    for i, score in enumerate(results):
        rung.record(f"t{i}", score)
        rung.pause(f"t{i}")
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
        rung.pause(f"t{i}")
        promoted += len(promote_all(rung))
    assert promoted > 30 // 3


def test_ties_break_by_who_came_first():
    rung = Rung(1, 3)
    for i in range(6):
        rung.record(f"t{i}", 1.0)
        rung.pause(f"t{i}")
    assert promote_all(rung) == ["t0", "t1"]


def test_nan_and_none_count_but_are_never_promoted():
    rung = Rung(1, 3)
    for i, score in enumerate([NAN, None, NAN, -float("inf"), None, NAN]):
        rung.record(f"t{i}", score)
        rung.pause(f"t{i}")
    assert rung.places == 2
    assert promote_all(rung) == ["t3"]
    assert rung.best_paused() is None


def test_place_of_one_that_failed_passes_on():
    rung = Rung(1, 3)
    for i in range(7):
        rung.record(f"t{i}", float(-i))
        rung.pause(f"t{i}")
    rung.end("t0", keeps_place=False)
    assert promote_all(rung) == ["t1", "t2"]
    rung.end("t1", keeps_place=False)  # It held no place any more: it was promoted.
    assert rung.next_promotion() is None
    assert rung.counts == (7, 4, 2, 1, 0, 0)


def test_place_of_one_that_ended_on_its_own_does_not_pass_on():
    rung = Rung(1, 3)
    for i in range(6):
        rung.record(f"t{i}", float(-i))
    rung.end("t0", keeps_place=True)
    for i in range(1, 6):
        rung.pause(f"t{i}")
    assert promote_all(rung) == ["t1"]


def test_all_but_the_kept_wait_in_vain():
    rung = Rung(1, 4)
    for name, score in (("a", 1.0), ("b", 2.0), ("c", NAN)):
        rung.record(name, score)
        rung.pause(name)
    assert rung.unpromotable() == [], "it is not known how many there will be"
    rung.keep(2)
    assert rung.unpromotable() == ["c"]
    rung.keep(1)
    assert rung.unpromotable() == ["c", "a"], "the worst first"
    rung.resume("a")
    assert rung.unpromotable() == ["c"], "it is not paused yet"
    assert rung.is_unpromotable("a")
    rung.keep(2)
    assert not rung.is_unpromotable("a")
    rung.keep(0)
    assert rung.unpromotable() == ["c", "b"]


@settings(max_examples=200, deadline=None)
@given(st.lists(scores, min_size=1, max_size=40), etas)
def test_those_that_wait_in_vain_are_never_promoted(results, eta):
    rung, lost = Rung(1, eta), set()
    rung.keep(rung.places_of(len(results)))
    for i, score in enumerate(results):
        rung.record(f"t{i}", score)
        rung.pause(f"t{i}")
        lost |= set(rung.unpromotable())
        assert not lost & set(promote_all(rung))


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
            rung.pause(f"t{i}")
            rung.keep(rung.places_of(2 * n) + 3)
            for name in rung.unpromotable():
                rung.end(name, keeps_place=False)
            name = rung.next_promotion()
            if name is not None:
                rung.promote(name)
        costs[n] = CountingScore.comparisons / n
    # log2(8000) / log2(500) is 1.45; linear cost would give 16.
    assert costs[8000] < 2 * costs[500]


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
