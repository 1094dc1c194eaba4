"""Ray's lints, at Ray's versions and settings, on the files that go up to Ray.

ruff, black, pydoclint and buildifier find what there is to find. By hand: what they
find in a file as Ray has it is Ray's, so each looks at the stock file too, and only
what is new counts. That is a baseline which cannot be out of date.
"""

import json
import platform
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Callable, Dict, Iterable, List, Mapping, NamedTuple, Tuple

from build_backend.errors import BuildError
from build_backend.tree import HERE, SOURCE_PREFIX, Tree, read_new_files
from ci.lib.console import CI, ROOT, say
from ci.lib.npm import program
from ci.lib.series import Upstream, apply_patches, read_patches

RUFF_CONFIG = CI / "lint-upstream.toml"
# As Ray's .pre-commit-config.yaml has them, but for the baseline.
PYDOCLINT = (
    "--style=google --arg-type-hints-in-docstring=False --skip-checking-raises=True "
    "--check-return-types=False --allow-init-docstring=True "
    "--check-class-attributes=False --show-filenames-in-every-violation-message=True "
    "--quiet"
)
# The registry has no 8.0.1, which is what Ray has; this is the next release.
BUILDIFIER = {
    "name": "buildifier",
    "package": "@bazel/buildifier@8.0.3",
    "integrity": (
        "sha512-X4BbSHDZrvXaldGKW0AkBMC0HPOosJyPykE8Z5LpGBCm"
        "CdgIhRJHtAjBOG21NRmZpwI8fc7A1rhhSOJ7UGmbFg=="
    ),
}
MACHINES = {"x86_64": "amd64", "AMD64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
BUILD_FILES = ("BUILD*", "WORKSPACE", "bazel/BUILD*", "bazel/*.bzl")
# Bazel's own rules are used as they are: the files that they are to be loaded from
# would have to be fetched.
NATIVE_RULES = ",".join(
    f"-native-{name}"
    for name in ("cc-common", "cc-toolchain", "cc-toolchain-suite", "py")
)


class Violation(NamedTuple):
    """What a linter has found.

    Args:
        path: The file, from the folder that was looked at.
        line: Where, or 0 for the whole file.
        text: What is wrong, in words that do not change when lines move.
    """

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


Linter = Callable[[Path, List[str]], List[Violation]]


def find_with_ruff(folder: Path, paths: List[str]) -> List[Violation]:
    """Find what ruff says of some files of a folder."""
    options = [f"--config={RUFF_CONFIG}", "--output-format=json", "--no-cache"]
    said = _run(folder, [sys.executable, "-m", "ruff", "check", *options, *paths])
    return [
        Violation(
            Path(found["filename"]).relative_to(folder.resolve()).as_posix(),
            found["location"]["row"],
            f"{found['code'] or 'syntax'}: {found['message']}",
        )
        for found in json.loads(said.stdout)
    ]


def find_with_black(folder: Path, paths: List[str]) -> List[Violation]:
    """Find the files of a folder that black would format anew."""
    # `--fast`: the syntax trees that it else compares are not those of Python 3.14.
    black = [sys.executable, "-m", "black", "--check", "--fast", "--workers=1"]
    said = _run(folder, [*black, *paths])
    found = re.findall(
        r"^(?:would reformat|error: cannot format) (.*?\.py)", said.stderr, re.M
    )
    if said.returncode and not found:
        raise BuildError(f"black failed: {said.stderr[-2000:]}")
    return [Violation(str(path), 0, "black would reformat it") for path in found]


def find_with_pydoclint(folder: Path, paths: List[str]) -> List[Violation]:
    """Find what pydoclint says of the docstrings in some files of a folder."""
    command = [sys.executable, "-m", "pydoclint.main", *PYDOCLINT.split(), *paths]
    said = _run(folder, command)
    text = said.stdout + said.stderr
    found = re.findall(r"^(\S+\.py):(\d+): (DOC\d+: .*)$", text, re.M)
    if said.returncode and not found:
        raise BuildError(f"pydoclint failed: {text[-2000:]}")
    return [Violation(path, int(line), what) for path, line, what in found]


LINTERS: Mapping[str, Linter] = {
    "ruff": find_with_ruff,
    "black": find_with_black,
    "pydoclint": find_with_pydoclint,
}


def find_new(
    linter: Linter, stock: Mapping[str, str], ours: Mapping[str, str]
) -> List[Violation]:
    """Find the violations of files that they do not have on stock Ray.

    Args:
        linter: One of `LINTERS`.
        stock: The text of the files as stock Ray has them, by path. One that is
            missing is new.
        ours: The text of the files to look at.

    Returns:
        The violations. Of equal ones in a file, those of stock are taken to be the
        first.
    """
    known = Counter((v.path, v.text) for v in _lint(linter, stock))
    new = []
    for violation in _lint(linter, ours):
        if known[violation.path, violation.text]:
            known[violation.path, violation.text] -= 1
        else:
            new.append(violation)
    return new


def check_build_files(root: Path) -> List[str]:
    """Say what buildifier finds in the BUILD files of a folder, formatting included.

    Args:
        root: The folder.

    Returns:
        Lines; none where all is well, or where npm has no binary for this platform.
    """
    system, machine = platform.system().lower(), MACHINES.get(platform.machine())
    if system not in ("linux", "darwin") or machine is None:
        say(f"NOT RUN: {BUILDIFIER['package']} has no binary for this platform")
        return []
    member = f"package/buildifier-{system}_{machine}"
    files = sorted({path for glob in BUILD_FILES for path in root.glob(glob)})
    options = ["-mode=check", "-lint=warn", f"-warnings={NATIVE_RULES}"]
    said = subprocess.run(
        [program(**BUILDIFIER, member=member), *options, *files],
        capture_output=True,
        text=True,
    )
    lines = (said.stdout + said.stderr).splitlines()
    return lines or (["buildifier failed"] if said.returncode else [])


def read_files(tree: Tree) -> Tuple[Dict[str, str], Dict[str, str]]:
    """Read the files that go up to Ray.

    Args:
        tree: The source tree.

    Returns:
        The text of those that Ray has, as it has them, by path in its repository;
        and of all of them, as they are to be.
    """
    upstream = Upstream.read(tree)
    ours: Dict[str, str] = {}
    for _, changed in apply_patches(upstream, read_patches(tree)):
        ours.update(changed)
    stock = {path: upstream.files[path].decode() for path in ours}
    for name, path in read_new_files(tree).items():
        ours[SOURCE_PREFIX + name] = path.read_text()
    return stock, {**ours, **read_folder(tree.root / "tests" / "upstream")}


def main(args: List[str]) -> int:
    """Lint.

    Args:
        args: Nothing, for this repository; else a folder with files as stock Ray has
            them and one with the files to look at, in which BUILD files count too.

    Returns:
        The number of linters that found something.
    """
    if args:
        root = Path(args[1])
        stock, ours = read_folder(Path(args[0])), read_folder(root)
    else:
        root = ROOT
        stock, ours = read_files(HERE)
    failed = 0
    for name, linter in LINTERS.items():
        found = find_new(linter, stock, ours)
        failed += _report(name, map(str, found), f"{len(ours)} files")
    return failed + _report("buildifier", check_build_files(root), "the BUILD files")


def read_folder(folder: Path) -> Dict[str, str]:
    """Read the Python files of a folder by path."""
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in sorted(folder.rglob("*.py"))
    }


def _report(name: str, lines: Iterable[str], where: str) -> bool:
    lines = list(lines)
    print(f"{name}: {len(lines) or 'no'} violations in {where}")
    for line in lines:
        print(f"    {line}")
    return bool(lines)


def _lint(linter: Linter, files: Mapping[str, str]) -> List[Violation]:
    if not files:
        return []
    with tempfile.TemporaryDirectory(prefix="lint-") as name:
        folder = Path(name).resolve()
        for path, text in files.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        return linter(folder, sorted(files))


def _run(folder: Path, command: List[str]) -> subprocess.CompletedProcess:
    said = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if "No module named" in said.stderr and said.returncode:
        raise BuildError(f"{command[2]} is not installed here: run `ci/test`")
    return said


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
