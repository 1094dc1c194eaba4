"""The virtual cluster notices wrong promotions of ASHAv2, and no right ones."""

import math
import sys

import pytest
from virtual_cluster import (
    ClassTrainable,
    Cluster,
    Costs,
    Experiment,
    InvariantViolation,
    MixedCurve,
    Options,
    VirtualCluster,
    task_error,
)
from virtual_cluster.workloads.names import checkpoints, lengths

from ray.tune.experiment import Trial
from ray.tune.schedulers import ASHAv2
from ray.tune.schedulers._asha_ladder import TrialState

EIGHT = [{"x": x / 8} for x in (3, 1, 4, 0, 5, 2, 6, 7)]


def rising(config, iteration):
    return {"score": config["x"] + iteration / 100}


def run(scheduler=ASHAv2, **kwargs):
    arguments = {"max_t": 9, "grace_period": 1, "reduction_factor": 2}
    arguments.update(kwargs.pop("arguments", {}))
    kwargs.setdefault("trainable", rising)
    kwargs.setdefault("configs", EIGHT)
    return VirtualCluster.of(lambda: scheduler(**arguments), **kwargs).run(
        max_events=2000
    )


def went_past(record, iteration):
    return sum(reached > iteration for reached in record.iterations())


# What is right


@pytest.mark.parametrize("promotion", ["deferred", "eager"])
@pytest.mark.parametrize("missing", [None, math.nan])
def test_results_without_a_number_count(missing, promotion):
    def curve(config, iteration):
        low = config["x"] < 0.5
        return {"score": missing if low else config["x"] + iteration / 100}

    for seed in range(5):
        record = run(
            trainable=curve, arguments={"promotion": promotion}, seed=seed, slots=2
        )
        # As many as if all of the eight had a number.
        assert went_past(record, 1) == 4


@pytest.mark.parametrize("status", ["PENDING", "RUNNING"])
@pytest.mark.parametrize("promotion", ["deferred", "eager"])
def test_trial_is_paused_by_others_after_it_has_failed(promotion, status):
    # The save of its pause fails. It is tried again, and paused from outside on the
    # way, so that it is resumed without a promotion.
    def pause(cluster, event):
        if (event.kind, event.detail) != ("status", status) or paused:
            return
        trial = next(t for t in cluster.trials if t.trial_id == event.trial)
        if trial.num_failures and trial.status == status:
            paused.append(trial)
            cluster.pause_trial(trial, should_checkpoint=False)

    for seed in range(3):
        paused = []
        record = run(
            slots=3,
            arguments={"promotion": promotion},
            max_failures=1,
            faults=[task_error("save", trial=0)],
            configs=[{"x": x / 8} for x in (2, 1, 4, 0, 5, 3, 6, 7)],
            on_event=pause,
            seed=seed,
        )
        assert paused
        assert went_past(record, 1) >= 4


def test_promoted_trial_is_paused_by_others_before_it_starts():
    def pause(cluster, event):
        # Once each, as soon as it was promoted.
        trial = next(t for t in cluster.trials if t.trial_id == event.trial)
        if (event.kind, event.detail) != ("status", "PENDING") or trial in paused:
            return
        if trial.last_result.get("training_iteration"):
            paused.append(trial)
            cluster.pause_trial(trial)

    for seed in range(10):
        paused = []
        run(on_event=lambda c, e: e.trial and pause(c, e), seed=seed, slots=3)
        assert paused


def test_result_that_ends_its_trial_waits_for_a_save():
    VirtualCluster(
        Experiment(
            lambda: ASHAv2(
                max_t=9, grace_period=1, reduction_factor=3, promotion="deferred"
            ),
            num_samples=5,
            trainable=ClassTrainable(MixedCurve(), length=lengths(0, 5, 1)),
            checkpoint_config=checkpoints(frequency=1, keep=2),
        ),
        Cluster(
            slots=4,
            costs=Costs(start=0, train=1, save=0, restore=0.1, reset=0.1, stop=0),
        ),
        options=Options(seed=147),
    ).run(max_events=2000)


