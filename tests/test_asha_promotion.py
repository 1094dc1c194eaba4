"""Which promotion ASHAv2 uses on its own, and what it says of the search algorithm."""

import sys

import pytest
from virtual_cluster import VirtualCluster
from virtual_cluster.workloads.searchers import RandomSearcher

from ray.tune.schedulers import ASHAv2
from ray.tune.schedulers._asha_promotion import choose_promotion
from ray.tune.search import BasicVariantGenerator, ConcurrencyLimiter, Repeater
from ray.tune.search.optuna import OptunaSearch

pytestmark = pytest.mark.timeout(120)


class Untold(RandomSearcher):
    """Does not say that it learns from pauses."""


@pytest.mark.parametrize(
    "asked, num_samples, is_endless, budget, learns, chosen",
    [
        ("deferred", 9, False, None, False, "promotion=deferred"),
        ("eager", 9, False, None, None, "promotion=eager"),
        (None, None, True, None, True, "promotion=eager (endless search)"),
        (None, None, False, None, True, "promotion=eager (search of unknown length)"),
        (None, 9, False, 60, True, "promotion=eager (time budget of 60 s)"),
        (None, 9, False, None, None, "promotion=deferred (9 samples, no time budget)"),
        (
            *(None, 9, False, None, True),
            "promotion=deferred (9 samples, no time budget, the search algorithm "
            "learns from pauses)",
        ),
        (
            *(None, 9, False, None, False),
            "promotion=eager (the search algorithm does not learn from pauses)",
        ),
    ],
)
def test_choice(asked, num_samples, is_endless, budget, learns, chosen):
    choice = choose_promotion(asked, num_samples, is_endless, budget, learns)
    assert str(choice) == chosen


def run(scheduler, search_alg, num_samples=9):
    record = VirtualCluster.of(
        scheduler, search_alg=search_alg, num_samples=num_samples, slots=2
    ).run(max_events=3000)
    return record.scheduler.debug_string()


@pytest.mark.parametrize(
    "make, promotion",
    [
        (lambda: None, "deferred (9 samples, no time budget)"),
        (BasicVariantGenerator, "deferred (9 samples, no time budget)"),
        (lambda: OptunaSearch(seed=1), "deferred (9 samples, no time budget, the "),
        (lambda: ConcurrencyLimiter(OptunaSearch(seed=1), 2), "deferred (9 samples, "),
        (lambda: Untold(seed=1), "eager (the search algorithm does not learn"),
        (lambda: ConcurrencyLimiter(Untold(seed=1), 2), "eager (the search "),
        (lambda: Repeater(Untold(seed=1), repeat=3), "eager (the search "),
    ],
)
def test_default_goes_by_the_search_algorithm(make, promotion):
    text = run(ASHAv2(max_t=9, reduction_factor=3), make())
    assert f"promotion={promotion}" in text


@pytest.mark.parametrize("wrap", [False, True])
def test_deferred_with_a_searcher_that_does_not_learn_is_warned_of_once(wrap, caplog):
    search_alg = Untold(seed=1)
    if wrap:
        search_alg = ConcurrencyLimiter(search_alg, 2)
    text = run(ASHAv2(max_t=9, reduction_factor=3, promotion="deferred"), search_alg)
    assert "promotion=deferred;" in text
    said = [r.message for r in caplog.records if "only paused" in r.message]
    assert len(said) == 1
    assert "(Untold)" in said[0] and "promotion='eager'" in said[0]


@pytest.mark.parametrize(
    "promotion, make",
    [
        ("deferred", lambda: OptunaSearch(seed=1)),
        ("deferred", lambda: None),
        ("eager", lambda: Untold(seed=1)),
        (None, lambda: Untold(seed=1)),
    ],
)
def test_nothing_is_said_where_nothing_is_lost(promotion, make, caplog):
    run(ASHAv2(max_t=9, reduction_factor=3, promotion=promotion), make())
    assert not [r.message for r in caplog.records if "only paused" in r.message]


def test_choice_is_restored_with_the_scheduler(tmp_path):
    record = VirtualCluster.of(
        ASHAv2(max_t=9), search_alg=Untold(seed=1), num_samples=9, slots=2
    ).run(max_events=3000)
    scheduler = record.scheduler
    scheduler.save(str(tmp_path / "state"))
    restored = ASHAv2(max_t=9)
    restored.set_search_properties("score", "max", num_samples=9)
    assert "promotion=deferred" in restored.debug_string()
    restored.restore(str(tmp_path / "state"))
    assert restored.debug_string() == scheduler.debug_string()
    assert "promotion=eager" in restored.debug_string()


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
