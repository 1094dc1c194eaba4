"""A limit on concurrent trials when trials pause: who counts, and who keeps to it."""

import random
import sys

import pytest
from virtual_cluster import (
    Cluster,
    Costs,
    Experiment,
    Faults,
    FunctionTrainable,
    Options,
    ScriptedScheduler,
    VirtualCluster,
    actor_death,
    task_error,
)

from ray.tune.experiment import Trial
from ray.tune.search import (
    BasicVariantGenerator,
    ConcurrencyLimiter,
    Repeater,
    SearchAlgorithm,
    Searcher,
    SearchGenerator,
)
from ray.tune.search.searcher import ConcurrencyLimiter as FormerConcurrencyLimiter

LIMITERS = pytest.mark.parametrize(
    "limiter_cls", [ConcurrencyLimiter, FormerConcurrencyLimiter]
)


class Numbers(Searcher):
    """Suggests 0, 1, 2, ... and is particular about what it is told."""

    def __init__(self, own_limit=None):
        super().__init__(metric="score", mode="max")
        self.unfinished = []
        self.completed = {}
        self.own_limit = own_limit

    def set_search_properties(self, metric, mode, config, **spec):
        return True

    def suggest(self, trial_id):
        self.unfinished.append(trial_id)
        return {"x": len(self.unfinished) + len(self.completed)}

    def on_trial_complete(self, trial_id, result=None, error=False):
        self.unfinished.remove(trial_id)
        self.completed[trial_id] = (result, error)

    def save(self, checkpoint_path):
        pass

    def restore(self, checkpoint_path):
        pass


class OwnLimit(Numbers):
    """Has a limit, and no idea of pauses."""

    @property
    def concurrency_limit(self):
        return self.own_limit


class RandomScheduler(ScriptedScheduler):
    """Pauses and resumes at random."""

    def __init__(self, seed, max_t=5):
        super().__init__()
        self.rng = random.Random(seed)
        self.max_t = max_t

    def on_trial_result(self, tune_controller, trial, result):
        if result["training_iteration"] >= self.max_t:
            return "STOP"
        return self.rng.choice(["PAUSE", "CONTINUE"])

    def choose_trial_to_run(self, tune_controller):
        trials = [
            trial
            for trial in tune_controller.get_trials()
            if trial.status in (Trial.PENDING, Trial.PAUSED)
        ]
        return self.rng.choice(trials) if trials else None


def most_actors(record):
    """The most actors that there were at a time, pauses and ends taken into account."""
    most, holding = 0, set()
    for event in record.events:
        if event.kind in ("started", "reset", "train"):
            holding.add(event.trial)
            most = max(most, len(holding))
        elif event.kind == "status" and event.detail in (
            Trial.PAUSED,
            Trial.TERMINATED,
            Trial.ERROR,
        ):
            holding.discard(event.trial)
    return most


# Units


@LIMITERS
def test_paused_trial_frees_its_place(limiter_cls):
    limiter = limiter_cls(Numbers(), max_concurrent=1)
    assert limiter.suggest("a")
    assert limiter.suggest("b") is None
    limiter.on_trial_pause("a")
    assert limiter.suggest("b")
    assert limiter.suggest("c") is None
    assert limiter.live_trials == {"b"}


@LIMITERS
def test_resumed_trial_counts_again(limiter_cls):
    limiter = limiter_cls(Numbers(), max_concurrent=1)
    limiter.suggest("a")
    limiter.on_trial_pause("a")
    limiter.suggest("b")
    limiter.on_trial_resume("a")
    assert limiter.live_trials == {"a", "b"}
    limiter.on_trial_complete("b", {"score": 1})
    assert limiter.suggest("c") is None
    limiter.on_trial_complete("a", {"score": 2})
    assert limiter.suggest("c")


@LIMITERS
@pytest.mark.parametrize("error", [False, True])
def test_trial_that_ends_while_paused_completes(limiter_cls, error):
    searcher = Numbers()
    limiter = limiter_cls(searcher, max_concurrent=1)
    limiter.suggest("a")
    limiter.on_trial_pause("a")
    limiter.suggest("b")
    result = None if error else {"score": 3}
    limiter.on_trial_complete("a", result, error=error)
    assert searcher.completed == {"a": (result, error)}
    # It frees no place that it did not have.
    assert limiter.suggest("c") is None
    limiter.on_trial_complete("a", {"score": 4})
    assert searcher.completed == {"a": (result, error)}


