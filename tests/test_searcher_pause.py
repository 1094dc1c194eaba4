"""What search algorithms learn of trials that pause, resume, or end while paused."""

import sys
import types

import pytest
from virtual_cluster import Cluster, Experiment, ScriptedScheduler, VirtualCluster

from ray.tune.experiment import Trial
from ray.tune.search import (
    BasicVariantGenerator,
    ConcurrencyLimiter,
    Repeater,
    SearchAlgorithm,
    Searcher,
    SearchGenerator,
)


class Suggestions(Searcher):
    """Suggests x = 0, 1, 2, ... and remembers what it is told."""

    def __init__(self):
        super().__init__(metric="score", mode="max")
        self.suggested = []
        self.completed = {}
        self.told = []

    def set_search_properties(self, metric, mode, config, **spec):
        return True

    def suggest(self, trial_id):
        self.suggested.append(trial_id)
        return {"x": len(self.suggested) - 1}

    def on_trial_complete(self, trial_id, result=None, error=False):
        assert trial_id in self.suggested and trial_id not in self.completed
        self.completed[trial_id] = result

    def save(self, checkpoint_path):
        pass

    def restore(self, checkpoint_path):
        pass


class Told(Suggestions):
    def on_trial_pause(self, trial_id, result=None):
        self.told.append(("pause", trial_id))

    def on_trial_resume(self, trial_id):
        self.told.append(("resume", trial_id))


def curve(config, iteration):
    return {"score": config.get("x", 0) + iteration}


def pause_all_first(milestone=1, max_t=3, num_samples=4):
    """A scheduler that pauses every trial, and resumes none before all have paused."""
    seen = set()

    def decide(controller, trial, result):
        if result["training_iteration"] >= max_t:
            return "STOP"
        if result["training_iteration"] == milestone:
            seen.add(trial.trial_id)
            return "PAUSE"
        return "CONTINUE"

    def choose(controller):
        trials = controller.get_trials()
        for trial in trials:
            if trial.status == Trial.PENDING:
                return trial
        for trial in trials:
            if trial.status == Trial.PAUSED and len(seen) == num_samples:
                return trial
        return None

    return ScriptedScheduler(decide, choose)


def stop_one_while_paused(victim=0):
    """A scheduler that stops the victim while it is paused, and resumes the others."""

    def decide(controller, trial, result):
        if result["training_iteration"] >= 3:
            return "STOP"
        return "PAUSE" if result["training_iteration"] == 1 else "CONTINUE"

    def choose(controller):
        trials = controller.get_trials()
        if len(trials) > victim and trials[victim].status == Trial.PAUSED:
            controller.stop_trial(trials[victim])
        for status in (Trial.PENDING, Trial.PAUSED):
            for trial in trials:
                if trial.status == status:
                    return trial
        return None

    return ScriptedScheduler(decide, choose)


@pytest.mark.fixes("ray#12536")
@pytest.mark.parametrize("max_concurrent", [1, 2])
def test_paused_trials_take_no_place_in_basic_variant_generator(max_concurrent):
    record = VirtualCluster(
        Experiment(pause_all_first(), num_samples=4, max_concurrent=max_concurrent),
        Cluster(slots=4),
    ).run(max_events=500)
    assert record.iterations() == [3, 3, 3, 3]


@pytest.mark.fixes("ray#12536")
@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("max_concurrent", [1, 3])
def test_paused_trials_take_no_place_in_concurrency_limiter(max_concurrent, batch):
    searcher = Suggestions()
    record = VirtualCluster(
        Experiment(
            pause_all_first(),
            num_samples=4,
            search_alg=ConcurrencyLimiter(
                searcher, max_concurrent=max_concurrent, batch=batch
            ),
        ),
        Cluster(slots=4),
    ).run(max_events=500)
    assert record.iterations() == [3, 3, 3, 3]
    assert sorted(searcher.completed) == sorted(searcher.suggested)
    assert all(searcher.completed.values())


@pytest.mark.fixes("ray#12536")
def test_paused_groups_take_no_place_behind_a_repeater():
    searcher = Suggestions()
    record = VirtualCluster(
        Experiment(
            pause_all_first(num_samples=6),
            num_samples=6,
            search_alg=Repeater(
                ConcurrencyLimiter(searcher, max_concurrent=1), repeat=2
            ),
            trainable=curve,
        ),
        Cluster(slots=4),
    ).run(max_events=500)
    assert record.iterations() == [3] * 6
    assert len(searcher.suggested) == 3
    assert sorted(searcher.completed) == sorted(searcher.suggested)


