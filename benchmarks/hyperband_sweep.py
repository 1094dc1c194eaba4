#!/usr/bin/env python3
"""Runs many drawn HyperBand and BOHB experiments on a virtual cluster: do they end?

    python benchmarks/hyperband_sweep.py --draws 5000

Prints how many ended, hung, crashed, or broke another invariant, and with ``--show``
the seeds of those that did not end. Works on stock Ray, too, to compare.
"""

import argparse
import collections
import logging
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "tests"))

import hyperband_draws  # noqa: E402

import ray  # noqa: E402


def main(argv=None) -> int:
    """Run the sweep.

    Args:
        argv: The command line.

    Returns:
        1 if a run did not end, else 0.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--callbacks", action="store_true", help="callbacks pause")
    parser.add_argument("--restarts", action="store_true", help="drivers die")
    parser.add_argument("--strict", action="store_true", help="check every invariant")
    parser.add_argument("--show", type=int, default=0, help="print so many failures")
    args = parser.parse_args(argv)
    logging.disable(logging.CRITICAL)
    ignore = () if args.strict else hyperband_draws.OTHER_RULES
    counts = collections.defaultdict(collections.Counter)
    kinds = collections.Counter()
    shown = 0
    start = time.monotonic()
    for seed in range(args.first, args.first + args.draws):
        drawn = hyperband_draws.draw(seed, args.callbacks, args.restarts)
        outcome = hyperband_draws.run(drawn, ignore)
        kind = outcome.split(":")[0]
        if kind in hyperband_draws.HANG_RULES:
            kind = "hang"
        counts[drawn.scheduler][kind] += 1
        if kind != "ended":
            kinds[" ".join(outcome.split()[:9])] += 1
            if shown < args.show:
                shown += 1
                print(f"seed {seed}: {outcome[:300]}\n    {drawn.parameters()}")
    print(f"ray {ray.__version__} at {os.path.dirname(ray.tune.__file__)}")
    for scheduler, counter in sorted(counts.items()):
        total = sum(counter.values())
        print(
            f"{scheduler:<10} draws {total:>6}  "
            + "  ".join(f"{kind} {number}" for kind, number in counter.most_common())
        )
    for kind, number in kinds.most_common(12 if args.show else 0):
        print(f"{number:>7}  {kind}")
    print(f"{args.draws} draws in {time.monotonic() - start:.0f} s")
    return 0 if all(set(c) == {"ended"} for c in counts.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
