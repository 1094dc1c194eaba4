"""Every invariant of the virtual cluster notices what breaks it.

Each has a control: a wrong scheduler, controller, searcher or trainable, small, which
makes it fire on the build that is tested. An invariant without one fails a test here.
"""

import ast
import contextlib
import shutil
import sys
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import pytest
import virtual_cluster.invariants as invariants
from virtual_cluster import (
    Act,
    Cluster,
    Costs,
    Experiment,
    Faults,
    FunctionTrainable,
    InvariantViolation,
    Options,
    PlannedScheduler,
    ScriptedScheduler,
    VirtualCluster,
    driver_death,
    hook_error,
    node_loss,
    task_error,
)
from virtual_cluster.core.storage import VirtualStorage
from virtual_cluster.invariants import private
from virtual_cluster.invariants.checkpoints import CheckpointsThere
from virtual_cluster.invariants.populations import Bounded, what_is_outside
from virtual_cluster.invariants.slots import FailureIsItsOwn
from virtual_cluster.workloads.names import loggers
from virtual_cluster.workloads.populations import BOUNDS, SPACES, population, replay
from virtual_cluster.workloads.reallocations import Reallocating, Sizes
from virtual_cluster.workloads.searchers import HEBOStandIn, RandomSearcher

from ray.train._internal import session
from ray.tune import CheckpointConfig
from ray.tune.execution import tune_controller
from ray.tune.execution.idle_actors import IdleActors
from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment import Trial
from ray.tune.logger import JsonLoggerCallback
from ray.tune.schedulers import (
    ASHAScheduler,
    ASHAv2,
    FIFOScheduler,
    HyperBandScheduler,
    PopulationBasedTraining,
    PopulationBasedTrainingReplay,
    hyperband,
)
from ray.tune.search import BasicVariantGenerator, SearchGenerator
from ray.tune.search.optuna import OptunaSearch

ONE, TWO, FOUR = ({"training_iteration": n} for n in (1, 2, 4))
CONTROLS = defaultdict(list)


def control(rule):
    """Say that what a function breaks is a rule.

    The function is given pytest's `monkeypatch`, and returns a cluster.
    """

    def register(function):
        CONTROLS[rule].append(function)
        return function

    return register


def trial_of(cluster):
    """The only trial."""
    (trial,) = cluster.controller.get_trials()
    return trial


def pause_first(controller, trial, result):
    return "PAUSE" if result["training_iteration"] == 1 else "CONTINUE"


def nobody(controller):
    return None


# Something can still happen


@control("hang")
def nobody_resumes(monkeypatch):
    scheduler = ScriptedScheduler(lambda *_: "PAUSE", choose=nobody)
    return VirtualCluster(Experiment(scheduler, num_samples=2))


@control("running-idle")
def trial_is_not_trained_on(monkeypatch):
    train = TuneController._schedule_trial_train

    def once(self, trial):
        if trial.last_result.get("training_iteration", 0) < 2:
            train(self, trial)

    monkeypatch.setattr(TuneController, "_schedule_trial_train", once)
    return VirtualCluster(Experiment(num_samples=2, stop=FOUR))


@control("blocked")
def driver_waits_for_what_never_comes(monkeypatch):
    def block(controller, trial, result):
        task = controller._schedule_trial_task(trial, "save", _return_future=True)
        cluster.runtime._heap.clear()  # it will never end
        return session.ray.get(task)

    cluster = VirtualCluster(Experiment(ScriptedScheduler(block), stop=FOUR))
    return cluster


@control("spin")
def status_goes_to_and_fro(monkeypatch):
    def choose(controller):
        for trial in controller.get_trials():
            if trial.status == "PENDING":
                return trial
            if trial.status == "PAUSED":
                controller._set_trial_status(trial, "PENDING")
                controller._set_trial_status(trial, "PAUSED")

    return VirtualCluster(Experiment(ScriptedScheduler(pause_first, choose)))


@control("endless")
def nothing_ends_the_run(monkeypatch):
    return VirtualCluster(Experiment(FIFOScheduler()))


