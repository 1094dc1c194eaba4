"""When a run counts as stalled, and what is said about it."""

import pytest


@pytest.fixture
def detector_module():
    from ray.tune.execution import stall_detector

    return stall_detector


@pytest.mark.parametrize(
    "value, timeout_s", [(None, 600), ("", 600), (" ", 600), ("0", 0), ("2.5", 2.5)]
)
def test_timeout_from_environment(detector_module, monkeypatch, value, timeout_s):
    if value is None:
        monkeypatch.delenv("TUNE_STALL_TIMEOUT_S", raising=False)
    else:
        monkeypatch.setenv("TUNE_STALL_TIMEOUT_S", value)
    assert detector_module._stall_timeout_from_env() == timeout_s


@pytest.mark.parametrize("value", ["-1", "nan", "inf", "10 min", "None"])
def test_invalid_timeout_is_named(detector_module, monkeypatch, value):
    monkeypatch.setenv("TUNE_STALL_TIMEOUT_S", value)
    with pytest.raises(ValueError, match=f"TUNE_STALL_TIMEOUT_S .*, got '{value}'"):
        detector_module._stall_timeout_from_env()


def test_warns_once_in_a_stall_and_ends_it(detector_module):
    detector = detector_module._StallDetector(timeout_s=600)
    assert not detector.should_end(100.0)
    assert not detector.should_warn(159.9)
    assert detector.should_warn(160.0)
    assert not detector.should_warn(170.0)
    assert detector.end_in(160.0) == 540
    assert not detector.should_end(699.9)
    assert detector.should_end(700.0)


def test_starts_anew_after_something_happened(detector_module):
    detector = detector_module._StallDetector(timeout_s=600)
    assert not detector.should_warn(0.0)
    assert detector.should_warn(60.0)
    detector.reset()
    assert not detector.should_end(650.0)
    assert not detector.should_warn(650.0)
    assert detector.should_warn(710.0)
    assert not detector.should_end(1249.0)
    assert detector.should_end(1250.0)


def test_never_ends_with_a_timeout_of_zero(detector_module):
    detector = detector_module._StallDetector(timeout_s=0)
    assert not detector.should_warn(0.0)
    assert not detector.should_end(1e9)
    assert detector.should_warn(1e9)
    assert detector.end_in(1e9) is None


def test_description_without_unfinished_trials_is_about_the_searcher(detector_module):
    text = detector_module._describe_stall([], {}, "FIFOScheduler", "MySearch")
    assert "MySearch neither suggests another one nor says that it is finished" in text


if __name__ == "__main__":
    import sys

    sys.exit(pytest.main(["-v", __file__]))
