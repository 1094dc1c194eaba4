"""How TuneBOHB, BayesOpt, HEBO, Ax and ZOOpt learn from trials that are only paused.

Where a library does not install here, its place is taken by one that does to what it
is told as the library does, as far as Ray makes use of it.
"""

import math
import sys
import types

import pytest
from pause_at_first import PauseAtFirst
from virtual_cluster import VirtualCluster

from ray import tune
from ray.tune.schedulers import FIFOScheduler, HyperBandForBOHB, HyperBandScheduler
from ray.tune.search import ConcurrencyLimiter

pytestmark = pytest.mark.timeout(120)


def run(scheduler, search_alg, num_samples=9, **settings):
    return VirtualCluster.of(
        scheduler,
        search_alg=search_alg,
        num_samples=num_samples,
        slots=2,
        param_space={"x": tune.uniform(0, 1)},
        trainable=lambda config, t: {"score": t - 10 * (config["x"] - 0.7) ** 2},
        stop={"training_iteration": 9},
        quiet=True,
        **settings,
    ).run(max_events=3000)


def hyperband():
    return HyperBandScheduler(max_t=9, reduction_factor=3)


def last_scores(record):
    return [trial.last_result["score"] for trial in record.trials]


def paused_and_resumed(searcher, observed):
    """Pause a trial twice, and let it end.

    Args:
        searcher: Searcher that wants higher scores.
        observed: ``f()`` returns what the library has been told, signs turned back.
    """
    assert searcher.learns_from_pauses
    searcher.suggest("a")
    searcher.on_trial_pause("a", {"score": 1.0, "training_iteration": 1})
    assert observed() == [1.0]
    searcher.on_trial_resume("a")
    searcher.suggest("b")
    searcher.on_trial_pause("b", {"score": 2.0, "training_iteration": 1})
    searcher.on_trial_pause("a", {"score": 3.0, "training_iteration": 3})
    assert observed() == [3.0, 2.0]
    # Nothing to learn from, and a trial that it has not suggested.
    for result in (None, {}, {"score": None}, {"score": math.nan}):
        searcher.on_trial_pause("b", result)
    searcher.on_trial_pause("foreign", {"score": 9.0})
    assert observed() == [3.0, 2.0]
    searcher.on_trial_complete("a", {"score": 4.0, "training_iteration": 9})
    assert observed() == [4.0, 2.0]
    searcher.on_trial_complete("b", None, error=True)
    assert observed() == [4.0, 2.0]


# TuneBOHB


def bohb_search(seed=1):
    pytest.importorskip("hpbandster")
    from ray.tune.search.bohb import TuneBOHB

    searcher = TuneBOHB(seed=seed)
    searcher.set_search_properties("score", "max", {"x": tune.uniform(0, 1)})
    return searcher


def bohb_losses(searcher):
    return {
        budget: [-loss for loss in losses]
        for budget, losses in searcher.bohber.losses.items()
    }


def test_bohb_compares_trials_without_budgets_at_one():
    searcher = bohb_search()
    paused_and_resumed(searcher, lambda: bohb_losses(searcher)[1.0])
    assert list(bohb_losses(searcher)) == [1.0]


@pytest.mark.fixes("told-at-pause")
@pytest.mark.parametrize("make", [hyperband, FIFOScheduler])
def test_bohb_learns_with_a_scheduler_that_gives_no_budgets(make):
    from ray.tune.search.bohb import TuneBOHB

    searcher = TuneBOHB(seed=1)
    record = run(make(), searcher)
    assert sum(len(losses) for losses in searcher.bohber.losses.values()) == 9
    assert sorted(bohb_losses(searcher)[1.0]) == sorted(last_scores(record))


def test_bohb_keeps_to_the_budgets_of_its_own_scheduler():
    from ray.tune.search.bohb import TuneBOHB

    searcher = TuneBOHB(seed=1)
    run(HyperBandForBOHB(max_t=9, reduction_factor=3), searcher)
    assert 3 in bohb_losses(searcher)
    # No trial is told at a budget and without one.
    first = bohb_search()
    first.suggest("a")
    result = {"score": 1.0, "training_iteration": 3, "hyperband_info": {"budget": 3}}
    first.on_trial_result("a", result)
    first.on_trial_pause("a", {"score": 1.0, "training_iteration": 3})
    first.on_trial_complete("a", {"score": 1.5, "training_iteration": 4})
    assert bohb_losses(first) == {3: [1.0]}


