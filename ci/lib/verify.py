"""What is wrong with the series of patches, if anything.

That a patch fits, and quotes no more of Ray than it may, comes out of laying it and
exporting it again. By hand: what its header has to say (DEP-3), and what the folders
may hold.
"""

import re
from typing import Iterator, List, Mapping

from build_backend.errors import BuildError
from build_backend.files import read_text
from build_backend.tree import SOURCE_PREFIX, Tree, read_new_files
from ci.lib.git import scratch_repository
from ci.lib.requests import NAME as PLAN, check_plan
from ci.lib.series import (
    PATCHED,
    PATCHED_NAMES,
    UPSTREAM,
    Upstream,
    apply_patches,
    format_patches,
    lay_patches,
    lay_upstream,
    read_header,
    read_patches,
    slug,
)

MAX_SUBJECT = 72


def verify(tree: Tree) -> List[str]:
    """List all that is wrong with the series.

    Args:
        tree: The source tree.

    Returns:
        One line for each fault; none when it is as it should be.
    """
    faults = list(check_folder(tree))
    try:
        patches = read_patches(tree)
        upstream = Upstream.read(tree)
    except BuildError as e:
        return [*faults, str(e)]
    for name, text in patches.items():
        faults += check_header(tree, name, text)
    broken = list(check_patches(upstream, patches))
    faults += broken or check_comes_back(upstream, patches)
    if not broken:
        faults += check_plan(tree, upstream, patches)
    return [*faults, *check_new_files(tree, upstream)]


def check_folder(tree: Tree) -> Iterator[str]:
    """Find files in `patches/` that the series does not account for."""
    try:
        listed = read_text(tree.series).split("\n")
    except BuildError:
        return  # Reading the series says so.
    for path in sorted(tree.patches.iterdir()):
        if path.name in (tree.series.name, tree.pin.name, PLAN) or path.name in listed:
            continue
        if path.suffix == ".patch":
            yield f"patches/{path.name} is not in patches/series; list or remove it"
        else:
            yield f"patches/{path.name} is not a patch; patches/ holds nothing else"


def check_header(tree: Tree, name: str, text: str) -> Iterator[str]:
    """Find what a patch's header lacks: subject, body and the DEP-3 fields."""
    try:
        subject, body = read_header(name, text)
        expected = slug(subject)
    except BuildError as e:
        yield str(e)
        return
    if name != expected:
        yield f"{name}: by its subject its name is {expected}; run `ci/patch export`"
    if len(subject) > MAX_SUBJECT:
        yield (
            f"{name}: its subject has {len(subject)} characters; keep to {MAX_SUBJECT}"
        )
    if re.match(r"(fixup|squash|amend)! ", subject):
        yield f"{name}: it is meant for another; run `git rebase -i --autosquash`"
    elif not re.match(r"\[(tune|air)\] [A-Z]|[a-z_/,. ]+: \S", subject):
        yield f"{name}: its subject does not have the form `[tune] Fix X when Y`"
    if subject.endswith("."):
        yield f"{name}: its subject ends with a full stop"
    prose = re.sub(r"^[A-Z][A-Za-z-]+:[ \t].*$", "", body, flags=re.MULTILINE)
    if len(prose.split()) < 5:
        yield f"{name}: its body does not say what was wrong and why this is the fix"
    yield from check_fields(tree, name, body)


def check_fields(tree: Tree, name: str, body: str) -> Iterator[str]:
    """Find what is wrong with the lines `Bug:`, `Forwarded:` and `Tests:`."""

    def values(field):
        found = re.findall(rf"^{field}:[ \t]*(.*)$", body, re.MULTILINE)
        return [value.strip() for value in found]

    bugs, sent = values("Bug"), values("Forwarded")
    if not bugs:
        yield f"{name}: it has no `Bug:` line; give the issue's address or `none`"
    for value in bugs:
        if value != "none" and not re.fullmatch(r"https?://\S+", value):
            yield f"{name}: `Bug: {value}` is neither an address nor `none`"
    if len(sent) != 1:
        yield f"{name}: it has {len(sent)} `Forwarded:` lines; give one, such as `no`"
    for value in sent:
        if not re.fullmatch(r"no|yes|not-needed|https?://\S+", value):
            yield (
                f"{name}: `Forwarded: {value}` is not no, yes, not-needed or an address"
            )
    for value in values("Tests"):
        if not value:
            yield f"{name}: its `Tests:` line names no test"
        for test in value.replace(",", " ").split():
            if not (tree.root / test.split("::")[0]).exists():
                yield f"{name}: `Tests: {test}`: there is no such file"


def check_patches(upstream: Upstream, patches: Mapping[str, str]) -> Iterator[str]:
    """Find the first patch that does not apply, and those that break the syntax."""
    try:
        for name, changed in apply_patches(upstream, patches):
            for path, content in changed.items():
                try:
                    compile(content, path, "exec", dont_inherit=True)
                except (SyntaxError, ValueError) as e:
                    yield f"{name}: {path} does not compile after it: {e}"
    except BuildError as e:
        yield str(e)


def check_comes_back(upstream: Upstream, patches: Mapping[str, str]) -> Iterator[str]:
    """Find what export would change, were the series laid and exported."""
    with scratch_repository() as git:
        lay_upstream(git, upstream)
        try:
            lay_patches(git, upstream, patches)
            exported = format_patches(git, UPSTREAM, "HEAD")
        except BuildError as e:
            yield f"the series cannot be exported: {e}"
            return
    for name, text in patches.items():
        if exported.get(name) != text:
            yield f"{name}: export would change it; run `ci/patch export` and look"


def check_new_files(tree: Tree, upstream: Upstream) -> Iterator[str]:
    """Find files of `python/` that do not belong there."""
    try:
        new_files = read_new_files(tree)
    except BuildError as e:
        yield str(e)
        return
    for name in new_files:
        path = SOURCE_PREFIX + name
        if path in upstream.files:
            yield f"{path} is a file that upstream has; make it a patch"
        elif not path.startswith(PATCHED):
            yield f"{path} is outside of {PATCHED_NAMES}; move it"