@control("stall")
def stalled_run_is_not_ended(monkeypatch):
    scheduler = PlannedScheduler(acts=[Act("result", 1, "pause")], resumes=False)
    never = {"TUNE_STALL_TIMEOUT_S": "0"}
    return VirtualCluster(
        Experiment(scheduler, stall_timeout_s=20, env=never),
        options=Options(may_stall=True),
    )


@control("stall")
def stalled_run_ends_without_a_name(monkeypatch):
    scheduler = PlannedScheduler(acts=[Act("result", 1, "pause")], resumes=False)
    monkeypatch.setattr(Trial, "__str__", lambda self: "a trial")
    cluster = VirtualCluster(
        Experiment(scheduler, stall_timeout_s=20), options=Options(may_stall=True)
    )
    error = tune_controller.TuneError
    monkeypatch.setattr(
        tune_controller, "TuneError", lambda *_: error("The run has stalled.")
    )
    return cluster


@control("stranded")
def bracket_is_never_reduced(monkeypatch):
    monkeypatch.setattr(hyperband._Bracket, "reduce", lambda *_: ([], [], []))
    return VirtualCluster(
        Experiment(HyperBandScheduler(max_t=9, reduction_factor=3), num_samples=9)
    )


# Tasks


def trained_twice(monkeypatch, what):
    def twice(self, trial):
        for _ in range(2):
            self._schedule_trial_task(trial, what, on_result=lambda trial, value: None)

    monkeypatch.setattr(TuneController, "_schedule_trial_train", twice)
    return VirtualCluster(Experiment(stop=FOUR))


@control("two-trains")
def two_trains(monkeypatch):
    return trained_twice(monkeypatch, "train")


@control("two-saves")
def two_saves(monkeypatch):
    return trained_twice(monkeypatch, "save")


@control("buffer-length")
def buffer_is_too_long(monkeypatch):
    def train(self, trial):
        self._schedule_trial_task(trial, "train_buffered", args=(0, 4))

    monkeypatch.setattr(TuneController, "_schedule_trial_train", train)
    return VirtualCluster(Experiment(buffer_length=3))


@control("driver-waits")
def driver_waits_for_a_save(monkeypatch):
    def decide(controller, trial, result):
        if result["training_iteration"] == 1:
            controller._schedule_trial_save(trial, result=result).resolve()
        return "CONTINUE"

    return VirtualCluster(
        Experiment(ScriptedScheduler(decide), stop=TWO), Cluster(costs=Costs(save=3))
    )


# Stops


@control("train-after-stop")
def stopped_trial_is_trained(monkeypatch):
    monkeypatch.setattr(
        TuneController,
        "stop_trial",
        lambda self, trial, *_, **__: self._schedule_trial_train(trial),
    )
    return VirtualCluster(Experiment(stop=FOUR))


def decide_instead(monkeypatch, change):
    execute = TuneController._execute_action

    def execute_another(self, trial, decision, *args, **kwargs):
        decision = change(trial.last_result.get("training_iteration"), decision)
        return execute(self, trial, decision, *args, **kwargs)

    monkeypatch.setattr(TuneController, "_execute_action", execute_another)
    return VirtualCluster(Experiment(ScriptedScheduler(choose=nobody), stop=TWO))


@control("stop-lost")
def pause_is_carried_out_for_a_stop(monkeypatch):
    return decide_instead(
        monkeypatch, lambda iteration, d: "PAUSE" if d == "STOP" else d
    )


@control("unasked-stop")
def stop_is_carried_out_that_nobody_asked_for(monkeypatch):
    return decide_instead(monkeypatch, lambda iteration, d: "STOP" if iteration else d)


@control("unasked-stop")
def run_ends_without_a_failure(monkeypatch):
    def stop_all(self):
        self._should_stop_experiment = True

    execute = TuneController._execute_action

    def execute_and_end(self, trial, *args, **kwargs):
        self._should_stop_experiment = True
        return execute(self, trial, *args, **kwargs)

    monkeypatch.setattr(TuneController, "_execute_action", execute_and_end)
    return VirtualCluster(Experiment(num_samples=2, stop=TWO, fail_fast=True))


