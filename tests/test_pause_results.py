"""What searchers learn from the results with which trials pause."""

import math
import sys

import pytest
from pause_at_first import PauseAtFirst
from virtual_cluster import Experiment, ScriptedScheduler, VirtualCluster

from ray import tune
from ray.tune.experiment import Trial
from ray.tune.schedulers import (
    HyperBandForBOHB,
    HyperBandScheduler,
    PopulationBasedTraining,
)
from ray.tune.search import (
    BasicVariantGenerator,
    ConcurrencyLimiter,
    Repeater,
    SearchAlgorithm,
    Searcher,
    SearchGenerator,
)

pytestmark = pytest.mark.timeout(120)


class Notes(Searcher):
    """Suggests x = 0, 1, 2, ... and notes what it is told, in order."""

    learns_from_pauses = True

    def __init__(self):
        super().__init__(metric="score", mode="max")
        self.suggested = []
        self.told = []

    def set_search_properties(self, metric, mode, config, **spec):
        return True

    def suggest(self, trial_id):
        self.suggested.append(trial_id)
        return {"x": len(self.suggested) - 1}

    def on_trial_pause(self, trial_id, result=None):
        self.told.append(("pause", trial_id, result))

    def on_trial_resume(self, trial_id):
        self.told.append(("resume", trial_id, None))

    def on_trial_complete(self, trial_id, result=None, error=False):
        self.told.append(("complete", trial_id, result))

    def of(self, kind):
        return [(trial, result) for k, trial, result in self.told if k == kind]

    def save(self, checkpoint_path):
        pass

    def restore(self, checkpoint_path):
        pass


def curve(config, iteration):
    """Rises with the iteration; x = 0.7 is best."""
    return {"score": iteration - 10 * (config["x"] - 0.7) ** 2}


def run(scheduler, search_alg, num_samples=8, slots=2, **settings):
    return VirtualCluster.of(
        scheduler,
        search_alg=search_alg,
        num_samples=num_samples,
        slots=slots,
        trainable=settings.pop("trainable", lambda c, t: {"score": c["x"] + t}),
        **settings,
    ).run(max_events=3000)


# The hook


def make_scheduler(name):
    if name == "hyperband":
        return HyperBandScheduler(max_t=9, reduction_factor=3)
    if name == "bohb":
        return HyperBandForBOHB(max_t=9, reduction_factor=3)
    if name == "asha":
        from ray.tune.schedulers import ASHAv2

        return ASHAv2(max_t=9, reduction_factor=3)
    return PauseAtFirst(num_samples=8)


@pytest.mark.parametrize(
    "name",
    [
        "asha",
        pytest.param("hyperband", marks=pytest.mark.fixes("told-at-pause")),
        pytest.param("bohb", marks=pytest.mark.fixes("told-at-pause")),
        pytest.param("users-own", marks=pytest.mark.fixes("told-at-pause")),
    ],
)
def test_searcher_is_given_the_last_result_with_each_pause(name):
    searcher = Notes()
    pauses = []

    def on_event(cluster, event):
        if event.kind == "status" and event.detail == Trial.PAUSED:
            trial = next(t for t in cluster.trials if t.trial_id == event.trial)
            pauses.append((trial.trial_id, trial.last_result["training_iteration"]))

    run(
        make_scheduler(name),
        searcher,
        stop={"training_iteration": 9},
        on_event=on_event,
    )
    assert pauses
    told = searcher.of("pause")
    assert [(trial, r["training_iteration"]) for trial, r in told] == pauses
    for trial, result in told:
        x = searcher.suggested.index(trial)
        assert result["score"] == x + result["training_iteration"]
        assert not result.get("done")
    assert sorted(trial for trial, _ in searcher.of("complete")) == sorted(
        searcher.suggested
    )


def test_trial_that_pauses_before_it_has_reported_has_no_result():
    searcher = Notes()
    cluster = VirtualCluster(
        Experiment(ScriptedScheduler(choose=lambda c: None), search_alg=searcher)
    ).start()
    cluster.run_until(lambda: cluster.trials and cluster.trials[0].status == "RUNNING")
    cluster.call(cluster.controller.pause_trial, cluster.trials[0], False)
    cluster.run_until(lambda: cluster.trials[0].status == Trial.PAUSED)
    assert searcher.told == [("pause", cluster.trials[0].trial_id, None)]


