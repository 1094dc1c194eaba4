"""The door of the build: frontends find the hooks of `build_backend` here.

Any Python, old ones included, can read this file: it is what tells them that they are
too old.
"""

import sys

if sys.version_info < (3, 10):
    sys.exit(
        "error: Python %d.%d is too old: Ray needs 3.10 or newer (this is %s)"
        % (sys.version_info[0], sys.version_info[1], sys.executable)
    )
if __name__ == "__main__":
    sys.exit("setup.py is a build backend, no script: run `python -m pip install .`")

from build_backend.hooks import (  # noqa: E402, F401
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
)
