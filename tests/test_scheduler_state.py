"""The scheduler's state is saved and restored with the experiment."""

import pickle

import pytest
from virtual_cluster import (
    Cluster,
    Experiment,
    Faults,
    Options,
    ScriptedScheduler,
    VirtualCluster,
    driver_death,
    task_error,
)

from ray.tune import ResumeConfig
from ray.tune.schedulers import ASHAScheduler, MedianStoppingRule


class _Remembering(ScriptedScheduler):
    """Pauses every trial once, resumes it when all were, and remembers that."""

    def __init__(self, savable=True):
        super().__init__()
        self.seen, self.savable = {}, savable

    def on_trial_result(self, tune_controller, trial, result):
        if trial.trial_id not in self.seen:
            self.seen[trial.trial_id] = result["training_iteration"]
            return "PAUSE"
        return "CONTINUE"

    def choose_trial_to_run(self, tune_controller):
        if len(self.seen) < 3:
            return None
        for trial in tune_controller.get_trials():
            if trial.status == "PAUSED":
                return trial
        return None

    def save(self, checkpoint_path):
        if not self.savable:
            raise NotImplementedError
        with open(checkpoint_path, "wb") as state_file:
            pickle.dump(self.seen, state_file)

    def restore(self, checkpoint_path):
        with open(checkpoint_path, "rb") as state_file:
            self.seen = pickle.load(state_file)


def _cluster(scheduler, **kwargs):
    kwargs = {"num_samples": 3, "slots": 1, "stop": {"training_iteration": 3}, **kwargs}
    return VirtualCluster.of(scheduler, checkpoint_period=0, **kwargs)


@pytest.mark.fixes("ray#39900")
def test_paused_trials_are_paused_again_and_the_scheduler_goes_on():
    cluster = _cluster(_Remembering).start()
    cluster.run_until(
        lambda: [trial.status for trial in cluster.trials].count("PAUSED") == 2
    )
    seen = dict(cluster.scheduler.seen)
    cluster.restart_driver()
    assert cluster.scheduler.seen == seen
    assert [trial.status for trial in cluster.trials].count("PAUSED") == 2
    record = cluster.run(max_events=100)
    assert record.statuses() == ["TERMINATED"] * 3


@pytest.mark.parametrize("after", range(1, 14))
def test_run_goes_on_after_a_death_of_the_driver_at_any_event(after):
    record = _cluster(_Remembering, faults=[driver_death(after)]).run(max_events=200)
    assert record.statuses() == ["TERMINATED"] * 3


def test_paused_trials_are_pending_when_the_scheduler_keeps_no_state():
    cluster = _cluster(lambda: _Remembering(savable=False)).start()
    cluster.run_until(
        lambda: [trial.status for trial in cluster.trials].count("PAUSED") == 2
    )
    cluster.restart_driver()
    assert [trial.status for trial in cluster.trials].count("PAUSED") == 0


def test_state_that_cannot_be_saved_is_said_once_and_the_run_goes_on(caplog):
    class Unsavable(_Remembering):
        def save(self, checkpoint_path):
            raise OSError("disk on fire")

    record = _cluster(Unsavable).run(max_events=100)
    assert record.statuses() == ["TERMINATED"] * 3
    [warning] = [r for r in caplog.records if "disk on fire" in r.message]
    assert "Unsavable" in warning.message


def test_state_that_cannot_be_restored_leaves_no_trial_behind(caplog):
    class Unrestorable(_Remembering):
        def restore(self, checkpoint_path):
            raise ValueError("no such thing")

    cluster = _cluster(Unrestorable, ignore=["restored-pause"]).start()
    cluster.run_until(
        lambda: [trial.status for trial in cluster.trials].count("PAUSED") == 2
    )
    cluster.restart_driver()
    assert cluster.controller.resumed
    assert "Unrestorable could not be restored" in caplog.text
    assert len(cluster.trials) == 3
    record = cluster.run(max_events=100)
    assert record.statuses() == ["TERMINATED"] * 3


def test_state_of_another_class_of_scheduler_is_not_loaded(caplog):
    schedulers = [ASHAScheduler(max_t=9)]
    cluster = VirtualCluster(
        Experiment(
            lambda: schedulers.pop() if schedulers else _median(),
            num_samples=3,
            stop={"training_iteration": 3},
            checkpoint_period=0,
        ),
        Cluster(slots=1),
    ).start()
    cluster.run_until(lambda: cluster.monitor.number > 4)
    cluster.restart_driver()
    assert "with AsyncHyperBandScheduler, and is resumed with Median" in caplog.text
    record = cluster.run(max_events=100)
    assert record.statuses() == ["TERMINATED"] * 3


