"""The calls of frontends (PEP 517 and 660)."""

import contextlib
import sys
from pathlib import Path
from typing import Iterator, Optional

from build_backend.errors import BuildError

try:
    from build_backend.sdist import make_sdist
    from build_backend.target import Target, parse_target
    from build_backend.tree import HERE
    from build_backend.wheel import make_wheel
except ImportError as e:
    sys.exit(
        f"error: the build needs {e.name}, which {sys.executable} does not have; "
        "leave build isolation on, or install what pyproject.toml requires"
    )


@contextlib.contextmanager
def errors_told() -> Iterator[None]:
    """End the frontend's call with the message of an error instead of a traceback."""
    try:
        yield
    except (BuildError, OSError) as e:
        sys.exit(f"error: {e}")


def get_requires_for_build_wheel(config_settings=None):
    with errors_told():
        parse_target(config_settings)
    return []


def get_requires_for_build_editable(config_settings=None):
    with errors_told():
        refuse_target(config_settings)
    return []


def get_requires_for_build_sdist(config_settings=None):
    with errors_told():
        parse_target(config_settings)
    return []


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    with errors_told():
        return make_wheel(HERE, Path(wheel_directory), parse_target(config_settings))


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    with errors_told():
        refuse_target(config_settings)
        return make_wheel(HERE, Path(wheel_directory), editable=True)


def build_sdist(sdist_directory, config_settings=None):
    with errors_told():
        parse_target(config_settings)
        return make_sdist(HERE, Path(sdist_directory))


def refuse_target(config_settings: Optional[dict]) -> None:
    target = parse_target(config_settings)
    if target != Target():
        raise BuildError(
            f"an editable install for {target} makes no sense: it is for the "
            "interpreter that runs it; leave the settings platform and python out"
        )
