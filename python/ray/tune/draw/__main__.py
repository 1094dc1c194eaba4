"""The command ``python -m ray.tune.draw``."""

import argparse
import os
import sys
from typing import List, Optional

from ray.tune.draw.figure import save_figure
from ray.tune.draw.history import make_history, read_decisions
from ray.tune.draw.page import make_page


def main(arguments: Optional[List[str]] = None) -> int:
    """Draw the decisions of an experiment.

    Args:
        arguments: Those of the command line; None for those it was called with.

    Returns:
        The exit code.
    """
    parser = argparse.ArgumentParser(
        prog="python -m ray.tune.draw",
        description="Draws who had which slot when, and what was decided at each "
        "milestone. The run may be going on.",
    )
    parser.add_argument("path", help="folder of the experiment; a URI is fine")
    parser.add_argument(
        "--html", default="decisions.html", help="where to write the page (%(default)s)"
    )
    parser.add_argument(
        "--png", help="where to write a PNG, too (needs matplotlib)", default=None
    )
    options = parser.parse_args(arguments)
    try:
        history = make_history(read_decisions(options.path))
    except (OSError, ValueError) as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    title = os.path.basename(options.path.rstrip("/")) or options.path
    with open(options.html, "w", encoding="utf-8") as f:
        f.write(make_page(history, title))
    print(f"Wrote {options.html}")
    if options.png:
        try:
            save_figure(history, title, options.png)
        except ImportError as e:
            print(f"error: {e}", file=sys.stderr)
            return 1
        print(f"Wrote {options.png}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
