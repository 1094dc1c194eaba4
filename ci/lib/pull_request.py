"""Requests of the plan as branches of a checkout of Ray, each with its text.

git carries the patches over to what a request depends on, where three lines of context
say the place that one line in a patch may not, and makes the commits. By hand: a test
target and a line of the documentation are put where they belong in files that the
project has no copy of.
"""

import re
import tempfile
from pathlib import Path
from typing import Dict, List, Mapping

from build_backend.errors import BuildError
from build_backend.tree import Tree
from ci.lib.git import Git, scratch_repository
from ci.lib.requests import (
    TESTS,
    DocsLine,
    Request,
    closure,
    count_request,
    read_issues,
    read_plan,
    read_requested_files,
)
from ci.lib.series import (
    UPSTREAM,
    Upstream,
    lay_patches,
    lay_upstream,
    read_header,
    read_patches,
)

BRANCH = "tune-repaired"
PACKAGE = "python/ray/tune/"
BUILD_FILE = f"{PACKAGE}BUILD.bazel"
# The person who sends a request puts their own name in place of this one.
AUTHOR = {
    f"GIT_{role}_{field}": value
    for role in ("AUTHOR", "COMMITTER")
    for field, value in (("NAME", "Sender"), ("EMAIL", "sender@invalid"))
}
TARGET = """\
py_test(
    name = "{name}",
    size = "medium",
    srcs = ["{source}"],
    env = {{"RAY_TRAIN_V2_ENABLED": "1"}},
    tags = [
        "exclusive",
        "team:ml",
    ],
    deps = [":tune_lib"],
)
"""
_TARGET = re.compile(
    r'^py_test\(\n    name = "([^"]+)",\n(?:(?!\)\n).*\n)*?    srcs = \["([^"]+)"\],\n'
    r"(?:(?!\)\n).*\n)*\)\n",
    re.MULTILINE,
)
WHY = "### {title}\n\n{body}"
TEXT = """\
# {title}

## Why

{why}

## What

{what}

## How it was tested

```console
{commands}
```

(Results: paste what these commands printed for you.)

## Related issues

{issues}

## Before you send this

This was written with the help of AI. Nobody has signed it off: the commits have a
made-up author. Send it only when you

- have reviewed each line, tests included, and can answer for it;
- have run the tests above, which fail without the change, and `pre-commit run`;
- have made the commits yours: `git rebase {base} --exec "git commit --amend --no-edit
  --reset-author --signoff"`, by which you certify the Developer Certificate of Origin.
{waiting}"""


def list_requests(tree: Tree) -> List[str]:
    """Return the table of the plan, a line for each request."""
    plan, patches = read_plan(tree), read_patches(tree)
    new_files, places = read_requested_files(tree, plan, patches)
    lines = [f"{'request':28}{'lines':>6}{'tests':>6}  depends on; closes"]
    for request in plan:
        size = count_request(request, patches, new_files, places)
        closes = " ".join(f"#{issue}" for issue in request.closes)
        needs = " ".join(request.depends_on)
        rest = "; ".join(filter(None, [needs, closes]))
        tests = len(request.tests)
        lines.append(f"{request.name:28}{size:6}{tests:6}  {rest}".rstrip())
    return lines


def export(tree: Tree, names: List[str], onto: Path, text: Path) -> List[str]:
    """Lay requests on a checkout of Ray, each on a branch of its own.

    The checkout's own branch and files stay as they are.

    Args:
        tree: The source tree, whose series is as it should be.
        names: Names of requests, or none for all.
        onto: A git checkout of Ray. The branches start at its `HEAD`.
        text: The folder that the texts of the requests are written to.

    Returns:
        Lines that say what was done.

    Raises:
        BuildError: If a request does not fit, with the file and the hunk.
    """
    plan, patches = read_plan(tree), read_patches(tree)
    unknown = sorted(set(names) - {request.name for request in plan})
    if unknown:
        raise BuildError(f"patches/pull-requests has no request {unknown[0]}")
    source = Git(onto)
    base = source.commit("HEAD")
    if base is None:
        raise BuildError(f"{onto} is no git checkout with a commit")
    new_files, places = read_requested_files(tree, plan, patches)
    text.mkdir(parents=True, exist_ok=True)
    commits: Dict[tuple, str] = {}
    lines = []
    with (
        tempfile.TemporaryDirectory(prefix="pull-request-") as folder,
        scratch_repository() as scratch,
    ):
        carry = _Carrier(scratch, Upstream.read(tree), patches)
        git = Git(Path(folder, "ray"))
        place = str(git.folder)
        source.run("worktree", "add", "--quiet", "--detach", place, base)
        try:
            for name in names or [request.name for request in plan]:
                requests, tip = closure(plan, name), base
                for index, request in enumerate(requests, 1):
                    key = tuple(r.name for r in requests[:index])
                    if key not in commits:
                        git.run("checkout", "--quiet", "--detach", tip)
                        files = {p for p, r in places.items() if r == request.name}
                        own = {path: new_files[path] for path in sorted(files)}
                        diff = carry.diff(requests[:index])
                        _lay(git, tree, request, patches, diff, own)
                        commits[key] = git.commit("HEAD")
                    tip = commits[key]
                source.run("branch", "--force", f"{BRANCH}/{name}", tip)
                path = text / f"{name}.md"
                path.write_text(write_text(requests, patches, own_files(places, name)))
                lines.append(f"{BRANCH}/{name}: {len(requests)} commits; {path}")
        finally:
            source.run("worktree", "remove", "--force", place)
    lines.append("Nothing is signed off: the texts say what is left to a person.")
    return lines