@LIMITERS
def test_batch_is_over_when_the_rest_has_paused(limiter_cls):
    searcher = Numbers()
    limiter = limiter_cls(searcher, max_concurrent=2, batch=True)
    limiter.suggest("a"), limiter.suggest("b")
    limiter.on_trial_complete("a", {"score": 1})
    assert limiter.suggest("c") is None
    assert not searcher.completed
    limiter.on_trial_pause("b")
    assert list(searcher.completed) == ["a"]
    assert limiter.suggest("c") and limiter.suggest("d")
    # The resumed trial joins the batch that is in progress.
    limiter.on_trial_resume("b")
    limiter.on_trial_complete("c", {"score": 2})
    limiter.on_trial_complete("d", {"score": 3})
    assert list(searcher.completed) == ["a"]
    limiter.on_trial_complete("b", {"score": 4})
    assert searcher.completed["b"] == ({"score": 4}, False)
    assert not searcher.unfinished
    assert limiter.suggest("e") and limiter.suggest("f")


@LIMITERS
def test_batch_hands_on_trial_that_ends_while_paused_with_the_batch(limiter_cls):
    searcher = Numbers()
    limiter = limiter_cls(searcher, max_concurrent=2, batch=True)
    limiter.suggest("a"), limiter.suggest("b")
    limiter.on_trial_pause("a"), limiter.on_trial_pause("b")
    limiter.suggest("c")
    limiter.on_trial_complete("a", {"score": 1})
    assert not searcher.completed
    assert limiter.suggest("d")  # the paused trial had no place
    limiter.on_trial_pause("c"), limiter.on_trial_complete("d", {"score": 2})
    assert sorted(searcher.completed) == ["a", "d"]
    # Nothing runs: there is nothing to wait for.
    limiter.on_trial_complete("b", {"score": 3})
    assert sorted(searcher.completed) == ["a", "b", "d"]


@LIMITERS
def test_limiter_ignores_foreign_trials(limiter_cls):
    limiter = limiter_cls(Numbers(), max_concurrent=1)
    limiter.on_trial_pause("foreign")
    limiter.on_trial_resume("foreign")
    limiter.on_trial_complete("foreign")
    assert not limiter.live_trials
    assert limiter.suggest("a")


def test_limiter_around_a_searcher_with_a_limit_of_its_own():
    class Own(OwnLimit):
        def set_max_concurrency(self, max_concurrent):
            self.own_limit = max_concurrent
            return True

        def on_trial_pause(self, trial_id, result=None):
            self.paused = trial_id

    searcher = Own(own_limit=7)
    limiter = ConcurrencyLimiter(searcher, max_concurrent=2)
    assert limiter.concurrency_limit == searcher.concurrency_limit == 2
    limiter.suggest("a")
    limiter.on_trial_pause("a")
    assert searcher.paused == "a"
    limiter.on_trial_complete("a", {"score": 1})
    assert list(searcher.completed) == ["a"]


def test_limit_is_part_of_the_state():
    # A resumed run sets its own one, but whoever moves the state gets all of it.
    state = ConcurrencyLimiter(Numbers(), max_concurrent=2).get_state()
    limiter = ConcurrencyLimiter(Numbers(), max_concurrent=3)
    limiter.set_state(state)
    assert limiter.max_concurrent == 2
    state = BasicVariantGenerator(max_concurrent=2).get_state()
    generator = BasicVariantGenerator(max_concurrent=3)
    generator.set_state(state)
    assert generator.max_concurrent == 2


def test_limiter_restored_while_a_trial_is_paused():
    searcher = Numbers()
    limiter = ConcurrencyLimiter(searcher, max_concurrent=1)
    limiter.suggest("a")
    limiter.on_trial_pause("a")
    restored = ConcurrencyLimiter(searcher, max_concurrent=1)
    restored.set_state(limiter.get_state())
    restored.suggest("b")
    restored.on_trial_complete("a", {"score": 1})
    assert list(searcher.completed) == ["a"]
    # A state of stock Ray says nothing of paused trials.
    state = limiter.get_state()
    del state["paused_trials"]
    former = ConcurrencyLimiter(Numbers(), max_concurrent=1)
    former.set_state(state)
    former.on_trial_pause("a")
    assert former.suggest("b")


def test_concurrency_limit_of_whatever_limits():
    limited = ConcurrencyLimiter(Numbers(), max_concurrent=3)
    assert limited.concurrency_limit == 3
    assert SearchGenerator(limited).concurrency_limit == 3
    assert SearchGenerator(Numbers()).concurrency_limit is None
    assert SearchAlgorithm().concurrency_limit is None
    assert BasicVariantGenerator().concurrency_limit is None
    assert BasicVariantGenerator(max_concurrent=4).concurrency_limit == 4
    # Behind a Repeater, the limit is one on groups.
    assert Repeater(limited, repeat=2).concurrency_limit == 6
    assert Repeater(Numbers(), repeat=2).concurrency_limit is None
    repeater = Repeater(Numbers(), repeat=2)
    assert ConcurrencyLimiter(repeater, max_concurrent=3).concurrency_limit == 3


