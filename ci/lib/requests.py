"""The plan of the pull requests that the series goes up to Ray in.

`patches/pull-requests` has a paragraph for each, in the order in which they go up, with
fields as in Debian's control files. By hand: a format that every Python that the
commands run on can read, with room for lists, comes with none of them.
"""

import re
from typing import Dict, Iterator, List, Mapping, NamedTuple, Tuple

from build_backend.errors import BuildError
from build_backend.files import read_text
from build_backend.tree import SOURCE_PREFIX, Tree, read_new_files
from ci.lib.dependencies import (
    added_lines,
    count_changed_lines,
    find_missing_names,
    find_neighbours,
    place_new_files,
)
from ci.lib.series import Upstream, read_header

NAME = "pull-requests"
# What a person reviews in one sitting; a request that is larger says why.
MAX_CHANGED_LINES = 400
MAX_TITLE = 72
FIELDS = {
    "Request": "a short name",
    "Title": "as the commit will have it",
    "Patches": "those of the series, one a line",
    "Files": "new files that no patch names, one a line",
    "Tests": "paths below tests/upstream/, one a line",
    "Docs": "path | line to stand after | line to add, one a line",
    "Depends-On": "requests that have to be merged before",
    "Closes": "numbers of issues that end with it",
    "Size": "why it is as large as it is",
}
TESTS = "tests/upstream"


class DocsLine(NamedTuple):
    """A line to add to a page of Ray's documentation.

    Args:
        path: The page, in Ray's repository.
        anchor: The line that it stands after, without its indentation.
        text: The line, indented as the anchor is. `\\\\n` begins another.
    """

    path: str
    anchor: str
    text: str


class Request(NamedTuple):
    """A pull request to be.

    Args:
        name: What it is called in the plan.
        title: Its title.
        patches: Names of patches, in the order of the series.
        files: Paths of new files that come with it, beside those that patches name.
        tests: Paths of its tests in Ray's repository.
        docs: What it adds to pages of the documentation.
        depends_on: Names of requests.
        closes: Numbers of issues.
        size: Why it is as large as it is, or nothing.
    """

    name: str
    title: str
    patches: List[str]
    files: List[str]
    tests: List[str]
    docs: List[DocsLine]
    depends_on: List[str]
    closes: List[str]
    size: str


def parse_plan(text: str) -> List[Request]:
    """Read a plan.

    Args:
        text: The file.

    Returns:
        The requests, in order.

    Raises:
        BuildError: If a line is not as it should be.
    """
    requests: List[Request] = []
    fields: Dict[str, List[str]] = {}
    lines = [*enumerate(text.split("\n"), 1), (0, "")]
    for number, line in lines:
        where = f"patches/{NAME}:{number}"
        if line.startswith("#"):
            continue
        if not line.strip():
            if fields:
                requests.append(_request(fields))
            fields = {}
        elif line[0] == " ":
            if not fields:
                raise BuildError(f"{where}: {line.strip()!r} belongs to no field")
            fields[[*fields][-1]].append(line.strip())
        else:
            field, colon, value = line.partition(":")
            if not colon or field not in FIELDS:
                raise BuildError(
                    f"{where}: {line!r} is no field; there are {', '.join(FIELDS)}"
                )
            if field in fields:
                raise BuildError(f"{where}: {field} stands twice in one paragraph")
            fields[field] = [value.strip()] if value.strip() else []
    return requests


def _request(fields: Mapping[str, List[str]]) -> Request:
    def text(field):
        return " ".join(fields.get(field, []))

    def words(field):
        return text(field).replace(",", " ").split()

    if not text("Request") or not text("Title"):
        raise BuildError(
            f"patches/{NAME}: a paragraph lacks the field Request or Title: "
            f"{dict(fields)}"
        )
    docs = []
    for line in fields.get("Docs", []):
        parts = [part.strip() for part in line.split(" | ")]
        if len(parts) != 3:
            raise BuildError(f"patches/{NAME}: `Docs: {line}` is not {FIELDS['Docs']}")
        docs.append(DocsLine(*parts))
    return Request(
        text("Request"),
        text("Title"),
        words("Patches"),
        words("Files"),
        words("Tests"),
        docs,
        words("Depends-On"),
        words("Closes"),
        text("Size"),
    )


def read_plan(tree: Tree) -> List[Request]:
    """Read the plan of a source tree; one without any has none."""
    path = tree.patches / NAME
    return parse_plan(read_text(path)) if path.exists() else []


def read_requested_files(
    tree: Tree, plan: List[Request], patches: Mapping[str, str]
) -> Tuple[Dict[str, str], Dict[str, str]]:
    """Find the request that each new file comes with.

    Args:
        tree: The source tree.
        plan: The requests.
        patches: The text of each patch by name.

    Returns:
        The text of each new file by path in Ray's repository, and the name of its
        request, where it has one.
    """
    new_files = {
        SOURCE_PREFIX + name: path.read_text()
        for name, path in read_new_files(tree).items()
    }
    named = {path: request.name for request in plan for path in request.files}
    groups = {
        request.name: "\n".join(
            [
                *(added_lines(patches[name]) for name in request.patches),
                # A file that is named brings what it imports.
                *(new_files[path] for path in request.files if path in new_files),
            ]
        )
        for request in plan
    }
    return new_files, {**place_new_files(groups, new_files), **named}


