"""The series of patches as commits, and back.

`git am` makes the commits and `git format-patch` the patches. By hand, because git has
nothing for it: the first commit holds files that come out of a wheel; patches have to
fit with no offset, as in the build; and a commit that would not come back from its
patch as it is, is refused.
"""

import email
import email.policy
import hashlib
import io
import re
import unicodedata
import zipfile
from typing import Dict, Iterator, List, Mapping, NamedTuple, Tuple

from build_backend.errors import BuildError
from build_backend.fetch import fetch_upstream
from build_backend.files import new_file, read_text
from build_backend.patching import apply_patch, parse_patch
from build_backend.tree import SOURCE_PREFIX, Tree, read_pin, read_series
from ci.lib.git import Git, scratch_repository

# Patches touch these folders of Ray's repository and no other.
PATCHED = ("python/ray/tune/", "python/ray/air/", "python/ray/train/")
PATCHED_NAMES = "ray/tune, ray/air and ray/train"
UPSTREAM = "refs/patches/upstream"
# Author and committer of the first commit, which so has the same hash every time.
NOBODY = {
    f"GIT_{role}_{field}": value
    for role in ("AUTHOR", "COMMITTER")
    for field, value in {
        "NAME": "Upstream",
        "EMAIL": "upstream@invalid",
        "DATE": "1577836800 +0000",
    }.items()
}
AM = "am --quiet --keep --keep-cr --no-scissors --committer-date-is-author-date"
FORMAT_PATCH = (
    "format-patch -1 --stdout --keep-subject --unified=1 --full-index --zero-commit "
    "--no-signature --no-stat --no-renames"
)
# What has to come back from a patch: author, date, the files and the message.
FACTS = "--format=%an%x1f%ae%x1f%ad%x1f%T%x1f%B"


class Upstream(NamedTuple):
    """The release that is patched.

    Args:
        version: As in `2.60.0`.
        files: The content of what patches may touch, by path in Ray's repository.
    """

    version: str
    files: Dict[str, bytes]

    @classmethod
    def read(cls, tree: Tree) -> "Upstream":
        """Read the pinned wheel."""
        _, data = fetch_upstream(tree)
        with zipfile.ZipFile(io.BytesIO(data)) as wheel:
            files = {
                SOURCE_PREFIX + name: wheel.read(name)
                for name in sorted(wheel.namelist())
                if (SOURCE_PREFIX + name).startswith(PATCHED) and name.endswith(".py")
            }
        return cls(read_pin(tree.pin).version, files)


# On disk


def read_patches(tree: Tree) -> Dict[str, str]:
    """Read the patches of the series by name, in order."""
    return {name: read_text(tree.patches / name) for name in read_series(tree)}


def patches_digest(tree: Tree) -> str:
    """Tell one state of the series from another, malformed ones too."""
    digest = hashlib.sha256()
    for path in sorted(tree.patches.glob("*.patch")) + [tree.series]:
        data = path.read_bytes() if path.is_file() else b""
        digest.update(path.name.encode() + b"\0%d\0" % len(data) + data)
    return digest.hexdigest()


def write_patches(tree: Tree, patches: Mapping[str, str]) -> List[str]:
    """Make the series on disk this one; return a line for each file that changed."""
    wanted = {name: text.encode("utf-8") for name, text in patches.items()}
    wanted["series"] = "".join(f"{name}\n" for name in patches).encode()
    changes = []
    for name, data in wanted.items():
        path = tree.patches / name
        before = path.read_bytes() if path.is_file() else None
        if before != data:
            with new_file(tree.patches, name) as file:
                file.write(data)
            changes.append(f"{'new' if before is None else 'changed'}: patches/{name}")
    for path in sorted(tree.patches.glob("*.patch")):
        if path.name not in wanted:
            path.unlink()
            changes.append(f"removed: patches/{path.name}")
    return changes


def slug(subject: str) -> str:
    """Return a patch's file name: of `[tune] Fix X`, `tune-fix-x.patch`."""
    plain = unicodedata.normalize("NFKD", subject).encode("ascii", "ignore").decode()
    words = re.findall(r"[a-z0-9_]+", plain.lower().replace("'", ""))
    if not words:
        raise BuildError(f"the subject {subject!r} has no word to name a patch after")
    return "-".join(words) + ".patch"


def read_header(name: str, text: str) -> Tuple[str, str]:
    """Return the subject of a patch, and the body of its message."""
    message = email.message_from_bytes(text.encode(), policy=email.policy.default)
    for field, what in (("From", "author"), ("Date", "date"), ("Subject", "subject")):
        if not str(message[field] or "").strip():
            raise BuildError(f"{name}: its header has no {what}")
    if message["Date"].datetime is None:
        raise BuildError(f"{name}: {str(message['Date'])!r} is not a date")
    body = message.get_payload(decode=True).decode("utf-8", "replace")
    body = re.split(r"^(?:---|diff --git .*)$", body, maxsplit=1, flags=re.MULTILINE)
    return str(message["Subject"]).strip(), body[0].strip()


# Patches to commits


