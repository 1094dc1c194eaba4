"""The examples in docstrings of the files that go up to Ray, run as Ray's CI does."""

import importlib.util
import os
import sys
from pathlib import Path
from typing import List

import pytest

from build_backend.tree import HERE, SOURCE_PREFIX
from ci.lib.lint import read_files

# What Ray's BUILD file leaves out, of what is changed here.
LEFT_OUT = ("python/ray/tune/examples/", "python/ray/tune/experiment/trial.py")


def main(files: List[str]) -> int:
    """Run the examples on the Ray that is installed.

    Args:
        files: The files with the examples, or none for all that go up to Ray.

    Returns:
        pytest's exit code.
    """
    files = list(files) or find_files()
    options = ["-q", "-p", "no:cacheprovider", "-c", os.devnull]
    rootdir = f"--rootdir={HERE.root}"
    return pytest.main([*options, rootdir, "--doctest-modules", *files])


def find_files() -> List[str]:
    """Find the files with examples that go up to Ray, where they are installed."""
    ray = Path(importlib.util.find_spec("ray").origin).parent
    files = []
    for path, text in read_files(HERE)[1].items():
        if ">>> " in text and not path.startswith(LEFT_OUT) and "/tests/" not in path:
            files.append(str(ray.parent / path[len(SOURCE_PREFIX) :]))
    return files


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
