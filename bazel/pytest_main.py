"""The `main` of every test target: runs pytest on the files among the arguments."""

import os
import sys
import tempfile
from pathlib import Path

import pytest


def main(args):
    """Run pytest as Bazel wants it; return the exit code."""
    scratch = os.environ.get("TEST_TMPDIR") or tempfile.mkdtemp()
    # Bazel sets none, and Ray writes below ~.
    if not os.environ.get("HOME"):
        os.environ["HOME"] = scratch
    os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")

    # This folder is none of the tests' business.
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [path for path in sys.path if path != here]

    options = ["-p", "no:cacheprovider", "-v"]
    if os.environ.get("XML_OUTPUT_FILE"):
        options.append(f"--junitxml={os.environ['XML_OUTPUT_FILE']}")
    if os.environ.get("TESTBRIDGE_TEST_ONLY"):
        options.append(f"-k={os.environ['TESTBRIDGE_TEST_ONLY']}")
    return pytest.main([*options, *args])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
