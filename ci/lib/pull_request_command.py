"""`ci/pull-request`: the whole change as commits for Ray's own repository."""

import os

from environment import BUILD, CI, ROOT, Environment, Failed, exclusive


def main(args):
    """Runs `pull_request.py` in an environment that has what it needs."""
    if len(args) > 1 or (args and args[0].startswith("-")):
        raise Failed("the only argument is the folder to write to")
    folder = os.path.abspath(args[0]) if args else str(BUILD / "pull-request")
    with exclusive():
        environment = Environment("venv")
        environment.prepare("build", "example", "test")
    return environment.run([str(CI / "lib" / "pull_request.py"), folder], cwd=ROOT)
