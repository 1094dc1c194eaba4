"""The one kind of error that people see."""


class BuildError(Exception):
    """A build that cannot go on: the message names the value and the remedy."""
