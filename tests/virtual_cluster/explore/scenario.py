"""Scenarios: settings of a virtual cluster that are drawn, shrunk and printed."""

import copy
from typing import Any, Dict, List, Optional

from ..core.cluster import VirtualCluster
from ..core.settings import GROUP_OF, GROUPS, grouped
from ..workloads.names import names
from ..workloads.spec import Spec, make


class Scenario:
    """One run, as data.

    Args:
        workload: The kind of run that it was drawn as.
        scheduler: Its scheduler.
        settings: Settings of the virtual cluster, which may be specs.
        faults: What goes wrong.
    """

    def __init__(
        self,
        workload: str,
        scheduler: Spec,
        settings: Dict[str, Any],
        faults: Optional[List] = None,
    ):
        self.workload = workload
        self.scheduler = scheduler
        self.settings = dict(settings)
        self.faults = list(faults or [])
        self.ignore: tuple = ()  # invariants that are not checked

    @property
    def trainable(self) -> Optional[Spec]:
        """What is trained; None for the default."""
        return self.settings.get("trainable")

    @property
    def curve(self) -> Optional[Spec]:
        """The learning curve of what is trained; None for the default."""
        return (
            self.trainable.args[0] if self.trainable and self.trainable.args else None
        )

    def copy(self) -> "Scenario":
        """Return a copy that can be changed.

        Returns:
            The copy.
        """
        return copy.deepcopy(self)

    def _all(self) -> Dict[str, Any]:
        settings = dict(self.settings)
        if self.faults:
            settings["faults"] = self.faults
        if self.ignore:
            settings["ignore"] = self.ignore
        return settings

    def sources(self) -> Dict[str, str]:
        """Return the settings as source.

        Returns:
            An expression for each setting.
        """
        sources = {"scheduler": f"lambda: {self.scheduler!r}"}
        for name, value in self._all().items():
            sources[name] = (
                f"lambda: {value!r}" if name == "search_alg" else repr(value)
            )
        return sources

    def cluster(self, **overrides: Any) -> VirtualCluster:
        """Make the cluster.

        Args:
            **overrides: Further settings.

        Returns:
            The cluster.
        """
        known = names()
        settings = {
            k: make(v, known) for k, v in self._all().items() if k != "search_alg"
        }
        settings["scheduler"] = lambda: make(self.scheduler, known)
        search_alg = self.settings.get("search_alg")
        if search_alg is not None:
            settings["search_alg"] = lambda: make(search_alg, known)
        return VirtualCluster(**grouped({**settings, **overrides}))

    def test_source(self, rule: str, what: str) -> str:
        """Print the scenario as a test that can be pasted.

        Args:
            rule: The invariant that it breaks.
            what: What was broken.

        Returns:
            The source of a test.
        """
        groups: Dict[str, str] = {}
        for setting, source in self.sources().items():
            group = GROUP_OF[setting]
            groups.setdefault(group, "")
            groups[group] += f"            {setting}={source},\n"
        lines = "".join(
            f"        {group}={cls.__name__}(\n{groups[group]}        ),\n"
            for group, cls in GROUPS.items()
            if group in groups
        )
        name = f"test_{self.workload}_{rule}".lower()
        return (
            f"def {name.replace('-', '_').replace(':', '_')}():\n"
            f"    # {what[:80]}\n"
            f"    VirtualCluster(\n"
            f"{lines}"
            f"    ).run(max_events=2000)\n"
        )

    def size(self) -> int:
        """Return how much there is to it; shrinking makes it less.

        Returns:
            A number.
        """
        return sum(len(k) + len(v) for k, v in self.sources().items())
