"""The end of a run: it can be taken up where it was cut, and what is said is true."""

import sys
import threading
import types
from collections import Counter

import pyarrow.fs
import pytest
from test_controller_resume import PAUSING
from virtual_cluster import (
    ScriptedScheduler,
    VirtualCluster,
    hook_error,
    storage_full,
    task_error,
)

from ray.tune import ExperimentAnalysis, ResultGrid, ResumeConfig
from ray.tune.experimental.output import AirVerbosity, TuneTerminalReporter
from ray.tune.logger import JsonLoggerCallback
from ray.tune.progress_reporter import TrialProgressCallback
from ray.tune.schedulers import FIFOScheduler
from ray.tune.stopper import (
    CombinedStopper,
    FunctionStopper,
    MaximumIterationStopper,
    Stopper,
    TimeoutStopper,
)
from ray.tune.utils.log import set_verbosity

NUM_SAMPLES = 8


class _StopAll(Stopper):
    """Ends the run after some results."""

    def __init__(self, after):
        self.after, self.results = after, 0

    def __call__(self, trial_id, result):
        self.results += 1
        return result["training_iteration"] >= 9

    def stop_all(self):
        return self.results >= self.after


# How a run is cut after about five results, and how it is meant to be restored.
WAYS = {
    "fail_fast": {"fail_fast": True, "faults": [task_error("train", trial=1, nth=1)]},
    "raise": {"fail_fast": "raise", "faults": [task_error("train", trial=1, nth=1)]},
    "time budget": {"time_budget_s": 6},
    "stopper": {"stop": _StopAll(5)},
    "request": {},
}


def _cluster(make_scheduler, storage_path, before=None, **kwargs):
    if before is not None:
        kwargs.update(
            resume=ResumeConfig(errored=ResumeConfig.ResumeType.RESUME),
            # It cannot know what was recorded before, and takes a bracket that the
            # search algorithm may yet fill for one that waits in vain.
            ignore=["promotion", "stranded"],
        )
    kwargs = {
        "num_samples": NUM_SAMPLES,
        "slots": 2,
        "stop": {"training_iteration": 9},
        "max_pending": 3,
        **kwargs,
    }
    cluster = VirtualCluster.of(
        make_scheduler, storage_path=str(storage_path), checkpoint_period=0, **kwargs
    )
    if before is not None:
        cluster.runtime.contents.update(before.runtime.contents)
    return cluster


def _cut(make_scheduler, storage_path, way, **kwargs):
    """Runs an experiment until it is cut."""
    cluster = _cluster(make_scheduler, storage_path, **WAYS[way], **kwargs).start()
    if way == "raise":
        with pytest.raises(Exception, match="fault in train"):
            cluster.run(max_events=500)
        cluster.call(cluster.controller.cleanup)
        return cluster
    if way == "request":
        cluster.run_until(lambda: cluster.monitor.number >= 9)
        cluster.controller.request_stop_experiment()
    cluster.run(max_events=500)
    return cluster


def _cases():
    for name in ("fifo", *PAUSING):
        for way in WAYS:
            # Stock has no ASHAv2; the last snapshot of `raise` is that of every event.
            on_stock = name not in ("asha_v2", "resource changing") and way != "raise"
            fixes = pytest.mark.fixes("stopped-run-restored")
            yield pytest.param(name, way, marks=fixes if on_stock else ())


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name, way", _cases())
def test_run_that_was_cut_is_taken_up(name, way, tmp_path):
    make_scheduler = {"fifo": FIFOScheduler, **PAUSING}[name]
    first = _cut(make_scheduler, tmp_path, way)
    assert max(first.record().iterations()) < 9
    unfinished = [trial for trial in first.trials if trial.status != "ERROR"]
    if way != "raise":
        assert {trial.status for trial in unfinished} == {"TERMINATED"}
    kwargs = {"stop": _StopAll(sys.maxsize)} if way == "stopper" else {}
    second = _cluster(make_scheduler, tmp_path, first, **kwargs).start()
    statuses = Counter(trial.status for trial in second.trials)
    assert statuses["PENDING"] + statuses["PAUSED"] == len(first.trials)
    assert all(not trial.last_result.get("done") for trial in second.trials)
    record = second.run(max_events=2000)
    assert record.statuses() == ["TERMINATED"] * NUM_SAMPLES
    assert min(record.iterations()) >= 1
    assert max(record.iterations()) == 9
    if name == "fifo" or name.endswith("pbt"):
        assert record.iterations() == [9] * NUM_SAMPLES


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", PAUSING)
def test_paused_trials_stay_paused_when_the_run_is_cut(name, tmp_path):
    first = _cluster(PAUSING[name], tmp_path).start()
    first.run_until(
        lambda: [trial.status for trial in first.trials].count("PAUSED") >= 1, 500
    )
    before = {trial.trial_id: trial.status for trial in first.trials}
    seen = first.scheduler.debug_string()
    first.controller.request_stop_experiment()
    first.call(first.controller._stop_experiment_if_needed)
    assert {trial.status for trial in first.trials} == {"TERMINATED"}
    first.call(first.controller.checkpoint, force=True, wait=True)
    second = _cluster(PAUSING[name], tmp_path, first).start()
    after = {trial.trial_id: trial.status for trial in second.trials}
    assert after == {k: v.replace("RUNNING", "PENDING") for k, v in before.items()}
    assert second.scheduler.debug_string().replace("PENDING", "RUNNING").count(
        "PAUSED"
    ) == seen.count("PAUSED")


