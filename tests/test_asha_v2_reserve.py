"""ASHAv2 keeps enough trials in reserve that one reaches max_t, whichever fail."""

import itertools
import random
import sys
from collections import Counter

import numpy as np
import pytest
from asha_stand_in import Controller, Search, asha, floor_of
from virtual_cluster import (
    ClassTrainable,
    Cluster,
    Experiment,
    Options,
    VirtualCluster,
)

from ray.tune.experiment import Trial
from ray.tune.schedulers import ASHAv2
from ray.tune.schedulers._asha_ladder import RESERVE

MAX_T = 9


def run(total, fails, **kwargs):
    """Runs trials of which each in `fails` fails at its time."""
    scheduler = asha(
        max_t=MAX_T,
        reduction_factor=kwargs.pop("eta", 3),
        promotion=kwargs.pop("promotion", None),
        brackets=kwargs.pop("brackets", 1),
    )
    return Controller(
        scheduler,
        total=total,
        fails=dict.fromkeys(fails.items(), 1),
        search=Search(total, max_live=kwargs.pop("max_live", None)),
        **kwargs,
    ).run()


def check(controller, fails):
    reached = controller.reached()
    healthy = [i for i in range(len(reached)) if i not in fails]
    assert max(reached[i] for i in healthy) == MAX_T, (fails, reached)
    # Nobody was given up who could have helped.
    assert set(controller.statuses()) <= {Trial.TERMINATED, Trial.ERROR}


@pytest.mark.parametrize("promotion", ["deferred", "eager"])
@pytest.mark.parametrize("mode", ["max", "min"])
def test_four_best_of_nine_fail(promotion, mode):
    # The best are the last or the first to come.
    order = range(9) if mode == "min" else range(8, -1, -1)
    fails = dict.fromkeys(list(order)[:4], 2)
    scheduler = asha(max_t=MAX_T, promotion=promotion, mode=mode)
    controller = Controller(
        scheduler, total=9, fails=dict.fromkeys(fails.items(), 1)
    ).run()
    check(controller, fails)
    assert controller.statuses().count(Trial.ERROR) == 4


@pytest.mark.parametrize("promotion", ["deferred", "eager"])
@pytest.mark.parametrize("slots", [1, 2, 4])
@pytest.mark.parametrize("eta", [2, 3, 8])
def test_every_set_of_trials_may_fail(promotion, slots, eta):
    for total in range(1, 6):
        for size in range(total):
            for failing in itertools.combinations(range(total), size):
                for time in (2, 4):
                    fails = dict.fromkeys(failing, time)
                    check(
                        run(total, fails, slots=slots, promotion=promotion, eta=eta),
                        fails,
                    )


def test_all_but_one_of_up_to_thirty_may_fail():
    # The hardest case: whoever is stopped early may be the only one that is healthy.
    rng = random.Random(1)
    for number in range(300):
        np.random.seed(number)  # It draws the brackets.
        total = rng.randint(2, 30)
        healthy = rng.choice([0, total - 1, rng.randrange(total)])
        times = rng.choice([(2,), (2, 4), range(2, MAX_T + 1)])
        fails = {i: rng.choice(times) for i in range(total) if i != healthy}
        values = rng.choice(
            [
                lambda i, t: i,
                lambda i, t: -i,
                lambda i, t: i * 7919 % 31,
                lambda i, t: 1,
            ]
        )
        brackets = rng.choice([1, 1, 3])
        if brackets > 1:
            # One that fails below its first milestone was never seen.
            fails = {i: max(t, 4) for i, t in fails.items()}
        controller = run(
            total,
            fails,
            curve=values,
            slots=rng.choice([1, 1, 2, 5]),
            promotion=rng.choice(["deferred", "eager"]),
            eta=rng.choice([2, 3, 4, 2.5]),
            brackets=brackets,
            max_live=rng.choice([None, None, 3]),
            seed=number,
        )
        check(controller, fails)


def test_some_of_many_may_fail():
    # Where more than RESERVE are recorded, as many may fail as are kept.
    rng = random.Random(2)
    for number in range(30):
        total = rng.randint(60, 150)
        best_first = list(range(total - 1, -1, -1))
        fails = {i: rng.choice([2, 4, 9]) for i in best_first[:RESERVE]}
        controller = run(
            total,
            fails,
            slots=rng.choice([1, 4]),
            promotion=rng.choice(["deferred", "eager"]),
            seed=number,
        )
        check(controller, fails)


