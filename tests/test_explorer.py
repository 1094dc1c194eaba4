"""Random runs keep the invariants; the explorer finds, repeats and shrinks."""

import sys

import pytest
from virtual_cluster import VirtualCluster
from virtual_cluster.evidence.cpu_time import CpuTime
from virtual_cluster.explore.draw import draw
from virtual_cluster.explore.replay import every_order, run_scenario
from virtual_cluster.explore.scenario import Scenario
from virtual_cluster.explore.search import explore
from virtual_cluster.explore.shrink import causes, shrink
from virtual_cluster.explore.workloads import WORKLOADS
from virtual_cluster.workloads.names import names
from virtual_cluster.workloads.spec import Spec

from ray.tune.execution.tune_controller import TuneController


def small(**args) -> Scenario:
    args = {"num_samples": 2, "slots": 2, "stop": {"training_iteration": 2}, **args}
    return Scenario("fifo", Spec("FIFOScheduler"), args)


# On stock Ray most of the kinds of runs break an invariant within seconds. What
# each of them is has tests of its own; this one looks for what nobody thought of.
@pytest.mark.fixes("explorer")
@pytest.mark.timeout(180)
def test_random_runs_keep_the_invariants():
    report = explore(seconds=15, max_runs=600, look_behind=False)
    assert report.runs >= 50
    assert set(report.per_workload) == set(WORKLOADS)
    messages = [
        f"{workload} seed {finding.seed}\n{finding.outcome.message}\n"
        + finding.scenario.test_source(rule, finding.outcome.what)
        for (workload, rule), finding in report.findings.items()
    ]
    assert not messages, "\n\n".join(messages)


@pytest.mark.parametrize("workload", sorted(WORKLOADS))
def test_drawing_is_determined_by_the_seed(workload):
    first, second = (draw(7, workload) for _ in range(2))
    assert first.sources() == second.sources()
    assert first.faults == second.faults
    assert first.workload == workload


@pytest.mark.parametrize("workload", sorted(WORKLOADS))
def test_outcome_is_determined_by_the_seed(workload):
    first, second = (run_scenario(draw(11, workload), full=True) for _ in range(2))
    assert first.digest == second.digest
    assert first.events == second.events


def test_every_order_of_a_small_case():
    orders = list(every_order(small(), max_runs=200))
    picks = [tuple(picks) for picks, _ in orders]
    assert len(set(picks)) == len(picks) > 10
    assert all(outcome.rule is None for _, outcome in orders)
    # All of the tree was walked, not just so many runs of it.
    assert len(picks) < 200


def test_every_order_is_bounded():
    scenario = small(num_samples=6, slots=6)
    orders = list(every_order(scenario, limit=2, max_runs=20))
    assert len(orders) == 20
    assert all(pick in (0, 1) for picks, _ in orders for pick in picks)


def test_scenario_is_printed_as_a_test():
    scenario = draw(5, "planned")
    source = scenario.test_source("hang", "nothing happens")
    known = dict(names(), VirtualCluster=VirtualCluster)
    exec(compile(source, "pasted", "exec"), known)
    (name,) = (n for n in known if n.startswith("test_planned"))
    assert "run(max_events=2000)" in source
    assert callable(known[name])


@pytest.fixture
def losing(monkeypatch):
    """Tune forgets to train a trial on after its second result, if it is retried."""
    train = TuneController._schedule_trial_train

    def sometimes(self, trial):
        if trial.num_failures and trial.last_result.get("training_iteration") == 2:
            return
        train(self, trial)

    monkeypatch.setattr(TuneController, "_schedule_trial_train", sometimes)


def test_finds_and_shrinks_a_fault_that_was_put_in(losing):
    report = explore(60, ["fifo"], until=lambda finding: finding.rule == "running-idle")
    finding = report.findings[("fifo", "running-idle")]
    scenario, outcome = shrink(finding.scenario, finding.outcome, seconds=30)
    assert outcome.rule == "running-idle"
    assert outcome.events <= 8
    assert len(scenario.faults) == 1  # it takes one failure
    assert causes(scenario) <= causes(finding.scenario)
    # What is printed fails in the same way.
    known = dict(names(), VirtualCluster=VirtualCluster)
    exec(scenario.test_source(outcome.rule, outcome.what), known)
    (test,) = (f for n, f in known.items() if n.startswith("test_"))
    with pytest.raises(AssertionError, match="running-idle"):
        test()


def test_shrinking_keeps_what_it_needs():
    never = "ScriptedScheduler"
    assert never not in names()
    scenario = Scenario(
        "milestones",
        # It pauses, and never resumes.
        Spec(
            "PlannedScheduler", acts=[Spec("Act", "result", 1, "pause")], resumes=False
        ),
        {
            "num_samples": 2,
            "slots": 2,
            "reuse_actors": True,
            "lag": (0.5, 1.0),
            "trainable": Spec("ClassTrainable", Spec("MixedCurve")),
            "stop": {"training_iteration": 2},
        },
    )
    outcome = run_scenario(scenario)
    assert outcome.rule == "hang"
    smaller, result = shrink(scenario, outcome, seconds=20)
    assert result.rule == "hang"
    assert not {"reuse_actors", "lag"} & smaller.settings.keys()
    assert causes(smaller) < causes(scenario)


def test_look_behind_ignores_what_is_known(losing):
    report = explore(60, ["fifo"], until=lambda finding: finding.rule == "running-idle")
    scenario = report.findings[("fifo", "running-idle")].scenario.copy()
    scenario.ignore = ("running-idle",)
    # Behind it is what it leads to.
    assert run_scenario(scenario).rule not in (None, "running-idle")


def test_time_is_shared_out():
    with CpuTime(seconds=0.001) as cpu_time:
        while cpu_time.num_samples < 30:
            run_scenario(draw(1, "asha"))
    parts = cpu_time.shares()
    assert sum(parts.values()) == pytest.approx(1)
    assert parts["harness"] > 0 and parts["controller"] > 0
    before = cpu_time.num_samples
    run_scenario(draw(1, "asha"))
    assert cpu_time.num_samples == before


def test_report_counts():
    report = explore(60, ["fifo", "asha"], max_runs=6)
    assert report.runs == 6
    assert report.events > 0 and report.states
    assert "6 runs" in report.lines()[0]


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