@pytest.mark.timeout(60)
def test_trials_that_were_finished_when_the_run_was_cut_stay_so(tmp_path):
    first = _cluster(FIFOScheduler, tmp_path, stop={"training_iteration": 2}).start()
    first.run_until(lambda: first.trials and first.trials[0].is_finished())
    first.controller.request_stop_experiment()
    first.run(max_events=50)
    ended = {
        t.trial_id
        for t in first.trials
        if t.last_result.get("training_iteration", 0) == 2
    }
    assert ended
    second = _cluster(
        FIFOScheduler, tmp_path, first, stop={"training_iteration": 2}
    ).start()
    assert {t.trial_id for t in second.trials if t.is_finished()} == ended
    # What is cut again can be taken up again.
    second.run_until(lambda: len([t for t in second.trials if t.is_finished()]) == 4)
    second.controller.request_stop_experiment()
    second.run(max_events=50)
    third = _cluster(FIFOScheduler, tmp_path, second, stop={"training_iteration": 2})
    record = third.run(max_events=100)
    assert record.statuses() == ["TERMINATED"] * NUM_SAMPLES
    assert record.iterations() == [2] * NUM_SAMPLES


@pytest.mark.fixes("fail-fast-raise-state")
@pytest.mark.timeout(20)
def test_trial_that_raises_is_an_error_of_the_stored_run(tmp_path):
    first = _cut(FIFOScheduler, tmp_path, "raise")
    second = VirtualCluster.of(
        FIFOScheduler, num_samples=8, storage_path=str(tmp_path), resume=True
    ).start()
    statuses = Counter(trial.status for trial in second.trials)
    assert statuses == {"ERROR": 1, "PENDING": len(first.trials) - 1}


_RED = pytest.mark.fixes("stopped-run-restored")


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "before, after, left",
    [
        pytest.param(6, 6, 6, id="used up", marks=_RED),
        pytest.param(6, 20, 20, id="used up, a greater one", marks=_RED),
        pytest.param(100, 100, 97, id="the same"),
        pytest.param(100, 30, 30, id="another one", marks=_RED),
    ],
)
def test_time_budget_of_a_restored_run(before, after, left, tmp_path):
    first = _cluster(FIFOScheduler, tmp_path, time_budget_s=before).start()
    if before == 6:
        first.run(max_events=100)
        assert first.clock.now < 9
    else:
        first.run_until(lambda: first.clock.now >= 3)
        first.call(first.controller.checkpoint, force=True, wait=True)
    second = _cluster(FIFOScheduler, tmp_path, first, time_budget_s=after).start()
    timeouts = [second.controller._stopper]
    while isinstance(timeouts[0], CombinedStopper):
        timeouts = [*timeouts[0]._stoppers, *timeouts[1:]]
    [timeout] = [part for part in timeouts if isinstance(part, TimeoutStopper)]
    assert timeout._budget == pytest.approx(left, abs=1.5)
    assert second.run(max_events=500).statuses().count("TERMINATED") > 2