@control("restarted")
def ended_trial_starts_again(monkeypatch):
    def decide(controller, trial, result):
        first = controller.get_trials()[0]
        if trial is not first:
            controller._set_trial_status(first, "PENDING")
        return "CONTINUE"

    return VirtualCluster(
        Experiment(ScriptedScheduler(decide), num_samples=2, stop=TWO), Cluster(slots=1)
    )


# Results and logs


@control("result-lost")
def result_is_not_handled(monkeypatch):
    def forget(self, trial, result):
        self._schedule_trial_train(trial)

    monkeypatch.setattr(TuneController, "_on_training_result", forget)
    return VirtualCluster(Experiment(stop=FOUR))


def throw_away(cluster, method):
    """Discard the tasks of the only trial as soon as such a one has ended."""
    trial = trial_of(cluster)
    manager = cluster.controller._actor_manager
    for ref in private.tasks(cluster.controller):
        if ref.method == method and trial in cluster.controller._trial_to_actor:
            cluster.clock.advance_to(ref.ready_at)
            cluster.runtime.carry_out()
            actor = cluster.controller._trial_to_actor[trial]
            manager.clear_actor_task_futures(actor)
            return


@control("result-lost")
def result_is_thrown_away(monkeypatch):
    def watch(cluster, event):
        if event.kind == "train":
            throw_away(cluster, "train")

    return VirtualCluster(Experiment(stop=FOUR), options=Options(on_event=watch))


@control("result-lost")
def results_are_lost_with_an_error_of_a_hook(monkeypatch):
    monkeypatch.setattr(TuneController, "_wind_down", lambda *_: None)
    return VirtualCluster(
        Experiment(FIFOScheduler(), stop=FOUR),
        faults=Faults([hook_error("on_trial_result", 2)]),
    )


@control("checkpoint-lost")
def checkpoint_is_thrown_away(monkeypatch):
    def watch(cluster, event):
        if event.kind == "train":
            throw_away(cluster, "save")

    return VirtualCluster(
        Experiment(PlannedScheduler([Act("result", 1, "save")]), stop=FOUR),
        Cluster(costs=Costs(train=10)),
        options=Options(on_event=watch),
    )


@control("result-twice")
def result_is_handled_twice(monkeypatch):
    process = TuneController._on_training_result

    def twice(self, trial, result):
        process(self, trial, [result, result])

    monkeypatch.setattr(TuneController, "_on_training_result", twice)
    return VirtualCluster(Experiment(stop=FOUR))


@control("result-order")
def results_are_handled_backwards(monkeypatch):
    process = TuneController._on_training_result
    monkeypatch.setattr(
        TuneController,
        "_on_training_result",
        lambda self, trial, result: process(self, trial, result[::-1]),
    )
    return VirtualCluster(
        Experiment(
            stop=FOUR, buffer_length=2, env={"TUNE_RESULT_BUFFER_MIN_TIME_S": "9"}
        )
    )


@control("hook-unnamed")
def error_names_no_hook(monkeypatch):
    monkeypatch.setattr(TuneController, "_hook", lambda *_: contextlib.nullcontext())
    return VirtualCluster(
        Experiment(FIFOScheduler(), stop=TWO),
        faults=Faults([hook_error("on_trial_result", 1)]),
    )


@control("log-incomplete")
def log_has_a_gap(monkeypatch):
    log = JsonLoggerCallback.log_trial_result

    def log_some(self, iteration, trial, result):
        if result["training_iteration"] != 2:
            log(self, iteration, trial, result)

    monkeypatch.setattr(JsonLoggerCallback, "log_trial_result", log_some)
    return VirtualCluster(
        Experiment(ScriptedScheduler(pause_first), stop=FOUR, callbacks=loggers)
    )


# Checkpoints


def retried(on_event=None):
    return VirtualCluster(
        Experiment(
            max_failures=1,
            stop=FOUR,
            checkpoint_config=CheckpointConfig(checkpoint_frequency=1),
        ),
        faults=Faults([task_error("train", trial=0, nth=3)]),
        options=Options(on_event=on_event),
    )


