"""Population based training: the schedule, the exploits, and what they load."""

import itertools
import os
import random
import sys
import warnings

import numpy as np
import pytest
from virtual_cluster import (
    Act,
    ClassTrainable,
    Cluster,
    Costs,
    Experiment,
    Faults,
    FunctionTrainable,
    MixedCurve,
    Options,
    VirtualCluster,
    actor_death,
    driver_death,
    slow_task,
    task_error,
)
from virtual_cluster.workloads.populations import population

from ray import tune
from ray.tune import CheckpointConfig
from ray.tune.callback import Callback
from ray.tune.schedulers import PopulationBasedTraining
from ray.tune.schedulers.pbt import _explore


def pbt(**kwargs):
    return PopulationBasedTraining(
        **{
            "time_attr": "training_iteration",
            "perturbation_interval": 1,
            "quantile_fraction": 0.5,
            "hyperparam_mutations": {"noise": [0, 1]},
            "log_config": False,
            **kwargs,
        }
    )


def rising(config, iteration):
    """The higher its ``x``, the better."""
    return {"score": config["x"] + iteration}


def falling(config, iteration):
    """What is trained on gets worse."""
    return {"score": config["x"] - iteration}


def configs(*xs, **more):
    return [{"x": x, "noise": 0, **more} for x in xs]


def run(scheduler, xs, *, iterations=4, max_events=600, curve=rising, **kwargs):
    kwargs.setdefault("trainable", ClassTrainable(curve))
    kwargs.setdefault("slots", len(xs))
    kwargs.setdefault("configs", configs(*xs))
    return VirtualCluster.of(
        scheduler, stop={"training_iteration": iterations}, **kwargs
    ).run(max_events=max_events)


# Synchronous mode: nobody waits for a trial that cannot come


@pytest.mark.fixes("ray#12122")
def test_sync_does_not_wait_for_a_failed_trial():
    record = run(
        pbt(synch=True), [0.0, 1.0, 2.0], faults=[task_error("train", trial=1, nth=2)]
    )
    assert sorted(record.statuses()) == ["ERROR", "TERMINATED", "TERMINATED"]


@pytest.mark.fixes("sync-pbt-done")
def test_sync_does_not_wait_for_a_trial_that_is_done():
    # The slowest one ends before it gets to the next round.
    record = run(
        pbt(synch=True, perturbation_interval=2),
        [0.0, 1.0, 2.0],
        iterations=6,
        trainable=ClassTrainable(rising, length=lambda c: 3 if c["x"] == 1.0 else None),
        costs=Costs(train=lambda c, i: 5.0 if c["x"] == 1.0 else 1.0),
    )
    assert record.statuses() == ["TERMINATED"] * 3


@pytest.mark.fixes("sync-pbt-stopped")
def test_sync_does_not_wait_for_a_trial_that_is_stopped():
    cluster = VirtualCluster(
        Experiment(
            pbt(synch=True),
            configs=configs(0.0, 1.0, 2.0),
            trainable=ClassTrainable(rising),
            stop={"training_iteration": 4},
        ),
        Cluster(
            slots=3, costs=Costs(train=lambda c, i: 100.0 if c["x"] == 1.0 else 1.0)
        ),
    )
    cluster.run_until(
        lambda: [t.status for t in cluster.trials].count("PAUSED") == 2, max_events=60
    )
    straggler = next(t for t in cluster.trials if t.status == "RUNNING")
    cluster.stop_trial(straggler)
    assert cluster.run(max_events=300).statuses() == ["TERMINATED"] * 3


@pytest.mark.fixes("sync-pbt-stride")
def test_sync_goes_on_when_reports_are_farther_apart_than_the_interval():
    def curve(config, iteration):
        return {"score": config["x"], "steps": 5 * iteration}

    record = run(
        pbt(synch=True, time_attr="steps", perturbation_interval=2),
        [0.0, 1.0],
        curve=curve,
    )
    assert record.statuses() == ["TERMINATED"] * 2
    assert record.scheduler._num_perturbations >= 2


@pytest.mark.fixes("ray#48616")
def test_sync_goes_on_after_a_restore(tmp_path):
    def cluster(**kwargs):
        return VirtualCluster.of(
            lambda: pbt(synch=True, perturbation_interval=2),
            configs=configs(0.0, 1.0, 2.0),
            trainable=ClassTrainable(rising),
            slots=3,
            stop={"training_iteration": 12},
            checkpoint_period=0,
            storage_path=str(tmp_path),
            **kwargs,
        )

    first = cluster()
    first.run_until(
        lambda: (
            min(
                (t.last_result.get("training_iteration", 0) for t in first.trials),
                default=0,
            )
            >= 6
        ),
        max_events=200,
    )
    first.restart_driver()
    record = first.run(max_events=400)
    assert record.statuses() == ["TERMINATED"] * 3
    assert record.iterations() == [12] * 3


