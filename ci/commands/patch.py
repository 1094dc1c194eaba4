"""Lay the patches as a git checkout, export them back, and verify them.

`checkout` lays a git repository in `build/ray`: Ray's files, and a commit per patch.
`export` writes the commits back, byte for byte the same when nothing changed. `verify`
lists what is wrong with the series. `rebase` carries the commits over when another
release is pinned.
"""

import argparse
import sys
from pathlib import Path

from ci.lib.console import ROOT


def main(argv, tree=None):
    """Run the command.

    Args:
        argv: The arguments.
        tree: The source tree, this repository by default.

    Returns:
        The exit status.
    """
    try:
        import packaging  # noqa: F401
        import unidiff  # noqa: F401
    except ImportError:
        # This Python lacks what reading patches takes; an environment has it.
        from ci.lib.environments import prepared

        return prepared("venv-patch", "build").run([str(ROOT / "ci" / "patch"), *argv])

    from build_backend.tree import HERE
    from ci.lib import checkout, series, verify

    tree = tree or HERE
    options = _parser().parse_args(argv)
    if options.command == "verify":
        faults = verify.verify(tree)
        for fault in faults:
            print(f"patches: {fault}", file=sys.stderr)
        if faults:
            return 1
        print(f"{len(series.read_patches(tree))} patches are as they should be")
        return 0
    if options.command == "checkout":
        lines = checkout.checkout(tree, options.force)
    elif options.command == "export":
        lines = checkout.export(tree, options.source, options.rev, options.force)
    else:
        lines = checkout.rebase(tree)
    print("\n".join(lines))
    return 0


def _parser():
    parser = argparse.ArgumentParser(prog="ci/patch", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    laying = commands.add_parser("checkout", help="lay the git checkout in build/ray")
    laying.add_argument(
        "--force", action="store_true", help="put unexported work aside and go on"
    )
    exporting = commands.add_parser("export", help="write its commits to patches/")
    exporting.add_argument(
        "--from", dest="source", type=Path, metavar="DIR", help="another repository"
    )
    exporting.add_argument("--rev", default="HEAD", help="the last commit")
    exporting.add_argument(
        "--force", action="store_true", help="overwrite changes of patches/"
    )
    commands.add_parser(
        "rebase", help="carry its commits over to the release that is pinned now"
    )
    commands.add_parser("verify", help="say what is wrong with the series")
    return parser