def test_pause_from_the_hook_that_is_told_a_result_has_that_result():
    searcher = Notes()

    def decide(controller, trial, result):
        if result["training_iteration"] == 2:
            controller.pause_trial(trial, should_checkpoint=False)
            return "NOOP"
        return "STOP" if result["training_iteration"] > 2 else "CONTINUE"

    cluster = VirtualCluster(
        Experiment(
            ScriptedScheduler(decide, choose=lambda c: None), search_alg=searcher
        )
    ).start()
    cluster.run_until(lambda: cluster.trials and cluster.trials[0].status == "PAUSED")
    assert [r["training_iteration"] for _, r in searcher.of("pause")] == [2]


@pytest.mark.fixes("told-at-pause")
def test_custom_search_algorithm_is_given_the_result():
    class Custom(BasicVariantGenerator):
        def __init__(self):
            super().__init__()
            self.told = []

        def on_trial_pause(self, trial_id, result=None):
            super().on_trial_pause(trial_id, result)
            self.told.append(result["score"])

    search_alg = Custom()
    # Synchronous PBT pauses all trials of a generation but the last one.
    scheduler = PopulationBasedTraining(
        perturbation_interval=2, hyperparam_mutations={"x": [0.1, 0.2]}, synch=True
    )
    run(
        scheduler,
        search_alg,
        num_samples=4,
        trainable=lambda config, iteration: {"score": iteration},
        stop={"training_iteration": 4},
    )
    assert search_alg.told.count(2) >= 3


# What wraps a searcher


def test_limiter_hands_on_the_result():
    searcher = Notes()
    limiter = ConcurrencyLimiter(searcher, max_concurrent=1)
    limiter.suggest("a")
    limiter.on_trial_pause("a", {"score": 1})
    limiter.on_trial_resume("a")
    limiter.on_trial_pause("a", {"score": 2})
    limiter.on_trial_complete("a", {"score": 2})
    assert searcher.told == [
        ("pause", "a", {"score": 1}),
        ("resume", "a", None),
        ("pause", "a", {"score": 2}),
        ("complete", "a", {"score": 2}),
    ]


def test_batch_is_told_as_a_whole_when_it_is_over():
    searcher = Notes()
    limiter = ConcurrencyLimiter(searcher, max_concurrent=3, batch=True)
    for trial in "abc":
        limiter.suggest(trial)
    limiter.on_trial_pause("a", {"score": 1})
    limiter.on_trial_pause("b", {"score": 2})
    limiter.on_trial_resume("a")
    assert searcher.told == []
    limiter.on_trial_complete("a", {"score": 3})
    assert searcher.told == []
    limiter.on_trial_pause("c", {"score": 4})
    # Each once: of the one that has ended since, the end alone.
    assert searcher.told == [
        ("pause", "b", {"score": 2}),
        ("pause", "c", {"score": 4}),
        ("complete", "a", {"score": 3}),
    ]
    limiter.on_trial_resume("b")
    assert searcher.told[3:] == [("resume", "b", None)]


def test_batch_that_is_restored_in_the_middle_is_told_as_a_whole():
    searcher = Notes()
    limiter = ConcurrencyLimiter(Notes(), max_concurrent=2, batch=True)
    limiter.suggest("a"), limiter.suggest("b")
    limiter.on_trial_pause("a", {"score": 1})
    restored = ConcurrencyLimiter(searcher, max_concurrent=2, batch=True)
    restored.set_state(limiter.get_state())
    restored.on_trial_pause("b", {"score": 2})
    assert [trial for trial, _ in searcher.of("pause")] == ["a", "b"]


def test_repeater_tells_the_mean_of_a_paused_group():
    searcher = Notes()
    repeater = Repeater(searcher, repeat=3)
    for trial in "abc":
        repeater.suggest(trial)
    repeater.on_trial_complete("a", {"score": 6.0, "training_iteration": 9})
    repeater.on_trial_pause("b", {"score": 1.0, "training_iteration": 1})
    assert searcher.told == []
    repeater.on_trial_pause("c", {"score": 2.0, "training_iteration": 3})
    assert searcher.told == [("pause", "a", {"score": 3.0, "training_iteration": 1})]
    repeater.on_trial_resume("c")
    repeater.on_trial_pause("c", {"score": math.nan, "training_iteration": 9})
    assert searcher.told[2] == ("pause", "a", {"score": 3.5, "training_iteration": 1})
    repeater.on_trial_complete("b", {"score": 4.0})
    repeater.on_trial_complete("c", {"score": 5.0})
    assert searcher.told[-1] == ("complete", "a", {"score": 5.0})


