"""Git, the same on every machine."""

import contextlib
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Iterator, Mapping, Optional

from build_backend.errors import BuildError

# What git makes of the same commits must not depend on whose machine it runs on.
CONFIG = (
    "core.autocrlf=false",
    "core.eol=lf",
    f"core.hooksPath={os.devnull}",
    f"core.attributesFile={os.devnull}",
    "core.fsmonitor=false",
    "commit.gpgSign=false",
    "gc.auto=0",
    "safe.directory=*",
    # Commits keep the author that they have; who made them anew is not exported.
    "user.name=Patches",
    "user.email=patches@invalid",
)
# What keeps a repository in the middle of something, and what that is.
OPERATIONS = {
    "rebase-merge": "rebase",
    "rebase-apply": "rebase or am",
    "MERGE_HEAD": "merge",
    "CHERRY_PICK_HEAD": "cherry-pick",
    "REVERT_HEAD": "revert",
}


class Git:
    """Run git in one repository.

    Args:
        folder: The repository, or its working tree.
    """

    def __init__(self, folder: Path):
        self.folder = folder

    def run(
        self,
        *args: str,
        stdin: bytes = b"",
        check: bool = True,
        env: Optional[Mapping[str, str]] = None,
    ) -> bytes:
        """Run a command.

        Args:
            *args: The git command and its arguments.
            stdin: What it is given to read.
            check: Whether its failure is an error.
            env: Environment variables, beside those of the process.

        Returns:
            What it printed.

        Raises:
            BuildError: If it fails, with what it said.
        """
        command = ["git", "-C", str(self.folder)]
        for setting in CONFIG:
            command += ["-c", setting]
        environment = {k: v for k, v in os.environ.items() if k[:4] != "GIT_"}
        environment.update(
            GIT_CONFIG_NOSYSTEM="1",
            GIT_CONFIG_GLOBAL=os.devnull,
            GIT_NO_REPLACE_OBJECTS="1",
            GIT_TERMINAL_PROMPT="0",
            LC_ALL="C",
            **(env or {}),
        )
        try:
            done = subprocess.run(
                [*command, *args], input=stdin, env=environment, capture_output=True
            )
        except FileNotFoundError:
            raise BuildError("git is not installed, or not on the PATH") from None
        if check and done.returncode:
            said = done.stderr.decode(errors="replace").strip()
            raise BuildError(f"`git {args[0]}` failed in {self.folder}: {said}")
        return done.stdout

    def text(self, *args: str, **options) -> str:
        """Run a command, and return what it printed as text."""
        return self.run(*args, **options).decode("utf-8").strip()

    def commit(self, name: str) -> Optional[str]:
        """Return the hash that a revision stands for, or None when there is none."""
        found = self.text(
            "rev-parse", "--verify", "--quiet", name + "^{commit}", check=False
        )
        return found or None

    def operation(self) -> Optional[str]:
        """Return what is in progress in a repository, such as a rebase, if anything."""
        for name, operation in OPERATIONS.items():
            if (self.folder / ".git" / name).exists():
                return operation
        return None


@contextlib.contextmanager
def scratch_repository() -> Iterator[Git]:
    """Make a repository whose configuration nobody has touched."""
    with tempfile.TemporaryDirectory(prefix="ray-patches-") as folder:
        git = Git(Path(folder))
        git.run("init", "--quiet", "--template=", "--object-format=sha1")
        yield git
