"""`ci/pin`: compile ci/requirements-*.in to the pinned files beside them."""

from ci.lib.console import CI, Failed, run_logged, say
from ci.lib.environments import prepared

# Compiled in this order: the second takes the first's versions.
NAMES = ("build", "example", "test", "bohb", "lint", "npm")
OPTIONS = (
    "--upgrade",
    "--universal",
    "--python-version=3.10",
    "--generate-hashes",
    "--no-emit-package=ray",
    "--custom-compile-command=ci/pin",
)


def main(args):
    """Compile the files named, or all; return 0."""
    unknown = set(args) - set(NAMES)
    if unknown:
        raise Failed(f"there is no ci/requirements-{unknown.pop()}.in")
    environment = prepared("venv-pin", "build")
    environment.pip("uv", "install", "--no-deps", "uv")
    uv = environment.path / "bin" / "uv"
    for name in args or NAMES:
        say(f"ci/requirements-{name}.txt")
        options = [*OPTIONS, *(["--no-deps"] if name == "bohb" else [])]
        files = ["-o", f"requirements-{name}.txt", f"requirements-{name}.in"]
        run_logged(f"pin-{name}", [uv, "pip", "compile", *options, *files], cwd=CI)
    say("done: git diff ci")
    return 0
