"""The checkout in `build/ray`: a git repository with one commit per patch.

Its first commit holds the files of `ray/tune`, `ray/air` and `ray/train` from the
pinned upstream wheel, at the paths that they have in Ray's own repository. The files
of `python/` are linked in. By hand, because git knows nothing of it: no work in it is
ever lost when it is laid anew, and no change of `patches/` when it is exported.
"""

import json
import os
from pathlib import Path
from typing import List, Mapping, Optional

from build_backend.errors import BuildError
from build_backend.files import new_file
from build_backend.tree import SOURCE_PREFIX, Tree, read_new_files
from ci.lib.git import Git, scratch_repository
from ci.lib.series import (
    UPSTREAM,
    Upstream,
    export_commits,
    lay_patches,
    lay_upstream,
    patches_digest,
    read_patches,
    write_patches,
)

BRANCH = "patches"
LAID = "refs/patches/laid"
# For what people do there: so that export changes no more than they did.
CONFIG = {
    "core.autocrlf": "false",
    "commit.gpgSign": "false",
    "gc.auto": "0",
    "core.hooksPath": os.devnull,
    "diff.algorithm": "myers",
    "pull.rebase": "true",
    "rebase.autoSquash": "true",
}


def checkout_folder(tree: Tree) -> Path:
    """Return where the checkout of a source tree lies."""
    return tree.root / "build" / "ray"


def checkout(tree: Tree, force: bool = False) -> List[str]:
    """Lay the checkout, with the new files of `python/` linked in.

    Args:
        tree: The source tree.
        force: Whether to go on when there is work in it that was not exported. It is
            kept on branches of its own.

    Returns:
        What was done, for people.

    Raises:
        BuildError: If a patch does not apply, or work would be lost. The checkout is as
            it was then.
    """
    git = Git(checkout_folder(tree))
    upstream = Upstream.read(tree)
    new_files = read_new_files(tree)
    for name in new_files:
        if SOURCE_PREFIX + name in upstream.files:
            raise BuildError(
                f"python/{name} is a file that upstream has; make it a patch"
            )
    there = (git.folder / ".git").is_dir()
    if not there and git.folder.exists() and any(git.folder.iterdir()):
        raise BuildError(f"{git.folder} is in the way: it is no checkout; move it")
    work = unexported_work(tree, git, upstream) if there else None
    if work and not force:
        raise BuildError(f"{git.folder}: {work}, or give --force to lay it anew")
    said = []
    with scratch_repository() as scratch:
        lay_upstream(scratch, upstream)
        lay_patches(scratch, upstream, read_patches(tree))
        if not there:
            git.folder.mkdir(parents=True, exist_ok=True)
            git.run("init", "--quiet", "--template=", "--object-format=sha1")
            for name, value in CONFIG.items():
                git.run("config", name, value)
        if work:
            said += save_work(git)
        place = str(scratch.folder)
        git.run("fetch", "--quiet", place, "HEAD", f"+{UPSTREAM}:{UPSTREAM}")
    git.run("checkout", "--quiet", "--force", "-B", BRANCH, "FETCH_HEAD")
    git.run("clean", "--quiet", "-d", "--force")
    links = link_new_files(tree, git, new_files)
    write_state(tree, git, git.text("rev-parse", "HEAD"), links)
    count = git.text("rev-list", "--count", f"{UPSTREAM}..HEAD")
    what = f"{count} patches, {len(links)} new files linked"
    return [*said, f"{git.folder}: Ray {upstream.version}, {what}"]


def link_new_files(tree: Tree, git: Git, new_files: Mapping[str, Path]) -> List[str]:
    """Link the files of `python/` in, ignored by git; return where they are."""
    for path in read_state(git.folder).get("links", []):
        old = git.folder / path
        if old.is_symlink():
            old.unlink()
    for name, path in new_files.items():
        link = git.folder / SOURCE_PREFIX / name
        link.parent.mkdir(parents=True, exist_ok=True)
        try:
            link.symlink_to(os.path.relpath(path, link.parent))
        except FileExistsError:
            raise BuildError(
                f"{link} is in the way of python/{name}; move it"
            ) from None
        except OSError as e:
            raise BuildError(
                f"cannot link python/{name} into the checkout ({e.strerror}); on "
                "Windows, turn Developer Mode on"
            ) from None
    links = [SOURCE_PREFIX + name for name in new_files]
    info = git.folder / ".git" / "info"
    info.mkdir(exist_ok=True)
    ignored = ["__pycache__/", "*.pyc", *("/" + path for path in links)]
    (info / "exclude").write_text("\n".join(ignored) + "\n", encoding="utf-8")
    return links


# What must not get lost