@pytest.mark.parametrize("method", ["train", "save", "restore"])
@pytest.mark.fixes("sync-pbt-retry")
def test_sync_loses_no_trial_to_faults(method):
    for fault, nth, trial in itertools.product(
        [task_error, actor_death], [1, 2, 3], range(3)
    ):
        record = run(
            pbt(synch=True),
            [0.0, 1.0, 2.0],
            slots=2,
            faults=[fault(method, trial=trial, nth=nth)],
            max_failures=1,
            checkpoint_config=CheckpointConfig(num_to_keep=1),
        )
        assert record.statuses() == ["TERMINATED"] * 3
        assert record.iterations() == [4] * 3


def test_sync_compares_trials_at_the_same_time():
    record = run(pbt(synch=True, perturbation_interval=2), [0.0, 1.0, 2.0], slots=2)
    assert record.iterations() == [4] * 3
    assert sum(len(results) for results in record.results.values()) == 12


# Asynchronous mode: fair and bounded


def check_bounded(slots, curve, interval):
    for seed in range(3):
        record = run(
            pbt(perturbation_interval=interval),
            [0.0, 0.1, 0.2, 0.3, 0.4, 0.5],
            slots=slots,
            iterations=6,
            curve=curve,
            max_events=2000,
            seed=seed,
            costs=Costs(train=(0.5, 2.0)),
        )
        assert record.iterations() == [6] * 6
        # None is trained for more than thrice what it is due.
        assert max(len(results) for results in record.results.values()) <= 3 * 6


@pytest.mark.fixes("ray#11499")
@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("interval", [1, 2])
def test_async_trains_no_trial_for_ever(slots, interval):
    check_bounded(slots, falling, interval)


@pytest.mark.parametrize(
    "slots, curve",
    [
        (1, rising),
        (2, rising),
        (6, rising),
        pytest.param(6, falling, marks=pytest.mark.fixes("ray#11499")),
    ],
)
def test_async_work_is_bounded(slots, curve):
    check_bounded(slots, curve, interval=1)


def test_async_does_not_yield_to_a_trial_that_is_ahead():
    record = run(pbt(quantile_fraction=0), [0.0, 1.0, 2.0], slots=1, iterations=3)
    turns = [(trial, n) for _, trial, n, _ in record.decisions]
    # Each round, each trial once
    assert [n for _, n in turns] == sorted(n for _, n in turns)


# The checkpoint of a source


def on_storage(trial):
    names = os.listdir(trial.path) if os.path.isdir(trial.path) else []
    return [name for name in names if name.startswith("checkpoint_")]


class MostCheckpoints(Callback):
    """Counts the checkpoints that are on storage whenever one was saved."""

    def __init__(self):
        self.most = 0

    def on_trial_save(self, iteration, trials, trial, **info):
        self.most = max(self.most, len(on_storage(trial)))


@pytest.mark.fixes("ray#9036", "ray#8441")
@pytest.mark.parametrize("synch", [False, True])
def test_no_trial_is_lost_with_num_to_keep_1(synch):
    failed = 0
    for seed in range(6):
        record = run(
            pbt(synch=synch, quantile_fraction=0.34),
            [0.0, 1.0, 2.0, 3.0, 4.0, 5.0],
            slots=3,
            iterations=6,
            seed=seed,
            checkpoint_config=CheckpointConfig(num_to_keep=1, checkpoint_frequency=1),
            costs=Costs(train=(0.5, 1.5), start=3.0, restore=2.0),
            check=False,
        )
        failed += record.statuses().count("ERROR")
        if record.violation is not None:
            failed += 1
    assert failed == 0