def own_files(places: Mapping[str, str], name: str) -> List[str]:
    """Return the new files that come with a request, by path."""
    return sorted(path for path, request in places.items() if request == name)


def _lay(
    git: Git,
    tree: Tree,
    request: Request,
    patches: Mapping[str, str],
    diff: str,
    files: Mapping[str, str],
) -> None:
    """Make the commit of a request."""
    if diff:
        _apply(git, request, diff)
    files = {
        **files,
        **{path: (tree.root / TESTS / path).read_text() for path in request.tests},
    }
    for path, text in files.items():
        target = git.folder / path
        if target.exists():
            raise BuildError(f"{request.name}: {path} exists in this Ray already")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    for path in request.tests:
        if re.fullmatch(rf"{PACKAGE}.*/test_\w+\.py", path):
            _edit(git, request, BUILD_FILE, lambda text: add_target(text, path))
    for line in request.docs:
        _edit(git, request, line.path, lambda text: add_docs_line(text, line))
    git.run("add", "--all")
    git.run(
        *("commit", "--quiet", "--no-verify", "--file=-"),
        stdin=write_message(request, patches).encode(),
        env=AUTHOR,
    )


class _Carrier:
    """Carries the patches of requests over to what the requests depend on.

    Args:
        git: A scratch repository.
        upstream: The release.
        patches: The text of each patch by name, in order.
    """

    def __init__(self, git: Git, upstream: Upstream, patches: Mapping[str, str]):
        self._git = git
        base = lay_upstream(git, upstream)
        lay_patches(git, upstream, patches)
        laid = git.text("rev-list", "--reverse", f"{UPSTREAM}..HEAD").split()
        self._commits = dict(zip(patches, laid, strict=True))
        self._tips: Dict[tuple, str] = {(): base}

    def diff(self, requests: List[Request]) -> str:
        """Return what the last of some requests changes after the others."""
        key = tuple(request.name for request in requests)
        before = self._tip(requests[:-1])
        if key not in self._tips:
            self._git.run("checkout", "--quiet", "--detach", before)
            for name in requests[-1].patches:
                try:
                    self._git.run("cherry-pick", self._commits[name])
                except BuildError:
                    where = self._git.text("diff", "--name-only", "--diff-filter=U")
                    hunks = self._git.text("diff", "--unified=1")
                    raise BuildError(
                        f"{requests[-1].name}: {name} does not fit what the request "
                        f"depends on: {where}:\n{hunks}"
                    ) from None
            self._tips[key] = self._git.commit("HEAD")
        return self._git.run("diff", before, self._tips[key]).decode()

    def _tip(self, requests: List[Request]) -> str:
        for index in range(len(requests)):
            self.diff(requests[: index + 1])
        return self._tips[tuple(request.name for request in requests)]


def _apply(git: Git, request: Request, diff: str) -> None:
    try:
        git.run("apply", "--index", "--whitespace=nowarn", "-", stdin=diff.encode())
    except BuildError as e:
        found = re.search(
            r"(?:patch failed: (\S+?):(\d+)|(\S+): (?:No such|does))", str(e)
        )
        where = str(e)
        if found:
            path, line = found[1] or found[3], found[2] or "0"
            part = diff[diff.find(f"+++ b/{path}") :]
            hunk = re.search(rf"^@@ -{line}[, ][\s\S]*?(?=^@@|^diff|\Z)", part, re.M)
            where = f"{path}, hunk at line {line}:\n{hunk[0] if hunk else e}"
        raise BuildError(f"{request.name} does not fit this Ray: {where}") from None


