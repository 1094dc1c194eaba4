"""The command lines of the processes that this one was started by."""

import os
import subprocess
from pathlib import Path
from typing import Iterator, List, NamedTuple, Optional, Tuple

MAX_DEPTH = 32


class Process(NamedTuple):
    """A running process.

    Args:
        arguments: Its command line.
        folder: The folder that it works in, as far as that can be told.
    """

    arguments: List[str]
    folder: Path


def ancestors() -> Iterator[Process]:
    """Yield the processes above this one, the nearest first.

    None are where the system does not tell: on Windows, or without /proc and `ps`.
    """
    number = os.getppid()
    for _ in range(MAX_DEPTH):
        if number <= 1:
            return
        found = _from_proc(number) if os.path.isdir("/proc/self") else _from_ps(number)
        if found is None:
            return
        number, process = found
        yield process


def _from_proc(number: int) -> Optional[Tuple[int, Process]]:
    place = Path("/proc", str(number))
    try:
        # The program's name stands in parentheses, and may hold anything.
        facts = (place / "stat").read_text(errors="replace").rpartition(")")[2]
        parent = int(facts.split()[1])
        arguments = os.fsdecode((place / "cmdline").read_bytes()).split("\0")[:-1]
    except (OSError, ValueError, IndexError):
        return None
    try:
        folder = Path(os.readlink(place / "cwd"))
    except OSError:
        folder = _folder_of_shell()
    return parent, Process(arguments, folder)


def _from_ps(number: int) -> Optional[Tuple[int, Process]]:
    command = ["ps", "-ww", "-o", "ppid=,args=", "-p", str(number)]
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=True)
        parent, *arguments = said.stdout.split()
        return int(parent), Process(arguments, _folder_of_shell())
    except (OSError, subprocess.CalledProcessError, ValueError):
        return None


def _folder_of_shell() -> Path:
    return Path(os.environ.get("PWD") or os.getcwd())