def test_bohb_does_not_miscount_beside_a_model_of_a_higher_budget():
    searcher = bohb_search()
    searcher.suggest("a")
    searcher.bohber.kde_models[9] = None
    searcher.on_trial_pause("a", {"score": 1.0})
    searcher.on_trial_pause("a", {"score": 2.0})
    searcher.on_trial_complete("a", {"score": 3.0})
    assert bohb_losses(searcher) == {1.0: []}


def test_bohb_restored_in_the_middle_revises_what_it_was_told(tmp_path):
    first, second = bohb_search(), bohb_search()
    first.suggest("a")
    first.on_trial_pause("a", {"score": 1.0})
    first.save(str(tmp_path / "state"))
    second.restore(str(tmp_path / "state"))
    second.on_trial_complete("a", {"score": 2.0})
    assert bohb_losses(second) == {1.0: [2.0]}


# BayesOpt


def bayesopt_search(**kwargs):
    pytest.importorskip("bayes_opt")
    from ray.tune.search.bayesopt import BayesOptSearch

    searcher = BayesOptSearch(**kwargs)
    searcher.set_search_properties("score", "max", {"x": tune.uniform(0, 1)})
    return searcher


def test_bayesopt_replaces_the_target_of_a_trial():
    searcher = bayesopt_search(random_search_steps=0)
    paused_and_resumed(searcher, lambda: searcher.optimizer.space.target.tolist())


def test_bayesopt_replaces_results_of_its_random_phase():
    searcher = bayesopt_search(random_search_steps=3)

    def buffered():
        return [result["score"] for _, result in searcher._buffered_trial_results]

    paused_and_resumed(searcher, buffered)
    assert len(searcher.optimizer.space) == 0
    searcher.suggest("c")
    searcher.on_trial_pause("c", {"score": 5.0})
    target = searcher.optimizer.space.target
    assert target.tolist() == [4.0, 2.0, 5.0]
    # The phase is over: what it was told is replaced where it has gone to.
    searcher.on_trial_complete("c", {"score": 6.0})
    assert target.tolist() == [4.0, 2.0, 6.0]


@pytest.mark.fixes("told-at-pause")
def test_bayesopt_does_not_wait_for_paused_trials():
    pytest.importorskip("bayes_opt")
    from ray.tune.search.bayesopt import BayesOptSearch

    searcher = BayesOptSearch(random_search_steps=3, patience=100)
    record = run(PauseAtFirst(6), searcher, num_samples=6)
    assert record.iterations() == [3] * 6
    told = searcher.optimizer.space.target.tolist()
    assert sorted(told) == sorted(last_scores(record))


# HEBO


class HEBO:
    """Keeps what it observes as HEBO 0.3.6 does, and suggests at will."""

    def __init__(self):
        pandas = pytest.importorskip("pandas")
        import numpy

        self.X = pandas.DataFrame(columns=["x"])
        self.y = numpy.zeros((0, 1))
        self.suggested = 0

    def suggest(self, n_suggestions):
        import pandas

        first, self.suggested = self.suggested, self.suggested + n_suggestions
        return pandas.DataFrame({"x": range(first, self.suggested)})

    def observe(self, X, y):
        import numpy
        import pandas

        valid = numpy.isfinite(y.reshape(-1))
        self.X = pandas.concat([self.X, X[valid]], ignore_index=True)
        self.y = numpy.vstack([self.y, y[valid].reshape(-1, 1)])


def hebo_search(monkeypatch):
    from ray.tune.search.hebo import hebo_search

    monkeypatch.setattr(hebo_search, "hebo", types.SimpleNamespace(), raising=False)
    searcher = hebo_search.HEBOSearch(metric="score", mode="max", max_concurrent=2)
    searcher._space, searcher._opt, searcher._metric_op = object(), HEBO(), -1.0
    return searcher


def test_hebo_replaces_the_observation_of_a_trial(monkeypatch):
    searcher = hebo_search(monkeypatch)
    paused_and_resumed(searcher, lambda: (-searcher._opt.y[:, 0]).tolist())
    assert searcher._opt.X["x"].tolist() == [0, 1]


# Ax


class AxTrial:
    def __init__(self):
        self.status, self.data = "RUNNING", None

    def update_trial_data(self, raw_data):
        assert self.status == "COMPLETED"
        self.data = raw_data


class AxClient:
    """Keeps trials as the client of Ax 1.3 does, and suggests at will."""

    def __init__(self):
        config = types.SimpleNamespace(outcome_constraints=[])
        self.experiment = types.SimpleNamespace(trials={}, optimization_config=config)

    def get_next_trial(self):
        number = len(self.experiment.trials)
        self.experiment.trials[number] = AxTrial()
        return {"x": number}, number

    def complete_trial(self, trial_index, raw_data):
        trial = self.experiment.trials[trial_index]
        assert trial.status == "RUNNING"
        trial.status, trial.data = "COMPLETED", raw_data

    def abandon_trial(self, trial_index, reason):
        trial = self.experiment.trials[trial_index]
        assert trial.status == "RUNNING"
        trial.status = "ABANDONED"


