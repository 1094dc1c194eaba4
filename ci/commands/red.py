"""`ci/red`: each test marked fixes(...) has to fail on stock Ray."""

import argparse
import os
import time
from pathlib import Path

from ci.lib.console import BUILD, ROOT, Failed, clean_environment, say
from ci.lib.environments import stock_environment
from ci.lib.must_fail import MustFail, marked_files

SLOW_S = 20


def main(args):
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="ci/red", description=__doc__)
    parser.add_argument(
        "--python",
        help="an interpreter that has stock Ray and the tests' requirements "
        "(made in build/ when not given)",
    )
    parser.add_argument("paths", nargs="*", help="test files or folders (tests/)")
    options = parser.parse_args(args)
    paths = [Path(os.path.abspath(path)) for path in options.paths]
    for path in paths:
        if not path.exists():
            raise Failed(f"there is no {path}")
    if options.python:
        python, env = options.python, clean_environment()
    else:
        environment = stock_environment("example", "test", "bohb")
        python, env = environment.python, environment.variables(RAY_UNDER_TEST="stock")
    return demand_failures(python, paths or [ROOT / "tests"], env)


def demand_failures(python, paths, env):
    """Run the tests marked fixes(...) below `paths` and print how they fared.

    Args:
        python: The interpreter that has stock Ray.
        paths: Test files and folders.
        env: The environment variables for it.

    Returns:
        0 where there is such a test and each fails as it must, else 1.
    """
    files = marked_files(paths)
    if not files:
        print("no test is marked fixes(...)")
        return 1
    # pytest's root: this repository, unless the files are from elsewhere.
    inside = all(file.is_relative_to(ROOT) for file in files)
    root = ROOT if inside else Path(os.path.commonpath([f.parent for f in files]))
    start = time.monotonic()
    run = MustFail(python, files, root, env, tell=_print_verdict)
    run.run()
    wrong = [verdict for verdict in run.verdicts if not verdict.counts]
    for file, why in run.uncollected:
        print(f"NOT COLLECTED  {file}: {' '.join(why)}")
    for verdict in run.verdicts:
        if verdict.seconds > SLOW_S:
            print(f"slow: {verdict.test} takes {verdict.seconds:.0f} s on stock")
    if wrong:
        print(f"\n{len(wrong)} prove nothing:")
        for verdict in wrong:
            _print_verdict(verdict)
    if not run.verdicts:
        print("no test marked fixes(...) was run; pytest said:")
        print("\n".join(f"    {line}" for line in run.output.splitlines()[-20:]))
    log = BUILD / "log" / "red.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(run.output)
    say(f"what pytest printed: {os.path.relpath(log)}")
    say(
        f"{len(run.verdicts) - len(wrong)} of {len(run.verdicts)} tests marked "
        f"fixes(...) fail on stock Ray as they must "
        f"({time.monotonic() - start:.0f} s)"
    )
    return 0 if run.verdicts and not wrong and not run.uncollected else 1


def _print_verdict(verdict):
    names = ", ".join(verdict.names)
    how = verdict.how[:90] if verdict.counts else verdict.how
    print(
        f"{'fails' if verdict.counts else 'NO PROOF':9}{verdict.seconds:6.1f} s  "
        f"{names:18} {verdict.test}: {how}",
        flush=True,
    )