@pytest.mark.timeout(20)
def test_stopper_that_is_given_anew_keeps_what_it_knows(tmp_path):
    first = _cluster(FIFOScheduler, tmp_path, stop=MaximumIterationStopper(4)).start()
    first.run_until(lambda: first.monitor.number >= 8)
    first.call(first.controller.checkpoint, force=True, wait=True)
    known = dict(first.controller._stopper._iter)
    assert known
    for limit, kept in ((4, known), (5, {})):
        stop = MaximumIterationStopper(limit)
        second = _cluster(FIFOScheduler, tmp_path, first, stop=stop).start()
        assert dict(second.controller._stopper._iter) == kept


@pytest.mark.fixes("resumed-arguments")
@pytest.mark.timeout(20)
def test_what_the_resumed_run_is_given_counts(tmp_path):
    first = _cut(FIFOScheduler, tmp_path, "fail_fast", reuse_actors=True)
    second = _cluster(FIFOScheduler, tmp_path, first, fail_fast=False, buffer_length=2)
    controller = second.start().controller
    assert (controller._fail_fast, controller._reuse_actors) == (False, False)
    assert controller._buffer_length == 2
    third = _cluster(
        FIFOScheduler, tmp_path, first, faults=[hook_error("on_trial_result", 5)]
    )
    assert third.run(max_events=500).statuses().count("TERMINATED") == NUM_SAMPLES


# What is said


def _callbacks(engine):
    if engine == "old":
        set_verbosity(3)
        return lambda: [TrialProgressCallback(metric="score")]

    class Reporter(TuneTerminalReporter):
        def setup(self, **spec):
            super().setup(start_time=0, total_samples=NUM_SAMPLES)

    return lambda: [Reporter(AirVerbosity.VERBOSE)]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("engine", ["old", "new"])
def test_nothing_is_said_of_the_end_of_trials_that_never_started(
    engine, tmp_path, capsys
):
    first = _cluster(
        FIFOScheduler,
        tmp_path,
        time_budget_s=6,
        max_pending=100,
        callbacks=_callbacks(engine),
    )
    first.run(max_events=100)
    out = capsys.readouterr().out
    started = [trial for trial in first.trials if trial.run_metadata.start_time]
    assert 2 <= len(started) < NUM_SAMPLES == len(first.trials)
    for trial in first.trials:
        name = str(trial) if engine == "old" else trial.trial_id
        lines = [line for line in out.splitlines() if name in line]
        ended = [line for line in lines if "completed" in line or "ended" in line]
        assert bool(ended) == (trial in started), (ended, trial)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("engine", ["old", "new"])
def test_trial_that_has_reported_nothing_has_no_last_result(engine, tmp_path, capsys):
    first = _cluster(
        FIFOScheduler, tmp_path, slots=1, callbacks=_callbacks(engine)
    ).start()
    first.run_until(lambda: first.trials and first.trials[0].status == "RUNNING")
    first.controller.request_stop_experiment()
    first.call(first.controller._stop_experiment_if_needed)
    out = capsys.readouterr().out
    assert out.count("ended before it reported a result") == 1
    assert "completed" not in out


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "kwargs, reason",
    [
        ({"time_budget_s": 6}, "the time budget of 6 s"),
        ({"time_budget_s": 6, "stop": _StopAll(100)}, "the time budget of 6 s"),
        ({"stop": _StopAll(5)}, "the stopper `_StopAll`"),
        (WAYS["fail_fast"], "the failure of a trial (`fail_fast`)"),
    ],
)
def test_trials_that_were_never_seen_are_counted(kwargs, reason, tmp_path):
    cluster = _cluster(FIFOScheduler, tmp_path, **kwargs)
    cluster.run(max_events=100)
    said = cluster.controller.describe_what_is_left()
    waiting = sum(not trial.run_metadata.start_time for trial in cluster.trials)
    stopped = len(cluster.controller._stopped_run.statuses) - waiting
    undrawn = NUM_SAMPLES - len(cluster.trials)
    assert waiting and undrawn and stopped
    assert said.startswith(f"The run was ended by {reason}: ")
    assert f"{len(cluster.trials) - waiting} of 8 trial(s) have started" in said
    assert f"{stopped} trial(s) were stopped before their end" in said
    assert f"{waiting} trial(s) were pending and have never started" in said
    assert f"{undrawn} trial(s) were never suggested" in said


