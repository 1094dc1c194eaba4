"""`python -m build_backend`: fetch upstream's wheel, if need be, and print its path."""

import sys

from build_backend.errors import BuildError
from build_backend.fetch import fetch_upstream
from build_backend.tree import HERE

if __name__ == "__main__":
    try:
        name, _ = fetch_upstream(HERE)
    except BuildError as e:
        sys.exit(f"error: {e}")
    print(HERE.cache / name)
