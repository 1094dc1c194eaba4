"""What goes wrong in the runs that are drawn: kinds of faults, and mixes of them."""

import random
from dataclasses import dataclass, field
from typing import Dict, List

from ..faults import plan
from ..faults.plan import Fault
from .chances import Between, Maybe, OneOf, drawn

_METHODS = OneOf("train", "train", "train", "save", "start", "restore", "reset", "stop")
_TRIAL = Between(0, 9)  # modulo the number of trials, see ``consistency``
_NTH = Between(1, 4)
_EVENT = Between(1, 40)

# By its name: the function that makes it, and its arguments.
KINDS: Dict[str, tuple] = {
    "task error": (
        plan.task_error,
        OneOf("train", "train", "train", "train", "save", "start", "restore", "reset"),
        _TRIAL,
        _NTH,
    ),
    "training error": (plan.task_error, "train", _TRIAL, Between(1, 3)),
    "actor death": (plan.actor_death, _METHODS, _TRIAL, _NTH),
    "death in a save": (plan.actor_death, "save", _TRIAL, Between(1, 3)),
    "preemption": (plan.preempt, _METHODS, _TRIAL, _NTH),
    "slow task": (plan.slow_task, _METHODS, _TRIAL, _NTH),
    "slow save": (plan.slow_task, "save", _TRIAL, Between(1, 3)),
    "node loss": (plan.node_loss, _EVENT, Between(0, 1), 5.0),
    "full storage": (plan.storage_full, _EVENT, Between(1, 10)),
    "driver death": (plan.driver_death, _EVENT, OneOf(0, 0, 3, 8)),
    "move": (plan.driver_death, Between(5, 40), OneOf(0, 0, 3), True),
    "hook error": (
        plan.hook_error,
        OneOf(
            "on_trial_result",
            "on_trial_result",
            "on_trial_complete",
            "on_trial_remove",
            "on_trial_error",
            "choose_trial_to_run",
        ),
        Between(1, 12),
    ),
}
ANY = {
    "task error": 8,
    "actor death": 4,
    "preemption": 1,
    "slow task": 2,
    "node loss": 1,
    "full storage": 1,
    "driver death": 3,
}


@dataclass(frozen=True)
class FaultMix:
    """Faults that may happen in one run.

    Args:
        share: In which share of the runs there are any.
        at_most: The most.
        kinds: How often each kind is drawn, relative to the others.
    """

    share: float = 0.5
    at_most: int = 3
    kinds: Dict[str, int] = field(default_factory=lambda: ANY)

    def draw(self, rng: random.Random) -> List[Fault]:
        """Draw faults.

        Args:
            rng: What is drawn from.

        Returns:
            The faults.
        """
        count = drawn(Maybe(self.share, Between(1, self.at_most), 0), rng)
        names = rng.choices(list(self.kinds), list(self.kinds.values()), k=count)
        faults = []
        for name in names:
            make, *args = KINDS[name]
            faults.append(make(*drawn(args, rng)))
        return faults


def without(kinds: Dict[str, int], *names: str) -> Dict[str, int]:
    """Return kinds of faults, less some.

    Args:
        kinds: The kinds.
        *names: Those that are left out.

    Returns:
        The others.
    """
    return {name: weight for name, weight in kinds.items() if name not in names}


NO_FAULTS = FaultMix(share=0)
SOME = FaultMix()
MANY = FaultMix(share=0.7)
ALWAYS = FaultMix(share=1)