def count_request(
    request: Request,
    patches: Mapping[str, str],
    new_files: Mapping[str, str],
    places: Mapping[str, str],
) -> int:
    """Return how many lines a request changes, beside tests and documentation."""
    return sum(count_changed_lines(patches[name]) for name in request.patches) + sum(
        text.count("\n")
        for path, text in new_files.items()
        if places.get(path) == request.name
    )


def closure(plan: List[Request], name: str) -> List[Request]:
    """Return a request and all that it depends on, in the order of the plan."""
    by_name = {request.name: request for request in plan}
    wanted, waiting = set(), [name]
    while waiting:
        wanted.add(waiting[-1])
        waiting += set(by_name[waiting.pop()].depends_on) - wanted
    return [request for request in plan if request.name in wanted]


def check_plan(
    tree: Tree, upstream: Upstream, patches: Mapping[str, str]
) -> Iterator[str]:
    """Find what is wrong with the plan of a source tree.

    Args:
        tree: The source tree.
        upstream: The release.
        patches: The text of each patch of the series by name, in order. They apply.

    Yields:
        str: A line for each fault.
    """
    try:
        plan = read_plan(tree)
    except BuildError as e:
        yield str(e)
        return
    if not plan:
        return
    faults = list(_check_fields(tree, plan, patches))
    yield from faults
    if not faults:
        yield from _check_dependencies(tree, upstream, plan, patches)


def _check_fields(
    tree: Tree, plan: List[Request], patches: Mapping[str, str]
) -> Iterator[str]:
    order, owners, closed, seen = list(patches), {}, {}, set()
    for request in plan:
        where = f"{NAME}: {request.name}"
        if request.name in seen:
            yield f"{where} stands twice"
        for name in request.depends_on:
            if name not in seen:
                yield f"{where} depends on {name}, which is no request before it"
        seen.add(request.name)
        if not re.match(r"\[(tune|air)\] [A-Z]", request.title):
            yield f"{where}: its title does not have the form `[tune] Fix X when Y`"
        if len(request.title) > MAX_TITLE or request.title.endswith("."):
            yield f"{where}: its title ends in a full stop or is over {MAX_TITLE} long"
        if not request.patches and not request.files:
            yield f"{where} has no patch"
        for name in request.patches:
            if name not in patches:
                yield f"{where}: there is no {name} in the series"
            elif name in owners:
                yield f"{where}: {name} is in {owners[name]} already"
            owners.setdefault(name, request.name)
        known = [name for name in request.patches if name in patches]
        if known != sorted(known, key=order.index):
            yield f"{where}: its patches are not in the order of the series"
        yield from _check_closes(request, known, patches, closed)
        for path in request.tests:
            if not (tree.root / TESTS / path).is_file():
                yield f"{where}: there is no {TESTS}/{path}"
        for path in request.files:
            if not (tree.root / path).is_file():
                yield f"{where}: there is no {path}"
    for name in patches:
        if name not in owners:
            yield (
                f"{NAME}: {name} is in no request; add it to the one that it belongs "
                "to, or make one for it"
            )


def _check_closes(
    request: Request,
    known: List[str],
    patches: Mapping[str, str],
    closed: Dict[str, str],
) -> Iterator[str]:
    issues = {i for name in known for i in read_issues(name, patches[name])}
    for issue in request.closes:
        where = f"{NAME}: {request.name} closes #{issue}"
        if issue not in issues:
            yield f"{where}, which none of its patches has for a `Bug:`"
        if issue in closed:
            yield f"{where}, and so does {closed[issue]}"
        closed[issue] = request.name


def read_issues(name: str, patch: str) -> List[str]:
    """Return the numbers of Ray's issues that a patch has for `Bug:`."""
    body = read_header(name, patch)[1]
    return re.findall(r"^Bug: \S*/issues/(\d+)\s*$", body, re.MULTILINE)


def _check_dependencies(
    tree: Tree, upstream: Upstream, plan: List[Request], patches: Mapping[str, str]
) -> Iterator[str]:
    owners = {name: request.name for request in plan for name in request.patches}
    neighbours = find_neighbours(upstream.files, patches)
    new_files, places = read_requested_files(tree, plan, patches)
    for path in sorted(new_files.keys() - places.keys()):
        yield f"{NAME}: no patch names {path}; put it under `Files:` of a request"
    order = {request.name: index for index, request in enumerate(plan)}
    available = {path: data.decode() for path, data in upstream.files.items()}
    available.update(dict.fromkeys(new_files, ""))
    for request in plan:
        where = f"{NAME}: {request.name}"
        known = {needed.name for needed in closure(plan, request.name)}
        lacks: Dict[str, str] = {}
        for name in request.patches:
            for other in neighbours[name]:
                lacks.setdefault(owners[other], f"{name} touches lines of {other}")
        for other in sorted(lacks.keys() - known, key=order.get):
            late = order[other] > order[request.name]
            yield (
                f"{where} does not depend on {other}, but {lacks[other]}"
                + ("; and it stands before that" if late else "")
            )
        for name in request.patches:
            for path in set(re.findall(r"^\+\+\+ b/(\S+)", patches[name], re.M)):
                available[path] += "\n" + added_lines(patches[name])
        own = {p: t for p, t in new_files.items() if places.get(p) == request.name}
        available.update(own)
        for path, text in own.items():
            for module, missing in find_missing_names(text, available):
                yield (
                    f"{where}: {path} imports {missing} from {module}, which has it "
                    "later or never"
                )
        size = count_request(request, patches, new_files, places)
        if size > MAX_CHANGED_LINES and not request.size:
            yield f"{where} changes {size} lines; say why in `Size:`, or split it"