@pytest.mark.fixes("restored-in-part")
def test_error_of_a_hook_while_restoring_loses_no_trial():
    fails = []

    def on_add(controller, trial):
        if fails and trial.trial_id.endswith("1"):
            fails.clear()
            raise ArithmeticError("what a pity")

    cluster = _cluster(lambda: ScriptedScheduler(on_add=on_add), check=False).start()
    cluster.run_until(lambda: cluster.monitor.number > 4)
    assert len(cluster.trials) == 3
    fails.append(True)
    with pytest.raises(ArithmeticError, match="what a pity"):
        cluster.restart_driver()
    cluster.restart_driver()
    assert len(cluster.trials) == 3
    cluster.run(max_events=100)
    assert [trial.status for trial in cluster.trials] == ["TERMINATED"] * 3


@pytest.mark.fixes("fail-fast-restored")
def test_run_that_failed_fast_goes_on_after_a_restore(tmp_path):
    kwargs = {"fail_fast": True, "storage_path": str(tmp_path)}
    faults = [task_error("train", trial=0, nth=2)]
    first = _cluster(ScriptedScheduler, faults=faults, **kwargs)
    assert "ERROR" in first.run(max_events=50).statuses()
    errored = ResumeConfig.ResumeType.RESUME
    second = _cluster(
        ScriptedScheduler, resume=ResumeConfig(errored=errored), check=False, **kwargs
    )
    second.run(max_events=50)
    [trial] = [trial for trial in second.trials if trial.num_failures]
    assert trial.status == "TERMINATED"
    assert trial.run_metadata.last_result["training_iteration"] == 3


@pytest.mark.fixes("retry-changes-bracket")
def test_retried_trial_of_asha_stays_in_its_bracket():
    scheduler = ASHAScheduler(max_t=81, grace_period=1, brackets=4)
    brackets = []

    def note(cluster, event):
        for trial in cluster.trials:
            bracket = cluster.scheduler._trial_info.get(trial.trial_id)
            if bracket is not None:
                brackets.append((trial.trial_id, id(bracket)))

    VirtualCluster(
        Experiment(
            scheduler, num_samples=10, max_failures=1, stop={"training_iteration": 4}
        ),
        Cluster(slots=10),
        Faults([task_error("train", trial=i, nth=2) for i in range(10)]),
        Options(on_event=note),
    ).run(max_events=1000)
    assert len(set(brackets)) == 10


@pytest.mark.fixes("ray#39900")
@pytest.mark.parametrize("after", [5, 12, 19])
def test_asha_keeps_its_rungs_after_a_restore(after):
    cluster = VirtualCluster(
        Experiment(
            lambda: ASHAScheduler(max_t=9, grace_period=1, reduction_factor=3),
            num_samples=9,
            checkpoint_period=0,
        ),
        Cluster(slots=2),
    ).start()
    cluster.run_until(lambda: cluster.monitor.number == after)
    cluster.call(cluster.controller.checkpoint, force=True, wait=True)
    before = cluster.scheduler.debug_string()
    cluster.restart_driver()
    assert cluster.scheduler.debug_string() == before
    cluster.run(max_events=500)


def _median():
    return MedianStoppingRule(
        time_attr="training_iteration", grace_period=1, min_samples_required=1
    )


@pytest.mark.fixes("ray#39900")
@pytest.mark.parametrize("after", [4, 9])
def test_median_stopping_rule_keeps_its_results_after_a_restore(after):
    cluster = VirtualCluster(
        Experiment(
            _median, num_samples=4, stop={"training_iteration": 5}, checkpoint_period=0
        ),
        Cluster(slots=2),
    ).start()
    cluster.run_until(lambda: cluster.monitor.number == after)
    cluster.call(cluster.controller.checkpoint, force=True, wait=True)

    def averages():
        rule = cluster.scheduler
        return {
            str(getattr(trial, "trial_id", trial)): rule._running_mean(trial, 5)
            for trial in rule._results
        }

    before = averages()
    assert before
    cluster.restart_driver()
    assert averages() == before
    record = cluster.run(max_events=500)
    assert record.statuses() == ["TERMINATED"] * 4


@pytest.mark.fixes("median-last-result")
@pytest.mark.parametrize("missing", ["score", "training_iteration"])
def test_median_stopping_rule_skips_a_last_result_without_its_keys(missing):
    class Trial:
        def __init__(self, trial_id):
            self.trial_id = trial_id

    class Controller:
        def get_live_trials(self):
            return set()

    rule, controller = _median(), Controller()
    rule.set_search_properties("score", "max")
    trials = [Trial("a"), Trial("b"), Trial("c")]
    result = {"training_iteration": 2, "score": 1}
    for trial in trials:
        assert rule.on_trial_result(controller, trial, dict(result)) == "CONTINUE"
    rule.on_trial_complete(
        controller, trials[0], {k: v for k, v in result.items() if k != missing}
    )
    result = {"training_iteration": 2, "score": 2}
    assert rule.on_trial_result(controller, trials[1], result) == "CONTINUE"


if __name__ == "__main__":
    import sys

    sys.exit(pytest.main(["-v", __file__]))
