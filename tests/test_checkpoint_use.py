"""A trial that starts over when it is resumed is warned of, once, and no other is."""

import importlib
import os

import pytest
from virtual_cluster import (
    ClassTrainable,
    FunctionTrainable,
    ScriptedScheduler,
    VirtualCluster,
    task_error,
)

from ray import tune
from ray.train._internal.session import shutdown_session
from ray.train._internal.storage import StorageContext
from ray.tune import Checkpoint
from ray.tune.schedulers import HyperBandScheduler, PopulationBasedTraining
from ray.tune.trainable.function_trainable import wrap_function

UNREAD = "without asking for it"
OLD = (1e9, 1e9)  # before the virtual clock begins


def curve(config, iteration):
    return {"score": 1.0 / iteration}


def with_epoch(config, iteration):
    return {"score": 1.0 / iteration, "train": {"epoch": iteration - 1}}


def pause_at(*iterations, end=6):
    paused = set()

    def decide(controller, trial, result):
        at = result["training_iteration"]
        if at >= end:
            return "STOP"
        if at in iterations and (trial.trial_id, at) not in paused:
            paused.add((trial.trial_id, at))
            return "PAUSE"
        return "CONTINUE"

    def choose(controller):
        for status in ("PENDING", "PAUSED"):
            for trial in controller.get_trials():
                if trial.status == status:
                    return trial
        return None

    return ScriptedScheduler(decide, choose)


def run(trainable, scheduler=None, **kwargs):
    settings = {
        "slots": 1,
        "num_samples": 2,
        "ignore": ["resume-point", "pause-unsaid"],
        "trainable": trainable,
        **kwargs,
    }
    return VirtualCluster.of(scheduler or pause_at(2, 4), **settings).run(
        max_events=500
    )


def warned(caplog, *words):
    return [
        record.message
        for record in caplog.records
        if record.levelname == "WARNING"
        and all(word in record.message for word in words)
    ]


@pytest.mark.fixes("checkpoint-not-read")
@pytest.mark.parametrize("reuse_actors", [False, True])
def test_function_that_does_not_ask_is_named_once(caplog, reuse_actors):
    record = run(FunctionTrainable(curve, reads="nothing"), reuse_actors=reuse_actors)
    (warning,) = warned(caplog, UNREAD)
    assert record.trials[0].trial_id in warning
    for words in (
        "of iteration 2",
        "checkpoint = tune.get_checkpoint()",
        "STARTED OVER",
    ):
        assert words in warning
    # Nobody sees how the driver came to know.
    for results in record.results.values():
        assert not [key for result in results for key in result if "notes" in key]
    for trial in record.trials:
        assert not [key for key in trial.last_result if "notes" in key]
        assert not [key for key in trial.metric_analysis if "notes" in key]
        for saved in trial.registered_checkpoints():
            assert not [key for key in saved.metrics if "notes" in key]


@pytest.mark.fixes("checkpoint-not-read")
@pytest.mark.parametrize(
    "scheduler",
    [
        lambda: HyperBandScheduler(max_t=9, reduction_factor=3),
        lambda: PopulationBasedTraining(
            perturbation_interval=2, hyperparam_mutations={"x": [0.1, 0.5]}
        ),
    ],
    ids=["HyperBand", "PBT"],
)
def test_for_schedulers_that_pause(caplog, scheduler):
    run(
        FunctionTrainable(curve, reads="nothing"),
        scheduler(),
        num_samples=6,
        slots=2,
        stop={"training_iteration": 9},
    )
    assert len(warned(caplog, UNREAD)) == 1


@pytest.mark.fixes("checkpoint-not-read")
def test_for_a_trial_that_is_tried_again(caplog):
    run(
        FunctionTrainable(curve, reads="nothing"),
        pause_at(),
        faults=[task_error("train", trial=0, nth=4)],
        max_failures=1,
    )
    assert len(warned(caplog, UNREAD, "of iteration 3")) == 1


@pytest.mark.fixes("checkpoint-not-read")
def test_counter_that_begins_anew_is_shown(caplog):
    run(FunctionTrainable(with_epoch, reads="nothing"))
    (warning,) = warned(caplog, UNREAD)
    assert "('train/epoch' was 1 and is 0 again.)" in warning


@pytest.mark.fixes("checkpoint-not-read")
@pytest.mark.parametrize(
    "library, line",
    [
        ("xgboost", "xgb_model=booster"),
        ("lightgbm", "init_model=booster"),
        ("pytorch_lightning", "ckpt_path=path"),
        ("keras", "initial_epoch="),
    ],
)
def test_lines_are_those_of_the_library(caplog, library, line):
    run(FunctionTrainable(curve, reads="nothing", callback=(library, "frequency=1")))
    (warning,) = warned(caplog, UNREAD)
    assert line in warning