@control("resume-point")
def trial_starts_from_scratch(monkeypatch):
    monkeypatch.setattr(
        TuneController, "_schedule_trial_restore", lambda self, trial: False
    )
    return retried()


@control("resume-point")
def checkpoint_holds_another_iteration(monkeypatch):
    def corrupt(cluster, event):
        for content in cluster.runtime.contents.values():
            content["progress"] = 7

    return retried(corrupt)


@control("checkpoint-overwritten")
def checkpoints_have_one_name(monkeypatch):
    monkeypatch.setattr(VirtualStorage, "_update_checkpoint_index", lambda *_: None)
    return retried()


@control("checkpoint-gone")
def checkpoint_is_deleted(monkeypatch):
    def delete(cluster, event):
        if event.kind == "status" and event.detail == "PAUSED":
            shutil.rmtree(trial_of(cluster).checkpoint.path)

    return VirtualCluster(
        Experiment(PlannedScheduler([Act("result", 2, "pause")]), stop=FOUR),
        options=Options(on_event=delete),
    )


@control("pin-left")
def checkpoint_stays_pinned(monkeypatch):
    def pin(cluster, event):
        trial = trial_of(cluster)
        if event.kind == "save":
            trial.pin_checkpoint(trial.checkpoint, pinned_by="somebody")

    return VirtualCluster(
        Experiment(PlannedScheduler([Act("result", 2, "save")]), stop=FOUR),
        options=Options(on_event=pin),
    )


@control("restored-pause")
def restored_trial_is_pending(monkeypatch):
    add = TuneController.add_trial

    def add_pending(self, trial):
        if trial.status == Trial.PAUSED:
            trial.set_status(Trial.PENDING)
        add(self, trial)

    monkeypatch.setattr(TuneController, "add_trial", add_pending)
    return VirtualCluster(
        Experiment(
            lambda: HyperBandScheduler(max_t=9, reduction_factor=3), num_samples=9
        ),
        faults=Faults([driver_death(after=30)]),
    )


@control("stale-config")
def config_changes_behind_the_actor(monkeypatch):
    train = TuneController._schedule_trial_train

    def train_another(self, trial):
        trial.set_config({"x": 2})
        train(self, trial)

    monkeypatch.setattr(TuneController, "_schedule_trial_train", train_another)
    return VirtualCluster(Experiment(stop=ONE))


# Slots


@control("max-concurrent")
def limit_is_forgotten(monkeypatch):
    class NoLimit(BasicVariantGenerator):
        def next_trial(self):
            self.max_concurrent = 0
            return super().next_trial()

    return VirtualCluster(
        Experiment(num_samples=2, search_alg=NoLimit, max_concurrent=1)
    )


@control("paused-holds-actor")
def paused_trial_keeps_its_actor(monkeypatch):
    def pause_halfway(cluster, event):
        if event.kind == "train":
            cluster.controller._set_trial_status(trial_of(cluster), Trial.PAUSED)

    return VirtualCluster(
        Experiment(ScriptedScheduler(choose=nobody)),
        options=Options(on_event=pause_halfway),
    )


@control("actor-wasted")
def actors_are_not_kept(monkeypatch):
    monkeypatch.setattr(
        TuneController, "_maybe_cache_trial_actor", lambda *_, **__: False
    )
    return VirtualCluster(
        Experiment(
            ScriptedScheduler(pause_first), num_samples=2, stop=TWO, reuse_actors=True
        ),
        Cluster(slots=2),
    )


@control("failure-not-its-own")
def trial_is_given_a_dead_actor(monkeypatch):
    monkeypatch.setattr(IdleActors, "on_task_failed", lambda *_: False)

    def choose(controller):
        # Nobody, for as long as the nodes are there.
        if all(node.up for node in cluster.nodes) and cluster.monitor.number < 5:
            return None
        return FIFOScheduler().choose_trial_to_run(controller)

    cluster = VirtualCluster(
        Experiment(ScriptedScheduler(pause_first, choose), reuse_actors=True, stop=TWO),
        Cluster(slots=2, nodes=2),
        Faults([node_loss(3, node=0), node_loss(3, node=1)]),
    )
    return cluster