@pytest.mark.fixes("ray#9036")
@pytest.mark.parametrize("synch", [False, True])
def test_checkpoint_of_a_source_trial_is_released(synch, tmp_path):
    for seed in range(6):
        counter = MostCheckpoints()
        record = run(
            pbt(synch=synch, quantile_fraction=0.34),
            [0.0, 1.0, 2.0],
            iterations=5,
            seed=seed,
            slots=2 + seed % 2,
            costs=Costs(train=(0.5, 1.5), save=(0.1, 1.0)),
            checkpoint_config=CheckpointConfig(num_to_keep=1, checkpoint_frequency=1),
            callbacks=lambda counter=counter: [counter],
            storage_path=str(tmp_path / str(seed)),
        )
        assert record.statuses() == ["TERMINATED"] * 3
        # The latest one, the one that is offered, and those that clones load.
        assert counter.most <= 4
        assert [len(on_storage(trial)) for trial in record.trials] == [1, 1, 1]


def test_clone_that_is_given_up_releases_the_checkpoint_of_its_source(tmp_path):
    # It fails before it has loaded what it clones. Nothing comes after.
    record = run(
        pbt(perturbation_interval=2),
        [0.0, 1.0],
        curve=rising,
        faults=[task_error("restore", trial=0, nth=1)],
        iterations=5,
        costs=Costs(train=lambda c, i: 1.4 if c["x"] == 0.0 else 1.0, save=1, stop=100),
        checkpoint_config=CheckpointConfig(num_to_keep=1),
        storage_path=str(tmp_path),
    )
    assert record.statuses() == ["ERROR", "TERMINATED"]
    assert len(on_storage(record.trials[1])) == 1


@pytest.mark.parametrize("faults", [[], [task_error("train", trial=2, nth=3)]])
def test_source_that_is_retried_still_offers_its_checkpoint(faults):
    record = VirtualCluster(
        Experiment(
            lambda: population(
                perturbation_interval=2,
                time_attr="training_iteration",
                quantile_fraction=0.34,
            ),
            param_space={"x": tune.grid_search([0.0, 0.5, 1.0])},
            trainable=ClassTrainable(lambda c, i: {"score": c["x"]}),
            stop={"training_iteration": 9},
            max_failures=2,
        ),
        Cluster(
            slots=3,
            costs=Costs(train=lambda c, i: 2.6 if c["x"] == 0.0 else 1.0, save=0.1),
        ),
        Faults(faults),
    ).run(max_events=500)
    assert record.scheduler._num_perturbations >= 3


def test_source_that_fails_releases_its_checkpoint(tmp_path):
    # It has been saved again since it was cloned, and ends before the clone does.
    record = run(
        pbt(synch=True),
        [0.0, 1.0],
        iterations=3,
        faults=[task_error("train", trial=1, nth=3), slow_task("train", 0, 3)],
        checkpoint_config=CheckpointConfig(num_to_keep=1),
        storage_path=str(tmp_path),
    )
    assert record.statuses() == ["TERMINATED", "ERROR"]
    assert [len(on_storage(trial)) for trial in record.trials] == [1, 1]


@pytest.mark.fixes("ray#9036")
@pytest.mark.parametrize("synch", [False, True])
def test_clone_that_fails_loads_the_same_checkpoint_again(synch):
    # The source saves with each result, and the clone fails before it has saved.
    for nth in range(2, 8):
        record = run(
            pbt(synch=synch, perturbation_interval=2),
            [0.0, 1.0, 2.0],
            iterations=8,
            checkpoint_config=CheckpointConfig(num_to_keep=1, checkpoint_frequency=1),
            faults=[
                task_error("train", trial=0, nth=nth),
                task_error("train", trial=0, nth=nth + 1),
                slow_task("train", trial=0, nth=nth, factor=20),
                task_error("restore", trial=0, nth=1),
                slow_task("restore", trial=0, nth=2, factor=50),
            ],
            max_failures=3,
        )
        assert record.iterations() == [8] * 3


def test_num_to_keep_needs_no_warning():
    # Stock warns once in a process, which makes this no test for it.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(pbt(), [0.0], checkpoint_config=CheckpointConfig(num_to_keep=1))
    assert not [w for w in caught if "num_to_keep" in str(w.message)]


# Exploits do not wait in the event loop


@pytest.mark.fixes("pbt-blocks")
def test_slow_save_of_a_source_stops_nobody():
    # While the best one saves for 60 s, the third one goes on.
    seen = []

    def watch(cluster, event):
        if event.kind == "train":
            seen.append((event.time, event.trial))

    record = run(
        pbt(perturbation_interval=2, quantile_fraction=0.34),
        [0.0, 1.0, 2.0],
        iterations=6,
        costs=Costs(
            train=lambda c, i: 1.2 if c["x"] == 0.0 else 1.0,
            save=lambda c, i: 60.0 if c["x"] == 2.0 else 0.1,
        ),
        on_event=watch,
    )
    assert record.statuses() == ["TERMINATED"] * 3
    during = {trial for time, trial in seen if 5.0 < time < 60.0}
    assert len(during) >= 1, "nothing was handled while a source was saving"