@pytest.mark.fixes("stopped-while-paused")
@pytest.mark.parametrize("wrap", ["none", "limiter", "batch"])
def test_searcher_learns_last_result_of_trial_stopped_while_paused(wrap):
    searcher = Suggestions()
    search_alg = searcher
    if wrap != "none":
        search_alg = ConcurrencyLimiter(
            searcher, max_concurrent=4, batch=wrap == "batch"
        )
    record = VirtualCluster(
        Experiment(
            stop_one_while_paused(),
            num_samples=4,
            search_alg=search_alg,
            trainable=curve,
        ),
        Cluster(slots=4),
    ).run(max_events=500)
    assert record.iterations() == [1, 3, 3, 3]
    assert sorted(searcher.completed) == sorted(searcher.suggested)
    first = searcher.completed[record.trials[0].trial_id]
    assert first["score"] == 1
    assert first["done"]


def test_search_algorithm_is_told_once_of_each_pause_and_resume():
    searcher = Told()
    record = VirtualCluster(
        Experiment(pause_all_first(num_samples=2), num_samples=2, search_alg=searcher),
        Cluster(slots=1),
    ).run(max_events=500)
    first, second = (trial.trial_id for trial in record.trials)
    assert searcher.told == [
        ("pause", first),
        ("pause", second),
        ("resume", first),
        ("resume", second),
    ]


@pytest.mark.parametrize("should_checkpoint", [True, False])
def test_search_algorithm_is_told_of_a_pause_from_outside(should_checkpoint):
    searcher = Told()
    cluster = VirtualCluster(
        Experiment(
            ScriptedScheduler(choose=lambda controller: None),
            num_samples=1,
            search_alg=searcher,
        )
    ).start()
    cluster.run_until(
        lambda: cluster.trials and cluster.trials[0].status == Trial.RUNNING
    )
    trial = cluster.trials[0]
    cluster.call(cluster.controller.pause_trial, trial, should_checkpoint)
    cluster.run_until(lambda: trial.status == Trial.PAUSED)
    assert searcher.told == [("pause", trial.trial_id)]
    cluster.call(cluster.controller.pause_trial, trial, should_checkpoint)
    assert searcher.told == [("pause", trial.trial_id)]
    # It ends without having been resumed.
    cluster.call(cluster.controller.stop_trial, trial)
    assert searcher.told == [("pause", trial.trial_id)]
    assert list(searcher.completed) == [trial.trial_id]


def test_searcher_with_the_former_hooks_is_told():
    class Former(Suggestions):
        def on_pause(self, trial_id):
            self.told.append(("pause", trial_id))

        def on_unpause(self, trial_id):
            self.told.append(("resume", trial_id))

    searcher = Former()
    record = VirtualCluster(
        Experiment(
            pause_all_first(num_samples=1),
            num_samples=1,
            search_alg=ConcurrencyLimiter(searcher, max_concurrent=1),
        )
    ).run(max_events=500)
    trial_id = record.trials[0].trial_id
    assert searcher.told == [("pause", trial_id), ("resume", trial_id)]


def test_search_algorithm_without_the_hooks_keeps_working():
    class Bare:
        """Has what the controller used to ask for, and no base class."""

        metric = None

        def __init__(self):
            self._inner = BasicVariantGenerator()
            self.total_samples = 2

        def __getattr__(self, name):
            if name.startswith(("on_trial_pause", "on_trial_resume", "concurrency")):
                raise AttributeError(name)
            return getattr(self._inner, name)

    record = VirtualCluster(
        Experiment(pause_all_first(num_samples=2), num_samples=2, search_alg=Bare()),
        Cluster(slots=1),
    ).run(max_events=500)
    assert record.iterations() == [3, 3]


def test_hooks_do_nothing_by_default():
    searcher = Suggestions()
    for search_alg in (searcher, SearchGenerator(searcher), SearchAlgorithm()):
        search_alg.on_trial_pause("a")
        search_alg.on_trial_resume("a")
        assert search_alg.concurrency_limit is None
    assert searcher.told == []


def test_basic_variant_generator_counts_only_its_own_trials():
    search_alg = BasicVariantGenerator(max_concurrent=2)
    search_alg.add_configurations({"e": {"run": "virtual_class", "num_samples": 5}})
    first, second = search_alg.next_trial(), search_alg.next_trial()
    assert search_alg.next_trial() is None
    # Trials that a client has added do not count.
    search_alg.on_trial_pause("foreign")
    search_alg.on_trial_resume("foreign")
    assert search_alg.next_trial() is None
    search_alg.on_trial_pause(first.trial_id)
    assert search_alg.next_trial() is not None
    assert search_alg.next_trial() is None
    search_alg.on_trial_resume(first.trial_id)
    search_alg.on_trial_complete(second.trial_id)
    # Two of them run: the third, and the first again.
    assert search_alg.next_trial() is None
    search_alg.on_trial_complete(first.trial_id)
    assert search_alg.next_trial() is not None


