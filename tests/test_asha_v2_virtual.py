"""ASHAv2 under the real controller, on the virtual cluster."""

import functools
import sys

import pytest
from virtual_cluster import (
    ClassTrainable,
    Cluster,
    Costs,
    Experiment,
    Faults,
    FunctionTrainable,
    Options,
    VirtualCluster,
    driver_death,
)
from virtual_cluster.explore.draw import draw

from ray.tune.schedulers import ASHAv2, ResourceChangingScheduler


def rising(config, iteration):
    return {"score": config["x"] + iteration / 100}


def failing(config, iteration):
    if config["x"] == 0.4:
        raise RuntimeError("It fails in its first epoch, whenever it is tried.")
    return rising(config, iteration)


NINE = [{"x": x / 10} for x in range(9)]


@pytest.mark.parametrize("max_failures", [0, 2])
@pytest.mark.parametrize("kind", [ClassTrainable, FunctionTrainable])
@pytest.mark.parametrize("reuse_actors", [True, False])
@pytest.mark.parametrize("slots", [1, 2, 9])
def test_one_of_nine_fails_in_its_first_epoch(kind, reuse_actors, max_failures, slots):
    record = VirtualCluster(
        Experiment(
            ASHAv2(max_t=9, grace_period=1, reduction_factor=3),
            configs=NINE,
            trainable=kind(failing),
            max_failures=max_failures,
            reuse_actors=reuse_actors,
        ),
        Cluster(slots=slots),
    ).run(max_events=2000)
    assert record.statuses().count("TERMINATED") == 8
    # A trial that is retried goes to the end of the list.
    by_x = {trial.config["x"]: trial for trial in record.trials}
    assert by_x[0.4].status == "ERROR"
    assert by_x[0.4].num_failures == max_failures + 1
    assert by_x[0.8].last_result["training_iteration"] == 9


@pytest.mark.parametrize("slots", [1, 3])
def test_deferred_with_one_slot_sees_everyone_first(slots):
    record = VirtualCluster(
        Experiment(
            ASHAv2(max_t=9, grace_period=1, reduction_factor=3),
            configs=NINE,
            trainable=ClassTrainable(rising),
        ),
        Cluster(slots=slots, costs=Costs(train=1, save=0.1)),
    ).run(max_events=2000)
    assert sorted(record.iterations()) == [1] * 6 + [3, 3, 9]
    if slots == 1:
        assert [iteration for _, _, iteration, _ in record.decisions[:9]] == [1] * 9


@pytest.mark.parametrize("seed", range(40))
def test_scenario(seed):
    draw(seed, "asha_v2").cluster(quiet=True).run(max_events=3000)


@pytest.mark.parametrize("after", [5, 12, 20, 30])
@pytest.mark.parametrize("stale", [0, 3])
def test_goes_on_after_the_driver_died(after, stale):
    def run(faults):
        return VirtualCluster(
            Experiment(
                functools.partial(ASHAv2, max_t=9, grace_period=1, reduction_factor=3),
                configs=NINE,
                trainable=ClassTrainable(rising),
            ),
            Cluster(slots=1),
            Faults(faults),
        ).run(max_events=2000)

    record = run([driver_death(after=after, stale=stale)])
    assert record.statuses() == ["TERMINATED"] * 9
    assert sorted(record.iterations()) == sorted(run([]).iterations())


@pytest.mark.parametrize("promotion", ["deferred", "eager"])
@pytest.mark.parametrize("seed", range(5))
def test_resources_change_under_it(promotion, seed):
    def reallocate(controller, trial, result, scheduler):
        from ray.tune import PlacementGroupFactory

        more = 2 if result["training_iteration"] >= 2 else 1
        return PlacementGroupFactory([{"CPU": more}])

    record = VirtualCluster(
        Experiment(
            lambda: ResourceChangingScheduler(
                ASHAv2(
                    max_t=9,
                    grace_period=1,
                    reduction_factor=3,
                    promotion=promotion,
                    metric="score",
                    mode="max",
                ),
                reallocate,
            ),
            metric=None,
            mode=None,
            configs=NINE,
            trainable=ClassTrainable(rising),
            resources={"CPU": 1},
        ),
        Cluster(slots=3),
        options=Options(seed=seed),
    ).run(max_events=3000)
    assert record.statuses() == ["TERMINATED"] * 9
    assert max(record.iterations()) == 9


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