@pytest.mark.parametrize("promotion", ["deferred", "eager"])
def test_trials_end_in_every_way(promotion):
    for seed in range(20):
        run(
            trainable=ClassTrainable(rising, length=lengths(1, 2, 0)),
            stop={"training_iteration": 4},
            arguments={"promotion": promotion},
            checkpoint_config=checkpoints(frequency=1),
            costs=Costs(save=(0.1, 3.0), train=(0.5, 2.0)),
            seed=seed,
        )


# What is wrong


def caught(scheduler, **kwargs):
    with pytest.raises(InvariantViolation) as info:
        run(scheduler, **kwargs)
    assert info.value.rule == "promotion"
    return info.value.what


@pytest.mark.parametrize("promotion", ["deferred", "eager"])
@pytest.mark.parametrize("slots", [2, 8])
def test_notices_that_the_worst_is_promoted(promotion, slots):
    class Worst(ASHAv2):
        def _stop_unpromotable(self, tune_controller):
            pass  # Else none that is worse would be left.

        def choose_trial_to_run(self, tune_controller):
            trial = super().choose_trial_to_run(tune_controller)
            if trial is None or trial.status != Trial.PAUSED:
                return trial
            paused = [
                other
                for other in tune_controller.get_trials()
                if other.status == Trial.PAUSED
                and other.last_result["training_iteration"]
                == trial.last_result["training_iteration"]
            ]
            return min(paused, key=lambda other: other.config["x"])

    what = caught(Worst, slots=slots, arguments={"promotion": promotion, "max_t": 3})
    assert "milestone 1" in what


def generous(rung):
    """Lets a rung give one place more than it has."""
    places_of = rung.places_of
    rung.places_of = lambda count: places_of(count) + 1


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("promotion", ["deferred", "eager"])
def test_notices_a_place_too_many(promotion, slots):
    class Generous(ASHAv2):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            generous(self._ladder.brackets[0].rungs[0])

    what = caught(Generous, slots=slots, arguments={"promotion": promotion})
    assert "milestone 1 as number" in what


@pytest.mark.parametrize("slots", [1, 2])
def test_notices_a_trial_that_goes_on_in_place(slots):
    class Careless(ASHAv2):
        def _would_run_next(self, tune_controller, trial_id):
            return True

    assert "milestone 1 as number" in caught(Careless, slots=slots)


def test_notices_a_promotion_without_a_number():
    def curve(config, iteration):
        return {"score": None if config["x"] < 0.7 else config["x"]}

    class Blind(ASHAv2):
        def _read(self, trial, result, warn=True):
            seen = super()._read(trial, result, warn)
            # It takes what is missing for the best.
            return seen and (seen[0], 9.0 if seen[1] is None else seen[1])

    assert "no number" in caught(Blind, slots=2, trainable=curve)
    everyone = [{"x": x / 100} for x in range(8)]
    assert "no number" in caught(Blind, slots=1, trainable=curve, configs=everyone)


@pytest.mark.parametrize("slots", [1, 2])
def test_notices_a_place_of_a_trial_that_has_ended_by_itself(slots):
    def length(config):
        return 1 if config["x"] > 0.5 else None

    class Forgetful(ASHAv2):
        def on_trial_complete(self, tune_controller, trial, result):
            self._ladder.record(trial.trial_id, *self._read(trial, result))
            self._end(trial.trial_id)

    caught(Forgetful, slots=slots, trainable=ClassTrainable(rising, length=length))


def test_notices_a_second_promotion():
    class Twice(ASHAv2):
        def on_trial_result(self, tune_controller, trial, result):
            decision = super().on_trial_result(tune_controller, trial, result)
            if decision == "CONTINUE" and result["training_iteration"] == 3:
                self._ladder.move(trial.trial_id, TrialState.SAVING)
                return "PAUSE"
            return decision

        def choose_trial_to_run(self, tune_controller):
            for trial in tune_controller.get_trials():
                iteration = trial.last_result.get("training_iteration")
                if trial.status == Trial.PAUSED and iteration == 3:
                    return trial
            return super().choose_trial_to_run(tune_controller)

    what = caught(Twice, slots=3, arguments={"reduction_factor": 2})
    assert "for the second time" in what


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