@pytest.mark.parametrize("reuse_actors", [False, True])
def test_function_that_asks_is_not_warned_of(caplog, reuse_actors):
    run(FunctionTrainable(curve), reuse_actors=reuse_actors, ignore=[])
    assert not warned(caplog, UNREAD)


def test_actor_that_goes_on_in_place_has_nothing_to_ask_for(caplog):
    run(
        FunctionTrainable(curve, reads="nothing"),
        reuse_actors=True,
        num_samples=1,
        ignore=[],
    )
    assert not warned(caplog, UNREAD)


def test_counter_that_goes_on_is_not_warned_of(caplog):
    run(FunctionTrainable(with_epoch, reads="elsewhere"), ignore=[])
    assert not warned(caplog, UNREAD)


def _write_own_state(folder):
    def train(config, iteration):
        (folder / "deep" / "er").mkdir(parents=True, exist_ok=True)
        (folder / "deep" / "er" / "state").write_text(str(iteration))
        return {"score": 1.0 / iteration}

    return train


@pytest.mark.parametrize("as_path", [False, True])
def test_path_in_the_config_that_is_written_to_is_not_warned_of(
    caplog, tmp_path, as_path
):
    run(
        FunctionTrainable(_write_own_state(tmp_path), reads="elsewhere"),
        configs=[{"state": tmp_path if as_path else str(tmp_path)}] * 2,
    )
    assert not warned(caplog, UNREAD)


def test_path_is_found_deep_in_a_config(tmp_path):
    from ray.tune.execution.own_checkpoints import keeps_own_state, names_path

    _write_own_state(tmp_path)({}, 1)
    for path in (str(tmp_path), tmp_path):
        config = {"lr": 0.1, "model": [{"name": "a/b"}, {"state": (path,)}]}
        assert names_path(config)
        assert keeps_own_state(config, None, since=0)
    assert not keeps_own_state({"state": str(tmp_path)}, None, since=1e11)
    assert not names_path({"model": "a/b", "x": [1, None, {"y": ""}]})


@pytest.mark.parametrize("path", ["s3://bucket/state", "/not/on/this/machine"])
def test_path_that_cannot_be_seen_is_not_warned_of(caplog, path):
    run(FunctionTrainable(curve, reads="elsewhere"), configs=[{"state": path}] * 2)
    assert not warned(caplog, UNREAD)


def test_checkpoint_in_the_config_is_not_warned_of(caplog, tmp_path):
    config = {"from": Checkpoint.from_directory(str(tmp_path))}
    run(
        FunctionTrainable(curve, reads="elsewhere"),
        configs=[config] * 2,
        ignore=["stale-config"],
    )
    assert not warned(caplog, UNREAD)


def test_checkpoint_of_ray_train_is_not_warned_of(caplog):
    def train(config, iteration):
        return {"score": 1.0, "checkpoint_path": f"/train/checkpoint_{iteration}"}

    run(FunctionTrainable(train, reads="elsewhere"))
    run(FunctionTrainable(train, checkpoint_every=0))
    assert not warned(caplog, UNREAD)
    assert not warned(caplog, "never reported a checkpoint")


@pytest.mark.fixes("checkpoint-not-read")
@pytest.mark.parametrize("name", ["data", "hub/model"])
def test_folder_of_data_in_the_config_is_no_excuse(caplog, tmp_path, name):
    data = tmp_path / "data"
    data.mkdir()
    (data / "images").write_text("")
    for path in (data / "images", data):
        os.utime(path, OLD)
    config = {"data": str(data) if name == "data" else name}
    run(FunctionTrainable(curve, reads="nothing"), configs=[config] * 2)
    assert len(warned(caplog, UNREAD)) == 1


@pytest.mark.fixes("checkpoint-not-read")
def test_counter_overrules_what_is_in_the_config(caplog):
    run(
        FunctionTrainable(with_epoch, reads="nothing"),
        configs=[{"state": "s3://bucket"}] * 2,
    )
    assert len(warned(caplog, UNREAD)) == 1


# No checkpoint to pause with


@pytest.mark.parametrize(
    "library, setting, remedy",
    [
        ("xgboost", "frequency=0", "`frequency=1`"),
        ("lightgbm", "frequency=10", "`frequency=1`"),
        ("pytorch_lightning", "save_checkpoints=False", "`save_checkpoints=True`"),
        ("keras", "checkpoint_on=['train_end']", '`checkpoint_on="epoch_end"`'),
    ],
)
def test_setting_of_a_callback_is_named(caplog, library, setting, remedy):
    run(
        FunctionTrainable(curve, checkpoint_every=0, callback=(library, setting)),
    )
    (warning,) = warned(caplog, "never reported a checkpoint")
    assert f"{library}.TuneReportCheckpointCallback` has `{setting}`" in warning
    assert f"Pass it {remedy}" in warning


