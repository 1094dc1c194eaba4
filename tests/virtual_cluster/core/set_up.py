"""Makes the real controller of a virtual cluster, and what it needs."""

import os
import pickle
import warnings
from typing import Any, Callable, Dict, List, Optional

from ..workloads import trainables
from .observe import MonitorCallback, ObservedController
from .resources import Node, VirtualResourceManager
from .settings import Cluster, Experiment, Options
from .storage import VirtualExperiment
from ray import cloudpickle, tune
from ray.tune import ResumeConfig
from ray.tune.execution.placement_groups import (
    PlacementGroupFactory,
    resource_dict_to_pg_factory,
)
from ray.tune.schedulers import TrialScheduler
from ray.tune.schedulers.util import (
    _set_search_properties_backwards_compatible as set_scheduler,
)
from ray.tune.search import (
    BasicVariantGenerator,
    ConcurrencyLimiter,
    Searcher,
    SearchGenerator,
)
from ray.tune.search.util import (
    _set_search_properties_backwards_compatible as set_searcher,
)


def set_up(cluster, scheduler, resume_config: Optional[ResumeConfig]) -> None:
    """Make the controller of a cluster, as ``tune.run`` does.

    Args:
        cluster: The cluster, which is active; its controller is set.
        scheduler: The scheduler.
        resume_config: How the experiment is restored; None if it begins.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _set_up(cluster, scheduler, resume_config)


def _set_up(cluster, scheduler, resume_config) -> None:
    wanted = cluster.experiment
    if not scheduler.supports_buffered_results:
        os.environ["TUNE_RESULT_BUFFER_LENGTH"] = "1"
        cluster.env["TUNE_RESULT_BUFFER_LENGTH"] = "1"
    experiment = VirtualExperiment(
        "experiment",
        cluster.trainable.registered_name,
        stop=wanted.stop,
        time_budget_s=wanted.time_budget_s,
        config=dict(cluster.space),
        num_samples=cluster.num_samples,
        storage_path=cluster.storage_path,
        checkpoint_config=wanted.checkpoint_config,
        max_failures=wanted.max_failures,
        trial_dirname_creator=_trial_dirname,
    )
    placeholder = trainables.placeholder(cluster.trainable.registered_name)
    request = _resource_function(wanted.resources)
    placeholder.resource_function = staticmethod(request)
    search_alg = cluster.make_search_alg()
    if search_alg is None:
        search_alg = BasicVariantGenerator(
            points_to_evaluate=wanted.configs,
            max_concurrent=wanted.max_concurrent,
            random_state=cluster.seed,
        )
    elif wanted.max_concurrent and not isinstance(search_alg, ConcurrencyLimiter):
        if isinstance(search_alg, Searcher):
            search_alg = ConcurrencyLimiter(search_alg, wanted.max_concurrent)
    if isinstance(search_alg, Searcher):
        search_alg = SearchGenerator(search_alg)
    if hasattr(search_alg, "_uuid_prefix"):
        search_alg._uuid_prefix = "t_"
    metric, mode = wanted.metric, wanted.mode
    if not set_searcher(
        search_alg.set_search_properties,
        metric,
        mode,
        dict(cluster.space),
        **experiment.public_spec,
    ):
        raise ValueError("The searcher has a search space of its own already.")
    own = getattr(scheduler, "_metric", None) or getattr(scheduler, "metric", None)
    if own is not None and metric is not None:
        metric = mode = None
    if not set_scheduler(
        scheduler.set_search_properties, metric, mode, **experiment.public_spec
    ):
        raise ValueError(
            "The scheduler has a metric or mode of its own: pass metric=None."
        )
    cluster.monitor.buffer_length = int(cluster.env["TUNE_RESULT_BUFFER_LENGTH"])
    can_be_reset = cluster.trainable.resettable is True
    cluster.monitor.reuses_actors = wanted.reuse_actors and can_be_reset
    period = wanted.checkpoint_period
    cluster.resource_manager = VirtualResourceManager(
        cluster.nodes, cluster.settings.reserve
    )
    cluster.controller = ObservedController(
        search_alg=search_alg,
        scheduler=scheduler,
        stopper=experiment.stopper,
        resume_config=resume_config,
        fail_fast=wanted.fail_fast,
        checkpoint_period=1e9 if period is None else period,
        callbacks=[MonitorCallback(), *cluster.make_callbacks()],
        metric=wanted.metric,
        trial_checkpoint_config=experiment.checkpoint_config,
        storage=experiment.storage,
        reuse_actors=wanted.reuse_actors,
        resource_manager_factory=lambda: cluster.resource_manager,
    )
    if period is None:
        # Not even the first snapshot, and none that is forced if nobody restores.
        cluster.controller._checkpoint_manager._last_save_time = 0.0
        if not cluster.faults.plan.snapshots and not cluster.resume_after:
            manager = cluster.controller._checkpoint_manager
            manager._sync_every_n_trial_checkpoints = None
    if not cluster.controller.resumed:
        search_alg.add_configurations([experiment])
        cluster.controller.update_max_pending_trials()
    cluster.controller.setup_experiments(
        experiments=[experiment], total_num_samples=search_alg.total_samples
    )


def samples(experiment: Experiment):
    """The number of trials, and the search space."""
    configs, space = experiment.configs, experiment.param_space
    if configs is not None:
        keys = sorted({key for config in configs for key in config})
        space = {
            key: tune.choice([c[key] for c in configs if key in c]) for key in keys
        }
        return len(configs), space
    return experiment.num_samples, (
        {"x": tune.uniform(0, 1)} if space is None else space
    )


def nodes_of(cluster: Cluster) -> List[Node]:
    totals, slots = cluster.nodes, cluster.slots
    if isinstance(totals, int):
        share = [slots // totals + (i < slots % totals) for i in range(totals)]
        totals = [{"CPU": count} for count in share]
    return [Node(i, total) for i, total in enumerate(totals)]


def environment(experiment: Experiment, options: Options) -> Dict[str, str]:
    env = {
        "TUNE_STALL_TIMEOUT_S": str(experiment.stall_timeout_s),
        "TUNE_RESULT_BUFFER_LENGTH": str(experiment.buffer_length),
        "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    }
    if experiment.max_pending is not None:
        env["TUNE_MAX_PENDING_TRIALS_PG"] = str(experiment.max_pending)
    if options.quiet:
        env["TUNE_PRINT_ALL_TRIAL_ERRORS"] = "0"
    env.update(experiment.env or {})
    return env


def _trial_dirname(trial) -> str:
    return trial.trial_id


def _pg_factory(resources) -> PlacementGroupFactory:
    if isinstance(resources, PlacementGroupFactory):
        return resources
    return resource_dict_to_pg_factory({k.lower(): v for k, v in resources.items()})


def _resource_function(resources: Any) -> Callable[[Dict], PlacementGroupFactory]:
    # Requests are compared by content, which is slow, unless they are the same object.
    known: Dict[str, PlacementGroupFactory] = {}

    def request(config: Dict) -> PlacementGroupFactory:
        # A PlacementGroupFactory can be called too; that would start Ray.
        if isinstance(resources, PlacementGroupFactory) or not callable(resources):
            wanted = resources
        else:
            wanted = resources(config)
        if isinstance(wanted, PlacementGroupFactory):
            key = str(wanted._bundles) + wanted.strategy
        else:
            key = str(wanted)
        if key not in known:
            known[key] = _pg_factory({"CPU": 1} if wanted is None else wanted)
        return known[key]

    return request


def maker(thing: Any) -> Callable[[], Any]:
    """Make a function that returns a thing as it was before the first run of it."""
    if callable(thing) and not isinstance(thing, (TrialScheduler, Searcher)):
        return thing
    if thing is None or isinstance(thing, (list, tuple)) and not thing:
        return lambda: thing
    try:
        blob = cloudpickle.dumps(thing)
    except Exception:
        blob = None
    first = [thing]

    def make():
        if first:
            return first.pop()
        if blob is None:
            raise pickle.PicklingError(
                f"{type(thing).__name__} cannot be pickled, so the experiment cannot "
                "be restored: pass a function that makes it."
            )
        return cloudpickle.loads(blob)

    return make