# Promotions


@control("promotion")
def everybody_goes_on(monkeypatch):
    class Generous(ASHAv2):
        def on_trial_result(self, tune_controller, trial, result):
            decision = super().on_trial_result(tune_controller, trial, result)
            return "CONTINUE" if decision == "PAUSE" else decision

    return VirtualCluster(
        Experiment(Generous(max_t=3, reduction_factor=2), num_samples=8),
        Cluster(slots=2),
    )


@control("bracket-changed")
def bracket_is_drawn_again(monkeypatch):
    add = ASHAScheduler.on_trial_add

    def draw_again(self, controller, trial):
        add(self, controller, trial)
        if trial.num_failures:
            bracket = self._trial_info[trial.trial_id]
            others = [b for b in self._brackets if b is not bracket]
            self._trial_info[trial.trial_id] = others[0]

    monkeypatch.setattr(ASHAScheduler, "on_trial_add", draw_again)
    return VirtualCluster(
        Experiment(
            ASHAScheduler(max_t=9, grace_period=1, reduction_factor=3, brackets=2),
            max_failures=1,
        ),
        faults=Faults([task_error("train", trial=0, nth=1)]),
    )


# The end


@control("unfinished")
def run_ends_early(monkeypatch):
    monkeypatch.setattr(
        TuneController,
        "is_finished",
        lambda self: any(t.last_result for t in self.get_trials()),
    )
    return VirtualCluster(Experiment(stop=FOUR))


@control("actor-left")
def nothing_is_cleaned_up(monkeypatch):
    monkeypatch.setattr(TuneController, "cleanup", lambda self: None)
    return VirtualCluster(Experiment(stop=ONE, reuse_actors=True))


@control("future-left")
def task_is_waited_for(monkeypatch):
    def watch(cluster, event):
        if (event.kind, event.detail) == ("status", "RUNNING"):
            actors.append(cluster.controller._trial_to_actor[trial_of(cluster)])
        if (event.kind, event.detail) == ("status", "TERMINATED"):
            manager = cluster.controller._actor_manager
            ref = cluster.runtime.submit(refs[0].actor, "save", (), {})
            manager._actor_task_events.track_future(ref)
        refs.extend(private.tasks(cluster.controller))

    actors, refs = [], []
    return VirtualCluster(Experiment(stop=ONE), options=Options(on_event=watch))


@control("decision-left")
def decision_is_kept(monkeypatch):
    def leave(cluster, event):
        if event.detail == "TERMINATED":
            cluster.controller._cached_trial_decisions["t_00000"] = "PAUSE"

    return VirtualCluster(Experiment(stop=ONE), options=Options(on_event=leave))


# Who is told


@control("scheduler-not-told")
def scheduler_is_not_told(monkeypatch):
    monkeypatch.setattr(TuneController, "_scheduler_alg", Deaf(), raising=False)
    return VirtualCluster(Experiment(FIFOScheduler(), stop=ONE))


class Deaf:
    """In a controller's class: its scheduler, less ``on_trial_complete``."""

    def __get__(self, controller, cls=None):
        return Muffled(controller.__dict__["_scheduler_alg"])

    def __set__(self, controller, value):
        controller.__dict__["_scheduler_alg"] = value


class Muffled:
    def __init__(self, scheduler):
        self._scheduler = scheduler

    def on_trial_complete(self, controller, trial, result):
        pass

    def __getattr__(self, name):
        return getattr(self._scheduler, name)


def untold(monkeypatch, max_concurrent):
    monkeypatch.setattr(SearchGenerator, "on_trial_complete", lambda *_, **__: None)
    return VirtualCluster(
        Experiment(
            num_samples=2,
            stop=ONE,
            search_alg=RandomSearcher(),
            max_concurrent=max_concurrent,
        )
    )


@control("searcher-not-told")
def searcher_is_not_told(monkeypatch):
    return untold(monkeypatch, 0)