def test_default_of_the_callbacks_is_named_where_nothing_is_known(caplog):
    run(FunctionTrainable(curve, checkpoint_every=0))
    (warning,) = warned(caplog, "never reported a checkpoint")
    assert "`frequency=1`" in warning and "default of 0" in warning


def test_asha_v2_has_it_said_once(caplog):
    from ray.tune.schedulers import ASHAv2

    run(
        FunctionTrainable(curve, checkpoint_every=0),
        ASHAv2(max_t=9, reduction_factor=3),
        num_samples=9,
        ignore=["resume-point"],
    )
    (warning,) = warned(caplog, "never reported a checkpoint")
    assert "WILL START FROM SCRATCH" in warning and "as ASHAv2 does" in warning


def test_state_of_its_own_needs_no_checkpoint(caplog, tmp_path):
    run(
        FunctionTrainable(_write_own_state(tmp_path), checkpoint_every=0),
        configs=[{"state": str(tmp_path)}] * 2,
    )
    assert not warned(caplog, "never reported a checkpoint")


# Classes


def test_class_that_loads_nothing_is_named_with_its_trial(caplog):
    record = run(ClassTrainable(curve, bare=True), num_samples=3)
    (warning,) = warned(caplog, "STARTS OVER")
    assert record.trials[0].trial_id in warning
    assert "def load_checkpoint(self, checkpoint):" in warning


@pytest.mark.parametrize("written", [True, False])
def test_class_with_a_path_in_its_config_is_judged_by_what_it_does(
    caplog, tmp_path, written
):
    (tmp_path / "deep").mkdir()
    for path in (tmp_path / "deep", tmp_path):
        os.utime(path, OLD)
    run(
        ClassTrainable(_write_own_state(tmp_path) if written else curve, bare=True),
        configs=[{"state": str(tmp_path)}] * 2,
    )
    assert len(warned(caplog, "STARTS OVER")) == (not written)


def test_class_that_restores_is_not_warned_of(caplog):
    run(ClassTrainable(curve), ignore=[])
    assert not warned(caplog, "STARTS OVER")
    assert not warned(caplog, "checkpoint")


# What workers note


@pytest.fixture
def session_dir(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a session changes the folder
    get_session_dir = "ray.train._internal.storage._get_ray_train_session_dir"
    monkeypatch.setattr(get_session_dir, lambda: str(tmp_path / "session"))


@pytest.fixture(autouse=True)
def no_session_left():
    yield
    shutdown_session()


def _trainable(function, tmp_path):
    storage = StorageContext(
        storage_path=str(tmp_path),
        experiment_dir_name="experiment",
        trial_dir_name="trial",
    )
    return wrap_function(function)(storage=storage)


@pytest.mark.parametrize(
    "asks",
    [pytest.param(False, marks=pytest.mark.fixes("checkpoint-not-read")), True],
)
def test_session_notes_whether_its_function_asks(tmp_path, session_dir, asks):
    def function(config):
        if asks:
            tune.get_checkpoint()
        for _ in range(2):
            checkpoint = Checkpoint.from_directory(str(tmp_path / "saved"))
            tune.report({"score": 1}, checkpoint=checkpoint)

    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "model").write_text("")
    first = _trainable(function, tmp_path)
    assert "__checkpoint_notes__" not in first.train()
    saved = first.save()
    first.stop()
    second = _trainable(function, tmp_path)
    second.restore(saved)
    result = second.train()
    assert result.pop("__checkpoint_notes__", None) == (
        None if asks else {"unread": True}
    )
    # It is said once, and not kept.
    assert "__checkpoint_notes__" not in second.save().metrics
    assert "__checkpoint_notes__" not in second.train()
    assert "__checkpoint_notes__" not in second.train()  # it has ended
    second.stop()


@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
def test_callback_notes_its_frequency(tmp_path, session_dir, library):
    pytest.importorskip(library)
    module = importlib.import_module(f"ray.tune.integration.{library}")

    def function(config):
        callback = module.TuneReportCheckpointCallback(frequency=0)
        for _ in range(2):
            callback._report_metrics({"score": 1})

    trainable = _trainable(function, tmp_path)
    noted = trainable.train()["__checkpoint_notes__"]
    assert noted == {"callback": [library, "frequency=0"]}
    assert "__checkpoint_notes__" not in trainable.train()
    trainable.stop()


if __name__ == "__main__":
    import sys

    sys.exit(pytest.main(["-v", __file__]))
