"""Run Ray's own tests on stock Ray and on the patched build, and compare.

The tests are not in this repository: `--tree DIR` names a folder in which those of the
pinned release are laid out beside any installed wheel. There, `DIR/run PYTHON FILE
[ARGUMENTS]` runs one file with pytest; `DIR/tests.txt` lists the files, one a line, and
`DIR/requirements.txt` what they need beside Ray. A test that is worse on the patched
build is run again on both, in turn, before it counts as a difference; the exit code is
1 if there is one.
"""

import argparse
import json
import os
import shutil
from pathlib import Path

from ci.lib.console import BUILD, Failed, clean_environment, say
from ci.lib.upstream_suite import BUILDS, Compared, Suite, shard, table


def main(args):
    """Run the command; return its exit code."""
    options = _parser().parse_args(args)
    if options.read:
        files = {}
        for path in options.read:
            files.update(_read(path))
        return _conclude(files)
    if options.tree is None:
        raise Failed("name the folder where the tests are laid out: --tree DIR")
    tree = Path(options.tree).resolve()
    if not os.access(tree / "run", os.X_OK):
        raise Failed(f"there is no program {tree / 'run'}: it runs a file of the tests")
    names = options.files or _lines(options.list or tree / "tests.txt")
    try:
        names = shard(names, options.shard)
    except ValueError as error:
        raise Failed(f"--shard: {error}") from error
    if not names:
        raise Failed("there is no file to run")
    pythons, variables = _interpreters(options, tree)
    suite = Suite(
        tree,
        pythons,
        variables,
        options.logs,
        timeout=options.timeout,
        limit=options.limit,
    )
    files = {}
    for number, name in enumerate(names, 1):
        files[name] = suite.compare(
            name, options.reruns, lambda text: say(f"{number}/{len(names)} {text}")
        )
        if options.json:  # At once: what was found outlives an interruption.
            _write(options.json, files)
    return _conclude(files)


def _parser():
    parser = argparse.ArgumentParser(
        prog="ci/upstream-tests",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--tree", metavar="DIR", help="where the tests are laid out")
    parser.add_argument(
        "--list", metavar="FILE", help="the list of files (DIR/tests.txt)"
    )
    parser.add_argument(
        "--requirements",
        metavar="FILE",
        help="what the tests need, for pip (DIR/requirements.txt)",
    )
    parser.add_argument(
        "--shard",
        metavar="I/N",
        default="1/1",
        help="run one part of N of the list only; --read puts the parts together",
    )
    parser.add_argument("--json", metavar="FILE", help="write what was found there")
    parser.add_argument(
        "--read",
        metavar="FILE",
        nargs="+",
        help="run nothing; print the table of what --json has written",
    )
    parser.add_argument(
        "--reruns",
        metavar="N",
        type=int,
        default=3,
        help="how often a test that is worse is run again on each (3)",
    )
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=float,
        help="for one test (what the tests set)",
    )
    parser.add_argument(
        "--limit",
        metavar="SECONDS",
        type=float,
        default=3600,
        help="for one file (3600)",
    )
    parser.add_argument(
        "--logs",
        metavar="DIR",
        default=BUILD / "upstream-tests",
        help="what the runs print (build/upstream-tests)",
    )
    for build in BUILDS:
        parser.add_argument(
            f"--{build}",
            metavar="PYTHON",
            help=f"an interpreter that has the {build} build and the requirements "
            "(made in build/ when not given)",
        )
    parser.add_argument(
        "files", nargs="*", metavar="FILE", help="files, as the list names them (all)"
    )
    return parser


def _interpreters(options, tree):
    """Return the interpreters and the environment variables, by build."""
    given = {build: getattr(options, build) for build in BUILDS}
    pythons, variables = {}, {}
    for build, python in given.items():
        if python:
            found = shutil.which(python)
            if found is None:
                raise Failed(f"there is no interpreter {python}")
            # Not resolved: a virtual environment is told by the path it is called by.
            pythons[build] = os.path.abspath(found)
            variables[build] = clean_environment()
    if len(pythons) < len(BUILDS):
        from ci.lib.environments import upstream_environments

        requirements = Path(options.requirements or tree / "requirements.txt").resolve()
        if not requirements.is_file():
            raise Failed(f"there is no {requirements}: it says what the tests need")
        for build, environment in upstream_environments(requirements).items():
            if build not in pythons:
                pythons[build] = environment.python
                variables[build] = environment.variables()
    return pythons, variables


def _conclude(files):
    print("\n".join(["", *table(files)]), flush=True)
    differences = sum(len(compared.differences) for compared in files.values())
    say(f"{differences} differences in {len(files)} files")
    return 1 if differences else 0


def _lines(path):
    try:
        lines = Path(path).read_text().splitlines()
    except OSError as error:
        raise Failed(f"cannot read the list of files: {error}") from error
    return [line.strip() for line in lines if line.strip() and line.strip()[0] != "#"]


def _read(path):
    try:
        content = json.loads(Path(path).read_text())
        return {
            name: Compared.from_json(found) for name, found in content["files"].items()
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Failed(f"{path} is not what --json writes: {error!r}") from error


def _write(path, files):
    content = {"files": {name: found.to_json() for name, found in files.items()}}
    new = Path(f"{path}.new")
    new.write_text(json.dumps(content, indent=1))
    new.replace(path)