@pytest.mark.parametrize("result", [None, {}, {"score": None}, {"score": math.nan}])
def test_repeater_tells_no_mean_of_nothing(result):
    searcher = Notes()
    repeater = Repeater(searcher, repeat=1)
    repeater.suggest("a")
    repeater.on_trial_pause("a", result)
    assert searcher.told == [("pause", "a", None)]


def test_who_learns_from_pauses():
    assert SearchAlgorithm().learns_from_pauses is False
    assert Searcher().learns_from_pauses is False
    assert BasicVariantGenerator().learns_from_pauses is None
    for searcher in (Notes(), Searcher()):
        learns = searcher.learns_from_pauses
        assert ConcurrencyLimiter(searcher, 2).learns_from_pauses is learns
        assert Repeater(searcher).learns_from_pauses is learns
        assert SearchGenerator(searcher).learns_from_pauses is learns
        both = Repeater(ConcurrencyLimiter(searcher, 2))
        assert SearchGenerator(both).learns_from_pauses is learns

    class Wrapper(Searcher):
        """Hands on no pauses."""

        def __init__(self, searcher):
            self.searcher = searcher

    assert Wrapper(Notes()).learns_from_pauses is False


# Optuna


class Seen:
    """Mixin of samplers: notes what a sampler would learn from."""

    def infer_relative_search_space(self, study, trial):
        optuna = pytest.importorskip("optuna")
        self.seen = {
            t.number: t.values
            for t in study.get_trials(deepcopy=False)
            if t.state == optuna.trial.TrialState.COMPLETE
        }
        return super().infer_relative_search_space(study, trial)


def optuna_search(space=None, seed=1, **kwargs):
    optuna = pytest.importorskip("optuna")
    from ray.tune.search.optuna import OptunaSearch

    class Sampler(Seen, optuna.samplers.TPESampler):
        pass

    kwargs.setdefault("metric", "score")
    kwargs.setdefault("mode", "max")
    space = space or {"x": optuna.distributions.FloatDistribution(0, 1)}
    sampler = Sampler(seed=seed)
    return OptunaSearch(space, sampler=sampler, **kwargs), sampler


def states(study):
    return [(trial.state.name, trial.values) for trial in study.get_trials()]


def report(searcher, trial_id, score, iteration):
    result = {"score": score, "training_iteration": iteration}
    searcher.on_trial_result(trial_id, result)
    return result


@pytest.mark.parametrize("storage", ["none", "memory", "journal", "sqlite"])
def test_optuna_learns_from_a_paused_trial_and_the_study_stays_true(storage, tmp_path):
    optuna = pytest.importorskip("optuna")
    kept = {
        "none": lambda: None,
        "memory": optuna.storages.InMemoryStorage,
        "journal": lambda: optuna.storages.JournalStorage(
            optuna.storages.journal.JournalFileBackend(str(tmp_path / "journal"))
        ),
        "sqlite": lambda: optuna.storages.RDBStorage(f"sqlite:///{tmp_path}/db"),
    }[storage]()
    searcher, sampler = optuna_search(storage=kept, study_name="s")
    study = searcher._ot_study
    searcher.suggest("a")
    assert sampler.seen == {}
    searcher.on_trial_pause("a", report(searcher, "a", 1.0, 1))
    # Whoever looks at the study sees a trial that is not over.
    assert states(study) == [("RUNNING", None)]
    assert study.get_trials()[0].intermediate_values == {1: 1.0}
    if kept is not None:
        other = optuna.load_study(study_name="s", storage=kept)
        assert states(other) == [("RUNNING", None)]
    searcher.suggest("b")
    assert sampler.seen == {0: [1.0]}
    assert study.sampler is sampler
    searcher.on_trial_resume("a")
    searcher.suggest("c")
    assert sampler.seen == {0: [1.0]}  # it has not become less known
    searcher.on_trial_pause("a", report(searcher, "a", 3.0, 3))
    searcher.suggest("d")
    assert sampler.seen == {0: [3.0]}
    searcher.on_trial_complete("a", {"score": 4.0, "training_iteration": 9})
    searcher.suggest("e")
    assert sampler.seen == {0: [4.0]}
    assert states(study) == [("COMPLETE", [4.0])] + [("RUNNING", None)] * 4
    assert study.best_value == 4.0


