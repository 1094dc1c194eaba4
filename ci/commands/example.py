"""`ci/example`: the wheel, an environment for it, and a real search run there."""

import os

from ci.lib.console import say
from ci.lib.environments import patched_environment

MODULE = "ray.tune.examples.asha_v2_example"


def main(args):
    """Run the example with `args`; return its exit code."""
    environment = patched_environment("example")
    say(f"running python -m {MODULE} {' '.join(args)}".rstrip())
    train = os.environ.get("RAY_TRAIN_V2_ENABLED", "1")
    # From the environment's folder: Ray must be the installed one, whatever stands in
    # the folder that the command was called from. (-P says so from Python 3.11 on.)
    return environment.run(
        ["-m", MODULE, *args],
        cwd=environment.path,
        env=environment.variables(RAY_TRAIN_V2_ENABLED=train),
    )
