"""`ci/pull-request`: the whole change as commits for Ray's own repository."""

import os

from ci.lib.console import BUILD, ROOT, Failed
from ci.lib.environments import prepared


def main(args):
    """Run the export in an environment that has what it needs."""
    if len(args) > 1 or (args and args[0].startswith("-")):
        raise Failed("the only argument is the folder to write to")
    folder = os.path.abspath(args[0]) if args else str(BUILD / "pull-request")
    environment = prepared("venv", "build", "example", "test")
    return environment.run(["-m", "ci.lib.pull_request", folder], cwd=ROOT)