@control("searcher-not-told")
def searcher_behind_a_limiter_is_not_told(monkeypatch):
    return untold(monkeypatch, 2)


def told_of_pauses(monkeypatch, hook, search_alg=None):
    monkeypatch.setattr(SearchGenerator, "on_trial_pause", hook)
    return VirtualCluster(
        Experiment(
            HyperBandScheduler(max_t=9, reduction_factor=3),
            num_samples=9,
            search_alg=search_alg or RandomSearcher(),
        )
    )


@control("pause-not-told")
def searcher_is_not_told_of_a_pause(monkeypatch):
    return told_of_pauses(monkeypatch, lambda *_, **__: None)


@control("pause-not-told")
def searcher_is_told_twice_of_a_pause(monkeypatch):
    def twice(self, trial_id, result=None):
        for _ in range(2):
            self.searcher.on_trial_pause(trial_id, result=result)

    return told_of_pauses(monkeypatch, twice)


@control("pause-not-told")
def searcher_is_given_another_result(monkeypatch):
    def another(self, trial_id, result=None):
        self.searcher.on_trial_pause(trial_id, result={**result, "score": -1.0})

    return told_of_pauses(monkeypatch, another)


@control("learned-wrongly")
def optuna_does_not_learn_of_a_pause(monkeypatch):
    return told_of_pauses(monkeypatch, lambda *_, **__: None, OptunaSearch(seed=1))


@control("learned-wrongly")
def optuna_counts_a_trial_twice(monkeypatch):
    class Twice(dict):
        def pop(self, *_):
            pass

    searcher = OptunaSearch(seed=1)
    searcher._observations = Twice()
    return VirtualCluster(
        Experiment(
            HyperBandScheduler(max_t=9, reduction_factor=3),
            num_samples=9,
            search_alg=searcher,
        )
    )


@control("learned-wrongly")
def hebo_counts_a_trial_twice(monkeypatch):
    class Forgets(dict):
        def __contains__(self, trial):
            return False

    searcher = HEBOStandIn()
    searcher._observed_rows = Forgets()
    return VirtualCluster(
        Experiment(
            HyperBandScheduler(max_t=9, reduction_factor=3),
            num_samples=9,
            search_alg=searcher,
        )
    )


@control("last-result-open")
def last_result_is_left_open(monkeypatch):
    monkeypatch.setattr(TuneController, "_mark_last_result_done", lambda *_: None)
    return VirtualCluster(
        Experiment(HyperBandScheduler(max_t=9, reduction_factor=3), num_samples=9)
    )


def warned(monkeypatch, times):
    def warn(self, topic, message):
        for _ in range(times):
            tune_controller.logger.warning(message)

    monkeypatch.setattr(TuneController, "_warn_once", warn)
    return VirtualCluster(
        Experiment(
            PlannedScheduler([Act("result", 1, "pause")]),
            trainable=FunctionTrainable(checkpoint_every=0),
            stop=TWO,
        )
    )


@control("pause-unsaid")
def nothing_is_said_of_a_pause(monkeypatch):
    return warned(monkeypatch, 0)


@control("pause-unsaid")
def pause_is_said_twice(monkeypatch):
    return warned(monkeypatch, 2)


# Populations


def pbt(**kwargs):
    return population(
        time_attr="training_iteration",
        perturbation_interval=1,
        quantile_fraction=0.5,
        require_attrs=False,
        **kwargs,
    )


@control("outside-space")
def exploit_leaves_the_space(monkeypatch):
    def leave(config):
        return {**config, "x": config["x"] + 5}

    return VirtualCluster(
        Experiment(
            lambda: pbt(custom_explore_fn=leave, synch=True), num_samples=2, stop=FOUR
        )
    )


@control("unbounded")
def population_is_trained_on_and_on(monkeypatch):
    monkeypatch.setattr(Trial, "should_stop", lambda *_: False)
    return VirtualCluster(Experiment(pbt, num_samples=2, stop=FOUR))


