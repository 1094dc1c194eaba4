"""A scheduler that leaves a searcher nothing but pauses to learn from."""

from virtual_cluster import ScriptedScheduler

from ray.tune.experiment import Trial


class PauseAtFirst(ScriptedScheduler):
    """Pauses each trial at its first result; resumes none before all have paused.

    Args:
        num_samples: The number of trials.
        max_t: The iteration at which a trial is complete.
    """

    def __init__(self, num_samples, max_t=3):
        super().__init__()
        self.num_samples, self.max_t = num_samples, max_t

    def on_trial_result(self, tune_controller, trial, result):
        if result["training_iteration"] >= self.max_t:
            return "STOP"
        return "PAUSE" if result["training_iteration"] == 1 else "CONTINUE"

    def choose_trial_to_run(self, tune_controller):
        trials = tune_controller.get_trials()
        for trial in trials:
            if trial.status == Trial.PENDING:
                return trial
        paused = [trial for trial in trials if trial.status == Trial.PAUSED]
        if sum(trial.last_result.get("score") is not None for trial in trials) == (
            self.num_samples
        ):
            return paused[0] if paused else None
        return None