@pytest.mark.timeout(20)
def test_nothing_is_said_of_a_run_that_is_complete(tmp_path):
    cluster = _cluster(FIFOScheduler, tmp_path)
    cluster.run(max_events=500)
    assert cluster.controller.describe_what_is_left() is None


def _say_what_is_left(started, total_samples):
    from ray.tune.execution.stopped_run import StoppedRun, describe_what_is_left

    trials = [
        types.SimpleNamespace(trial_id=str(number), has_started=has_started)
        for number, has_started in enumerate(started)
    ]
    statuses = {trial.trial_id: "PENDING" for trial in trials}
    return describe_what_is_left(
        trials, total_samples, StoppedRun("a request", statuses)
    )


def test_endless_search_has_no_number_of_trials():
    said = _say_what_is_left([False] * 3, sys.maxsize)
    assert "0 trial(s) have started; 3 trial(s) were pending" in said
    assert "suggested" not in said


def test_trials_that_have_all_started_are_counted_as_stopped():
    said = _say_what_is_left([True] * 3, 3)
    assert "3 of 3 trial(s) have started; 3 trial(s) were stopped before" in said
    assert "never" not in said


def test_stoppers_are_told_apart_by_what_they_were_given():
    from ray.tune.execution.stopped_run import fingerprint_stopper

    def made(seconds=5):
        return CombinedStopper(MaximumIterationStopper(3), TimeoutStopper(seconds))

    assert fingerprint_stopper(made()) == fingerprint_stopper(made())
    assert fingerprint_stopper(made()) != fingerprint_stopper(made(6))
    assert fingerprint_stopper(made()) != fingerprint_stopper(TimeoutStopper(5))
    lock = threading.Lock()  # It cannot be pickled.
    assert fingerprint_stopper(FunctionStopper(lambda *_: lock)) is None


def _results(cluster):
    path = cluster.controller.experiment_path
    fs = pyarrow.fs.LocalFileSystem()
    with cluster.active():
        return ResultGrid(
            ExperimentAnalysis(path, trials=cluster.trials, storage_filesystem=fs)
        )


@pytest.mark.fixes("done-while-paused")
@pytest.mark.timeout(20)
def test_trial_that_was_stopped_while_paused_is_done_in_the_data_frame(tmp_path):
    def decide(controller, trial, result):
        if trial.trial_id.endswith("0"):
            return "PAUSE"
        for other in controller.get_trials():
            if other.status == "PAUSED":
                controller.stop_trial(other)
        return "CONTINUE"

    cluster = _cluster(
        ScriptedScheduler(decide, lambda controller: None),
        tmp_path,
        num_samples=2,
        stop={"training_iteration": 3},
        callbacks=lambda: [JsonLoggerCallback()],
    )
    cluster.run(max_events=100)
    frame = _results(cluster).get_dataframe()
    assert list(frame["done"]) == [True, True]
    assert sorted(frame["training_iteration"]) == [1, 3]
    # Also where the results are loaded from the storage.
    loaded = ExperimentAnalysis(
        cluster.controller.experiment_path,
        storage_filesystem=pyarrow.fs.LocalFileSystem(),
    )
    assert list(loaded.dataframe()["done"]) == [True, True]


@pytest.mark.fixes("error-not-stored")
@pytest.mark.timeout(20)
@pytest.mark.parametrize("where", ["storage", "driver"])
def test_errors_are_shown_although_they_could_not_be_written(
    where, tmp_path, monkeypatch
):
    cluster = _cluster(
        FIFOScheduler,
        tmp_path,
        num_samples=2,
        faults=[task_error("train", trial=1, nth=3), storage_full(0, duration=10_000)],
    ).start()
    if where == "driver":
        write = open

        def full(path, *args, **kwargs):
            if str(path).endswith(("error.txt", "error.pkl")):
                raise OSError(28, "No space left on device")
            return write(path, *args, **kwargs)

        from ray.tune.experiment import trial as module

        monkeypatch.setattr(module, "open", full, raising=False)
    assert cluster.run(max_events=200).statuses() == ["TERMINATED", "ERROR"]
    results = _results(cluster)
    assert results.num_errors == 1
    [error] = results.errors
    assert "fault in train" in str(error)


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
