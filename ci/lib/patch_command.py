"""`ci/patch` where Python lacks what it needs: in an environment that has it."""

from environment import ROOT, Environment, exclusive


def main(args):
    """Runs `ci/patch` once more; returns the exit code."""
    with exclusive():
        environment = Environment("venv")
        environment.prepare("build")
    return environment.run([str(ROOT / "ci" / "patch"), *args])
