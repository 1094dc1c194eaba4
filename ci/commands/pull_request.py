"""Lay pull requests of the plan on a checkout of Ray, or list them.

Each becomes a branch, `tune-repaired/NAME`, with a commit for it and for each request
that it depends on; its text is written to a file. Nothing is signed off or sent: that
is left to a person who has reviewed each line and run the tests.
"""

import argparse
import os
from pathlib import Path

from ci.lib.console import BUILD, ROOT
from ci.lib.environments import prepared


def main(args):
    """Run the command in an environment that has what it needs."""
    try:
        import packaging  # noqa: F401
        import unidiff  # noqa: F401
    except ImportError:
        args = [os.path.abspath(arg) if os.path.isdir(arg) else arg for arg in args]
        command = [str(ROOT / "ci" / "pull-request"), *args]
        return prepared("venv-patch", "build").run(command)

    from build_backend.errors import BuildError
    from build_backend.tree import HERE
    from ci.lib import pull_request, verify

    options = _parser().parse_args(args)
    faults = verify.verify(HERE)
    if faults:
        raise BuildError("`ci/patch verify` finds:\n" + "\n".join(faults))
    if options.onto is None:
        print("\n".join(pull_request.list_requests(HERE)))
        return 0
    lines = pull_request.export(HERE, options.names, options.onto, options.text)
    print("\n".join(lines))
    return 0


def _parser():
    parser = argparse.ArgumentParser(prog="ci/pull-request", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="requests of the plan (all of them)"
    )
    parser.add_argument(
        "--onto", type=Path, metavar="PATH", help="a git checkout of Ray"
    )
    parser.add_argument(
        "--text",
        type=Path,
        metavar="DIR",
        default=BUILD / "pull-request",
        help="where the texts go (build/pull-request)",
    )
    return parser