@pytest.mark.fixes("pbt-source-dies")
@pytest.mark.parametrize("fault", [task_error, actor_death])
def test_exploit_is_given_up_when_its_source_fails(fault):
    record = run(
        pbt(perturbation_interval=2, quantile_fraction=0.34),
        [0.0, 1.0, 2.0],
        iterations=6,
        costs=Costs(
            train=lambda c, i: 1.2 if c["x"] == 0.0 else 1.0,
            save=lambda c, i: 20.0 if c["x"] == 2.0 else 0.1,
        ),
        faults=[fault("save", trial=2, nth=1)],
        check=False,
    )
    assert record.violation is None
    assert record.statuses() == ["TERMINATED", "TERMINATED", "ERROR"]
    # Nobody was stopped for the 20 s
    times = sorted(time for time, trial, _, _ in record.decisions)
    assert max(b - a for a, b in itertools.pairwise(times)) < 10


@pytest.mark.fixes("checkpoint-overwritten")
def test_save_that_is_dropped_gives_no_checkpoint_to_clone():
    # What the source saves next would be in the same directory.
    VirtualCluster(
        Experiment(
            pbt(time_attr="t", perturbation_interval=2, require_attrs=False),
            num_samples=4,
            param_space={"x": tune.uniform(0, 1)},
            trainable=ClassTrainable(MixedCurve(step=3)),
            reuse_actors=True,
            stop={"training_iteration": 5},
        ),
        Cluster(
            slots=1,
            costs=Costs(start=(0.5, 2.0), save=0, restore=0.1, reset=1, stop=0.1),
        ),
        Faults(
            outside=[Act("event", 5, "drop_trial", 1), Act("event", 5, "drop_trial", 0)]
        ),
        Options(seed=5551),
    ).run(max_events=1000)


@pytest.mark.parametrize(
    "synch",
    [
        pytest.param(False, marks=pytest.mark.fixes("ray#58483")),
        pytest.param(True, marks=pytest.mark.fixes("sync-pbt-buffered")),
    ],
)
def test_results_that_come_after_an_exploit(synch):
    for seed in range(8):
        record = run(
            pbt(synch=synch),
            [0.0, 1.0, 2.0, 3.0],
            slots=2,
            iterations=9,
            seed=seed,
            buffer_length=4,
            env={"TUNE_RESULT_BUFFER_MIN_TIME_S": "4"},
            check=False,
        )
        assert record.violation is None
        assert record.statuses() == ["TERMINATED"] * 4


@pytest.mark.fixes("save-in-flight")
def test_save_for_an_exploit_is_the_one_in_flight():
    # The trainable reports a checkpoint with each result, which is saved anyway.
    record = run(
        pbt(quantile_fraction=0.34),
        [0.0, 1.0, 2.0],
        trainable=FunctionTrainable(rising, checkpoint_every=1),
        checkpoint_config=CheckpointConfig(num_to_keep=1),
        iterations=6,
    )
    assert record.iterations() == [6] * 3


def test_function_without_checkpoints_is_not_exploited():
    record = run(
        pbt(),
        [0.0, 1.0],
        trainable=FunctionTrainable(rising, checkpoint_every=0),
    )
    assert record.iterations() == [4, 4]
    assert record.scheduler._num_perturbations == 0


@pytest.mark.parametrize("is_saved", [False, True])
def test_exploit_that_is_called_from_outside(is_saved):
    # As a subclass might, and Ray's own tests do.
    cluster = VirtualCluster.of(
        pbt(),
        trainable=ClassTrainable(rising),
        configs=configs(0.0, 1.0),
        slots=2,
        costs=Costs(save=9),
    ).start()
    scheduler = cluster.scheduler

    def source():
        return scheduler._trial_state[cluster.trials[1]].last_checkpoint

    cluster.run_until(lambda: len(cluster.trials) == 2 and source() is not None)
    trial, better = cluster.trials
    if is_saved:
        # The save resolves between two events, before the scheduler looks at it.
        cluster.run_until(lambda: better.has_checkpoint())
    assert source().is_pending() or is_saved
    cluster.call(scheduler._exploit, cluster.controller, trial, better)
    assert trial.config["x"] == (1.0 if is_saved else 0.0)
    assert scheduler._num_perturbations == int(is_saved)


