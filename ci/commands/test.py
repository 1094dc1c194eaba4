"""`ci/test`: every check that a change has to pass."""

import os
import subprocess
import sys
import time

from ci.commands.red import demand_failures
from ci.lib import bazel
from ci.lib.console import ROOT, say
from ci.lib.environments import patched_environment, prepared, stock_environment

LOCKS = ("example", "test", "bohb")
FOLDERS = ("python", "tests", "ci", "build_backend", "benchmarks", "bazel", "setup.py")


def main(args):
    """Run the checks, or with arguments pytest alone; return the exit code."""
    environment = patched_environment(*LOCKS)
    if args:
        say("arguments were given: only pytest runs")
        return _pytest(environment, args)[0]
    stock = stock_environment(*LOCKS)
    stages, closing = [], []

    def stage(name, function):
        say(name)
        start = time.monotonic()
        failed = function()
        stages.append((name, time.monotonic() - start, failed))

    def tests():
        code, line = _pytest(environment, [])
        closing.append(line)
        return code

    def on_stock():
        env = stock.variables(RAY_UNDER_TEST="stock")
        return demand_failures(stock.python, [ROOT / "tests"], env)

    def ruff(*args):
        files = lint_targets()
        return environment.run(["-m", "ruff", *args, "--no-cache", *files], cwd=ROOT)

    def upstream_lints():
        linters = prepared("venv-lint", "build", "lint")
        return linters.run(["-m", "ci.lib.lint"], cwd=ROOT)

    def doctest():
        return environment.run(["-m", "ci.lib.doctests"], cwd=ROOT)

    def verify():
        return environment.run([str(ROOT / "ci" / "patch"), "verify"], cwd=ROOT)

    stage("ruff check", lambda: ruff("check"))
    stage("ruff format", lambda: ruff("format", "--check"))
    stage("Ray's lints", upstream_lints)
    stage("doctest", doctest)
    stage("ci/patch verify", verify)
    stage("pytest", tests)
    stage("the tests marked fixes(...), on stock Ray", on_stock)
    stage("bazel test", lambda: bazel.test(environment))

    print()
    for name, seconds, failed in stages:
        print(f"{'FAILED' if failed else 'ok':8}{seconds:7.1f} s  {name}")
    say("all of it")
    print(closing[0], flush=True)
    return 1 if any(failed for _, _, failed in stages) else 0


def lint_targets():
    """Return what ruff looks at: folders, and the Python scripts without suffix."""
    targets = [name for name in FOLDERS if (ROOT / name).exists()]
    for script in sorted((ROOT / "ci").iterdir()):
        if script.is_file() and not script.suffix:
            with open(script, "rb") as file:
                if b"python" in file.readline():
                    targets.append(f"ci/{script.name}")
    return targets


def _pytest(environment, args):
    """Run pytest; return its exit code and its closing line."""
    # Paths among the arguments are those of the caller's folder.
    args = [_from_root(arg) for arg in args]
    process = subprocess.Popen(
        [str(environment.python), "-m", "pytest", "-p", "no:cacheprovider", *args],
        cwd=ROOT,
        env=environment.variables(RAY_UNDER_TEST="patched"),
        stdout=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    last = ""
    for line in process.stdout:
        sys.stdout.write(line)
        last = line.strip() or last
    return process.wait(), last


def _from_root(arg):
    path, separator, rest = arg.partition("::")
    if not arg.startswith("-") and os.path.exists(path):
        return os.path.relpath(path, ROOT) + separator + rest
    return arg