def apply_patches(
    upstream: Upstream, patches: Mapping[str, str]
) -> Iterator[Tuple[str, Dict[str, str]]]:
    """Apply the patches one by one, exactly where they say they belong.

    Args:
        upstream: The release.
        patches: The text of each patch by name, in order.

    Yields:
        The name of a patch, and the text of the files that it changes, by path.

    Raises:
        BuildError: If a patch is malformed or does not fit.
    """
    texts = {path: data.decode("utf-8") for path, data in upstream.files.items()}
    for name, text in patches.items():
        changed = apply_patch(parse_patch(name, text), texts)
        texts.update(changed)
        yield name, changed


def lay_upstream(git: Git, upstream: Upstream) -> str:
    """Make the first commit in a scratch repository, and return it.

    Its hash depends on its content alone.
    """
    for path, data in upstream.files.items():
        (git.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (git.folder / path).write_bytes(data)
    git.run("add", "--all")
    message = f"Ray {upstream.version}: {PATCHED_NAMES} of the published wheel"
    git.run("commit", "--quiet", "--allow-empty", "-m", message, env=NOBODY)
    git.run("update-ref", UPSTREAM, "HEAD")
    return git.commit("HEAD")


def lay_patches(git: Git, upstream: Upstream, patches: Mapping[str, str]) -> None:
    """Make a commit of each patch on top of the first, and check the last one out.

    Raises:
        BuildError: If a patch is malformed or does not fit.
    """
    paths = []
    for name, _ in apply_patches(upstream, patches):
        read_header(name, patches[name])
        paths.append(git.folder / ".git" / f"{len(paths):04}-{name}")
        paths[-1].write_bytes(patches[name].encode("utf-8"))
    git.run("checkout", "--quiet", "--detach", UPSTREAM)
    if paths:
        git.run(*AM.split(), *map(str, paths))


# Commits to patches


def export_commits(source: Git, upstream: Upstream, rev: str) -> Dict[str, str]:
    """Write the commits of any repository as patches that come back as they are.

    Args:
        source: The repository.
        upstream: The release.
        rev: The last commit.

    Returns:
        The text of each patch by its file name, in order.

    Raises:
        BuildError: If a commit cannot be told as a patch without loss.
    """
    tip = source.commit(rev)
    if tip is None:
        raise BuildError(f"{source.folder} is no git repository with a commit {rev}")
    if source.text("rev-parse", "--is-shallow-repository") == "true":
        raise BuildError(f"{source.folder} is a shallow clone; fetch all of it")
    with scratch_repository() as git:
        base = lay_upstream(git, upstream)
        place = f"{tip}:refs/patches/tip"
        source.run("push", "--quiet", "--no-verify", str(git.folder), place)
        merges = git.text("rev-list", "--min-parents=2", tip).split()
        if merges:
            raise BuildError(
                f"commit {merges[-1][:12]} is a merge; a series is linear: rebase it"
            )
        root = git.text("rev-list", "--max-parents=0", tip)
        _check_root(git, base, root)
        patches = format_patches(git, root, tip)
        lay_patches(git, upstream, patches)
        _check_comes_back(git, f"{root}..{tip}", f"{base}..HEAD")
    return patches


def format_patches(git: Git, base: str, tip: str) -> Dict[str, str]:
    """Write each commit of a scratch repository as a patch, by file name."""
    patches: Dict[str, str] = {}
    for commit in git.text("rev-list", "--reverse", f"{base}..{tip}").split():
        subject, _, body = git.text("log", "-1", "--format=%B", commit).partition("\n")
        if not subject or body[:1] not in ("", "\n"):
            raise BuildError(
                f"commit {commit[:12]} ({subject}): its message needs a subject, of "
                "one line, and an empty line after it"
            )
        name = slug(subject)
        if name in patches:
            raise BuildError(
                f"two commits would be {name}; give {commit[:12]} another subject"
            )
        try:
            patches[name] = git.run(*FORMAT_PATCH.split(), commit).decode("utf-8")
        except UnicodeDecodeError:
            raise BuildError(f"commit {commit[:12]} is not UTF-8: {name}") from None
        if not patches[name]:
            raise BuildError(f"commit {commit[:12]} ({subject}) changes nothing")
    return patches


def _check_root(git: Git, base: str, root: str) -> None:
    """Check that the first commit holds the files of the pinned wheel, unchanged."""
    changes = git.text("diff", "--no-renames", "--name-status", base, root)
    said = {"A": "is not in the wheel", "D": "is missing"}
    wrong = [
        f"{path} {said.get(kind, 'differs')}"
        for kind, path in (line.split("\t") for line in changes.splitlines())
    ]
    if wrong:
        more = f", and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise BuildError(
            f"the first commit ({root[:12]}) does not hold the *.py of "
            f"{PATCHED_NAMES} of the pinned wheel: {', '.join(wrong[:3])}{more}. Lay "
            "the checkout with `ci/patch checkout`, and rebase the commits onto its "
            "first"
        )


def _check_comes_back(git: Git, commits: str, again: str) -> None:
    """Check that `git am` has made of the patches what they were made from."""
    log = ("log", "--reverse", "-z", "--date=raw")
    pairs = zip(
        git.text(*log, "--format=%h (%s)", commits).split("\0"),
        git.text(*log, FACTS, commits).split("\0"),
        git.text(*log, FACTS, again).split("\0"),
        strict=True,
    )
    for commit, before, after in pairs:
        if before != after:
            raise BuildError(
                f"commit {commit} does not come back from a patch as it is: look in "
                "its message for a line such as `---`, `diff ...` or `From: ...`, and "
                "for odd characters"
            )
