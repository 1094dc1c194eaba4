"""When a run counts as stalled, whom it waits for, and what is said about it."""

import pytest

from ray.tune.schedulers import (
    FIFOScheduler,
    HyperBandScheduler,
    PopulationBasedTraining,
    ResourceChangingScheduler,
)
from ray.tune.search import ConcurrencyLimiter, Searcher, SearchGenerator
from ray.tune.stopper import (
    CombinedStopper,
    FunctionStopper,
    MaximumIterationStopper,
    NoopStopper,
    Stopper,
    TimeoutStopper,
)


@pytest.fixture
def module():
    from ray.tune.execution import stall_detector

    return stall_detector


@pytest.mark.parametrize(
    "value, timeout_s", [(None, None), ("", None), (" ", None), ("0", 0), ("2.5", 2.5)]
)
def test_timeout_from_environment(module, monkeypatch, value, timeout_s):
    if value is None:
        monkeypatch.delenv("TUNE_STALL_TIMEOUT_S", raising=False)
    else:
        monkeypatch.setenv("TUNE_STALL_TIMEOUT_S", value)
    assert module.stall_timeout_from_env() == timeout_s


@pytest.mark.parametrize("value", ["-1", "nan", "inf", "10 min", "None"])
def test_invalid_timeout_is_named(module, monkeypatch, value):
    monkeypatch.setenv("TUNE_STALL_TIMEOUT_S", value)
    with pytest.raises(ValueError, match=f"TUNE_STALL_TIMEOUT_S .*, got '{value}'"):
        module.stall_timeout_from_env()


def test_warnings_come_at_growing_intervals(module):
    detector, due = module.StallDetector(), []
    for second in range(1, 1001):
        detector.add_wait(1)
        if detector.is_warning_due():
            assert detector.is_warning_due()  # to ask changes nothing
            detector.on_warning()
            due.append(second)
    assert due == [60, 120, 240, 480, 960]


def test_starts_anew_after_something_happened(module):
    detector = module.StallDetector(600)
    detector.add_wait(100)
    detector.on_warning()
    assert detector.ends_in([]) == 500
    detector.reset()
    assert detector.ends_in([]) == 600
    detector.add_wait(59)
    assert not detector.is_warning_due()
    detector.add_wait(1)
    assert detector.is_warning_due()


@pytest.mark.parametrize(
    "timeout_s, wakers, ends_in, said",
    [
        (None, [], 540, "It ends with an error in 540 s"),
        (None, ["Mine", "Optuna"], None, "It goes on waiting, as Mine or Optuna may"),
        (30, [], -30, "It ends with an error"),
        (90, ["Mine"], 30, "It ends with an error in 30 s"),
        (0, [], None, "It waits forever, as TUNE_STALL_TIMEOUT_S is 0."),
        (0, ["Mine"], None, "It waits forever, as TUNE_STALL_TIMEOUT_S is 0."),
    ],
)
def test_end_of_a_stalled_run(module, timeout_s, wakers, ends_in, said):
    detector = module.StallDetector(timeout_s)
    detector.add_wait(60)
    assert detector.ends_in(wakers) == ends_in
    assert said in detector.describe_end(wakers)


class _MyScheduler(FIFOScheduler):
    pass


class _MyStopper(Stopper):
    def __call__(self, trial_id, result):
        return False

    def stop_all(self):
        return False


class _MySearcher(Searcher):
    def suggest(self, trial_id):
        return None

    def on_trial_complete(self, trial_id, result=None, error=False):
        pass


class _Search:
    def __init__(self, is_finished=True, searcher=None):
        self.is_finished, self.searcher = lambda: is_finished, searcher


@pytest.mark.parametrize(
    "scheduler, wakers",
    [
        (FIFOScheduler(), []),
        (HyperBandScheduler(), []),
        (
            PopulationBasedTraining(
                hyperparam_mutations={"x": [1]}, custom_explore_fn=lambda config: config
            ),
            [],
        ),
        (ResourceChangingScheduler(HyperBandScheduler()), []),
        (_MyScheduler(), ["_MyScheduler"]),
        (ResourceChangingScheduler(_MyScheduler()), ["ResourceChangingScheduler"]),
        (
            ResourceChangingScheduler(ResourceChangingScheduler(_MyScheduler())),
            ["ResourceChangingScheduler"],
        ),
    ],
    ids=str,
)
def test_schedulers_of_users_may_wake_a_run(module, scheduler, wakers):
    assert module.find_wakers(_Search(), scheduler, NoopStopper()) == wakers


@pytest.mark.parametrize(
    "stopper, may_wake",
    [
        (NoopStopper(), False),
        (MaximumIterationStopper(3), False),
        (FunctionStopper(lambda trial_id, result: False), False),
        (CombinedStopper(NoopStopper(), MaximumIterationStopper(3)), False),
        (TimeoutStopper(3), True),
        (CombinedStopper(NoopStopper(), TimeoutStopper(3)), True),
        (_MyStopper(), True),
        (CombinedStopper(CombinedStopper(_MyStopper()), NoopStopper()), True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_stoppers_that_go_by_a_clock_may_wake_a_run(module, stopper, may_wake):
    wakers = module.find_wakers(_Search(), FIFOScheduler(), stopper)
    assert wakers == ([type(stopper).__name__] if may_wake else [])


def test_search_algorithm_that_is_not_finished_may_wake_a_run(module):
    searcher = ConcurrencyLimiter(_MySearcher(metric="a", mode="max"), 3)
    for search_alg in (SearchGenerator(searcher), _Search(False, searcher)):
        if isinstance(search_alg, SearchGenerator):
            search_alg._total_samples = 3
        wakers = module.find_wakers(search_alg, FIFOScheduler(), NoopStopper())
        assert wakers == ["_MySearcher"]


class _Trial:
    def __init__(self, status):
        self.status, self.trial_id = status, "t"
        self.run_metadata = type("Metadata", (), {"last_result": {}})

    def is_finished(self):
        return self.status in ("TERMINATED", "ERROR")

    def __str__(self):
        return "trial_t"


@pytest.mark.parametrize(
    "statuses, finished, said",
    [
        ([], False, "No trial exists yet: Mine suggests none, and does not say that"),
        (
            ["TERMINATED", "ERROR"],
            False,
            "All 2 trial(s) are finished, but Mine suggests none other, and does not",
        ),
        (
            ["PAUSED"],
            False,
            "no actor was asked for, Mine suggests no trial, and Median chooses none",
        ),
        (
            ["TERMINATED", "PAUSED"],
            True,
            "no actor was asked for, Mine is finished, and Median chooses none",
        ),
    ],
)
def test_description_is_true_of_the_trials_there_are(module, statuses, finished, said):
    trials = [_Trial(status) for status in statuses]
    text = module.describe_stall(trials, {}, "Median", "Mine", finished)
    assert said in text
    by = "- trial_t: PAUSED, paused by an earlier run, last result: none"
    assert (by in text) == ("PAUSED" in statuses)
    assert text.count("trial_t") == statuses.count("PAUSED")


if __name__ == "__main__":
    import sys

    sys.exit(pytest.main(["-v", __file__]))
