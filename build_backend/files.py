"""Reading and writing files whole."""

import contextlib
import io
import os
import tempfile
from pathlib import Path
from typing import Iterator

from build_backend.errors import BuildError


def read_text(path: Path) -> str:
    """Read UTF-8 text with its line ends as they are.

    Args:
        path: The file.

    Returns:
        Its text.

    Raises:
        BuildError: If it is missing, unreadable or not UTF-8.
    """
    try:
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise BuildError(f"{path} is missing; restore it from git") from None
    except OSError as e:
        raise BuildError(f"{path} cannot be read: {e.strerror}") from None
    except UnicodeDecodeError as e:
        raise BuildError(f"{path} is not UTF-8: {e}") from None


def walk(top: Path) -> Iterator[Path]:
    """Yield the files below a folder, sorted, but for hidden ones and bytecode."""
    if not top.is_dir():
        return
    for path in sorted(top.iterdir(), key=lambda p: p.name):
        if path.name.startswith(".") or path.name == "__pycache__":
            continue
        if path.is_dir():
            yield from walk(path)
        elif path.suffix not in (".pyc", ".pyo") and not path.name.endswith("~"):
            if not path.is_file():
                raise BuildError(f"{path} is not a file that can be read; remove it")
            yield path


@contextlib.contextmanager
def new_file(folder: Path, name: str) -> Iterator[io.BufferedIOBase]:
    """Open a file that appears under its name when it is whole, or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=folder)
    try:
        with open(handle, "w+b") as file:
            yield file
        os.chmod(temporary, 0o644)
        os.replace(temporary, folder / name)
    except BaseException:
        os.unlink(temporary)
        raise