def test_basic_variant_generator_keeps_paused_trials_when_it_is_restored():
    search_alg = BasicVariantGenerator(max_concurrent=1)
    search_alg.add_configurations({"e": {"run": "virtual_class", "num_samples": 3}})
    first = search_alg.next_trial()
    search_alg.on_trial_pause(first.trial_id)
    restored = BasicVariantGenerator(max_concurrent=1)
    restored.set_state(search_alg.get_state())
    restored.on_trial_resume(first.trial_id)
    assert restored.next_trial() is None
    restored.on_trial_complete(first.trial_id)
    assert restored.next_trial() is not None


def test_group_of_a_repeater_pauses_when_all_of_it_has():
    searcher = Told()
    repeater = Repeater(searcher, repeat=2)
    repeater.suggest("a")
    repeater.on_trial_pause("a")
    assert searcher.told == []  # the other one is still to come
    repeater.suggest("b")
    assert searcher.told == []
    repeater.on_trial_pause("b")
    assert searcher.told == [("pause", "a")]
    repeater.on_trial_resume("b")
    assert searcher.told[1:] == [("resume", "a")]
    repeater.on_trial_complete("b", {"score": 1.0})
    assert searcher.told[2:] == [("pause", "a")]
    repeater.on_trial_complete("a", {"score": 3.0})
    assert searcher.completed == {"a": {"score": 2.0}}


def test_repeater_restored_from_a_state_without_pauses():
    searcher = Told()
    repeater = Repeater(searcher, repeat=1)
    repeater.suggest("a")
    state = repeater.get_state()
    for name in ("_paused_results", "_paused_groups"):
        state.pop(name, None)
    restored = Repeater(searcher, repeat=1)
    restored.set_state(state)
    restored.on_trial_pause("a")
    assert searcher.told == [("pause", "a")]


@pytest.mark.fixes("result-without-metric")
def test_trial_that_is_stopped_before_it_reports_gives_the_searcher_no_result():
    # What is filled in automatically lacks the metric that the searcher reads.
    searcher = Suggestions()
    cluster = VirtualCluster(
        Experiment(
            ScriptedScheduler(),
            num_samples=2,
            search_alg=searcher,
            stop={"training_iteration": 1},
        ),
        Cluster(slots=1),
    ).start()
    cluster.run_until(lambda: any(t.status == "RUNNING" for t in cluster.trials))
    cluster.stop_trial(next(t for t in cluster.trials if t.status == "RUNNING"))
    cluster.run(max_events=100)
    results = sorted(searcher.completed.values(), key=bool)
    assert results[0] is None and "score" in results[1]


def test_tune_bohb_counts_paused_trials_apart(monkeypatch):
    from ray.tune.search.bohb import bohb_search

    monkeypatch.setattr(bohb_search, "BOHB", object())
    searcher = bohb_search.TuneBOHB(metric="score", mode="max", max_concurrent=2)
    assert searcher.concurrency_limit == 2
    searcher.running = {"a", "b"}
    searcher.on_trial_pause("a")
    assert (searcher.running, searcher.paused) == ({"b"}, {"a"})
    searcher.on_trial_resume("a")
    assert (searcher.running, searcher.paused) == ({"a", "b"}, set())
    # The former names still work.
    searcher.on_pause("b")
    assert searcher.paused == {"b"}
    searcher.on_unpause("b")
    assert searcher.paused == set()


def test_batch_of_hebo_is_over_when_the_rest_has_paused(monkeypatch):
    pandas = pytest.importorskip("pandas")
    from ray.tune.search.hebo import hebo_search

    class Optimizer:
        def suggest(self, n_suggestions):
            return pandas.DataFrame({"x": range(n_suggestions)})

    monkeypatch.setattr(hebo_search, "hebo", types.SimpleNamespace(), raising=False)
    searcher = hebo_search.HEBOSearch(metric="score", mode="max", max_concurrent=2)
    searcher._space = object()
    searcher._opt = Optimizer()
    assert searcher.concurrency_limit == 2
    assert searcher.suggest("a") and searcher.suggest("b")
    assert searcher.suggest("c") is None
    searcher.on_trial_pause("a")
    assert searcher.suggest("c") is None  # the batch is not over
    searcher.on_trial_complete("b")
    assert searcher.suggest("c")
    searcher.on_trial_resume("a")
    assert searcher.suggest("d") is None
    searcher.on_trial_complete("a")
    searcher.on_trial_complete("c")
    assert searcher.suggest("d") and searcher.suggest("e")


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
