"""`ci/pin`: compiles ci/requirements-*.in to the pinned files beside them."""

import os

from environment import CI, ROOT, Environment, Failed, exclusive, run_logged, say

# Compiled in this order: the second takes the first's versions.
NAMES = ("build", "example", "test", "bohb", "bazel")
OPTIONS = {"bohb": ["--no-deps"]}


def main(args):
    """Compiles the files named, or all; returns 0."""
    unknown = set(args) - set(NAMES)
    if unknown:
        raise Failed(f"there is no ci/requirements-{unknown.pop()}.in")
    with exclusive():
        environment = Environment("venv-pin")
        environment.prepare("build")
        environment.pip("uv", "install", "--no-deps", "uv")
        for name in args or NAMES:
            say(f"ci/requirements-{name}.txt")
            run_logged(
                f"pin-{name}",
                [
                    environment.path / "bin" / "uv",
                    "pip",
                    "compile",
                    "--upgrade",
                    "--universal",
                    "--python-version=3.10",
                    "--generate-hashes",
                    "--no-emit-package=ray",
                    "--custom-compile-command=ci/pin",
                    *OPTIONS.get(name, []),
                    "-o",
                    f"requirements-{name}.txt",
                    f"requirements-{name}.in",
                ],
                cwd=CI,
            )
    say(f"done: git diff {os.path.relpath(CI, ROOT)}")
    return 0
