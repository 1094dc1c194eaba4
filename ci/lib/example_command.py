"""`ci/example`: the wheel, an environment for it, and a real search run there."""

import os

from environment import exclusive, patched_environment, say

MODULE = "ray.tune.examples.asha_v2_example"


def main(args):
    """Runs the example with `args`; returns its exit code."""
    with exclusive():
        environment = patched_environment("example")
    say(f"running python -m {MODULE} {' '.join(args)}".rstrip())
    # From home: Ray must be the installed one, whatever stands in the folder that the
    # command was called from. -P would say so, from Python 3.11 on.
    return environment.run(
        ["-m", MODULE, *args],
        cwd=environment.path,
        env=environment.variables(
            RAY_TRAIN_V2_ENABLED=os.environ.get("RAY_TRAIN_V2_ENABLED", "1"),
        ),
    )
