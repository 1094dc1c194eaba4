"""The patches as commits: laid as a git checkout, exported back, and verified.

`checkout` lays a git repository in `build/ray`. Its first commit holds the files of
`ray/tune` and `ray/air` from the pinned upstream wheel, at the paths that they have in
Ray's own repository, and each commit after that is one patch. `export` writes the
commits back, byte for byte the same when nothing changed. `verify` lists what is wrong
with the series. `rebase` carries the commits over when another release is pinned.
"""

from __future__ import annotations

import argparse
import contextlib
import email.utils
import hashlib
import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unicodedata
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Iterator, List, Mapping, Optional, Sequence

ROOT = Path(__file__).resolve().parent.parent


def _load_backend():
    """Import `setup.py`, whose reading and applying of patches is the one there is."""
    name = "ray_wheel_backend"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, ROOT / "setup.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


backend = _load_backend()
BuildError = backend.BuildError
Tree = backend.Tree

# Patches touch these folders of Ray's repository and no other.
PATCHED = ("python/ray/tune/", "python/ray/air/")
BRANCH = "patches"
LAID = "refs/patches/laid"
MAX_SUBJECT = 72
# What git makes of the same commits must not depend on whose machine it runs on.
GIT_CONFIG = (
    "core.autocrlf=false",
    "core.safecrlf=false",
    "core.eol=lf",
    f"core.hooksPath={os.devnull}",
    f"core.attributesFile={os.devnull}",
    "core.quotePath=true",
    "core.fsmonitor=false",
    "commit.gpgSign=false",
    # Commits keep the author that they have; who made them anew is not exported.
    "user.name=Patches",
    "user.email=patches@invalid",
    "gc.auto=0",
    "diff.algorithm=myers",
    "diff.indentHeuristic=true",
    "diff.suppressBlankEmpty=false",
    "i18n.commitEncoding=UTF-8",
    "i18n.logOutputEncoding=UTF-8",
    "advice.detachedHead=false",
    "log.showSignature=false",
    "safe.directory=*",
)
FORMAT_PATCH = (
    "format-patch",
    "--stdout",
    "-1",
    "--keep-subject",
    "--unified=1",
    "--inter-hunk-context=0",
    "--full-index",
    "--zero-commit",
    "--no-signature",
    "--no-stat",
    "--no-renames",
    "--no-ext-diff",
    "--no-textconv",
    "--no-color",
    "--no-base",
    "--no-notes",
    "--no-attach",
    "--no-thread",
    "--no-to",
    "--no-cc",
    "--no-from",
    "--no-add-header",
    "--no-signoff",
    "--no-cover-letter",
    "--encode-email-headers",
    "--src-prefix=a/",
    "--dst-prefix=b/",
)


# Git


