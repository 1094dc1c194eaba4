"""HyperBandForBOHB works with any searcher, and chooses without side effects."""

import random
import sys

import pytest
from virtual_cluster import Costs, VirtualCluster, driver_death, task_error
from virtual_cluster.invariants import SAFETY
from virtual_cluster.workloads.searchers import RandomSearcher

from ray import tune
from ray.tune.experiment import Trial
from ray.tune.schedulers import HyperBandForBOHB
from ray.tune.search import BasicVariantGenerator, ConcurrencyLimiter, Searcher


class _PlainSearcher(Searcher):
    """A searcher without any hook for pauses, as most are."""

    def __init__(self):
        super().__init__(metric="score", mode="max")
        self._rng = random.Random(0)
        self.budgets = []

    def set_search_properties(self, metric, mode, config, **spec):
        return True

    def suggest(self, trial_id):
        return {"x": self._rng.random()}

    def on_trial_result(self, trial_id, result):
        self.budgets.append(result["hyperband_info"].get("budget"))

    def on_trial_complete(self, trial_id, result=None, error=False):
        pass


def _optuna():
    pytest.importorskip("optuna")
    from ray.tune.search.optuna import OptunaSearch

    return OptunaSearch(metric="score", mode="max", seed=1)


def _limited_twice():
    # A limiter in a limiter.
    return ConcurrencyLimiter(ConcurrencyLimiter(_PlainSearcher(), 3), 2)


def _run(search_alg, num_samples=13, cls=HyperBandForBOHB, **kwargs):
    kwargs.setdefault("param_space", {"x": tune.uniform(0, 1)})
    cluster = VirtualCluster.of(
        lambda: cls(max_t=9, reduction_factor=3),
        search_alg=search_alg,
        num_samples=num_samples,
        quiet=True,
        ignore=SAFETY,
        **kwargs,
    )
    try:
        return cluster.run(max_events=3000)
    finally:
        cluster.close()


@pytest.mark.fixes("bohb-any-searcher")
@pytest.mark.parametrize(
    "search_alg",
    [
        _PlainSearcher,
        lambda: ConcurrencyLimiter(_PlainSearcher(), 2),
        _limited_twice,
        _optuna,
        lambda: ConcurrencyLimiter(_optuna(), 2),
        BasicVariantGenerator,
        lambda: BasicVariantGenerator(max_concurrent=2),
    ],
    ids=[
        "plain",
        "limited",
        "limited twice",
        "optuna",
        "optuna limited",
        "variants",
        "variants limited",
    ],
)
def test_any_searcher(search_alg):
    record = _run(search_alg, slots=4)
    assert record.statuses() == ["TERMINATED"] * 13
    # The largest bracket first: of 9 trials 3 are kept, and then 1.
    assert sorted(record.iterations()[:9]) == [1] * 6 + [3, 3, 9]


@pytest.mark.parametrize("save", [0, 0.3, 1, 3])
@pytest.mark.parametrize("slots", [1, 4, 9])
def test_bracket_that_is_full_is_reduced_while_its_trials_save(save, slots):
    record = _run(lambda: RandomSearcher(1), slots=slots, costs=Costs(save=save))
    assert sorted(record.iterations()[:9]) == [1] * 6 + [3, 3, 9]


def test_budgets_are_told_once_a_milestone():
    searcher = _PlainSearcher()
    _run(lambda: searcher, num_samples=9, slots=1)
    told = [budget for budget in searcher.budgets if budget]
    # The results of trials that are stopped at once go to on_trial_complete.
    assert 6 <= told.count(1) <= 9
    assert 1 <= told.count(3) <= 3


@pytest.mark.fixes("bohb-choose-idempotent")
def test_choosing_twice_is_choosing_once():
    scheduler = HyperBandForBOHB(
        metric="score", mode="max", max_t=81, reduction_factor=3
    )
    search_alg = _SearchAlg()
    controller = _Controller(search_alg)
    controller.scheduler = scheduler
    for i in range(30):
        trial = Trial("trainable", trial_id=f"t{i:02}", stub=True)
        controller.trials.append(trial)
        scheduler.on_trial_add(controller, trial)
    # They overstep three milestones of a bracket that no more trials will join.
    for i, trial in enumerate(controller.trials):
        trial.status = Trial.RUNNING
        result = {"training_iteration": 10, "score": i}
        assert scheduler.on_trial_result(controller, trial, result) == "PAUSE"
        trial.status = Trial.PAUSED
    bracket = scheduler._hyperbands[0][0]
    chosen = scheduler.choose_trial_to_run(controller)
    state = bracket._n, bracket._r, bracket.current_trials(), len(controller.stopped)
    for _ in range(3):
        assert scheduler.choose_trial_to_run(controller) is chosen
        assert state == (
            bracket._n,
            bracket._r,
            bracket.current_trials(),
            len(controller.stopped),
        )
    assert chosen.status == Trial.PAUSED
    assert bracket._r == 27


def test_choosing_while_others_start_or_save_decides_nothing():
    scheduler = HyperBandForBOHB(
        metric="score", mode="max", max_t=9, reduction_factor=3
    )
    controller = _Controller(_SearchAlg())
    trials = [Trial("trainable", trial_id=str(i), stub=True) for i in range(3)]
    for trial in trials:
        controller.trials.append(trial)
        scheduler.on_trial_add(controller, trial)
        trial.status = Trial.RUNNING
        scheduler.on_trial_result(
            controller, trial, {"training_iteration": 1, "score": 1}
        )
    trials[0].status = trials[1].status = Trial.PAUSED  # The third one saves.
    for _ in range(3):
        assert scheduler.choose_trial_to_run(controller) is None
    bracket = scheduler._hyperbands[0][0]
    assert (bracket._n, bracket._r) == (9, 1)
    assert not controller.stopped


class _SearchAlg:
    """Gives no trial now, and does not say that it is at its end."""

    def __init__(self):
        self.searcher = RandomSearcher(0)

    def is_finished(self):
        return False


class _Controller:
    def __init__(self, search_alg):
        self.search_alg = search_alg
        self.scheduler = None
        self.trials = []
        self.stopped = []

    def get_trials(self):
        return self.trials

    def stop_trial(self, trial):
        self.stopped.append(trial)
        self.scheduler.on_trial_remove(self, trial)
        trial.status = Trial.TERMINATED


def _bohb():
    pytest.importorskip("hpbandster")
    from ray.tune.search.bohb import TuneBOHB

    return TuneBOHB(seed=1)


@pytest.mark.parametrize("limit", [1, 2, 4])
@pytest.mark.parametrize("faulty", [False, True])
def test_tune_bohb_under_a_limit(limit, faulty):
    faults = [task_error("train", trial=t, nth=1) for t in (0, 5)] if faulty else []
    record = _run(lambda: ConcurrencyLimiter(_bohb(), limit), slots=4, faults=faults)
    assert all(trial.is_finished() for trial in record.trials)
    assert record.statuses().count("ERROR") == len(faults)
    if not faulty:
        assert sorted(record.iterations()[:9]) == [1] * 6 + [3, 3, 9]


@pytest.mark.parametrize("after", [5, 25, 50])
def test_tune_bohb_whose_driver_dies(after):
    record = _run(
        lambda: ConcurrencyLimiter(_bohb(), 2),
        slots=2,
        max_failures=1,
        faults=[task_error("train", trial=3, nth=1), driver_death(after=after)],
    )
    assert record.statuses() == ["TERMINATED"] * 13
    assert sorted(record.iterations()[:9]) == [1] * 6 + [3, 3, 9]


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
