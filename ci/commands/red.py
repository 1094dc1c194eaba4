"""`ci/red`: each test marked fixes(...) has to fail on stock Ray."""

import argparse
import os
import re
import shutil
import subprocess
from pathlib import Path

from ci.lib.console import ROOT, Failed, clean_environment, say
from ci.lib.environments import stock_environment

PYTEST = (
    "-m pytest -p no:cacheprovider -p ci.lib.must_fail --override-ini=addopts= -v "
    "--no-header --timeout-method=signal --continue-on-collection-errors "
    "--durations=10 --durations-min=20"
)


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
        python, env = shutil.which(options.python), clean_environment()
        if python is None:
            raise Failed(f"there is no interpreter {options.python}")
        python = os.path.abspath(python)
    else:
        environment = stock_environment("example", "test", "bohb")
        python, env = environment.python, environment.variables(RAY_UNDER_TEST="stock")
    return demand_failures(python, paths or [ROOT / "tests"], env)


def demand_failures(python, paths, env):
    """Run the tests marked fixes(...) below `paths`.

    Args:
        python: The interpreter that has stock Ray.
        paths: Test files and folders.
        env: The environment variables for it.

    Returns:
        0 where there is such a test and each fails as it must, else another number.
    """
    files = marked_files(paths)
    if not files:
        say("no test is marked fixes(...)")
        return 1
    # pytest's root: this repository, unless the files are from elsewhere.
    inside = all(file.is_relative_to(ROOT) for file in files)
    root = ROOT if inside else Path(os.path.commonpath([f.parent for f in files]))
    path = [str(ROOT), *filter(None, [env.get("PYTHONPATH")])]
    code = subprocess.call(
        [str(python), *PYTEST.split(), *map(str, files)],
        cwd=root,
        env={**env, "PYTHONPATH": os.pathsep.join(path)},
        stdin=subprocess.DEVNULL,
    )
    if code:
        say(
            "a test marked fixes(...) does not fail on stock Ray as it must, cannot be "
            f"collected, or has ended the run: see above (exit code {code})"
        )
    return code


def marked_files(paths):
    """Return the test files among files and folders that speak of the mark.

    Those in tests/upstream get it from the conftest.py there.
    """
    files = []
    for path in map(Path, paths):
        found = sorted(path.rglob("test_*.py")) if path.is_dir() else [path]
        for file in found:
            text = file.read_text(errors="replace")
            if "upstream" in file.parts or re.search(r"\bmark\s*\.\s*fixes\b", text):
                files.append(file)
    return files
