"""HyperBand's bracket arithmetic, on its own."""

import math
import pickle
import sys

import pytest
from hypothesis import given, settings, strategies as st

from ray.tune.schedulers._hyperband_brackets import (
    Bracket,
    Rung,
    bracket_rungs,
    max_halvings,
    num_configurations,
    paper_rungs,
    validate,
)

MAX_T = st.integers(1, 243)
ETA = st.one_of(st.integers(2, 10), st.floats(1.1, 10).map(lambda eta: round(eta, 3)))


# Table 1 of the paper (R = 81, eta = 3).
@pytest.mark.parametrize(
    "s, table",
    [
        (4, [(81, 1), (27, 3), (9, 9), (3, 27), (1, 81)]),
        (3, [(34, 3), (11, 9), (3, 27), (1, 81)]),
        (2, [(15, 9), (5, 27), (1, 81)]),
        (1, [(8, 27), (2, 81)]),
        (0, [(5, 81)]),
    ],
)
def test_algorithm_1_gives_the_papers_table(s, table):
    assert max_halvings(81, 3) == 4
    assert paper_rungs(81, 3, s) == table
    # As run, sizes are rounded up.
    rungs = bracket_rungs(81, 3, s)
    assert [rung.milestone for rung in rungs] == [milestone for _, milestone in table]
    assert rungs[0].size == table[0][0]
    assert [rung.size for rung in rungs] == [
        math.ceil(table[0][0] / 3**i) for i in range(s + 1)
    ]


@pytest.mark.parametrize(
    "max_t, eta, expected",
    [
        (243, 3, 5),  # log(243) / log(3) is 4.999...
        (1000, 10, 3),  # log(1000) / log(10) is 2.999...
        (1, 3, 0),
        (0.5, 3, 0),
        (2, 3, 0),
        (3, 1.5, 2),
        (1.21, 1.1, 2),
        (81.5, 3, 4),
    ],
)
def test_number_of_halvings_is_exact(max_t, eta, expected):
    assert max_halvings(max_t, eta) == expected


def test_every_whole_power_is_exact():
    for eta in range(2, 11):
        for power in range(1, 20):
            assert max_halvings(eta**power, eta) == power
            assert max_halvings(eta**power - 1, eta) == power - 1


def test_milestones_that_collapse_become_one_rung():
    # ray#6780: they were 1, 1, 1.
    assert bracket_rungs(3, 1.5, 2) == [Rung(3, 1), Rung(2, 2), Rung(2, 3)]
    # 1.1**57 is less than 243: most of the 58 rungs lie at a few milestones.
    rungs = bracket_rungs(243, 1.1, 57)
    assert rungs[0] == Rung(229, 1)
    assert rungs[1] == Rung(math.ceil(229 / 1.1**7), 2)
    assert rungs[-1] == Rung(2, 243)


def test_last_milestone_is_max_t():
    # Iterated rounding would end at 9.
    assert bracket_rungs(10, 3, 2) == [Rung(9, 1), Rung(3, 3), Rung(1, 10)]


def test_bracket_below_one_unit_does_not_exist():
    assert bracket_rungs(20, 3, 3) == []
    assert bracket_rungs(0.5, 3, 0) == [Rung(1, 0.5)]
    assert bracket_rungs(1.5, 1.1, 4) == [Rung(2, 1), Rung(2, 1.5)]


def test_small_reduction_factors_take_no_time():
    assert max_halvings(243, 1.01) == 552
    assert bracket_rungs(243, 1.01, 552)[0].milestone == 1


@pytest.mark.parametrize("eta", [1, 0.5, 0, -2, math.inf, math.nan, 1 + 1e-9])
def test_reduction_factor_that_reduces_nothing_is_refused(eta):
    with pytest.raises(ValueError, match="reduction_factor"):
        validate(81, eta)


@pytest.mark.parametrize("max_t", [0, -1, math.inf, math.nan])
def test_max_t_that_cannot_be_reached_is_refused(max_t):
    with pytest.raises(ValueError, match="max_t"):
        validate(max_t, 3)


@settings(max_examples=300, deadline=None)
@given(MAX_T, ETA)
def test_rungs_of_every_pair(max_t, eta):
    s_max = max_halvings(max_t, eta)
    for s in range(s_max + 1):
        rungs = bracket_rungs(max_t, eta, s)
        milestones = [rung.milestone for rung in rungs]
        sizes = [rung.size for rung in rungs]
        assert milestones[0] >= 1
        assert milestones[-1] == max_t
        assert all(a < b for a, b in zip(milestones, milestones[1:], strict=False))
        assert all(a >= b >= 1 for a, b in zip(sizes, sizes[1:], strict=False))
        assert sizes[0] == num_configurations(max_t, eta, s)
        paper = paper_rungs(max_t, eta, s)
        assert len(paper) == s + 1
        assert all(paper[0].size >= rung.size for rung in paper)
        assert {math.floor(rung.milestone + 1e-9) for rung in paper} == set(milestones)


def _values(n):
    return st.lists(
        st.one_of(st.integers(0, 5).map(float), st.just(math.nan), st.none()),
        min_size=n,
        max_size=n,
    )


