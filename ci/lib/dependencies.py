"""What of a series of patches rests on what.

A patch rests on the patches whose lines it takes out or stands beside, and on those
that define the names that it imports. By hand: git can say whether patches can change
places, but only by trying each order.
"""

import ast
import re
from pathlib import PurePosixPath
from typing import Dict, Iterator, List, Mapping, Set, Tuple

from unidiff import PatchSet

from build_backend.tree import SOURCE_PREFIX


def find_neighbours(
    files: Mapping[str, bytes], patches: Mapping[str, str]
) -> Dict[str, Set[str]]:
    """Find the patches whose edits a patch touches or stands beside.

    Args:
        files: The content of the files before the first patch, by path.
        patches: The text of each patch by name, in order. They apply.

    Returns:
        The names of such patches, by the name of each patch.
    """
    # Of each line, the patch that it is of, and those that took lines out before it.
    origins: Dict[str, List[Tuple[str, Set[str]]]] = {}
    found: Dict[str, Set[str]] = {name: set() for name in patches}
    for name, text in patches.items():
        for file in PatchSet(text[text.index("diff --git") :]):
            if file.path not in origins:
                count = files[file.path].count(b"\n") + 1
                origins[file.path] = [("", set()) for _ in range(count)]
            lines, offset = origins[file.path], 0
            for hunk in file:
                begin = hunk.source_start - (hunk.source_length > 0) + offset
                old, new, gone = begin, [], set()
                for line in hunk:
                    if line.line_type in " -":
                        origin, gap = lines[old]
                        found[name] |= {origin} | (gap if old > begin else set())
                        if line.line_type == " ":
                            new.append((origin, gap | gone))
                            gone = set()
                        else:
                            gone |= {name} | gap
                        old += 1
                    elif line.line_type == "+":
                        new.append((name, gone))
                        gone = set()
                if gone and old < len(lines):
                    lines[old] = (lines[old][0], lines[old][1] | gone)
                offset += len(new) - (old - begin)
                lines[begin:old] = new
    return {name: others - {"", name} for name, others in found.items()}


def added_lines(patch: str) -> str:
    """Return the lines that a patch adds."""
    return "\n".join(re.findall(r"^\+(?!\+\+ )(.*)", patch, re.MULTILINE))


def count_changed_lines(patch: str) -> int:
    """Return how many lines a patch adds and takes out."""
    return len(re.findall(r"^(?:\+(?!\+\+ )|-(?!-- ))", patch, re.MULTILINE))


def place_new_files(
    groups: Mapping[str, str], new_files: Mapping[str, str]
) -> Dict[str, str]:
    """Find the group of patches that each new file has to come with.

    Args:
        groups: The lines that each group of patches adds, by its name, in order.
        new_files: The text of each new file by path.

    Returns:
        The name of a group by path: the first that names the module, directly or
        through another new file. A file that none names is left out.
    """
    imports = {path: "\n".join(_imports(text)) for path, text in new_files.items()}
    places: Dict[str, str] = {}
    for group, text in groups.items():
        waiting = [text]
        while waiting:
            text = waiting.pop()
            for path in new_files:
                word = rf"\b{re.escape(PurePosixPath(path).stem)}\b"
                if path not in places and re.search(word, text):
                    places[path] = group
                    waiting.append(imports[path])
    return places


def find_missing_names(
    text: str, available: Mapping[str, str]
) -> Iterator[Tuple[str, str]]:
    """Find what a file imports from files that do not define it.

    Args:
        text: The file.
        available: The text of files that it may import from, by path in Ray's
            repository. Imports of other modules are not looked at.

    Yields:
        Tuple[str, str]: The path of a file, and a name that is not in it.
    """
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            path = f"{SOURCE_PREFIX}{node.module.replace('.', '/')}.py"
            for alias in node.names:
                if path in available and not re.search(
                    rf"\b{re.escape(alias.name)}\b", available[path]
                ):
                    yield path, alias.name


def _imports(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield ast.unparse(node)