def test_searcher_that_wraps_a_limited_one_has_its_limit():
    class Wrapper(Numbers):
        def __init__(self, searcher):
            super().__init__()
            self.searcher = searcher

    wrapper = Wrapper(ConcurrencyLimiter(Numbers(), max_concurrent=2))
    assert SearchGenerator(wrapper).concurrency_limit == 2
    assert SearchGenerator(Wrapper(Numbers())).concurrency_limit is None


# Runs


def make_search(kind, limit):
    if kind == "generator":
        return BasicVariantGenerator(max_concurrent=limit)
    if kind == "own":
        return OwnLimit(own_limit=limit)
    if kind == "repeater":
        return ConcurrencyLimiter(Repeater(Numbers(), repeat=2), max_concurrent=limit)
    return ConcurrencyLimiter(Numbers(), max_concurrent=limit, batch=kind == "batch")


@pytest.mark.parametrize("reuse_actors", [False, True])
@pytest.mark.parametrize("limit", [1, 2])
@pytest.mark.parametrize("kind", ["generator", "limiter", "batch", "own", "repeater"])
def test_never_more_actors_than_the_limit(kind, limit, reuse_actors):
    for seed in range(4):
        record = VirtualCluster(
            Experiment(
                RandomScheduler(seed),
                num_samples=8,
                search_alg=make_search(kind, limit),
                reuse_actors=reuse_actors,
            ),
            Cluster(slots=4, costs=Costs(start=0.5, jitter=0.3)),
            options=Options(seed=seed),
        ).run(max_events=2000)
        assert record.iterations() == [5] * 8
        assert most_actors(record) <= limit


@pytest.mark.parametrize("kind", ["generator", "limiter", "batch", "own", "repeater"])
def test_limit_with_failures_and_two_shapes_ends(kind):
    for seed in range(8):
        rng = random.Random(seed)
        record = VirtualCluster(
            Experiment(
                RandomScheduler(seed),
                num_samples=8,
                resources=lambda config: {
                    "CPU": 1 + round(config.get("x", 0) * 10) % 2
                },
                search_alg=make_search(kind, 2),
                reuse_actors=seed % 2 == 0,
                trainable=FunctionTrainable(checkpoint_every=1 + seed % 2),
                max_failures=seed % 3,
            ),
            Cluster(slots=3, reserve=seed % 3 > 0),
            Faults(
                [
                    task_error("train", trial=rng.randrange(8), nth=2),
                    actor_death("start", trial=rng.randrange(8)),
                    actor_death("save", trial=rng.randrange(8)),
                ]
            ),
            Options(seed=seed, quiet=True),
        ).run(max_events=4000)
        assert set(record.statuses()) <= {Trial.TERMINATED, Trial.ERROR}
        assert most_actors(record) <= 2


@pytest.mark.parametrize("promotion", ["deferred", "eager"])
@pytest.mark.parametrize("reuse_actors", [False, True])
def test_asha_v2_with_optuna_under_a_limit_of_one_runs_as_on_one_slot(
    promotion, reuse_actors
):
    optuna = pytest.importorskip("optuna")
    from ray.tune.schedulers.asha_v2 import ASHAv2
    from ray.tune.search.optuna import OptunaSearch

    def order(slots, max_concurrent):
        # What TPE suggests depends on when it is asked, which is earlier without a
        # limit. The first suggestions are random.
        sampler = optuna.samplers.TPESampler(n_startup_trials=20, seed=1)
        searcher = OptunaSearch(sampler=sampler)
        record = VirtualCluster(
            Experiment(
                ASHAv2(
                    max_t=9, grace_period=1, reduction_factor=3, promotion=promotion
                ),
                num_samples=12,
                search_alg=searcher,
                max_concurrent=max_concurrent,
                reuse_actors=reuse_actors,
            ),
            Cluster(
                slots=slots,
                costs=Costs(start=1, train=1, save=0, restore=0, reset=0, stop=0),
            ),
        ).run(max_events=2000)
        numbers = {trial.trial_id: i for i, trial in enumerate(record.trials)}
        assert max(record.iterations()) == 9
        return [
            (numbers[event.trial], event.detail)
            for event in record.events
            if event.kind == "train"
        ]

    assert order(slots=8, max_concurrent=1) == order(slots=1, max_concurrent=0)


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