# Scores


def nan_for_the_first(config, iteration):
    return {"score": float("nan") if config["x"] == 0.0 else config["x"] + iteration}


@pytest.mark.fixes("pbt-nan")
@pytest.mark.parametrize("synch", [False, True])
@pytest.mark.parametrize("others", [[1.0, 2.0, 3.0], [1.0]])
def test_trial_that_has_diverged_is_replaced(synch, others):
    record = run(
        pbt(
            synch=synch,
            quantile_fraction=0.25,
            hyperparam_mutations={"x": [5.0]},
        ),
        [0.0, *others],
        curve=nan_for_the_first,
        configs=configs(0.0, *others),
    )
    by_id = sorted(record.trials, key=lambda t: t.trial_id)
    assert by_id[0].config["x"] == 5.0


@pytest.mark.parametrize("synch", [False, True])
def test_all_nan(synch):
    record = run(
        pbt(synch=synch), [0.0, 1.0], curve=lambda c, i: {"score": float("nan")}
    )
    assert record.iterations() == [4, 4]
    assert record.scheduler._num_perturbations == 0


@pytest.mark.parametrize("synch", [False, True])
def test_quantile_fraction_0_exploits_nothing(synch):
    record = run(pbt(synch=synch, quantile_fraction=0), [0.0, 1.0, 2.0], slots=2)
    assert record.iterations() == [4] * 3
    assert record.scheduler._num_perturbations == 0


@pytest.mark.parametrize("fraction", [-0.1, 0.6])
def test_quantile_fraction_is_validated(fraction):
    with pytest.raises(ValueError, match="between 0 and"):
        pbt(quantile_fraction=fraction)


@pytest.mark.fixes("pbt-nan-arguments")
def test_nan_arguments_are_refused():
    with pytest.raises(ValueError, match="quantile_fraction"):
        pbt(quantile_fraction=float("nan"))
    with pytest.raises(ValueError, match="perturbation_interval"):
        pbt(perturbation_interval=float("nan"))


@pytest.mark.parametrize(
    "synch", [False, pytest.param(True, marks=pytest.mark.fixes("sync-pbt-stride"))]
)
def test_result_without_time_or_metric_is_skipped(synch):
    def curve(config, iteration):
        score = {} if iteration == 2 else {"score": config["x"] + iteration}
        return {**score, "filler": 1}

    record = run(
        pbt(synch=synch, require_attrs=False),
        [0.0, 1.0],
        curve=curve,
        env={"TUNE_DISABLE_STRICT_METRIC_CHECKING": "1"},
    )
    assert record.statuses() == ["TERMINATED"] * 2


# The space


def explored(value, distribution, resample_probability=0.0, count=60):
    return [
        _explore(
            {"v": value}, {"v": distribution}, resample_probability, (1.2, 0.8), None
        )[0]["v"]
        for _ in range(count)
    ]


@pytest.mark.fixes("pbt-space")
@pytest.mark.parametrize(
    "domain, edges, allowed",
    [
        (tune.uniform(0.1, 0.3), (0.1, 0.3), None),
        (tune.loguniform(1e-4, 1e-1), (1e-4, 1e-1), None),
        (tune.randint(1, 10), (1, 9), range(1, 10)),
        (tune.lograndint(2, 10), (2, 9), range(2, 10)),
        (tune.quniform(0.0, 1.0, 0.25), (0.25, 1.0), [0, 0.25, 0.5, 0.75, 1.0]),
        (tune.qrandint(8, 64, 8), (8, 64), range(8, 65, 8)),
        (tune.choice([2, 30, 400]), (2, 400), [2, 30, 400]),
    ],
)
def test_perturbed_values_stay_in_the_domain(domain, edges, allowed):
    random.seed(0)
    for edge in edges:
        for value in explored(edge, domain):
            if allowed is not None:
                assert value in allowed
            else:
                assert domain.is_valid(value)


@pytest.mark.fixes("pbt-choice-of-strings")
def test_choice_of_strings():
    assert set(explored("a", tune.choice(["a", "b", "c"]))) == {"a", "b"}
    assert set(explored("x", tune.choice(["a", "b"]))) == {"a", "b"}


@pytest.mark.fixes("pbt-numpy")
def test_numpy_values():
    options = [np.array([1, 2]), np.array([3, 4]), np.array([5])]
    for value in explored(options[0].copy(), options):
        assert any(np.array_equal(value, option) for option in options)
    assert {type(v) for v in explored(np.int64(10), lambda: 10)} == {int}


