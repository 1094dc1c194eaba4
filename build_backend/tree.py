"""The source tree: where its parts are, and what they list."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List

from build_backend.errors import BuildError
from build_backend.files import read_text, walk

NAME = "ray"
# The local version segment (PEP 440): `2.60.0+ashav2.1` satisfies `ray==2.60.0`.
LOCAL_VERSION = "ashav2.1"
# Where the files of the wheel lie in Ray's own repository, and so in patches.
SOURCE_PREFIX = "python/"


@dataclass(frozen=True)
class Tree:
    """The places of one source tree.

    Args:
        root: The folder that holds `setup.py`, or a made-up one in tests.
    """

    root: Path

    @property
    def patches(self) -> Path:
        return self.root / "patches"

    @property
    def series(self) -> Path:
        return self.patches / "series"

    @property
    def pin(self) -> Path:
        return self.patches / "upstream.txt"

    @property
    def new_files(self) -> Path:
        return self.root / "python"

    @property
    def cache(self) -> Path:
        return self.root / "build" / "upstream"


HERE = Tree(Path(__file__).resolve().parent.parent)


@dataclass(frozen=True)
class Pin:
    """The upstream release that is patched.

    Args:
        version: The release, such as `2.60.0`.
        hashes: The SHA-256 of each of its wheels, in hexadecimal.
    """

    version: str
    hashes: frozenset

    @property
    def local_version(self) -> str:
        return f"{self.version}+{LOCAL_VERSION}"


def read_pin(path: Path) -> Pin:
    """Read the pinned release from a requirements file with hashes.

    Args:
        path: The file, as written by `uv pip compile --generate-hashes`.

    Returns:
        The pin.

    Raises:
        BuildError: If the file is missing or does not pin one release by hashes.
    """
    text = read_text(path)
    versions = re.findall(rf"^{NAME}==([^\s\\;]+)", text, re.MULTILINE)
    hashes = re.findall(r"--hash=(\S+)", text)
    if len(versions) != 1 or not hashes:
        raise BuildError(
            f"{path} pins {len(versions)} releases of {NAME} with {len(hashes)} "
            f"hashes; write it anew with `{pin_command('VERSION')}`"
        )
    for value in hashes:
        if not re.fullmatch(r"sha256:[0-9a-f]{64}", value):
            raise BuildError(f"{path}: {value!r} is not a SHA-256 hash")
    return Pin(versions[0], frozenset(h.split(":")[1] for h in hashes))


def pin_command(version: str) -> str:
    """Return the shell command that pins a release."""
    return (
        f"echo {NAME}=={version} | uv pip compile - --generate-hashes --no-deps "
        "-o patches/upstream.txt"
    )


def read_series(tree: Tree) -> List[str]:
    """Read the names of the patches in the order in which they apply.

    Args:
        tree: The source tree.

    Returns:
        File names, each of a patch that exists.

    Raises:
        BuildError: If a name is not one of a patch there, or stands twice.
    """
    names = read_text(tree.series).split("\n")
    if names[-1] == "":
        names.pop()
    for number, name in enumerate(names, 1):
        if name in names[: number - 1]:
            raise BuildError(f"{tree.series}:{number}: {name} is listed twice")
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*\.patch", name):
            raise BuildError(f"{tree.series}:{number}: {name!r} is not a patch name")
        if not (tree.patches / name).is_file():
            raise BuildError(
                f"{tree.series}:{number}: there is no patches/{name}; "
                "restore it or take its line out"
            )
    return names


def read_new_files(tree: Tree) -> Dict[str, Path]:
    """Find the files that the wheel gets beyond upstream's.

    Args:
        tree: The source tree.

    Returns:
        The path of each file by its name in the wheel, sorted. Hidden files and
        bytecode are left out.

    Raises:
        BuildError: If a file cannot be one of the wheel's.
    """
    found = {}
    for path in walk(tree.new_files):
        name = path.relative_to(tree.new_files).as_posix()
        if not name.startswith(f"{NAME}/"):
            raise BuildError(
                f"python/{name} is outside of python/{NAME}/, where the new files of "
                "the wheel live; move it"
            )
        found[name] = path
    return found