def read_state(folder: Path) -> dict:
    """Read what was known when the checkout was laid or exported last."""
    try:
        return json.loads((folder / ".git" / "laid.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def write_state(tree: Tree, git: Git, commit: str, links: List[str]) -> None:
    """Note that `patches/` and a commit of the checkout are the same."""
    git.run("update-ref", LAID, commit)
    state = {"patches": patches_digest(tree), "links": links}
    with new_file(git.folder / ".git", "laid.json") as file:
        file.write(json.dumps(state, indent=1).encode())


def unexported_work(tree: Tree, git: Git, upstream: Upstream) -> Optional[str]:
    """Say what would be lost if the checkout were laid anew, if anything."""
    if git.operation():
        return f"a {git.operation()} is in progress; finish or abort it"
    if git.text("status", "--porcelain"):
        return "there are uncommitted changes; commit them and run `ci/patch export`"
    for name, commit in _tips(git).items():
        try:
            exported = export_commits(git, upstream, commit)
        except BuildError:
            exported = None
        if exported != read_patches(tree):
            return (
                f"{name} has commits that are not in patches/; run `ci/patch export` "
                "first"
            )
    return None


def save_work(git: Git) -> List[str]:
    """Put aside on branches what `--force` would destroy, and say where."""
    if git.operation():
        for command in ("rebase", "am", "cherry-pick", "revert"):
            git.run(command, "--quit", check=False)
        (git.folder / ".git" / "MERGE_HEAD").unlink(missing_ok=True)
    if git.text("status", "--porcelain"):
        git.run("checkout", "--quiet", "--detach")
        git.run("add", "--all")
        git.run("commit", "--quiet", "-m", "Uncommitted work")
    said = []
    for name, commit in _tips(git).items():
        branch = f"saved-{commit[:12]}"
        git.run("branch", "--force", branch, commit)
        said.append(f"{name} is kept as branch {branch}")
    return said


def _tips(git: Git) -> dict:
    """Return the commits that the checkout was not laid with, by name."""
    laid = git.commit(LAID)
    tips = {name: git.commit(name) for name in ("HEAD", f"refs/heads/{BRANCH}")}
    return {name: commit for name, commit in tips.items() if commit not in (None, laid)}


# Out of the checkout


def export(
    tree: Tree, source: Optional[Path] = None, rev: str = "HEAD", force: bool = False
) -> List[str]:
    """Write commits back to `patches/`.

    Args:
        tree: The source tree.
        source: The repository, `build/ray` by default.
        rev: The last commit.
        force: Whether to go on although the repository has uncommitted changes, or
            `patches/` has changed since the checkout was laid.

    Returns:
        What was changed, for people.

    Raises:
        BuildError: If the commits cannot be told as patches without loss, or others'
            changes of `patches/` would be lost. Nothing is changed then.
    """
    own = source is None
    git = Git(checkout_folder(tree) if own else source)
    if own and not (git.folder / ".git").is_dir():
        raise BuildError(f"there is no {git.folder}; lay it with `ci/patch checkout`")
    if not git.folder.is_dir() or not git.commit(rev):
        raise BuildError(f"{git.folder} is no git repository with a commit {rev}")
    if not force:
        _check_nothing_lost(tree, git, own, rev)
    patches = export_commits(git, Upstream.read(tree), rev)
    changes = write_patches(tree, patches)
    if own:
        links = read_state(git.folder).get("links", [])
        write_state(tree, git, git.text("rev-parse", rev), links)
    return changes + [f"{len(patches)} patches, {len(changes)} files changed"]


def _check_nothing_lost(tree: Tree, git: Git, own: bool, rev: str) -> None:
    """Check that an export takes all there is, and undoes nothing."""
    if own and git.operation():
        raise BuildError(
            f"{git.folder}: a {git.operation()} is in progress; finish it first, or "
            "give --force to export what is there"
        )
    state = read_state(git.folder) if own else None
    if state and state["patches"] != patches_digest(tree):
        raise BuildError(
            "patches/ has changed since the checkout was laid, and export would "
            "undo that. Lay it anew with `ci/patch checkout --force`, which keeps "
            "your commits on a branch, and rebase them; or export with --force"
        )
    bare = git.text("rev-parse", "--is-bare-repository") == "true"
    if bare or rev != "HEAD":
        return
    untracked = "normal" if own else "no"
    changes = git.text("status", "--porcelain", f"--untracked-files={untracked}")
    if changes:
        raise BuildError(
            f"{git.folder} has uncommitted changes ({changes.splitlines()[0]}); "
            "commit or remove them (new files belong in python/), or give --force "
            "to export without them"
        )


def rebase(tree: Tree) -> List[str]:
    """Carry the commits of the checkout over to the release that is pinned now.

    Args:
        tree: The source tree, its pin written anew.

    Returns:
        What was done, for people.

    Raises:
        BuildError: If there is work that git would trip over, or a conflict. The
            rebase is in progress then, as git leaves it.
    """
    git = Git(checkout_folder(tree))
    if not git.folder.is_dir() or not git.commit(BRANCH):
        raise BuildError(
            f"there is no {git.folder} to carry over; lay it with `ci/patch checkout` "
            "while the old release is still pinned"
        )
    changes = git.text("status", "--porcelain", "--untracked-files=no")
    if git.operation() or changes:
        what = f"a {git.operation()}" if git.operation() else "an uncommitted change"
        raise BuildError(f"{git.folder}: {what} is in progress; finish that first")
    upstream = Upstream.read(tree)
    version = upstream.version
    old, tip = git.text("rev-list", "--max-parents=0", BRANCH), git.commit(BRANCH)
    with scratch_repository() as scratch:
        new = lay_upstream(scratch, upstream)
        if new == old:
            return [f"{git.folder} is on Ray {version} already"]
        git.run("fetch", "--quiet", str(scratch.folder), f"+{UPSTREAM}:{UPSTREAM}")
    try:
        git.run("rebase", "--quiet", "--onto", new, old, BRANCH)
    except BuildError as e:
        raise BuildError(
            f"{e}\nResolve it in {git.folder} as git says, then run `ci/patch export`; "
            "`git rebase --abort` takes it back"
        ) from None
    return [
        f"{git.folder} is on Ray {version}. Look at what has changed with `git "
        f"range-diff {old[:12]}..{tip[:12]} {new[:12]}..{BRANCH}` there, then run "
        "`ci/patch export`"
    ]
