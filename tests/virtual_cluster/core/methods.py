"""What an actor does when one of its methods is called: as ``Trainable`` does."""

import copy
import os
from typing import Dict, List, Optional

from .actors import Actor, ObjectRef
from ray.train._internal.session import _TrainingResult
from ray.tune import Checkpoint
from ray.tune.result import DEBUG_METRICS, DONE, RESULT_DUPLICATE, SHOULD_CHECKPOINT


class ActorMethods:
    """The methods of actors; a part of :class:`Runtime`, which carries them out."""

    def _do_train(self, actor: Actor, ref: ObjectRef) -> Dict:
        trainable = actor.trainable
        length = trainable.end(actor.config)
        function = trainable.kind == "function"
        if function and length is not None and actor.progress >= length:
            result = {RESULT_DUPLICATE: True, SHOULD_CHECKPOINT: False}
            actor.last_training_result = _TrainingResult(None, dict(result))
            if self.monitor is not None:
                self.monitor.tell("on_produced", ref, result)
            return result
        metrics = trainable.metrics(actor.config, actor.progress + 1, actor.state)
        checkpoint = None
        if function and trainable.reports_checkpoint(actor.progress + 1):
            checkpoint = self._persist(actor, actor.progress + 1)
            metrics[SHOULD_CHECKPOINT] = True
        reported = dict(metrics)
        actor.progress += 1
        actor.iteration += 1
        actor.iterations_since_restore += 1
        took = metrics.get("time_this_iter_s", self._cost_seen(ref))
        actor.time_total += took
        actor.time_since_restore += took
        result = metrics
        if not function and length is not None and actor.progress >= length:
            result[DONE] = True
        result.setdefault(DONE, False)
        result.setdefault("training_iteration", actor.iteration)
        result.update(self._auto_filled(actor, took))
        actor.last_result = result
        if function:
            actor.last_training_result = _TrainingResult(checkpoint, reported)
        sent = {**result, **self._notes(actor)}
        if self.monitor is not None:
            self.monitor.tell("on_produced", ref, sent)
        return sent

    def _notes(self, actor: Actor) -> Dict:
        """What a function's session notes of checkpoints, for the driver alone."""
        if actor.trainable.kind != "function":
            return {}
        notes: Dict = {}
        if actor.unread:
            actor.unread, notes["unread"] = False, True
        if actor.trainable.callback and actor.iterations_since_restore == 1:
            notes["callback"] = list(actor.trainable.callback)
        return {"__checkpoint_notes__": notes} if notes else {}

    def _cost_seen(self, ref: ObjectRef) -> float:
        cost = self.costs.train
        if isinstance(cost, (int, float)):
            return float(cost)
        return max(1e-3, ref.ready_at - self.clock.now) if ref.ready_at else 1.0

    def _do_train_buffered(self, actor, ref, buffer_time_s, max_buffer_length=1000):
        results: List[Dict] = []
        spent, cost = 0.0, max(1e-9, self._cost_seen(ref))
        while spent < buffer_time_s or not results:
            result = self._do_train(actor, ref)
            results.append(result)
            spent += cost
            if (
                result.get(DONE)
                or result.get(SHOULD_CHECKPOINT)
                or result.get(RESULT_DUPLICATE)
                or len(results) >= max_buffer_length
            ):
                break
        return results

    def _auto_filled(self, actor: Actor, took: Optional[float]) -> Dict:
        return {
            "trial_id": actor.trial_id,
            "date": "",
            "timestamp": int(self.clock.unix),
            "time_this_iter_s": took,
            "time_total_s": actor.time_total,
            "pid": actor.number,
            "hostname": f"node{actor.node.number if actor.node else 0}",
            "node_ip": f"10.0.0.{actor.node.number if actor.node else 0}",
            "config": actor.config,
            "time_since_restore": actor.time_since_restore,
            "iterations_since_restore": actor.iterations_since_restore,
        }

    def _do_get_auto_filled_metrics(self, actor, ref, debug_metrics_only=False, **_):
        filled = self._auto_filled(actor, None)
        if debug_metrics_only:
            filled = {k: v for k, v in filled.items() if k in DEBUG_METRICS}
        return filled

    def _do_get_current_ip_pid(self, actor, ref):
        return f"10.0.0.{actor.node.number if actor.node else 0}", actor.number

    def _persist(self, actor: Actor, progress: int) -> Checkpoint:
        if self.storage_full:
            raise OSError(28, "No space left on device (virtual storage)")
        storage = actor.storage
        storage._update_checkpoint_index({})
        path = storage.checkpoint_fs_path
        os.makedirs(path, exist_ok=True)
        if path in self.written and self.monitor is not None:
            self.monitor.tell("on_overwritten", actor.trial_id, path)
        self.written.add(path)
        self.contents[path] = {
            "trial_id": actor.trial_id,
            "progress": progress,
            "state": copy.deepcopy(actor.state),
        }
        return Checkpoint(path, filesystem=storage.storage_filesystem)

    def _do_save(self, actor: Actor, ref: ObjectRef) -> _TrainingResult:
        if actor.trainable.kind == "function":
            last = actor.last_training_result
            assert isinstance(last, _TrainingResult)
            assert actor.last_result
            return _TrainingResult(
                last.checkpoint, {**last.metrics, **actor.last_result}
            )
        if actor.trainable.bare:
            raise NotImplementedError
        metrics = dict(actor.last_result or {})
        return _TrainingResult(self._persist(actor, actor.progress), metrics)

    def _do_restore(self, actor: Actor, ref: ObjectRef, result: _TrainingResult):
        checkpoint, metrics = result.checkpoint, result.metrics
        actor.iteration = metrics.get("training_iteration", 0)
        actor.time_total = metrics.get("time_total_s", 0)
        actor.time_since_restore = 0.0
        actor.iterations_since_restore = 0
        content = self.contents.get(checkpoint.path)
        if content is None or not os.path.exists(checkpoint.path):
            raise ValueError(
                "Could not recover from checkpoint as it does not exist on storage "
                f"anymore: {os.path.basename(checkpoint.path)}"
            )
        actor.progress = content["progress"]
        actor.state = copy.deepcopy(content["state"])
        if actor.trainable.kind == "function" and actor.trainable.reads != "checkpoint":
            actor.unread = True
            if actor.trainable.reads == "nothing":
                actor.progress, actor.state = 0, {}
        if self.monitor is not None:
            self.monitor.tell("on_restored", ref, content, metrics)

    def _do_reset(self, actor: Actor, ref: ObjectRef, config, storage=None) -> bool:
        actor._load(config, storage)
        if isinstance(actor.trainable.resettable, Exception):
            raise actor.trainable.resettable
        if not actor.trainable.resettable:
            return False
        kept = actor.last_result, actor.last_training_result
        actor.fresh()
        # As Ray does: a class keeps its last result, a function its last report.
        if actor.trainable.kind == "function":
            actor.last_result, actor.last_training_result = {}, kept[1]
        else:
            actor.last_result = kept[0]
        return True
