"""The source distribution: all that a build needs but upstream's wheel."""

import contextlib
import gzip
import io
import os
import tarfile
from pathlib import Path

from build_backend.errors import BuildError
from build_backend.files import new_file, walk
from build_backend.tree import NAME, Pin, Tree, read_new_files, read_pin, read_series

MIN_PYTHON = "3.10"
# Of the source tree, what goes into it. Optional ones may be absent.
REQUIRED = (
    "setup.py",
    "pyproject.toml",
    "build_backend",
    "LICENSE",
    "NOTICE",
    "patches",
)
OPTIONAL = (
    ".bazelignore",
    ".bazelrc",
    ".bazelversion",
    ".ci",
    ".gitignore",
    "BUILD.bazel",
    "README.md",
    "WORKSPACE",
    "bazel",
    "benchmarks",
    "ci",
    "docs",
    "python",
    "tests",
)


def make_sdist(tree: Tree, folder: Path) -> str:
    """Build the source distribution: all that a build needs but upstream's wheel.

    Args:
        tree: The source tree.
        folder: Where it goes.

    Returns:
        Its file name.

    Raises:
        BuildError: If a part of the tree is missing. Nothing is left then.
    """
    pin = read_pin(tree.pin)
    read_series(tree)
    read_new_files(tree)
    stem = f"{NAME}-{pin.local_version}"
    files = {"PKG-INFO": sdist_metadata(pin)}
    for part in REQUIRED + OPTIONAL:
        path = tree.root / part
        if path.is_file():
            files[part] = path.read_bytes()
        elif path.is_dir():
            for inner in walk(path):
                files[inner.relative_to(tree.root).as_posix()] = inner.read_bytes()
        elif part in REQUIRED:
            raise BuildError(f"{path} is missing; restore it from git")
    name = f"{stem}.tar.gz"
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(new_file(folder, name))
        packed = gzip.GzipFile("", "wb", fileobj=file, mtime=0)
        stack.enter_context(packed)
        tar = tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT)
        stack.enter_context(tar)
        for path, data in sorted(files.items()):
            member = tarfile.TarInfo(f"{stem}/{path}")
            member.size = len(data)
            member.mtime = 1577836800  # 2020-01-01: the same bytes every time.
            executable = os.access(tree.root / path, os.X_OK)
            member.mode = 0o755 if executable else 0o644
            tar.addfile(member, io.BytesIO(data))
    return name


def sdist_metadata(pin: Pin) -> bytes:
    fields = (
        ("Metadata-Version", "2.2"),
        ("Name", NAME),
        ("Version", pin.local_version),
        ("Summary", f"Ray {pin.version} with Ray Tune repaired, and ASHAv2"),
        ("License", "Apache 2.0"),
        ("Requires-Python", f">={MIN_PYTHON}"),
        # What upstream's wheel says is known when it has been fetched.
        ("Dynamic", "Requires-Dist"),
        ("Dynamic", "Provides-Extra"),
        ("Dynamic", "Classifier"),
        ("Dynamic", "Description"),
    )
    return "".join(f"{name}: {value}\n" for name, value in fields).encode()