@control("policy")
def policy_is_not_followed(monkeypatch):
    monkeypatch.setattr(
        PopulationBasedTrainingReplay, "on_trial_result", lambda *_: "CONTINUE"
    )
    return VirtualCluster(
        Experiment(lambda: replay(((2, 0.2), (4, 0.7))), param_space={}, stop=FOUR)
    )


@control("policy-log")
def another_policy_is_logged(monkeypatch):
    log = PopulationBasedTraining._log_config_on_step

    def log_another(self, *args):
        *others, config = args
        log(self, *others, {**config, "x": 7})

    monkeypatch.setattr(PopulationBasedTraining, "_log_config_on_step", log_another)
    return VirtualCluster(
        Experiment(lambda: pbt(log_config=True, synch=True), num_samples=2, stop=FOUR)
    )


# Resources that change


@control("reallocation-lost")
def reallocation_is_forgotten(monkeypatch):
    class Forgetful(Reallocating):
        def set_trial_resources(self, trial, new_resources):
            return True

    # One CPU, then two: the second one is never given.
    return VirtualCluster(
        Experiment(
            lambda: Forgetful(resources_allocation_function=Sizes(2, 1)), stop=FOUR
        )
    )


@control("reallocation-lost")
def trial_goes_on_with_what_it_has(monkeypatch):
    class Stubborn(Reallocating):
        def on_trial_result(self, tune_controller, trial, result):
            super().on_trial_result(tune_controller, trial, result)
            return "CONTINUE"

    return VirtualCluster(
        Experiment(
            lambda: Stubborn(resources_allocation_function=Sizes(2, 1)), stop=FOUR
        )
    )


@control("starved")
def trial_that_waits_for_resources_is_passed_over(monkeypatch):
    class Forgetful(Reallocating):
        def choose_trial_to_run(self, tune_controller):
            trials = tune_controller.get_trials()
            return next((t for t in trials if t.status == "PENDING"), None)

    def curve(config, iteration):
        if config["x"]:
            raise RuntimeError  # It fails and starts again, over and over.
        return {"score": 0}

    return VirtualCluster(
        Experiment(
            lambda: Forgetful(resources_allocation_function=Sizes(2, 1)),
            configs=[{"x": 0}, {"x": 1}],
            trainable=curve,
            max_failures=-1,
        )
    )


# All of them


def test_every_rule_has_a_control():
    assert set(CONTROLS) == set(invariants.RULES)


@pytest.mark.parametrize(
    "rule, make",
    [
        pytest.param(rule, make, id=f"{rule}: {make.__name__}")
        for rule, makers in CONTROLS.items()
        for make in makers
    ],
)
def test_notices(monkeypatch, rule, make):
    cluster = make(monkeypatch)
    with pytest.raises(InvariantViolation) as info:
        cluster.run(max_events=500)
    assert info.value.rule == rule, str(info.value)
    assert info.value.events


def test_every_rule_belongs_to_a_documented_module():
    folder = Path(invariants.__file__).parent
    names = {path.stem for path in folder.glob("*.py")} - {"__init__", "private"}
    assert all(f"``{name}``" in invariants.__doc__ for name in names)
    listed = {cls.__module__.rpartition(".")[2] for cls in invariants.INVARIANTS}
    assert listed == names


