"""Random histories keep the invariants; the explorer finds, repeats and shrinks."""

import sys

import pytest
from virtual_cluster import VirtualCluster
from virtual_cluster.evidence.cpu_time import Shares
from virtual_cluster.explore import drawing, scenarios, search
from virtual_cluster.explore.scenarios import Scenario, Source
from virtual_cluster.explore.shrink import causes, shrink

from ray.tune.execution.tune_controller import TuneController


def small(**args) -> Scenario:
    args = {"num_samples": 2, "slots": 2, "stop": {"training_iteration": 2}, **args}
    return Scenario("fifo", "FIFOScheduler", args=args)


# On stock Ray most of the kinds of histories break an invariant within seconds. What
# each of them is has tests of its own; this one looks for what nobody thought of.
@pytest.mark.fixes("explorer")
@pytest.mark.timeout(180)
def test_random_histories_keep_the_invariants():
    report = search.explore(seconds=15, max_histories=600, look_behind=False)
    assert report.histories >= 50
    assert set(report.per_family) == set(search.FAMILIES)
    messages = [
        f"{family} seed {finding.seed}\n{finding.outcome.message}\n"
        + finding.scenario.test_source(rule, finding.outcome.what)
        for (family, rule), finding in report.findings.items()
    ]
    assert not messages, "\n\n".join(messages)


@pytest.mark.parametrize("family", sorted(search.FAMILIES))
def test_drawing_is_determined_by_the_seed(family):
    first, second = (drawing.draw(7, family) for _ in range(2))
    assert first.sources() == second.sources()
    assert first.scheduler_source() == second.scheduler_source()
    assert first.family == family


@pytest.mark.parametrize("family", sorted(search.FAMILIES))
def test_outcome_is_determined_by_the_seed(family):
    first, second = (
        search.run_scenario(drawing.draw(11, family), full=True) for _ in range(2)
    )
    assert first.digest == second.digest
    assert first.events == second.events


def test_every_order_of_a_small_case():
    orders = list(search.every_order(small(), max_histories=200))
    picks = [tuple(picks) for picks, _ in orders]
    assert len(set(picks)) == len(picks) > 10
    assert all(outcome.rule is None for _, outcome in orders)
    # All of the tree was walked, not just so many histories of it.
    assert len(picks) < 200


def test_every_order_is_bounded():
    scenario = small(num_samples=6, slots=6)
    orders = list(search.every_order(scenario, limit=2, max_histories=20))
    assert len(orders) == 20
    assert all(pick in (0, 1) for picks, _ in orders for pick in picks)


def test_scenario_is_printed_as_a_test():
    scenario = drawing.draw(5, "planned")
    source = scenario.test_source("hang", "nothing happens")
    names = dict(scenarios.namespace(), VirtualCluster=VirtualCluster)
    exec(compile(source, "pasted", "exec"), names)
    (name,) = (n for n in names if n.startswith("test_planned"))
    assert "run(max_events=2000)" in source
    assert callable(names[name])


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
    report = search.explore(
        60, ["fifo"], until=lambda finding: finding.rule == "running-idle"
    )
    finding = report.findings[("fifo", "running-idle")]
    scenario, outcome = shrink(finding.scenario, finding.outcome, seconds=30)
    assert outcome.rule == "running-idle"
    assert outcome.events <= 8
    assert len(scenario.faults) == 1  # it takes one failure
    assert causes(scenario) <= causes(finding.scenario)
    # What is printed fails in the same way.
    names = dict(scenarios.namespace(), VirtualCluster=VirtualCluster)
    exec(scenario.test_source(outcome.rule, outcome.what), names)
    (test,) = (f for n, f in names.items() if n.startswith("test_"))
    with pytest.raises(AssertionError, match="running-idle"):
        test()


def test_shrinking_keeps_what_it_needs():
    never = "ScriptedScheduler"
    assert never not in scenarios.namespace()
    scenario = Scenario(
        "milestones",
        "MilestoneScheduler",
        # It waits for a trial that will never be there.
        {"num_samples": 3, "milestones": (1, 2), "reduction_factor": 2},
        {
            "num_samples": 2,
            "slots": 2,
            "reuse_actors": True,
            "lag": (0.5, 1.0),
            "trainable": Source("ClassTrainable(MixedCurve(step=1))"),
        },
    )
    outcome = search.run_scenario(scenario)
    assert outcome.rule == "hang"
    smaller, result = shrink(scenario, outcome, seconds=20)
    assert result.rule == "hang"
    assert "reuse_actors" not in smaller.args and "lag" not in smaller.args
    assert causes(smaller) < causes(scenario)


def test_look_behind_ignores_what_is_known(losing):
    report = search.explore(
        60, ["fifo"], until=lambda finding: finding.rule == "running-idle"
    )
    scenario = report.findings[("fifo", "running-idle")].scenario.copy()
    scenario.ignore = ("running-idle",)
    # Behind it is what it leads to.
    assert search.run_scenario(scenario).rule not in (None, "running-idle")


def test_time_is_shared_out():
    with Shares(seconds=0.001) as shares:
        while shares.num_samples < 30:
            search.run_scenario(drawing.draw(1, "asha"))
    parts = shares.shares()
    assert sum(parts.values()) == pytest.approx(1)
    assert parts["harness"] > 0 and parts["controller"] > 0
    before = shares.num_samples
    search.run_scenario(drawing.draw(1, "asha"))
    assert shares.num_samples == before


def test_report_counts():
    report = search.explore(60, ["fifo", "asha"], max_histories=6)
    assert report.histories == 6
    assert report.events > 0 and report.states
    assert "6 histories" in report.lines()[0]


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