def _edit(git: Git, request: Request, path: str, change) -> None:
    target = git.folder / path
    if not target.is_file():
        raise BuildError(f"{request.name}: this Ray has no {path}")
    try:
        target.write_text(change(target.read_text()))
    except BuildError as e:
        raise BuildError(f"{request.name}: {path}: {e}") from None


def add_target(text: str, path: str) -> str:
    """Put the target of a test where its name belongs.

    Args:
        text: The BUILD file of Tune.
        path: The test file, in Ray's repository.

    Returns:
        The text with the target, among those of tests in the same folder.

    Raises:
        BuildError: If there is such a target, or none in the folder.
    """
    source = path[len(PACKAGE) :]
    name, folder = Path(source).stem, Path(source).parent
    before = after = None
    for target in _TARGET.finditer(text):
        if target[1] == name:
            raise BuildError(f"it has a target {name} already")
        if Path(target[2]).parent == folder:
            if target[1] < name:
                before = target
            elif after is None:
                after = target
    if before is None and after is None:
        raise BuildError(f"it has no target for a test in {folder}")
    new = TARGET.format(name=name, source=source)
    if before is not None:
        return f"{text[: before.end()]}\n{new}{text[before.end() :]}"
    return f"{text[: after.start()]}{new}\n{text[after.start() :]}"


def add_docs_line(text: str, line: DocsLine) -> str:
    """Put a line into a page of the documentation.

    Args:
        text: The page.
        line: The line, and which it stands after.

    Returns:
        The text with the line.

    Raises:
        BuildError: If the page does not have that place exactly once.
    """
    found = re.findall(rf"^([ ]*){re.escape(line.anchor)}\n", text, re.MULTILINE)
    if len(found) != 1:
        raise BuildError(
            f"it has the line {line.anchor!r} {len(found)} times, not once"
        )
    (indent,) = found
    # A list in a table is indented less than the cells of its rows.
    rows = line.text.split("\\n")
    if rows[0] == "":
        rows, indent = rows[1:], indent[:-2]
    new = "".join(f"{indent}{row}\n" for row in rows)
    place = f"{found[0]}{line.anchor}\n"
    return re.sub(rf"^{re.escape(place)}", lambda m: m[0] + new, text, flags=re.M)


def write_message(request: Request, patches: Mapping[str, str]) -> str:
    """Write the message of a request's commit."""
    parts = [request.title, _why(request, patches, "{body}")]
    issues = _issues(request, patches)
    return "\n\n".join(filter(None, [*parts, issues])) + "\n"


def write_text(
    requests: List[Request], patches: Mapping[str, str], files: List[str]
) -> str:
    """Write the text of a request.

    Args:
        requests: What it depends on, in order, and itself at the end.
        patches: The text of each patch by name.
        files: The new files that come with it.

    Returns:
        The text, in Markdown.
    """
    request, needed = requests[-1], [r.title for r in requests[:-1]]
    changed = {
        path
        for name in request.patches
        for path in re.findall(r"^\+\+\+ b/(\S+)", patches[name], re.MULTILINE)
    }
    what = [f"- changes `{path}`" for path in sorted(changed)]
    what += [f"- adds `{path}`" for path in [*files, *request.tests]]
    what += [f"- adds a line to `{line.path}`" for line in request.docs]
    tests = [path for path in request.tests if "/test_" in path]
    waiting = "".join(f"- `{title}` has been merged;\n" for title in needed)
    return TEXT.format(
        title=request.title,
        why=_why(request, patches, WHY if len(request.patches) > 1 else "{body}")
        or "It brings what later requests build on.",
        what="\n".join(what) + (f"\n\n{request.size}" if request.size else ""),
        commands="\n".join(f"$ python -m pytest -v {path}" for path in tests)
        or "(it has no tests of its own yet: write them before you send it)",
        issues=_issues(request, patches) or "None.",
        base="master",
        waiting=f"\nand when\n\n{waiting}" if needed else "",
    )


def _why(request: Request, patches: Mapping[str, str], form: str) -> str:
    parts = []
    for name in request.patches:
        title, body = read_header(name, patches[name])
        body = re.sub(r"^(?:Bug|Forwarded|Tests|Origin): .*\n?", "", body, flags=re.M)
        parts.append(form.format(title=title, body=body.strip()))
    return "\n\n".join(parts)


def _issues(request: Request, patches: Mapping[str, str]) -> str:
    issues = {i for name in request.patches for i in read_issues(name, patches[name])}
    lines = [f"Closes #{issue}" for issue in request.closes]
    lines += [f"Related to #{i}" for i in sorted(issues - set(request.closes), key=int)]
    return "\n".join(lines)