@pytest.mark.fixes("pbt-list-of-dicts")
def test_options_that_are_dicts():
    options = [{"name": "sgd"}, {"name": "adam"}]
    record = run(
        pbt(hyperparam_mutations={"opt": tune.choice(options)}, synch=True),
        [0.0, 1.0],
        configs=None,
        param_space={"x": tune.grid_search([0.0, 1.0]), "opt": options[0]},
    )
    assert record.scheduler._num_perturbations >= 1
    assert all(trial.config["opt"] in options for trial in record.trials)


@pytest.mark.fixes("pbt-nested")
def test_nested_values_that_are_missing_are_sampled():
    record = run(
        pbt(hyperparam_mutations={"a": {"b": [1, 2], "c": {"d": [3]}}}, synch=True),
        [0.0, 1.0],
        configs=None,
        param_space={"x": tune.grid_search([0.0, 1.0]), "a": {"b": 1}},
    )
    assert record.statuses() == ["TERMINATED"] * 2
    assert all(trial.config["a"]["c"] == {"d": 3} for trial in record.trials)


@pytest.mark.fixes("pbt-mutations-validated")
@pytest.mark.parametrize(
    "mutations, error",
    [
        ({"a": {"b": "x"}}, TypeError),
        ({"a": {"b": tune.sample_from(lambda _: 1)}}, ValueError),
        ({"a": []}, ValueError),
    ],
)
def test_mutations_are_validated(mutations, error):
    with pytest.raises(error, match="a"):
        pbt(hyperparam_mutations=mutations)


# Retries


@pytest.mark.fixes("pbt-retry-tag")
def test_retried_trial_keeps_its_tag():
    # A clone is as bad as the one that it took the place of.
    record = run(
        pbt(custom_explore_fn=lambda config: {**config, "x": 0.0}),
        [0.0, 1.0],
        iterations=8,
        faults=[task_error("train", trial=0, nth=4)],
        max_failures=2,
    )
    assert record.scheduler._num_perturbations >= 3
    assert all(t.experiment_tag.count("@perturbed") <= 1 for t in record.trials)


# Save and restore


@pytest.mark.fixes("pbt-restore")
@pytest.mark.parametrize("synch", [False, True])
def test_save_and_restore(synch, tmp_path):
    cluster = VirtualCluster(
        Experiment(
            pbt(synch=synch, quantile_fraction=0.34),
            configs=configs(0.0, 1.0, 2.0),
            trainable=ClassTrainable(rising),
            stop={"training_iteration": 6},
        ),
        Cluster(slots=3),
    )
    cluster.run_until(
        lambda: (
            cluster.scheduler
            and cluster.scheduler._num_perturbations >= 1
            and any(
                t.last_result.get("training_iteration") == 3 for t in cluster.trials
            )
        ),
        max_events=200,
    )
    path = str(tmp_path / "state")
    cluster.scheduler.save(path)

    restored = pbt(synch=synch)
    restored.restore(path)
    assert restored.debug_string() == cluster.scheduler.debug_string()

    # Restored trials are others, with the same ids.
    class Controller:
        search_alg = None

        def get_trials(self):
            return trials

    restored.set_search_properties("score", "max")
    trials = []
    for trial in cluster.trials:
        state = trial.get_json_state()
        copy = type(trial).from_json_state(state[0], stub=True)
        copy.restore_run_metadata(state[1])
        trials.append(copy)
        restored.on_trial_add(Controller(), copy)
    before, after = cluster.scheduler._trial_state, restored._trial_state
    for old, new in zip(cluster.trials, trials, strict=True):
        assert after[new].last_score == before[old].last_score
        assert after[new].orig_tag == before[old].orig_tag
        assert after[new].last_train_time <= before[old].last_train_time


def check_driver_death(synch):
    for after in range(3, 36, 3):
        record = run(
            lambda: pbt(synch=synch, quantile_fraction=0.34),
            [0.0, 1.0, 2.0],
            iterations=6,
            slots=2,
            checkpoint_config=CheckpointConfig(num_to_keep=1),
            faults=[driver_death(after=after)],
        )
        assert record.iterations() == [6] * 3


@pytest.mark.fixes("ray#48616")
def test_driver_death_sync():
    check_driver_death(synch=True)


@pytest.mark.fixes("ray#9036")
def test_driver_death_async():
    check_driver_death(synch=False)


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
