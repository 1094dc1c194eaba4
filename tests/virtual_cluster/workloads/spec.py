"""What a run is made of, as data: it can be drawn, changed, printed and made.

A :class:`Spec` is a call that has not been made yet, a :class:`Name` something as it
is. Both go by the names in ``names.NAMES``.
"""

import copy
from typing import Any, Dict, Iterator


class Name:
    """Something as it is, by its name.

    Args:
        name: Its name.
    """

    def __init__(self, name: str):
        self.name = name

    def __repr__(self) -> str:
        return self.name


class Spec:
    """A call that has not been made.

    Args:
        name: What is called.
        *args: Its arguments.
        **kwargs: Its keyword arguments.
    """

    def __init__(self, name: str, *args: Any, **kwargs: Any):
        self.name = name
        self.args = list(args)
        self.kwargs = kwargs

    def __repr__(self) -> str:
        args = [repr(arg) for arg in self.args]
        args += [f"{key}={value!r}" for key, value in self.kwargs.items()]
        return f"{self.name}({', '.join(args)})"

    def but(self, **kwargs: Any) -> "Spec":
        """Return a copy with other keyword arguments.

        Args:
            **kwargs: What is different; ``...`` leaves an argument out.

        Returns:
            The copy.
        """
        other = copy.copy(self)
        changed = {**self.kwargs, **kwargs}
        other.kwargs = {k: v for k, v in changed.items() if v is not ...}
        return other

    def specs(self) -> Iterator["Spec"]:
        """Go through this spec and all that are within it.

        Yields:
            Each of them.
        """
        yield self
        for value in [*self.args, *self.kwargs.values()]:
            if isinstance(value, Spec):
                yield from value.specs()


def make(value: Any, names: Dict[str, Any]) -> Any:
    """Make what a value stands for.

    Args:
        value: A spec, a name, anything else, or a collection of these.
        names: What names stand for.

    Returns:
        What it stands for.
    """
    kind = type(value)
    if kind is Spec:
        args = [make(arg, names) for arg in value.args]
        kwargs = {key: make(arg, names) for key, arg in value.kwargs.items()}
        return names[value.name](*args, **kwargs)
    if kind is Name:
        return names[value.name]
    if kind is list:
        return [make(item, names) for item in value]
    if kind is dict:
        return {key: make(item, names) for key, item in value.items()}
    return value
