"""What to tell users whose trials start over when they are resumed."""

from typing import Optional, Tuple

# By the module of the callback in `ray.tune.integration`.
_READ_LINES = {
    "xgboost": """\
    checkpoint = tune.get_checkpoint()
    booster = checkpoint and TuneReportCheckpointCallback.get_model(checkpoint)
    rounds_done = booster.num_boosted_rounds() if booster else 0
    xgboost.train(..., num_boost_round=rounds - rounds_done, xgb_model=booster)""",
    "lightgbm": """\
    checkpoint = tune.get_checkpoint()
    booster = checkpoint and TuneReportCheckpointCallback.get_model(checkpoint)
    rounds_done = booster.current_iteration() if booster else 0
    lightgbm.train(..., num_boost_round=rounds - rounds_done, init_model=booster)""",
    "pytorch_lightning": """\
    checkpoint = tune.get_checkpoint()
    with checkpoint.as_directory() if checkpoint else nullcontext() as folder:
        path = os.path.join(folder, "checkpoint") if folder else None
        trainer.fit(model, ckpt_path=path)  # "checkpoint": the callback's filename""",
    "keras": """\
    checkpoint = tune.get_checkpoint()
    if checkpoint:
        model = TensorflowCheckpoint(checkpoint.path).get_model()
    model.fit(..., initial_epoch=epochs_done)""",
}

_READ = """\
    checkpoint = tune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            ...  # load the model, and the epoch to go on from, out of this folder"""

_CLASS_LINES = """\
    def save_checkpoint(self, checkpoint_dir):
        return {"model": self.model, "epoch": self.epoch}

    def load_checkpoint(self, checkpoint):
        self.model, self.epoch = checkpoint["model"], checkpoint["epoch"]"""

_ONCE = "(Said once, for the first such trial.)"


def describe_unread_checkpoint(
    trial: str,
    iteration: int,
    counter: Optional[Tuple[str, int, int]],
    library: Optional[str],
) -> str:
    """Return what to say when a function has not asked for its checkpoint.

    Args:
        trial: The trial.
        iteration: The iteration of the checkpoint.
        counter: A metric that shows it: name, value with the checkpoint and now.
        library: Name of the module of the callback that it reports with.

    Returns:
        The message.
    """
    evidence = ""
    if counter:
        name, before, now = counter
        evidence = f" ({name!r} was {before:g} and is {now:g} again.)"
    return (
        f"Trial {trial} was resumed from its checkpoint of iteration {iteration}, and "
        "has reported without asking for it: IT HAS STARTED OVER FROM THE BEGINNING, "
        f"while `training_iteration` goes on to count from {iteration}.{evidence} Its "
        "results are those of a model that has trained for less than they say, and by "
        "them it is compared with other trials. Begin the function with:\n\n"
        f"{_READ_LINES.get(library, _READ)}\n\n"
        "If it goes on in another way, a call of `tune.get_checkpoint()` before the "
        f"first report says so. {_ONCE}"
    )


def describe_pause_without_checkpoint(
    trial: str, scheduler: str, library: Optional[str], setting: Optional[str]
) -> str:
    """Return what to say when a trial is paused that has reported no checkpoint.

    Args:
        trial: The trial.
        scheduler: Name of the class of the scheduler.
        library: Name of the module of the callback that it reports with.
        setting: The argument that says when this saves checkpoints.

    Returns:
        The message.
    """
    remedy = {
        "xgboost": "frequency=1",
        "lightgbm": "frequency=1",
        "pytorch_lightning": "save_checkpoints=True",
        "keras": 'checkpoint_on="epoch_end"',
    }.get(library)
    if remedy:
        cause = (
            f"`ray.tune.integration.{library}.TuneReportCheckpointCallback` has "
            f"`{setting}`: it has saved none so far. Pass it `{remedy}`, and begin "
            f"the function with:\n\n{_READ_LINES[library]}\n\n"
        )
    else:
        cause = (
            "Report one at least as often as trials are paused, with "
            "`tune.report(metrics, checkpoint=...)` (a `TuneReportCheckpointCallback` "
            "of XGBoost or LightGBM needs `frequency=1` for that: its default of 0 "
            f"saves none), and begin the function with:\n\n{_READ}\n\n"
        )
    return (
        f"Trial {trial} was paused, but has never reported a checkpoint: when it is "
        f"resumed, it WILL START FROM SCRATCH. {cause}Where that is impossible, use a "
        f"scheduler that does not pause trials, as {scheduler} does, such as "
        f"ASHAScheduler. {_ONCE}"
    )


def describe_class_without_checkpoints(
    trial: str, trainable: str, scheduler: str, save: bool, load: bool
) -> str:
    """Return what to say of a class whose trials cannot go on after a pause.

    Args:
        trial: A trial of this class.
        trainable: Name of the class.
        scheduler: Name of the class of the scheduler.
        save: Whether the class can save its state.
        load: Whether it can load it.

    Returns:
        The message.
    """
    methods = (("save_checkpoint()", save), ("load_checkpoint()", load))
    missing = [name for name, implemented in methods if not implemented]
    return (
        f"{scheduler} pauses trials, and {trainable}, the class of trial {trial}, does "
        f"not implement {' and '.join(missing)}: A TRIAL THAT WAS PAUSED STARTS OVER "
        "from the beginning when it is resumed. Implement both, for instance:\n\n"
        f"{_CLASS_LINES}\n\n"
        "or use a scheduler that does not pause, such as ASHAScheduler. "
        f"{_ONCE}"
    )
