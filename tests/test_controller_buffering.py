"""Results are buffered as documented."""

import pytest
from virtual_cluster import (
    Cluster,
    Costs,
    Experiment,
    FunctionTrainable,
    ScriptedScheduler,
    VirtualCluster,
)

from ray.tune import CheckpointConfig


def _args(monkeypatch, length, min_time_s=None, num_running=1, **config):
    """What `train_buffered` is called with for one of several running trials."""
    monkeypatch.setenv("TUNE_RESULT_BUFFER_LENGTH", str(length))
    env = {} if min_time_s is None else {"TUNE_RESULT_BUFFER_MIN_TIME_S": min_time_s}
    cluster = VirtualCluster(
        Experiment(
            num_samples=num_running,
            buffer_length=length,
            env=env,
            checkpoint_config=CheckpointConfig(**config),
        ),
        Cluster(slots=num_running),
    ).start()
    calls = []
    schedule = cluster.controller._schedule_trial_task

    def record(trial, method_name, args=None, **kwargs):
        if method_name.startswith("train"):
            calls.append((method_name, args))
        return schedule(trial=trial, method_name=method_name, args=args, **kwargs)

    cluster.controller._schedule_trial_task = record
    cluster.run_until(
        lambda: [t.status for t in cluster.trials].count("RUNNING") == num_running
    )
    return calls[-1]


@pytest.mark.fixes("buffer-arguments")
def test_time_comes_first_and_length_second(monkeypatch):
    # As the signature of `Trainable.train_buffered` has it.
    assert _args(monkeypatch, 4, "2.5") == ("train_buffered", (2.5, 4))


@pytest.mark.fixes("buffer-arguments")
@pytest.mark.parametrize("num_running", [1, 3, 20])
def test_time_is_a_tenth_of_a_second_for_each_running_trial(monkeypatch, num_running):
    method, (time_s, length) = _args(monkeypatch, 1000, num_running=num_running)
    assert time_s == pytest.approx(num_running / 10)
    assert length == 1000


@pytest.mark.fixes("buffer-arguments")
def test_batch_ends_where_a_checkpoint_is_due(monkeypatch):
    _, (_, length) = _args(monkeypatch, 10, "1", checkpoint_frequency=3)
    assert length == 3


def test_nothing_is_buffered_with_a_checkpoint_at_the_end(monkeypatch):
    method, _ = _args(monkeypatch, 10, "1", checkpoint_at_end=True)
    assert method == "train"


@pytest.mark.fixes("buffer-arguments")
@pytest.mark.parametrize("length, most", [(4, 4), (7, 7)])
def test_batches_are_as_long_as_asked_for(length, most):
    batches = []
    cluster = VirtualCluster(
        Experiment(
            ScriptedScheduler(),
            num_samples=1,
            trainable=FunctionTrainable(checkpoint_every=0),
            buffer_length=length,
            stop={"training_iteration": 28},
        ),
        Cluster(costs=Costs(train=0.01)),
    ).start()
    process = cluster.controller._process_trial_results

    def record(trial, results):
        batches.append(len(results))
        return process(trial, results)

    cluster.controller._process_trial_results = record
    cluster.run(max_events=200)
    assert max(batches) == most
    assert sum(batches) == 28


if __name__ == "__main__":
    import sys

    sys.exit(pytest.main(["-v", __file__]))
