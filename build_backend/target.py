"""The platform and the Python that a wheel is built for."""

import re
import sys
from dataclasses import dataclass
from typing import List, Optional, Tuple

from packaging import tags

from build_backend.errors import BuildError

OPTIONS = ("platform", "python")


@dataclass(frozen=True)
class Target:
    """What a wheel is built for; empty fields stand for the running interpreter.

    Args:
        platform: A platform tag, such as `manylinux2014_aarch64`.
        python: A Python version, as `(3, 12)`.
    """

    platform: Optional[str] = None
    python: Optional[Tuple[int, int]] = None

    def __str__(self) -> str:
        version = self.python or sys.version_info[:2]
        python = "CPython {}.{}".format(*version)
        if not self.python and sys.implementation.name != "cpython":
            python = f"{sys.implementation.name} {version[0]}.{version[1]}"
        return f"{python} on {self.platform or 'this platform'}"

    def pip_options(self) -> List[str]:
        if self == Target():
            return []
        major, minor = self.python or sys.version_info[:2]
        options = ["--implementation", "cp", "--python-version", f"{major}.{minor}"]
        options += ["--abi", f"cp{major}{minor}"]
        if self.platform:
            options += ["--platform", self.platform]
        return options

    def tags(self) -> list:
        """List the wheel tags that fit, the best first."""
        if self == Target():
            return list(tags.sys_tags())
        python = self.python or sys.version_info[:2]
        platforms = None
        if self.platform:
            platforms = [self.platform]
            mac = re.fullmatch(r"macosx_(\d+)_(\d+)_(\w+)", self.platform)
            if mac:
                version = (int(mac[1]), int(mac[2]))
                platforms = list(tags.mac_platforms(version, mac[3]))
        abi = f"cp{python[0]}{python[1]}"
        return list(tags.cpython_tags(python, abis=[abi], platforms=platforms))


def parse_target(config_settings: Optional[dict]) -> Target:
    """Read the target from what the user gave with `--config-settings`.

    Args:
        config_settings: The frontend's config settings.

    Returns:
        The target.

    Raises:
        BuildError: If a key is unknown or a value is malformed.
    """
    settings = dict(config_settings or {})
    for key, value in settings.items():
        if key not in OPTIONS:
            raise BuildError(
                f"unknown build option {key!r}; known are "
                + ", ".join(f"--config-settings {option}=..." for option in OPTIONS)
            )
        if not isinstance(value, str) or not value:
            raise BuildError(
                f"--config-settings {key}= needs one value, but got {value!r}"
            )
    python = None
    if "python" in settings:
        match = re.fullmatch(r"(?:cp|py)?(\d)\.?(\d+)", settings["python"])
        if not match:
            raise BuildError(
                f"--config-settings python={settings['python']} is no Python version; "
                "write it as in --config-settings python=3.12"
            )
        python = (int(match[1]), int(match[2]))
    platform = settings.get("platform")
    if platform and not re.fullmatch(r"[a-z0-9_]+", platform):
        raise BuildError(
            f"--config-settings platform={platform} is no platform tag; "
            "write it as in --config-settings platform=manylinux2014_aarch64"
        )
    return Target(platform, python)