@pytest.mark.parametrize("total", [20, 100, 300])
@pytest.mark.parametrize("rising", [True, False])
def test_number_of_checkpoints_kept_is_bounded(total, rising):
    scheduler = asha(max_t=81, promotion="deferred")
    controller = Controller(scheduler, lambda i, t: i if rising else -i, total=total)
    rungs = scheduler._ladder.brackets[0].rungs
    most = Counter()
    while True:
        controller.fill()
        controller.start_all()
        for rung in rungs:
            most[rung] = max(most[rung], rung.counts.paused)
        if not controller.running:
            break
        controller.report(controller.running[0])
    number = total
    for rung in rungs:
        assert most[rung] <= floor_of(number, 3) + RESERVE
        # Those in reserve may come to the next one, too.
        number = most[rung]
    if total == 300 and not rising:
        # The bound is reached: the worse come later.
        assert most[rungs[0]] == 100 + RESERVE


def test_reserve_goes_when_a_trial_is_complete():
    scheduler = asha(max_t=MAX_T)
    controller = Controller(scheduler, total=9)
    controller.fill()
    controller.start_all()
    while not scheduler._ladder.num_reached_max_t:
        assert Trial.TERMINATED not in controller.statuses()
        controller.report(controller.running[0])
        controller.start_all()
    assert controller.statuses() == [Trial.TERMINATED] * 9


def test_a_trial_that_diverges_at_max_t_is_not_complete():
    def curve(i, t):
        return float("nan") if i >= 6 and t == MAX_T else i

    controller = Controller(asha(max_t=MAX_T), curve, total=9).run()
    assert [i for i, t in enumerate(controller.reached()) if t == MAX_T][0] < 6


@pytest.mark.parametrize("ends_at", [2, 5, 8])
def test_no_fallback_where_trials_end_before(ends_at):
    # Those that are promoted are as complete as they can be.
    controller = Controller(
        asha(max_t=MAX_T), total=27, ends=dict.fromkeys(range(27), ends_at)
    ).run()
    expected = {2: {1: 18 - 1, 2: 9 + 1}, 5: {1: 18, 3: 6 - 1, 5: 3 + 1}}
    expected[8] = expected[5]
    reached = Counter(min(t, 5) if ends_at == 8 else t for t in controller.reached())
    assert reached == expected[ends_at]


def test_one_that_ends_early_does_not_end_the_search():
    # It ends on its own at the first epoch after its promotion, and others fail there.
    controller = Controller(
        asha(max_t=MAX_T), total=9, ends={8: 2}, fails={(7, 2): 1, (6, 2): 1}
    ).run()
    assert max(controller.reached()) == MAX_T


def on_virtual_cluster(total, fails, seed, slots=1, **arguments):
    def curve(config, iteration):
        if iteration >= fails.get(config["x"], 99):
            raise RuntimeError("It fails after a promotion.")
        return {"score": config["x"]}

    arguments = {"max_t": MAX_T, "reduction_factor": 3, **arguments}
    return VirtualCluster(
        Experiment(
            lambda: ASHAv2(**arguments),
            configs=[{"x": x} for x in range(total)],
            trainable=ClassTrainable(curve),
        ),
        Cluster(slots=slots),
        options=Options(seed=seed, quiet=True),
    ).run(max_events=6000)


@pytest.mark.parametrize("promotion", ["deferred", "eager"])
@pytest.mark.parametrize("mode", ["max", "min"])
def test_four_best_fail_under_the_controller(promotion, mode):
    best = range(4) if mode == "min" else range(5, 9)
    record = on_virtual_cluster(
        9,
        dict.fromkeys(best, 2),
        seed=0,
        promotion=promotion,
        mode=mode,
        metric="score",
    )
    assert record.statuses().count("ERROR") == 4
    assert max(record.iterations()) == MAX_T


@pytest.mark.parametrize("seed", range(20))
def test_all_but_one_fail_under_the_controller(seed):
    rng = random.Random(seed)
    total = rng.randint(5, 30)
    healthy = rng.choice([0, total - 1, rng.randrange(total)])
    record = on_virtual_cluster(
        total,
        {x: rng.choice([2, 4, 9]) for x in range(total) if x != healthy},
        seed,
        slots=rng.choice([1, 2, 4]),
        promotion=rng.choice(["deferred", "eager"]),
    )
    reached = {
        t.config["x"]: i
        for t, i in zip(record.trials, record.iterations(), strict=True)
    }
    assert reached[healthy] == MAX_T


def test_fallback_is_named():
    scheduler = asha(max_t=MAX_T)
    Controller(scheduler, total=2, fails={(1, 2): 1}).run()
    shown = scheduler.debug_string()
    assert (
        "Milestone 1: 2 recorded = 0 paused + 2 promoted (2 as a fallback) + 0 ended; "
        "cutoff none" in shown
    )


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