def test_optuna_forgets_what_failed_trials_paused_with():
    searcher, sampler = optuna_search()
    searcher.suggest("a"), searcher.suggest("b")
    searcher.on_trial_pause("a", report(searcher, "a", 1.0, 1))
    searcher.on_trial_pause("b", report(searcher, "b", 2.0, 1))
    searcher.on_trial_complete("a", None, error=True)
    # As of one that diverges.
    searcher.on_trial_pause("b", {"score": math.nan})
    searcher.suggest("c")
    assert sampler.seen == {}
    assert states(searcher._ot_study)[0] == ("FAIL", None)


@pytest.mark.parametrize(
    "result", [None, {"training_iteration": 1}, {"score": None}, {"score": "high"}]
)
def test_optuna_skips_results_that_tell_nothing(result):
    searcher, sampler = optuna_search()
    searcher.suggest("a")
    searcher.on_trial_pause("a", result)
    searcher.on_trial_pause("foreign", {"score": 1.0})
    searcher.suggest("b")
    assert sampler.seen == {}


def test_optuna_learns_several_objectives_from_a_paused_trial():
    searcher, sampler = optuna_search(metric=["score", "cost"], mode=["max", "min"])
    searcher.suggest("a")
    searcher.on_trial_pause("a", {"score": 1.0, "cost": 2.0})
    searcher.suggest("b")
    assert sampler.seen == {0: [1.0, 2.0]}
    searcher.on_trial_pause("b", {"score": 1.0})
    searcher.on_trial_complete("a", {"score": 5.0, "cost": 6.0})
    searcher.suggest("c")
    assert sampler.seen == {0: [5.0, 6.0]}
    assert states(searcher._ot_study)[0] == ("COMPLETE", [5.0, 6.0])


def test_optuna_tries_its_given_points_first_while_trials_pause():
    points = [{"x": 0.25}, {"x": 0.75}]
    searcher, sampler = optuna_search(points_to_evaluate=points)
    assert searcher.suggest("a") == points[0]
    searcher.on_trial_pause("a", report(searcher, "a", 1.0, 1))
    assert searcher.suggest("b") == points[1]
    searcher.on_trial_pause("b", report(searcher, "b", 2.0, 1))
    searcher.suggest("c")
    assert sampler.seen == {0: [1.0], 1: [2.0]}
    assert len(searcher._ot_study.get_trials()) == 3


def test_optuna_learns_with_a_space_that_is_defined_by_run():
    def space(trial):
        trial.suggest_float("x", 0, 1)

    searcher, sampler = optuna_search(space)
    searcher.suggest("a")
    searcher.on_trial_pause("a", report(searcher, "a", 1.0, 1))
    assert 0 <= searcher.suggest("b")["x"] <= 1
    assert sampler.seen == {0: [1.0]}


def test_optuna_restored_in_the_middle_knows_what_it_was_told(tmp_path):
    from ray.tune.search.optuna import OptunaSearch

    pytest.importorskip("optuna")
    first = OptunaSearch({"x": tune.uniform(0, 1)}, "score", "max", seed=3)
    for trial in range(12):
        first.suggest(str(trial))
        first.on_trial_pause(str(trial), {"score": float(trial)})
    path = str(tmp_path / "state")
    first.save(path)
    second = OptunaSearch({"x": tune.uniform(0, 1)}, "score", "max", seed=4)
    second.restore(path)
    third = OptunaSearch({"x": tune.uniform(0, 1)}, "score", "max", seed=4)
    third.restore(path)
    third._observations = {}
    assert first.suggest("next") == second.suggest("next") != third.suggest("next")
    second.on_trial_complete("0", {"score": 50.0})
    assert states(second._ot_study)[0] == ("COMPLETE", [50.0])


def test_optuna_search_that_stock_ray_has_pickled_learns_from_pauses():
    searcher, _ = optuna_search()
    searcher.suggest("a")
    state = {k: v for k, v in searcher.__dict__.items() if k != "_observations"}
    restored = type(searcher).__new__(type(searcher))
    restored.__dict__.update(state)
    restored.on_trial_pause("a", {"score": 1.0})
    restored.suggest("b")
    assert restored._ot_study.sampler.seen == {0: [1.0]}