def ax_search(monkeypatch):
    from ray.tune.search.ax import ax_search

    monkeypatch.setattr(ax_search, "ax", types.SimpleNamespace(), raising=False)
    monkeypatch.setattr(ax_search.AxSearch, "_setup_experiment", lambda self: None)
    return ax_search.AxSearch(metric="score", mode="max", ax_client=AxClient())


def test_ax_updates_the_data_of_a_trial(monkeypatch):
    searcher = ax_search(monkeypatch)
    trials = searcher._ax.experiment.trials
    paused_and_resumed(
        searcher,
        lambda: [t.data["score"][0] for t in trials.values() if t.data],
    )
    assert {trial.status for trial in trials.values()} == {"COMPLETED"}
    # Diverged later: what it paused with stays. Diverged at once: as without pauses.
    searcher.suggest("c"), searcher.suggest("d")
    searcher.on_trial_pause("c", {"score": 5.0})
    searcher.on_trial_complete("c", {"score": math.nan})
    searcher.on_trial_complete("d", {"score": math.nan})
    assert (trials[2].status, trials[3].status) == ("COMPLETED", "ABANDONED")


# ZOOpt and Nevergrad


class SRacos:
    """Limits the points that are out as ZOOpt 0.4.2 does, and suggests at will."""

    def __init__(self, parallel_num):
        self.parallel_num, self.live_num = parallel_num, 0

    def suggest(self):
        if self.live_num >= self.parallel_num:
            return None
        self.live_num += 1
        return types.SimpleNamespace(get_x=lambda: [0.5])

    def complete(self, solution, result):
        self.live_num -= 1


def zoopt_search(monkeypatch, parallel_num=1):
    from ray.tune.search.zoopt import zoopt_search

    monkeypatch.setattr(zoopt_search, "zoopt", types.SimpleNamespace())
    searcher = zoopt_search.ZOOptSearch(budget=9, metric="score", mode="max")
    searcher._dim_dict, searcher._dim_keys = {"x": None}, ["x"]
    searcher.optimizer = SRacos(parallel_num)
    return searcher


def test_paused_trial_takes_no_place_in_zoopt(monkeypatch):
    searcher = zoopt_search(monkeypatch)
    assert searcher.suggest("a")
    assert searcher.suggest("b") is None
    searcher.on_trial_pause("a", {"score": 1.0})
    searcher.on_trial_pause("a", {"score": 1.0})
    assert searcher.suggest("b")
    assert searcher.suggest("c") is None
    searcher.on_trial_resume("a")
    searcher.on_trial_complete("b", {"score": 1.0})
    assert searcher.suggest("c") is None
    searcher.on_trial_pause("a", {"score": 2.0})
    assert searcher.suggest("c")
    # It completes while it has no place to give back.
    searcher.on_trial_complete("a", {"score": 3.0})
    assert searcher.optimizer.live_num == 1


def test_nevergrad_and_zoopt_say_that_they_do_not_learn():
    from ray.tune.search.nevergrad import NevergradSearch
    from ray.tune.search.zoopt import ZOOptSearch

    for searcher in (NevergradSearch, ZOOptSearch):
        assert searcher.learns_from_pauses is False
        assert "only paused" in searcher.__doc__


# What stock Ray has saved


@pytest.mark.parametrize("name", ["bohb", "bayesopt", "hebo", "ax", "zoopt"])
def test_search_that_stock_ray_has_pickled_learns_from_pauses(name, monkeypatch):
    searcher = {
        "bohb": bohb_search,
        "bayesopt": lambda: bayesopt_search(random_search_steps=0),
        "hebo": lambda: hebo_search(monkeypatch),
        "ax": lambda: ax_search(monkeypatch),
        "zoopt": lambda: zoopt_search(monkeypatch),
    }[name]()
    searcher.suggest("a")
    ours = ("_observed_rows", "_observed_trials", "_has_budgets", "_paused_trials")
    state = {k: v for k, v in searcher.__dict__.items() if k not in ours}
    restored = type(searcher).__new__(type(searcher))
    restored.__dict__.update(state)
    limiter = ConcurrencyLimiter(restored, max_concurrent=2)
    limiter.on_trial_pause("a", {"score": 1.0})
    limiter.on_trial_resume("a")
    restored.on_trial_complete("a", {"score": 2.0})


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
