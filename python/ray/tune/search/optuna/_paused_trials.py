"""Lets an Optuna sampler see paused trials as if they had completed."""

import copy
import datetime
from contextlib import contextmanager
from typing import Any, Container, Dict, Iterator, List, NamedTuple, Optional

import optuna as ot
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState

from ray.tune.utils._result_values import as_number

# These suggest without regard to any result.
_NOT_LEARNING = (
    "BruteForceSampler",
    "GridSampler",
    "QMCSampler",
    "RandomSampler",
)


class Observation(NamedTuple):
    """What a trial paused with.

    Args:
        values: Value of each objective.
        time: When it paused.
    """

    values: List[float]
    time: datetime.datetime

    @classmethod
    def of(cls, result: Optional[Dict], metrics: List[str]) -> Optional["Observation"]:
        """Read the objectives from a result.

        Args:
            result: Result that the trial paused with.
            metrics: Names of the objectives.

        Returns:
            None if one of them is not there, or is not a number.
        """
        values = [as_number((result or {}).get(metric)) for metric in metrics]
        if None in values:
            return None
        return cls([float(value) for value in values], datetime.datetime.now())


def is_learning(sampler: BaseSampler) -> bool:
    """Return whether a sampler makes use of results."""
    known = (getattr(ot.samplers, name, None) for name in _NOT_LEARNING)
    return not isinstance(sampler, tuple(cls for cls in known if cls))


@contextmanager
def observed_by_sampler(
    study: "ot.Study", observations: Dict[int, Observation]
) -> Iterator[None]:
    """Let the sampler of a study see running trials as complete ones.

    The study itself, and so what others see in its storage, does not change: a trial is
    one trial, runs while it is paused, and gets its values and state when it ends.

    Args:
        study: Study that is asked for a trial in the meantime.
        observations: What is known of running trials, by their numbers.

    Yields:
        None: Nothing.
    """
    if not observations:
        yield
        return
    sampler = study.sampler
    study.sampler = _ObservingSampler(sampler, observations)
    try:
        yield
    finally:
        study.sampler = sampler


class _ObservingSampler(BaseSampler):
    """Hands a sampler a study in which some running trials are complete."""

    def __init__(self, sampler: BaseSampler, observations: Dict[int, Observation]):
        self._sampler = sampler
        self._observations = observations
        self._studies: Dict[int, "ot.Study"] = {}

    def _observed(self, study: "ot.Study", trial: FrozenTrial) -> "ot.Study":
        # One for each trial, since a study caches its trials for as long.
        if trial.number not in self._studies:
            self._studies[trial.number] = ot.Study(
                study_name=study.study_name,
                storage=_ObservedStorage(study._storage, self._observations),
                sampler=self._sampler,
                pruner=study.pruner,
            )
        return self._studies[trial.number]

    def reseed_rng(self) -> None:
        self._sampler.reseed_rng()

    def before_trial(self, study: "ot.Study", trial: FrozenTrial) -> None:
        if hasattr(self._sampler, "before_trial"):  # since Optuna 3.3
            self._sampler.before_trial(self._observed(study, trial), trial)

    def infer_relative_search_space(
        self, study: "ot.Study", trial: FrozenTrial
    ) -> Dict[str, BaseDistribution]:
        return self._sampler.infer_relative_search_space(
            self._observed(study, trial), trial
        )

    def sample_relative(
        self,
        study: "ot.Study",
        trial: FrozenTrial,
        search_space: Dict[str, BaseDistribution],
    ) -> Dict[str, Any]:
        return self._sampler.sample_relative(
            self._observed(study, trial), trial, search_space
        )

    def sample_independent(
        self,
        study: "ot.Study",
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        return self._sampler.sample_independent(
            self._observed(study, trial), trial, param_name, param_distribution
        )


class _ObservedStorage:
    """Storage of a study, in which some running trials are complete.

    All else is the storage's own: what a sampler writes gets there.
    """

    def __init__(
        self, storage: "ot.storages.BaseStorage", observations: Dict[int, Observation]
    ):
        self._storage = storage
        self._observations = observations

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def get_all_trials(
        self,
        study_id: int,
        deepcopy: bool = True,
        states: Optional[Container[TrialState]] = None,
    ) -> List[FrozenTrial]:
        trials = self._storage.get_all_trials(study_id, deepcopy=deepcopy)
        trials = [self._as_observed(trial) for trial in trials]
        return [t for t in trials if states is None or t.state in states]

    def _as_observed(self, trial: FrozenTrial) -> FrozenTrial:
        observation = self._observations.get(trial.number)
        if observation is None or trial.state != TrialState.RUNNING:
            return trial
        trial = copy.copy(trial)
        trial.state = TrialState.COMPLETE
        trial.values = observation.values
        trial.datetime_complete = observation.time
        return trial
