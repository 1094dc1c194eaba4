"""What trials train: learning curves, and how class and function trainables behave.

Nothing here runs in a worker. A trainable only says which metrics come next; the
runtime (``runtime.py``) acts as ``Trainable`` and ``FunctionTrainable`` do.
"""

import inspect
import math
from typing import Any, Callable, Dict, Optional, Sequence, Union

from ray import tune

Curve = Callable[..., Dict[str, Any]]


def saturating(config: Dict[str, Any], iteration: int) -> Dict[str, Any]:
    """A learning curve that rises toward ``config["x"]``.

    Args:
        config: The trial's configuration; ``x`` defaults to 0.5.
        iteration: The training iteration, counted from 1.

    Returns:
        The metrics of this iteration: ``score``.
    """
    x = config.get("x", 0.5)
    return {"score": x * (1.0 - math.exp(-iteration / 4.0))}


class MixedCurve:
    """A curve whose ranking changes on the way, with steps, gaps and NaN if wanted.

    Args:
        step: The metric ``t`` rises by so much with each iteration.
        nan_every: The score is NaN in every n-th iteration of some trials; 0: never.
        skip_every: ``t`` is missing in every n-th result; 0: never.
        gap_every: The score is missing in every n-th result; 0: never.
    """

    def __init__(
        self,
        step: float = 1,
        nan_every: int = 0,
        skip_every: int = 0,
        gap_every: int = 0,
    ):
        self.step = step
        self.nan_every = nan_every
        self.skip_every = skip_every
        self.gap_every = gap_every

    def __call__(self, config: Dict[str, Any], iteration: int) -> Dict[str, Any]:
        x = config.get("x", 0.5)
        score = x * iteration + ((x * 7919.0 * iteration) % 1.0)
        if self.nan_every and iteration % self.nan_every == 0 and x > 0.4:
            score = math.nan
        metrics = {"score": score, "t": self.step * iteration}
        if self.skip_every and iteration % self.skip_every == 0:
            del metrics["t"]
        if self.gap_every and iteration % self.gap_every == 0:
            del metrics["score"]
        return metrics


def _takes_state(curve: Curve) -> bool:
    if type(curve) is MixedCurve:  # It is much drawn, and a signature takes its time.
        return False
    return len(inspect.signature(curve).parameters) >= 3


class VirtualTrainable:
    """Base of both kinds; use :class:`ClassTrainable` or :class:`FunctionTrainable`.

    Args:
        curve: ``curve(config, iteration)`` or ``curve(config, iteration, state)``
            returns the metrics of an iteration. ``state`` is a dict that belongs to
            the trial: it is saved in checkpoints and comes back with a restore. A
            curve may raise: then the ``train`` task fails.
        length: Iterations after which training ends on its own: a number, a function
            of the config, or None for never.
        resettable: Whether ``reset_config`` succeeds (``reuse_actors``); an exception,
            if it raises that.
    """

    kind = "class"
    bare = False
    checkpoint_every = 1  # it can be saved at any time

    def __init__(
        self,
        curve: Curve = saturating,
        length: Union[None, int, Callable[[Dict], Optional[int]]] = None,
        resettable: Union[bool, Exception] = True,
    ):
        self.curve = curve
        self.length = length
        self.resettable = resettable
        self._takes_state = _takes_state(curve)

    @property
    def registered_name(self) -> str:
        return f"bare_{self.kind}" if self.bare else f"virtual_{self.kind}"

    def metrics(self, config: Dict, iteration: int, state: Dict) -> Dict[str, Any]:
        if self._takes_state:
            return dict(self.curve(config, iteration, state))
        return dict(self.curve(config, iteration))

    def end(self, config: Dict) -> Optional[int]:
        return self.length(config) if callable(self.length) else self.length

    def reports_checkpoint(self, iteration: int) -> bool:
        return False


class ClassTrainable(VirtualTrainable):
    """A ``tune.Trainable``: saves whenever asked, its last result is ``done``.

    Args:
        curve: As for :class:`VirtualTrainable`.
        length: As for :class:`VirtualTrainable`.
        resettable: As for :class:`VirtualTrainable`.
        bare: Whether it implements no ``save_checkpoint``, ``load_checkpoint`` and
            ``reset_config``.
    """

    def __init__(
        self,
        curve: Curve = saturating,
        length: Union[None, int, Callable[[Dict], Optional[int]]] = None,
        resettable: Union[bool, Exception] = True,
        bare: bool = False,
    ):
        super().__init__(curve, length, False if bare else resettable)
        self.bare = bare


class FunctionTrainable(VirtualTrainable):
    """A training function.

    It has a checkpoint only once it has reported one, and ends without ``done``: the
    iteration after its last one yields Tune's duplicate marker.

    Args:
        curve: As for :class:`VirtualTrainable`.
        length: As for :class:`VirtualTrainable`.
        resettable: As for :class:`VirtualTrainable`.
        checkpoint_every: Report a checkpoint with every n-th result; 0 for never.
        reads: How it gets at its state when it is resumed: ``"checkpoint"``; or
            ``"nothing"``, so that it starts over; or ``"elsewhere"``, so that it goes
            on without having asked Tune.
        callback: The library and the setting of the callback that it reports with, if
            it is one of Tune's.
    """

    kind = "function"

    def __init__(
        self,
        curve: Curve = saturating,
        length: Union[None, int, Callable[[Dict], Optional[int]]] = None,
        resettable: Union[bool, Exception] = True,
        checkpoint_every: int = 1,
        reads: str = "checkpoint",
        callback: Optional[Sequence[str]] = None,
    ):
        super().__init__(curve, length, resettable)
        self.checkpoint_every = checkpoint_every
        self.reads = reads
        self.callback = callback

    def reports_checkpoint(self, iteration: int) -> bool:
        return bool(self.checkpoint_every) and iteration % self.checkpoint_every == 0


class _Placeholder(tune.Trainable):
    """Never instantiated; tells Tune what a trial needs."""

    resource_function: Optional[Callable] = None

    @classmethod
    def default_resource_request(cls, config):
        return cls.resource_function(config) if cls.resource_function else None


class bare_class(_Placeholder):
    """The registered name of virtual class trainables that implement nothing more."""


class _Complete(_Placeholder):
    def save_checkpoint(self, checkpoint_dir):
        raise AssertionError("the runtime acts in its place")

    load_checkpoint = reset_config = save_checkpoint


class virtual_class(_Complete):
    """The registered name of virtual class trainables."""


class virtual_function(_Complete):
    """The registered name of virtual function trainables."""


_PLACEHOLDERS = {
    cls.__name__: cls for cls in (bare_class, virtual_class, virtual_function)
}


def placeholder(name: str) -> type:
    """Return the class that is registered under a name.

    Args:
        name: ``bare_class``, ``virtual_class`` or ``virtual_function``.

    Returns:
        The class.
    """
    return _PLACEHOLDERS[name]


def register() -> None:
    """Make the placeholders known to Tune's registry."""
    from ray.tune.registry import register_trainable

    for name, cls in _PLACEHOLDERS.items():
        register_trainable(name, cls)