class Git:
    """Runs git in one repository, the same on every machine.

    Args:
        folder: The repository, or its working tree.
    """

    def __init__(self, folder: Path):
        self.folder = folder

    def run(self, *args: str, stdin: bytes = b"", check: bool = True) -> bytes:
        """Run a command.

        Args:
            *args: The git command and its arguments.
            stdin: What it is given to read.
            check: Whether its failure is an error.

        Returns:
            What it printed.

        Raises:
            BuildError: If it fails, with what it said.
        """
        command = ["git", "-C", str(self.folder)]
        for setting in GIT_CONFIG:
            command += ["-c", setting]
        environment = {k: v for k, v in os.environ.items() if k[:4] != "GIT_"}
        environment.update(
            GIT_CONFIG_NOSYSTEM="1",
            GIT_CONFIG_GLOBAL=os.devnull,
            GIT_NO_REPLACE_OBJECTS="1",
            GIT_TERMINAL_PROMPT="0",
            LC_ALL="C",
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
        return self.run(*args, **options).decode("utf-8").strip()

    def commit(self, name: str) -> Optional[str]:
        """Return the hash that a revision stands for, or None when there is none."""
        found = self.text(
            "rev-parse", "--verify", "--quiet", name + "^{commit}", check=False
        )
        return found or None


@contextlib.contextmanager
def scratch_repository() -> Iterator[Git]:
    """Make a bare repository whose configuration nobody has touched."""
    with tempfile.TemporaryDirectory(prefix="ray-patches-") as folder:
        git = Git(Path(folder))
        git.run("init", "--quiet", "--bare", "--template=", "--object-format=sha1")
        yield git


def blob_hash(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


# Upstream, and patches as commits


def upstream_files(tree: Tree) -> Dict[str, bytes]:
    """Read the files that patches may touch from the pinned wheel.

    Args:
        tree: The source tree.

    Returns:
        The content of each by its path in Ray's repository.
    """
    _, data = backend.fetch_upstream(tree)
    with zipfile.ZipFile(io.BytesIO(data)) as wheel:
        return {
            path: wheel.read(name)
            for name in sorted(wheel.namelist())
            for path in [backend.SOURCE_PREFIX + name]
            if path.startswith(PATCHED) and path.endswith(".py")
        }


def decode(files: Mapping[str, bytes]) -> Dict[str, str]:
    return {path: data.decode("utf-8") for path, data in files.items()}


@dataclass(frozen=True)
class Message:
    """Who wrote a commit, when and what it says.

    Args:
        author: The name.
        address: The e-mail address.
        date: As git's raw date: seconds since 1970 and the offset, `1700000000 +0100`.
        subject: The first line.
        body: The rest.
    """

    author: str
    address: str
    date: str
    subject: str
    body: str

    def text(self) -> str:
        return self.subject + "\n" + (f"\n{self.body}\n" if self.body else "")


def read_message(git: Git, name: str, text: str) -> Message:
    """Read the header of a patch, as `git am` does.

    Args:
        git: Any repository.
        name: The patch, for messages.
        text: Its content.

    Returns:
        The message of the commit that it makes.

    Raises:
        BuildError: If it has no sender, date or subject.
    """
    with tempfile.TemporaryDirectory() as folder:
        body_file = os.path.join(folder, "body")
        out = git.text(
            "mailinfo",
            "-k",
            "--encoding=UTF-8",
            body_file,
            os.path.join(folder, "diff"),
            stdin=text.encode("utf-8"),
        )
        with open(body_file, encoding="utf-8", newline="") as file:
            body = file.read().strip("\n")
    found = dict(re.findall(r"^(Author|Email|Subject|Date): (.*)$", out, re.MULTILINE))
    for part in ("Author", "Email", "Subject", "Date"):
        if not found.get(part, "").strip():
            raise BuildError(f"{name}: its header has no {part.lower()}")
    date = email.utils.parsedate_tz(found["Date"])
    if date is None:
        raise BuildError(f"{name}: {found['Date']!r} is not a date")
    minutes = (date[9] or 0) // 60
    offset = "{}{:02}{:02}".format("-+"[minutes >= 0], *divmod(abs(minutes), 60))
    return Message(
        found["Author"].strip(),
        found["Email"].strip(),
        f"{email.utils.mktime_tz(date)} {offset}",
        found["Subject"].strip(),
        body,
    )


def lay(
    git: Git, version: str, files: Mapping[str, bytes], patches: Mapping[str, str]
) -> List[str]:
    """Make the commits in a repository; its branches and working tree stay.

    The hashes depend on the content alone, so that laying twice gives the same ones.

    Args:
        git: The repository.
        version: The upstream release.
        files: Its files by path.
        patches: The text of each patch by name, in order.

    Returns:
        The commits, the one of the upstream files first.

    Raises:
        BuildError: If a patch does not apply. No commit is made then.
    """
    stream = io.BytesIO()
    mark = 0

    def data(content: bytes) -> None:
        stream.write(b"data %d\n%s\n" % (len(content), content))

    def commit(message: Message, content: Mapping[str, bytes]) -> None:
        nonlocal mark
        mark += 1
        who = f"{message.author} <{message.address}> {message.date}"
        stream.write(f"commit refs/patches/new\nmark :{mark}\n".encode())
        stream.write(f"author {who}\ncommitter {who}\n".encode())
        data(message.text().encode())
        if mark > 1:
            stream.write(f"from :{mark - 1}\n".encode())
        for path, text in content.items():
            stream.write(f"M 100644 inline {path}\n".encode())
            data(text)

    upstream = Message(
        "Upstream",
        "upstream@invalid",
        "1577836800 +0000",
        f"Ray {version}: ray/tune and ray/air of the published wheel",
        "",
    )
    commit(upstream, files)
    texts = decode(files)
    for name, text in patches.items():
        changed = backend.apply_patch(backend.parse_patch(name, text), texts)
        texts.update(changed)
        commit(
            read_message(git, name, text),
            {path: content.encode("utf-8") for path, content in changed.items()},
        )
    git.run("update-ref", "-d", "refs/patches/new", check=False)
    git.run(
        "fast-import",
        "--quiet",
        "--force",
        "--date-format=raw",
        stdin=stream.getvalue(),
    )
    commits = git.text("rev-list", "--reverse", "refs/patches/new").split()
    git.run("update-ref", "-d", "refs/patches/new")
    return commits


def slug(subject: str) -> str:
    """Return the file name of the patch with a subject.

    Args:
        subject: As in `tune: decisions have an order`.

    Returns:
        As in `tune-decisions-have-an-order.patch`.

    Raises:
        BuildError: If there is nothing in the subject to make a name of.
    """
    plain = unicodedata.normalize("NFKD", subject).encode("ascii", "ignore").decode()
    words = re.findall(r"[a-z0-9_]+", plain.lower().replace("'", ""))
    if not words:
        raise BuildError(f"the subject {subject!r} has no word to name a patch after")
    return "-".join(words) + ".patch"


def read_commits(git: Git, files: Mapping[str, bytes], tip: str) -> Dict[str, str]:
    """Write the commits on top of the upstream files as patches.

    Args:
        git: A repository of which nobody has changed the configuration.
        files: The upstream files by path.
        tip: The last commit.

    Returns:
        The text of each patch by its file name, in order.

    Raises:
        BuildError: If the commits cannot be told as patches without loss.
    """
    merges = git.text("rev-list", "--min-parents=2", tip).split()
    if merges:
        raise BuildError(
            f"commit {merges[-1][:12]} is a merge; a series is linear: rebase it"
        )
    root, *commits = git.text("rev-list", "--reverse", "--topo-order", tip).split()
    check_root(git, root, files)
    patches: Dict[str, str] = {}
    for commit in commits:
        subject = check_message(git, commit)
        name = slug(subject)
        if name in patches:
            raise BuildError(
                f"two commits would be {name}; give {commit[:12]} another subject"
            )
        try:
            patches[name] = git.run(*FORMAT_PATCH, commit).decode("utf-8")
        except UnicodeDecodeError:
            raise BuildError(f"commit {commit[:12]} is not UTF-8: {name}") from None
        if not re.search(r"^diff --git ", patches[name], re.MULTILINE):
            raise BuildError(f"commit {commit[:12]} ({subject}) changes nothing")
    check_tip(git, tip, files, patches)
    return patches


def listed_files(git: Git, commit: str) -> Dict[str, str]:
    """Return the blob hash of each file of a commit by path."""
    out = git.run("ls-tree", "-r", "-z", commit).decode("utf-8")
    found = {}
    for entry in filter(None, out.split("\0")):
        facts, path = entry.split("\t", 1)
        found[path] = facts.split()[2]
    return found


def check_root(git: Git, root: str, files: Mapping[str, bytes]) -> None:
    """Check that the first commit holds the files of the pinned wheel, unchanged."""
    found = listed_files(git, root)
    wrong = [
        *(f"{p} is missing" for p in files if p not in found),
        *(f"{p} is not in the wheel" for p in found if p not in files),
        *(
            f"{p} differs"
            for p, data in files.items()
            if p in found and found[p] != blob_hash(data)
        ),
    ]
    if wrong:
        more = f", and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise BuildError(
            f"the first commit ({root[:12]}) does not hold the *.py of ray/tune and "
            f"ray/air of the pinned wheel: {', '.join(wrong[:3])}{more}. Lay the "
            "checkout with `ci/patch checkout`, and rebase the commits onto its first"
        )


def check_message(git: Git, commit: str) -> str:
    """Check that a commit's message comes back from a patch as it is.

    Returns:
        Its subject.
    """
    try:
        message = git.run("log", "-1", "--format=%B", commit).decode("utf-8").rstrip()
    except UnicodeDecodeError:
        raise BuildError(f"the message of {commit[:12]} is not UTF-8") from None
    subject, _, body = message.partition("\n")
    if not subject.strip():
        raise BuildError(f"commit {commit[:12]} has no message")
    if body and not body.startswith("\n"):
        raise BuildError(
            f"commit {commit[:12]} ({subject}): the subject is more than one line; "
            "put an empty line after the first"
        )
    odd = re.search(r"^(---|diff -.*|Index: .*|From [0-9a-f]{40} .*)$", body, re.M)
    if odd:
        raise BuildError(
            f"commit {commit[:12]} ({subject}): the line {odd[0]!r} in its body would "
            "end the message in a patch; indent it"
        )
    return subject


def check_tip(
    git: Git, tip: str, files: Mapping[str, bytes], patches: Mapping[str, str]
) -> None:
    """Check that the patches make the very files of the last commit."""
    texts = decode(files)
    for name, text in patches.items():
        texts.update(backend.apply_patch(backend.parse_patch(name, text), texts))
    found = listed_files(git, tip)
    expected = {path: blob_hash(text.encode("utf-8")) for path, text in texts.items()}
    if found != expected:
        wrong = sorted(
            p for p in {**found, **expected} if found.get(p) != expected.get(p)
        )
        raise BuildError(
            f"the patches do not make the files of the last commit: {wrong[0]} differs"
        )


def export_commits(
    source: Git, version: str, files: Mapping[str, bytes], rev: str
) -> Dict[str, str]:
    """Write the commits of any repository as patches that come back as they are.

    Args:
        source: The repository.
        version: The upstream release.
        files: Its files by path.
        rev: The last commit.

    Returns:
        The text of each patch by its file name, in order.

    Raises:
        BuildError: If a commit cannot be told as a patch without loss.
    """
    if source.commit(rev) is None:
        raise BuildError(f"{source.folder} is no git repository with a commit {rev}")
    if source.text("rev-parse", "--is-shallow-repository") == "true":
        raise BuildError(f"{source.folder} is a shallow clone; fetch all of it")
    with scratch_repository() as git:
        place = str(source.folder.resolve())
        commit = source.commit(rev)
        source.run("push", "--quiet", "--no-verify", str(git.folder),
                   f"{commit}:refs/patches/tip")  # fmt: skip
        patches = read_commits(git, files, commit)
        # Read them back: what `git am` makes of them must be the same again.
        again = read_commits(git, files, lay(git, version, files, patches)[-1])
        for name, text in patches.items():
            if again.get(name) != text:
                raise BuildError(
                    f"{name} from {place} does not come back from a patch as it is; "
                    "see its message for headers, scissors or odd characters"
                )
    return patches


# The series on disk


def read_patches(tree: Tree) -> Dict[str, str]:
    """Read the patches of the series by name, in order."""
    return {
        name: backend.read_text(tree.patches / name)
        for name in backend.read_series(tree)
    }


def patches_digest(tree: Tree) -> str:
    """Tell one state of the series from another, malformed ones too."""
    digest = hashlib.sha256()
    for path in sorted(tree.patches.glob("*.patch")) + [tree.series]:
        data = path.read_bytes() if path.is_file() else b""
        digest.update(path.name.encode() + b"\0%d\0" % len(data) + data)
    return digest.hexdigest()


def write_patches(tree: Tree, patches: Mapping[str, str]) -> List[str]:
    """Make the series on disk this one.

    Args:
        tree: The source tree.
        patches: The text of each patch by name, in order.

    Returns:
        One line for each file that changed.
    """
    wanted = {name: text.encode("utf-8") for name, text in patches.items()}
    wanted["series"] = "".join(f"{name}\n" for name in patches).encode()
    changes = []
    for name, data in wanted.items():
        path = tree.patches / name
        before = path.read_bytes() if path.is_file() else None
        if before != data:
            with backend.new_file(tree.patches, name) as file:
                file.write(data)
            changes.append(f"{'new' if before is None else 'changed'}: patches/{name}")
    for path in sorted(tree.patches.glob("*.patch")):
        if path.name not in wanted:
            path.unlink()
            changes.append(f"removed: patches/{path.name}")
    return changes


# The commands


def checkout_folder(tree: Tree) -> Path:
    return tree.root / "build" / "ray"


def state_file(folder: Path) -> Path:
    return folder / ".git" / "laid.json"


def read_state(folder: Path) -> dict:
    try:
        return json.loads(state_file(folder).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def write_state(tree: Tree, git: Git, commit: str, links: Sequence[str]) -> None:
    git.run("update-ref", LAID, commit)
    state = {"patches": patches_digest(tree), "links": list(links)}
    with backend.new_file(git.folder / ".git", "laid.json") as file:
        file.write(json.dumps(state, indent=1).encode())


def unexported_work(tree: Tree, git: Git, version: str, files) -> Optional[str]:
    """Say what in a checkout would be lost if it were laid anew, if anything.

    Args:
        tree: The source tree.
        git: The checkout.
        version: The upstream release.
        files: Its files by path.

    Returns:
        What it is and what to do, or None.
    """
    operation = unfinished_operation(git)
    if operation:
        return f"a {operation} is under way; finish or abort it"
    if git.text("status", "--porcelain"):
        return "there are uncommitted changes; commit them and run `ci/patch export`"
    laid = git.commit(LAID)
    current = None
    for name in ("HEAD", f"refs/heads/{BRANCH}"):
        commit = git.commit(name)
        if commit in (None, laid):
            continue
        if current is None:
            current = read_patches(tree)
        try:
            exported = export_commits(git, version, files, commit)
        except BuildError:
            exported = None
        if exported != current:
            return (
                f"{name} has commits that are not in patches/; run `ci/patch export` "
                "first"
            )
    return None


def unfinished_operation(git: Git) -> Optional[str]:
    for name, operation in (
        ("rebase-merge", "rebase"),
        ("rebase-apply", "rebase or am"),
        ("MERGE_HEAD", "merge"),
        ("CHERRY_PICK_HEAD", "cherry-pick"),
        ("REVERT_HEAD", "revert"),
    ):
        if (git.folder / ".git" / name).exists():
            return operation
    return None


def save_work(git: Git) -> List[str]:
    """Put aside what `--force` would otherwise destroy.

    Returns:
        What was put where, for people.
    """
    said = []
    if unfinished_operation(git):
        for command in ("rebase", "am", "cherry-pick", "revert"):
            git.run(command, "--quit", check=False)
        (git.folder / ".git" / "MERGE_HEAD").unlink(missing_ok=True)
    laid = git.commit(LAID)
    for name in ("HEAD", f"refs/heads/{BRANCH}"):
        commit = git.commit(name)
        if commit not in (None, laid):
            branch = f"saved-{commit[:12]}"
            git.run("branch", "--force", branch, commit)
            said.append(f"commits of {name} are kept as branch {branch}")
    if git.text("status", "--porcelain"):
        git.run("add", "--all")
        tree = git.text("write-tree")
        head = git.text("rev-parse", "HEAD")
        commit = git.text("commit-tree", tree, "-p", head, "-m", "Uncommitted work")
        branch = f"saved-{commit[:12]}"
        git.run("branch", "--force", branch, commit)
        said.append(f"uncommitted changes are kept as branch {branch}")
    return [line for i, line in enumerate(said) if line not in said[:i]]


def checkout(tree: Tree, force: bool = False) -> List[str]:
    """Lay the checkout in `build/ray`, with the new files of `python/` linked in.

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
    folder = checkout_folder(tree)
    version = backend.read_pin(tree.pin).version
    files = upstream_files(tree)
    new_files = backend.read_new_files(tree)
    for name in new_files:
        if backend.SOURCE_PREFIX + name in files:
            raise BuildError(
                f"python/{name} is a file that upstream has; make it a patch"
            )
    said = []
    git = Git(folder)
    if not (folder / ".git").is_dir():
        if folder.exists() and any(folder.iterdir()):
            raise BuildError(f"{folder} is in the way: it is no checkout; move it")
        lay_new(folder, version, files, read_patches(tree))
    else:
        work = unexported_work(tree, git, version, files)
        if work and not force:
            raise BuildError(f"{folder}: {work}, or give --force to lay it anew")
        commits = lay(git, version, files, read_patches(tree))
        if work:
            said += save_work(git)
        git.run("update-ref", "refs/patches/upstream", commits[0])
        git.run("checkout", "--quiet", "--force", "-B", BRANCH, commits[-1])
        git.run("clean", "--quiet", "-d", "--force")
    links = link_new_files(tree, git, new_files)
    write_state(tree, git, git.text("rev-parse", "HEAD"), links)
    count = int(git.text("rev-list", "--count", "HEAD")) - 1
    said.append(
        f"{folder}: Ray {version}, {count} patches, {len(links)} new files linked"
    )
    return said


def lay_new(folder: Path, version: str, files, patches) -> None:
    """Lay a first checkout, whole or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".ray-", dir=folder.parent) as temporary:
        git = Git(Path(temporary) / "ray")
        git.folder.mkdir()
        git.run("init", "--quiet", "--template=", "--object-format=sha1")
        # For what people do there: so that export changes no more than they did.
        for setting in ("core.autocrlf=false", "commit.gpgSign=false", "gc.auto=0",
                        f"core.hooksPath={os.devnull}", "diff.algorithm=myers",
                        "pull.rebase=true", "rebase.autoSquash=true"):  # fmt: skip
            git.run("config", *setting.split("=", 1))
        commits = lay(git, version, files, patches)
        git.run("update-ref", "refs/patches/upstream", commits[0])
        git.run("checkout", "--quiet", "-B", BRANCH, commits[-1])
        if folder.exists():
            folder.rmdir()
        os.replace(git.folder, folder)


def link_new_files(tree: Tree, git: Git, new_files: Mapping[str, Path]) -> List[str]:
    """Link the files of `python/` into the checkout, where git ignores them.

    Returns:
        Their paths in the checkout.
    """
    for path in read_state(git.folder).get("links", []):
        old = git.folder / path
        if old.is_symlink():
            old.unlink()
    links = []
    for name, path in new_files.items():
        link = git.folder / backend.SOURCE_PREFIX / name
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
        links.append(backend.SOURCE_PREFIX + name)
    info = git.folder / ".git" / "info"
    info.mkdir(exist_ok=True)
    ignored = ["__pycache__/", "*.pyc", *("/" + path for path in links)]
    (info / "exclude").write_text("\n".join(ignored) + "\n", encoding="utf-8")
    return links


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
    if own and not force:
        operation = unfinished_operation(git)
        if operation:
            raise BuildError(
                f"{git.folder}: a {operation} is under way; finish it first, or give "
                "--force to export what is there"
            )
        state = read_state(git.folder)
        if state and state["patches"] != patches_digest(tree):
            raise BuildError(
                "patches/ has changed since the checkout was laid, and export would "
                "undo that. Lay it anew with `ci/patch checkout --force`, which keeps "
                "your commits on a branch, and rebase them; or export with --force"
            )
    bare = git.text("rev-parse", "--is-bare-repository") == "true"
    untracked = "normal" if own else "no"
    if not force and not bare and rev == "HEAD":
        changes = git.text("status", "--porcelain", f"--untracked-files={untracked}")
        if changes:
            raise BuildError(
                f"{git.folder} has uncommitted changes ({changes.splitlines()[0]}); "
                "commit or remove them (new files belong in python/), or give --force "
                "to export without them"
            )
    version = backend.read_pin(tree.pin).version
    files = upstream_files(tree)
    patches = export_commits(git, version, files, rev)
    changes = write_patches(tree, patches)
    if own:
        links = read_state(git.folder).get("links", [])
        write_state(tree, git, git.text("rev-parse", rev), links)
    return changes + [f"{len(patches)} patches, {len(changes)} files changed"]


def rebase(tree: Tree) -> List[str]:
    """Carry the commits of the checkout over to the release that is pinned now.

    Args:
        tree: The source tree, its pin written anew.

    Returns:
        What was done, for people.

    Raises:
        BuildError: If there is work that git would trip over, or a conflict. The
            rebase is under way then, as git leaves it.
    """
    git = Git(checkout_folder(tree))
    if not git.folder.is_dir() or not git.commit(BRANCH):
        raise BuildError(
            f"there is no {git.folder} to carry over; lay it with `ci/patch checkout` "
            "while the old release is still pinned"
        )
    operation = unfinished_operation(git)
    if operation or git.text("status", "--porcelain", "--untracked-files=no"):
        raise BuildError(
            f"{git.folder}: "
            + (f"a {operation} is under way" if operation else "uncommitted changes")
            + "; finish that first"
        )
    version = backend.read_pin(tree.pin).version
    old = git.text("rev-list", "--max-parents=0", BRANCH)
    [new] = lay(git, version, upstream_files(tree), {})
    if new == old:
        return [f"{git.folder} is on Ray {version} already"]
    git.run("update-ref", "refs/patches/upstream", new)
    try:
        git.run("rebase", "--quiet", "--onto", new, old, BRANCH)
    except BuildError as e:
        raise BuildError(
            f"{e}\nResolve it in {git.folder} as git says, then run `ci/patch export`; "
            "`git rebase --abort` takes it back"
        ) from None
    return [f"{git.folder} is on Ray {version}; look, then run `ci/patch export`"]


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
        version = backend.read_pin(tree.pin).version
        files = upstream_files(tree)
    except BuildError as e:
        return [*faults, str(e)]
    with scratch_repository() as git:
        for name, text in patches.items():
            faults += check_header(git, name, text)
    applied = True
    texts = decode(files)
    for name, text in patches.items():
        try:
            patch = backend.parse_patch(name, text)
            faults += check_hunks(patch)
            changed = backend.apply_patch(patch, texts)
        except BuildError as e:
            faults.append(str(e))
            applied = False
            break  # Those behind it may well depend on it.
        for path, content in changed.items():
            try:
                compile(content, path, "exec", dont_inherit=True)
            except (SyntaxError, ValueError) as e:
                faults.append(f"{name}: {path} does not compile after it: {e}")
        texts.update(changed)
    if applied:
        faults += check_round_trip(version, files, patches)
    return faults + list(check_new_files(tree, files))


def check_folder(tree: Tree) -> Iterator[str]:
    """Find files in `patches/` that the series does not account for."""
    try:
        listed = backend.read_text(tree.series).split("\n")
    except BuildError:
        return  # Reading the series says so.
    for path in sorted(tree.patches.iterdir()):
        if path.name in (tree.series.name, tree.pin.name) or path.name in listed:
            continue
        if path.suffix == ".patch":
            yield f"patches/{path.name} is not in patches/series; list or remove it"
        else:
            yield f"patches/{path.name} is no patch; patches/ holds nothing else"


def check_header(git: Git, name: str, text: str) -> Iterator[str]:
    """Find what a patch's header lacks: subject, body and the DEP-3 fields."""
    try:
        message = read_message(git, name, text)
        expected = slug(message.subject)
    except BuildError as e:
        yield str(e)
        return
    subject = message.subject
    if name != expected:
        yield f"{name}: by its subject its name is {expected}; run `ci/patch export`"
    if len(subject) > MAX_SUBJECT:
        yield (
            f"{name}: its subject has {len(subject)} characters; keep to {MAX_SUBJECT}"
        )
    if re.match(r"(fixup|squash|amend)! ", subject):
        yield f"{name}: it is meant for another; run `git rebase -i --autosquash`"
    elif not re.match(r"[a-z_/,. ]+: \S", subject):
        yield f"{name}: its subject does not start with its area, as in `tune: `"
    if subject.startswith("["):
        yield f"{name}: `git am` drops the [...] at the start of its subject"
    if subject.endswith("."):
        yield f"{name}: its subject ends with a full stop"
    fields = re.findall(r"^(Bug|Forwarded):[ \t]*(.*)$", message.body, re.MULTILINE)
    prose = re.sub(r"^[A-Z][A-Za-z-]+:[ \t].*$", "", message.body, flags=re.MULTILINE)
    if len(prose.split()) < 5:
        yield f"{name}: its body does not say what was wrong and why this is the fix"
    bugs = [value.strip() for field, value in fields if field == "Bug"]
    sent = [value.strip() for field, value in fields if field == "Forwarded"]
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


def check_hunks(patch) -> Iterator[str]:
    """Find where a patch touches or quotes more of Ray than it may."""
    for change in patch.files:
        if not (change.path.startswith(PATCHED) and change.path.endswith(".py")):
            yield (
                f"{patch.name}: it touches {change.path}; patches touch the *.py of "
                "ray/tune and ray/air"
            )
        for number, hunk in enumerate(change.hunks, 1):
            runs = re.split(r"[-+]+", "".join(line.line_type for line in hunk))
            runs = [run.count(" ") for run in runs]
            # Between two changes the context of both may meet.
            if max(runs[0], runs[-1]) > 1 or max(runs) > 2 or len(runs) < 2:
                yield (
                    f"{patch.name}: hunk {number} of {change.path} has more than one "
                    "line of context; run `ci/patch export`"
                )


def check_round_trip(version: str, files, patches) -> Iterator[str]:
    """Find what export would change, were the series laid and exported."""
    with scratch_repository() as git:
        try:
            tip = lay(git, version, files, patches)[-1]
            exported = read_commits(git, files, tip)
        except BuildError as e:
            yield f"the series cannot be exported: {e}"
            return
    for name, text in patches.items():
        if exported.get(name) != text:
            yield f"{name}: export would change it; run `ci/patch export` and look"


def check_new_files(tree: Tree, files: Mapping[str, bytes]) -> Iterator[str]:
    """Find files of `python/` that do not belong there."""
    try:
        new_files = backend.read_new_files(tree)
    except BuildError as e:
        yield str(e)
        return
    for name in new_files:
        path = backend.SOURCE_PREFIX + name
        if path in files:
            yield f"{path} is a file that upstream has; make it a patch"
        elif not path.startswith(PATCHED):
            yield f"{path} is outside of ray/tune and ray/air; move it"


def main(argv: Optional[Sequence[str]] = None, tree: Tree = backend.HERE) -> int:
    """Run a command.

    Args:
        argv: The arguments, those of the process by default.
        tree: The source tree.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(prog="ci/patch", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    laying = commands.add_parser("checkout", help="lay the git checkout in build/ray")
    laying.add_argument(
        "--force", action="store_true", help="put unexported work aside and go on"
    )
    exporting = commands.add_parser("export", help="write its commits to patches/")
    exporting.add_argument(
        "--from", dest="source", type=Path, metavar="DIR", help="another repository"
    )
    exporting.add_argument("--rev", default="HEAD", help="the last commit")
    exporting.add_argument(
        "--force", action="store_true", help="overwrite changes of patches/"
    )
    commands.add_parser(
        "rebase", help="carry its commits over to the release that is pinned now"
    )
    commands.add_parser("verify", help="say what is wrong with the series")
    options = parser.parse_args(argv)
    try:
        backend.check_python()
        require_tools()
        if options.command == "checkout":
            lines = checkout(tree, options.force)
        elif options.command == "export":
            lines = export(tree, options.source, options.rev, options.force)
        elif options.command == "rebase":
            lines = rebase(tree)
        else:
            lines = verify(tree)
            if lines:
                for line in lines:
                    print(f"patches: {line}", file=sys.stderr)
                return 1
            lines = [f"{len(read_patches(tree))} patches are as they should be"]
    except BuildError as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    print("\n".join(lines))
    return 0


def require_tools() -> None:
    missing = [
        name
        for name in ("packaging", "unidiff")
        if importlib.util.find_spec(name) is None
    ]
    if missing:
        raise BuildError(
            f"{sys.executable} has no {' and no '.join(missing)}; run "
            f"`{sys.executable} -m pip install {' '.join(missing)}`"
        )
    if not shutil.which("git"):
        raise BuildError("git is not installed, or not on the PATH")


if __name__ == "__main__":
    sys.exit(main())
