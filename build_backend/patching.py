"""Patches: parsed by `unidiff`, applied by hand.

`git apply` and `patch` are no way to do it: a machine that builds the wheel may have
neither, and both place a hunk somewhere else when it does not match where it belongs.
"""

import io
import re
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, List, Tuple

import unidiff

from build_backend.errors import BuildError
from build_backend.files import read_text
from build_backend.tree import SOURCE_PREFIX, Tree, read_series


@dataclass
class FilePatch:
    """What one patch does to one file.

    Args:
        path: The file, as in the patch: `python/ray/tune/tune.py`.
        hunks: The hunks, as parsed by unidiff.
    """

    path: str
    hunks: list = field(default_factory=list)


@dataclass
class Patch:
    """One patch of the series.

    Args:
        name: Its file name.
        header: The lines before the diff: sender, date, subject, body.
        files: What it does to each file.
    """

    name: str
    header: str
    files: List[FilePatch]


def read_patch(path: Path) -> Patch:
    return parse_patch(path.name, read_text(path))


def parse_patch(name: str, text: str) -> Patch:
    """Parse a patch that edits files which are there already.

    Args:
        name: The file name, for messages.
        text: The patch as `git format-patch` writes it.

    Returns:
        The parsed patch.

    Raises:
        BuildError: If it is malformed, empty, or does more than edit text files.
    """
    begin = re.search(r"^diff --git ", text, re.MULTILINE)
    if not begin:
        raise BuildError(f"{name}: there is no `diff --git` line in it")
    header, diff = text[: begin.start()], text[begin.start() :]
    odd = re.search(
        r"^(new file mode|deleted file mode|rename (?:from|to)|copy (?:from|to)|"
        r"old mode|new mode|GIT binary patch|Binary files)",
        diff,
        re.MULTILINE,
    )
    if odd:
        hint = "put it into python/" if odd[1] == "new file mode" else "edit lines only"
        raise BuildError(
            f"{name}: a patch edits files that upstream has, but this one has "
            f"{odd[1]!r}; {hint}"
        )
    try:
        parsed = unidiff.PatchSet.from_string(diff)
    except unidiff.UnidiffParseError as e:
        raise BuildError(f"{name} is not a well-formed patch: {e}") from None
    files = []
    for file in parsed:
        source, target = file.source_file, file.target_file
        if not (source.startswith("a/") and target == "b/" + source[2:]):
            raise BuildError(
                f"{name}: {source!r} becomes {target!r}; a patch edits files in place"
            )
        if not len(file):
            raise BuildError(f"{name}: {source[2:]} has no hunk")
        files.append(FilePatch(source[2:], list(file)))
    if len(files) != len(re.findall(r"^diff --git ", diff, re.MULTILINE)):
        raise BuildError(f"{name}: a `diff --git` line in it has no hunk")
    return Patch(name, header, files)


def split_lines(text: str) -> List[str]:
    """Split at line feeds only, as patches do, and keep them."""
    return io.StringIO(text, newline="\n").readlines()


def apply_file_patch(patch_name: str, change: FilePatch, text: str) -> str:
    """Apply the hunks of one file with neither fuzz nor offset.

    Args:
        patch_name: The patch, for messages.
        change: What it does to the file.
        text: The file as it is before.

    Returns:
        The file as it is after.

    Raises:
        BuildError: If a hunk does not match exactly where it says it belongs.
    """
    old = split_lines(text)
    new: List[str] = []
    done = 0
    for number, hunk in enumerate(change.hunks, 1):
        where = f"{patch_name}: hunk {number} of {change.path}"
        before, after = hunk_sides(hunk)
        # An empty side is placed behind its line, a filled one at it.
        start = hunk.source_start - (1 if before else 0)
        if start < done:
            raise BuildError(f"{where} overlaps the hunk before it")
        for offset, expected in enumerate(before):
            at = start + offset
            found = old[at] if at < len(old) else None
            if found != expected:
                there = "the end of the file" if found is None else repr(found)
                raise BuildError(
                    f"{where} does not match at line {at + 1}: it expects "
                    f"{expected!r}, but there is {there}; edit the patch in "
                    "the checkout that `ci/patch checkout` lays"
                )
        new += old[done:start]
        if hunk.target_start - (1 if after else 0) != len(new):
            raise BuildError(
                f"{where} says that its result starts at line {hunk.target_start}, "
                f"but it is line {len(new) + (1 if after else 0)}"
            )
        new += after
        done = start + len(before)
    return "".join(new + old[done:])


def hunk_sides(hunk) -> Tuple[List[str], List[str]]:
    """Return the lines that a hunk expects, and those that it leaves."""
    sides: Tuple[List[str], List[str]] = ([], [])
    last: List[List[str]] = []
    for line in hunk:
        if line.line_type == "\\":  # No newline at the end of the line before.
            for side in last:
                side[-1] = side[-1].rstrip("\n")
            continue
        last = [
            side
            for side, sign in zip(sides, "-+", strict=True)
            if line.line_type in (sign, " ")
        ]
        for side in last:
            side.append(line.value)
    return sides


def apply_patch(patch: Patch, files: Dict[str, str]) -> Dict[str, str]:
    """Apply a patch to a set of files.

    Args:
        patch: The patch.
        files: The text of each file by its path in Ray's repository. Not changed.

    Returns:
        The text of the files that the patch changes, by path.

    Raises:
        BuildError: If it names an unknown file or does not match.
    """
    changed: Dict[str, str] = {}
    for change in patch.files:
        if change.path in changed:
            raise BuildError(f"{patch.name}: {change.path} stands in it twice")
        if change.path not in files:
            raise BuildError(f"{patch.name}: upstream has no file {change.path}")
        changed[change.path] = apply_file_patch(patch.name, change, files[change.path])
    return changed


class UpstreamFiles(dict):
    """Texts of the upstream wheel by path in Ray's repository, read when asked for.

    Args:
        wheel: The upstream wheel.
    """

    def __init__(self, wheel: zipfile.ZipFile):
        super().__init__()
        self._wheel = wheel
        self._names = set(wheel.namelist())

    def __contains__(self, path) -> bool:
        return dict.__contains__(self, path) or (
            path.startswith(SOURCE_PREFIX) and path[len(SOURCE_PREFIX) :] in self._names
        )

    def __missing__(self, path: str) -> str:
        if path not in self:
            raise KeyError(path)
        data = self._wheel.read(path[len(SOURCE_PREFIX) :])
        try:
            self[path] = data.decode("utf-8")
        except UnicodeDecodeError:
            raise BuildError(f"{path} is no text file, it cannot be patched") from None
        return self[path]


def patched_members(tree: Tree, wheel: zipfile.ZipFile) -> Dict[str, bytes]:
    """Apply the series to an upstream wheel.

    Args:
        tree: The source tree.
        wheel: The upstream wheel.

    Returns:
        The new content of each member that the series changes.
    """
    files = UpstreamFiles(wheel)
    touched: Dict[str, str] = {}
    for name in read_series(tree):
        changed = apply_patch(read_patch(tree.patches / name), files)
        files.update(changed)
        touched.update(changed)
    return {p[len(SOURCE_PREFIX) :]: t.encode("utf-8") for p, t in touched.items()}