def test_optuna_samplers_that_learn_nothing_say_so():
    optuna = pytest.importorskip("optuna")
    from ray.tune.search.optuna import OptunaSearch

    samplers = optuna.samplers
    assert OptunaSearch().learns_from_pauses is True
    assert OptunaSearch(sampler=samplers.NSGAIISampler()).learns_from_pauses is True
    for sampler in (samplers.RandomSampler(), samplers.GridSampler({"x": [1, 2]})):
        assert OptunaSearch(sampler=sampler).learns_from_pauses is None


@pytest.mark.fixes("told-at-pause")
@pytest.mark.parametrize("wrap", ["none", "limiter", "repeater"])
def test_optuna_finds_the_best_while_all_trials_are_paused(wrap):
    pytest.importorskip("optuna")
    from ray.tune.search.optuna import OptunaSearch

    num_samples = 60 if wrap == "repeater" else 30
    search_alg = OptunaSearch(seed=5)
    if wrap == "limiter":
        search_alg = ConcurrencyLimiter(search_alg, max_concurrent=2)
    if wrap == "repeater":
        search_alg = Repeater(search_alg, repeat=2, set_index=False)
    record = run(PauseAtFirst(num_samples), search_alg, num_samples, trainable=curve)
    assert record.iterations() == [3] * num_samples
    last = [trial.config["x"] for trial in record.trials[-num_samples // 3 :]]
    assert sum(abs(x - 0.7) for x in last) / len(last) < 0.12


# HyperOpt


def hyperopt_search(**kwargs):
    pytest.importorskip("hyperopt")
    from ray.tune.search.hyperopt import HyperOptSearch

    searcher = HyperOptSearch(random_state_seed=1, **kwargs)
    searcher.set_search_properties("score", "max", {"x": tune.uniform(0, 1)})
    return searcher


def documents(searcher):
    """State and result of each of HyperOpt's documents."""
    return [(t["state"], t["result"].get("loss")) for t in searcher._hpopt_trials]


def test_hyperopt_revises_the_document_of_a_trial():
    hyperopt = pytest.importorskip("hyperopt")
    searcher = hyperopt_search()
    done = hyperopt.JOB_STATE_DONE
    searcher.suggest("a")
    new = documents(searcher)
    searcher.on_trial_pause("a", {"score": 1.0})
    assert documents(searcher) == [(done, -1.0)] != new
    searcher.on_trial_resume("a")
    searcher.on_trial_pause("a", {"score": 3.0})
    assert documents(searcher) == [(done, -3.0)]
    searcher.on_trial_complete("a", {"score": 4.0})
    assert documents(searcher) == [(done, -4.0)]
    searcher.on_trial_pause("foreign", {"score": 1.0})
    assert len(documents(searcher)) == 1


@pytest.mark.parametrize("result", [None, {}, {"score": math.nan}, {"score": None}])
def test_hyperopt_skips_results_that_tell_nothing(result):
    searcher = hyperopt_search()
    searcher.suggest("a")
    before = documents(searcher)
    searcher.on_trial_pause("a", result)
    assert documents(searcher) == before


def test_hyperopt_drops_a_trial_that_fails_after_a_pause():
    searcher = hyperopt_search()
    searcher.suggest("a")
    searcher.on_trial_pause("a", {"score": 1.0})
    searcher.on_trial_complete("a", None, error=True)
    assert documents(searcher) == []


def test_hyperopt_restored_in_the_middle_knows_what_it_was_told(tmp_path):
    first, second = hyperopt_search(), hyperopt_search()
    first.suggest("a")
    first.on_trial_pause("a", {"score": 1.0})
    first.save(str(tmp_path / "state"))
    second.restore(str(tmp_path / "state"))
    second.on_trial_complete("a", {"score": 2.0})
    assert [loss for _, loss in documents(second)] == [-2.0]


@pytest.mark.fixes("told-at-pause")
def test_hyperopt_knows_the_losses_while_all_trials_are_paused():
    pytest.importorskip("hyperopt")
    from ray.tune.search.hyperopt import HyperOptSearch

    class Search(HyperOptSearch):
        def suggest(self, trial_id):
            losses = self._hpopt_trials.losses()
            assert losses.count(None) <= 3  # of those that have yet to report
            return super().suggest(trial_id)

    record = run(PauseAtFirst(12), Search(random_state_seed=5), 12, trainable=curve)
    assert record.iterations() == [3] * 12


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
