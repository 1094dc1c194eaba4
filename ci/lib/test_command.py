"""`ci/test`: every check that a change has to pass."""

import os
import subprocess
import sys
import time

import bazel_runner
from environment import ROOT, exclusive, patched_environment, say, stock_environment
from red_command import demand_red

LOCKS = ("example", "test", "bohb")
FOLDERS = ("python", "tests", "ci", "benchmarks", "bazel", "setup.py")


def main(args):
    """Runs the checks, or with arguments pytest alone; returns the exit code."""
    with exclusive():
        environment = patched_environment(*LOCKS)
        stock = None if args else stock_environment(*LOCKS)
    if args:
        say("arguments were given: only pytest runs")
        return _pytest(environment, args)[0]

    stages = []

    def stage(name, function):
        say(name)
        start = time.monotonic()
        failed = function()
        stages.append((name, time.monotonic() - start, failed))

    closing = []

    def tests():
        code, line = _pytest(environment, [])
        closing.append(line)
        return code

    def red():
        env = stock.variables(RAY_UNDER_TEST="stock")
        return demand_red(stock.python, [ROOT / "tests"], env)

    files = lint_targets()
    stage("ruff check", lambda: _ruff(environment, "check", *files))
    stage("ruff format", lambda: _ruff(environment, "format", "--check", *files))
    stage("ci/patch verify", lambda: _patch_verify(environment))
    stage("pytest", tests)
    stage("the tests marked fixes(...), on stock Ray", red)
    stage("bazel test", lambda: bazel_runner.test(environment))

    print()
    for name, seconds, failed in stages:
        print(f"{'FAILED' if failed else 'ok':8}{seconds:7.1f} s  {name}")
    say("all of it")
    print(closing[0], flush=True)
    return 1 if any(failed for _, _, failed in stages) else 0


def lint_targets():
    """Returns what ruff looks at: folders, and the Python scripts without suffix."""
    targets = [name for name in FOLDERS if (ROOT / name).exists()]
    for script in sorted((ROOT / "ci").iterdir()):
        if script.is_file() and not script.suffix:
            with open(script, "rb") as file:
                if b"python" in file.readline():
                    targets.append(f"ci/{script.name}")
    return targets


def _ruff(environment, *args):
    return environment.run(["-m", "ruff", *args, "--no-cache"], cwd=ROOT)


def _patch_verify(environment):
    return subprocess.call(
        [str(ROOT / "ci" / "patch"), "verify"], cwd=ROOT, env=environment.variables()
    )


def _pytest(environment, args):
    """Runs pytest; returns its exit code and its closing line."""
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