@settings(max_examples=300, deadline=None)
@given(MAX_T, ETA, st.data())
def test_every_bracket_ends(max_t, eta, data):
    """Whatever fails in it, ends early, jumps over milestones or is retried."""
    s = data.draw(st.integers(0, max_halvings(max_t, eta)))
    bracket = Bracket(bracket_rungs(max_t, eta, s))
    num = data.draw(st.integers(1, min(bracket.size, 12)))
    for i in range(num):
        bracket.admit(str(i))
    time = dict.fromkeys(bracket.entries, 0)
    gone = set()
    for _ in range(100 * num):
        if not bracket.entries:
            break
        running = [i for i in bracket.entries if not bracket.is_waiting(i)]
        assert running, "all wait, and for nothing"
        trial = data.draw(st.sampled_from(running))
        what = data.draw(st.sampled_from(["report"] * 6 + ["fail", "restart"]))
        if what == "fail":
            bracket.remove(trial)
            gone.add(trial)
        elif what == "restart":
            bracket.restart(trial)
            continue
        else:
            step = data.draw(st.integers(1, max_t))
            time[trial] += max(step, max_t // 8)
            bracket.report(trial, time[trial], data.draw(_values(1))[0])
            if bracket.goes_on(trial):
                continue
            bracket.wait(trial)
        if bracket.ready():
            before = set(bracket.entries)
            reduction = bracket.reduce()
            gone.update(reduction.dropped, reduction.finished)
            assert before == set(bracket.entries) | (
                set(reduction.dropped) | set(reduction.finished)
            )
            assert len(bracket.entries) <= bracket.size
            assert not set(reduction.released) - set(bracket.entries)
    assert not bracket.entries
    assert gone == {str(i) for i in range(num)}


@settings(max_examples=200, deadline=None)
@given(_values(9))
def test_nan_ranks_below_every_number(values):
    bracket = Bracket([Rung(9, 1), Rung(3, 3)])
    for i, value in enumerate(values):
        bracket.admit(str(i))
        bracket.report(str(i), 1, value)
        bracket.wait(str(i))
    kept = bracket.reduce().released
    rank = [-math.inf if v is None or math.isnan(v) else v for v in values]
    best = sorted(range(9), key=lambda i: -rank[i])[:3]
    assert sorted(map(int, kept)) == sorted(best)


def _ready(values, rungs):
    bracket = Bracket(rungs)
    for i, (time, value) in enumerate(values):
        bracket.admit(str(i))
        bracket.report(str(i), time, value)
        bracket.wait(str(i))
    return bracket


def test_overstepped_milestones_are_reduced_at_once():
    rungs = [Rung(9, 1), Rung(3, 3), Rung(1, 9)]
    bracket = _ready([(5, i) for i in range(9)], rungs)
    reduction = bracket.reduce()
    assert reduction.released == ["8"]
    assert len(reduction.dropped) == 8
    assert bracket.milestone == 9
    bracket = _ready([(9, i) for i in range(9)], rungs)
    reduction = bracket.reduce()
    assert reduction.finished == ["8"]
    assert not bracket.entries


def test_one_that_is_ahead_waits_at_the_next_milestone():
    bracket = _ready([(1, 1), (4, 2), (1, 0)], [Rung(3, 1), Rung(2, 3), Rung(1, 9)])
    reduction = bracket.reduce()
    assert reduction.dropped == ["2"]
    assert reduction.released == ["0"]
    assert bracket.is_waiting("1")


def test_all_are_compared_by_their_first_result_at_the_milestone():
    bracket = Bracket([Rung(2, 1), Rung(1, 3)])
    for trial in "ab":
        bracket.admit(trial)
    assert bracket.report("a", 1, 1)
    assert not bracket.report("a", 2, 100)
    assert bracket.report("b", 1, 2)
    assert bracket.reduce().dropped == ["a"]


def test_place_of_a_failed_trial_is_not_given_away():
    bracket = Bracket([Rung(2, 1), Rung(1, 3)])
    bracket.admit("a")
    bracket.admit("b")
    bracket.remove("a")
    assert bracket.filled
    with pytest.raises(ValueError, match="filled"):
        bracket.admit("c")


def test_bracket_that_is_not_filled_waits_while_trials_may_come():
    bracket = Bracket([Rung(3, 1), Rung(1, 3)])
    bracket.admit("a")
    bracket.report("a", 1, 0)
    assert not bracket.ready(more_to_come=True)
    assert bracket.ready(more_to_come=False)
    bracket.closed = True
    assert bracket.ready(more_to_come=True)


def test_retried_trial_keeps_its_place_and_its_record():
    bracket = Bracket([Rung(2, 1), Rung(1, 3)])
    bracket.admit("a")
    bracket.admit("b")
    bracket.report("a", 1, 5)
    bracket.wait("a")
    bracket.restart("a")
    bracket.add("a")
    assert bracket.num_admitted == 2
    assert not bracket.is_waiting("a")
    bracket.report("b", 1, 1)
    assert bracket.ready()
    reduction = bracket.reduce()
    assert reduction.dropped == ["b"]
    # It runs already.
    assert reduction.released == []


def test_trials_may_go_on_without_an_end():
    bracket = Bracket([Rung(2, 1), Rung(1, 3)], stop_last_trials=False)
    for i, trial in enumerate("ab"):
        bracket.admit(trial)
        bracket.report(trial, 1, i)
        bracket.wait(trial)
    assert bracket.reduce().released == ["b"]
    assert not bracket.report("b", 100, 1)
    assert bracket.goes_on("b")
    assert not bracket.ready()


def test_state_survives_pickling():
    bracket = _ready([(1, 1), (1, 2)], [Rung(3, 1), Rung(2, 3)])
    copy = pickle.loads(pickle.dumps(bracket))
    copy.admit("late")
    copy.report("late", 1, 3)
    copy.wait("late")
    reduction = copy.reduce()
    assert reduction.dropped == ["0"]
    assert reduction.released == ["1", "late"]


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