def test_no_invariant_turns_itself_off():
    # An attribute that is missing would be taken for one that says nothing.
    for path in Path(invariants.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            place = f"{path.name}:{getattr(node, 'lineno', 0)}"
            if path.stem != "private":
                assert not isinstance(node, ast.Try), place
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id != "hasattr", place
                assert node.func.id != "getattr" or len(node.args) == 2, place


def test_rule_that_no_invariant_has_is_refused():
    cluster = VirtualCluster(Experiment()).start()
    with pytest.raises(KeyError, match="no invariant"):
        cluster.monitor.broken("hnag", "")


def test_name_that_changed_in_ray_is_told():
    with pytest.raises(private.UnknownShape, match="_trial_to_actor.*private"):
        private.trial_to_actor(SimpleNamespace())
    with pytest.raises(private.UnknownShape, match="_all_trials or _trials"):
        private.bracket_size(SimpleNamespace())


# What is exempt, and what is not


class Notes:
    """Stands in for a monitor."""

    def __init__(self):
        self.rules = []

    def broken(self, rule, what, trial=None):
        self.rules.append(rule)


def test_failure_of_its_own_excuses_no_later_one():
    check, notes = FailureIsItsOwn(), Notes()
    trial = SimpleNamespace(trial_id="t")
    actor = SimpleNamespace(died_at=None)
    train = SimpleNamespace(method="train", trial_id="t", seq=1, actor=actor)
    check.on_submit(notes, train, None)
    check.on_failure(notes, train)
    check.on_status(notes, trial, "RUNNING", "ERROR")
    assert not notes.rules
    actor = SimpleNamespace(died_at=3)
    reset = SimpleNamespace(method="reset", trial_id="t", seq=5, actor=actor)
    check.on_submit(notes, reset, None)
    check.on_failure(notes, reset)
    check.on_status(notes, trial, "RUNNING", "ERROR")
    assert notes.rules == ["failure-not-its-own"]


def test_what_a_failure_has_undone_is_due_again():
    trial = SimpleNamespace(trial_id="t", stopping_criterion={"training_iteration": 4})
    check, notes = Bounded(), Notes()
    check.on_status(notes, trial, Trial.RUNNING, Trial.ERROR)
    for _ in range(20):
        check.on_result(notes, trial, {})
    assert not notes.rules


def test_checkpoint_that_was_gone_before_the_restore(tmp_path):
    checkpoint = SimpleNamespace(path=str(tmp_path / "gone"))
    trial = SimpleNamespace(trial_id="t", checkpoint=checkpoint)
    controller = SimpleNamespace(get_trials=lambda: [trial])
    result = SimpleNamespace(checkpoint=checkpoint)
    restore = SimpleNamespace(method="restore", trial_id="t", args=[result])
    check, notes = CheckpointsThere(), Notes()
    check.driver_died(notes)
    check.on_submit(notes, restore, None)
    check.after_step(notes, controller)
    check.on_submit(notes, restore, None)
    assert not notes.rules
    checkpoint.path += "_another"
    check.on_submit(notes, restore, None)
    assert notes.rules == ["checkpoint-gone"]


@pytest.mark.parametrize(
    "space, config, outside",
    [
        ("x", {"x": 1.0}, ""),
        ("x", {"x": 1.01}, "x=1.01"),
        ("x", {}, "x is missing"),
        ("listed", {"x": 0.3, "layers": 4, "kind": "b"}, ""),
        ("listed", {"x": 0.3, "layers": 3, "kind": "b"}, "layers=3"),
        ("listed", {"x": 0.3, "layers": 4, "kind": "c"}, "kind='c'"),
        ("numbers", {"x": 0.75, "size": 8, "even": 8, "lr": 0.1}, ""),
        ("numbers", {"x": 0.7, "size": 8, "even": 8, "lr": 0.1}, "x=0.7"),
        ("numbers", {"x": 0.75, "size": 9, "even": 8, "lr": 0.1}, "size=9"),
        ("numbers", {"x": 0.75, "size": 1.5, "even": 8, "lr": 0.1}, "size=1.5"),
        ("numbers", {"x": 0.75, "size": 1, "even": 3, "lr": 0.1}, "even=3"),
        ("drawn", {"x": 5, "size": -1}, ""),
        (
            "nested",
            {"x": 0, "net": {"act": "tanh", "lr": 0.01, "opt": {"beta": 2}}},
            "net/opt/beta=2",
        ),
    ],
)
def test_what_is_outside_of_a_space(space, config, outside):
    assert what_is_outside(config, SPACES[space], False) == outside


def test_what_is_outside_of_bounds():
    inside = {"x": 1, "lr": 0.3, "size": 2}
    assert not what_is_outside(inside, BOUNDS["narrow"], True)
    outside = what_is_outside({**inside, "lr": 0.3001}, BOUNDS["narrow"], True)
    assert outside == "lr=0.3001"


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
