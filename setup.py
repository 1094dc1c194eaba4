"""Builds the patched ray wheel: a PEP 517 backend that needs no compiler.

The wheel of the pinned Ray release is fetched from the package index and checked
against its hash, the patches of ``patches/`` are applied to it and the files of
``python/`` are added. All other members are copied as the compressed bytes that they
are, so a build takes about a second beyond the download.

Frontends call the hooks at the end of this file. ``ci/patch`` shares the rest.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import csv
import gzip
import hashlib
import io
import os
import re
import stat
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Tuple

NAME = "ray"
# The local version segment (PEP 440): `2.60.0+ashav2.1` satisfies `ray==2.60.0`.
LOCAL_VERSION = "ashav2.1"
MIN_PYTHON = (3, 10)
OPTIONS = ("platform", "python")
# Where the files of the wheel lie in Ray's own repository, and so in patches.
SOURCE_PREFIX = "python/"
EDITABLE_MODULE = "_ray_ashav2_editable"
# Of the source tree, what goes into an sdist. Optional ones may be absent.
SDIST_REQUIRED = (
    "setup.py",
    "pyproject.toml",
    "LICENSE",
    "NOTICE",
    "patches",
    "python",
)
SDIST_OPTIONAL = (
    ".bazelignore",
    ".bazelrc",
    ".bazelversion",
    ".ci",
    ".gitignore",
    "BUILD.bazel",
    "README.md",
    "WORKSPACE",
    "bazel",
    "benchmarks",
    "ci",
    "tests",
)


class BuildError(Exception):
    """A build that cannot go on: the message names the value and the remedy."""


# The source tree


@dataclass(frozen=True)
class Tree:
    """The places of one source tree.

    Args:
        root: The folder that holds this file, or a made-up one in tests.
    """

    root: Path

    @property
    def patches(self) -> Path:
        return self.root / "patches"

    @property
    def series(self) -> Path:
        return self.patches / "series"

    @property
    def pin(self) -> Path:
        return self.patches / "upstream.txt"

    @property
    def new_files(self) -> Path:
        return self.root / "python"

    @property
    def cache(self) -> Path:
        return self.root / "build" / "upstream"


@dataclass(frozen=True)
class Pin:
    """The upstream release that is patched.

    Args:
        version: The release, such as `2.60.0`.
        hashes: The SHA-256 of each of its wheels, in hexadecimal.
    """

    version: str
    hashes: frozenset

    @property
    def local_version(self) -> str:
        return f"{self.version}+{LOCAL_VERSION}"


def read_pin(path: Path) -> Pin:
    """Read the pinned release from a requirements file with hashes.

    Args:
        path: The file, as written by `uv pip compile --generate-hashes`.

    Returns:
        The pin.

    Raises:
        BuildError: If the file is missing or does not pin one release by hashes.
    """
    text = read_text(path)
    versions = re.findall(rf"^{NAME}==([^\s\\;]+)", text, re.MULTILINE)
    hashes = re.findall(r"--hash=(\S+)", text)
    if len(versions) != 1 or not hashes:
        raise BuildError(
            f"{path} pins {len(versions)} releases of {NAME} with {len(hashes)} "
            f"hashes; write it anew with `{pin_command('VERSION')}`"
        )
    for value in hashes:
        if not re.fullmatch(r"sha256:[0-9a-f]{64}", value):
            raise BuildError(f"{path}: {value!r} is not a SHA-256 hash")
    return Pin(versions[0], frozenset(h.split(":")[1] for h in hashes))


def pin_command(version: str) -> str:
    return (
        f"echo {NAME}=={version} | uv pip compile - --generate-hashes --no-deps "
        "-o patches/upstream.txt"
    )


def read_text(path: Path) -> str:
    """Read UTF-8 text with its line ends as they are."""
    try:
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise BuildError(f"{path} is missing; restore it from git") from None
    except OSError as e:
        raise BuildError(f"{path} cannot be read: {e.strerror}") from None
    except UnicodeDecodeError as e:
        raise BuildError(f"{path} is not UTF-8: {e}") from None


def read_series(tree: Tree) -> List[str]:
    """Read the names of the patches in the order in which they apply.

    Args:
        tree: The source tree.

    Returns:
        File names, each of a patch that exists.

    Raises:
        BuildError: If a name is not one of a patch there, or stands twice.
    """
    names = read_text(tree.series).split("\n")
    if names[-1] == "":
        names.pop()
    for number, name in enumerate(names, 1):
        if name in names[: number - 1]:
            raise BuildError(f"{tree.series}:{number}: {name} is listed twice")
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*\.patch", name):
            raise BuildError(f"{tree.series}:{number}: {name!r} is no patch name")
        if not (tree.patches / name).is_file():
            raise BuildError(
                f"{tree.series}:{number}: there is no patches/{name}; "
                "restore it or take its line out"
            )
    return names


def read_new_files(tree: Tree) -> Dict[str, Path]:
    """Find the files that the wheel gets beyond upstream's.

    Args:
        tree: The source tree.

    Returns:
        The path of each file by its name in the wheel, sorted. Hidden files and
        bytecode are left out.

    Raises:
        BuildError: If a file cannot be one of the wheel's.
    """
    found = {}
    for path in walk(tree.new_files):
        name = path.relative_to(tree.new_files).as_posix()
        if not name.startswith(f"{NAME}/"):
            raise BuildError(
                f"python/{name} is outside of python/{NAME}/, where the new files of "
                "the wheel live; move it"
            )
        found[name] = path
    return found


def walk(top: Path) -> Iterator[Path]:
    """Yield the files below a folder, sorted, but for hidden ones and bytecode."""
    if not top.is_dir():
        return
    for path in sorted(top.iterdir(), key=lambda p: p.name):
        if path.name.startswith(".") or path.name == "__pycache__":
            continue
        if path.is_dir():
            yield from walk(path)
        elif path.suffix not in (".pyc", ".pyo") and not path.name.endswith("~"):
            if not path.is_file():
                raise BuildError(f"{path} is no file that can be read; remove it")
            yield path


# Patches


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
    import unidiff  # Not at the top: hooks check the Python version first.

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
            side for side, sign in zip(sides, "-+") if line.line_type in (sign, " ")
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


# The upstream wheel


@dataclass(frozen=True)
class Target:
    """What a wheel is built for; empty fields stand for the running interpreter.

    Args:
        platform: A platform tag, such as `manylinux2014_aarch64`.
        python: A Python version, as `(3, 12)`.
    """

    platform: Optional[str] = None
    python: Optional[Tuple[int, int]] = None

    def __str__(self) -> str:
        version = self.python or sys.version_info[:2]
        python = "CPython {}.{}".format(*version)
        if not self.python and sys.implementation.name != "cpython":
            python = f"{sys.implementation.name} {version[0]}.{version[1]}"
        return f"{python} on {self.platform or 'this platform'}"

    def pip_options(self) -> List[str]:
        if self == Target():
            return []
        major, minor = self.python or sys.version_info[:2]
        options = ["--implementation", "cp", "--python-version", f"{major}.{minor}"]
        options += ["--abi", f"cp{major}{minor}"]
        if self.platform:
            options += ["--platform", self.platform]
        return options

    def tags(self) -> list:
        """List the wheel tags that fit, the best first."""
        from packaging import tags

        if self == Target():
            return list(tags.sys_tags())
        python = self.python or sys.version_info[:2]
        platforms = None
        if self.platform:
            platforms = [self.platform]
            mac = re.fullmatch(r"macosx_(\d+)_(\d+)_(\w+)", self.platform)
            if mac:
                version = (int(mac[1]), int(mac[2]))
                platforms = list(tags.mac_platforms(version, mac[3]))
        abi = f"cp{python[0]}{python[1]}"
        return list(tags.cpython_tags(python, abis=[abi], platforms=platforms))


def parse_target(config_settings: Optional[dict]) -> Target:
    """Read the target from what the user gave with `-C`.

    Args:
        config_settings: The frontend's config settings.

    Returns:
        The target.

    Raises:
        BuildError: If a key is unknown or a value is malformed.
    """
    settings = dict(config_settings or {})
    for key, value in settings.items():
        if key not in OPTIONS:
            raise BuildError(
                f"unknown build option {key!r}; known are "
                + ", ".join(f"-C {option}=..." for option in OPTIONS)
            )
        if not isinstance(value, str) or not value:
            raise BuildError(f"-C {key}= needs one value, but got {value!r}")
    python = None
    if "python" in settings:
        match = re.fullmatch(r"(?:cp|py)?(\d)\.?(\d+)", settings["python"])
        if not match:
            raise BuildError(
                f"-C python={settings['python']} is no Python version; "
                "write it as in -C python=3.12"
            )
        python = (int(match[1]), int(match[2]))
    platform = settings.get("platform")
    if platform and not re.fullmatch(r"[a-z0-9_]+", platform):
        raise BuildError(
            f"-C platform={platform} is no platform tag; "
            "write it as in -C platform=manylinux2014_aarch64"
        )
    return Target(platform, python)


def cached_wheel(cache: Path, pin: Pin, target: Target) -> Optional[Path]:
    """Find the wheel of a target in the cache by its name."""
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    ranks = {tag: rank for rank, tag in enumerate(target.tags())}
    fitting = []
    for path in cache.glob(f"{NAME}-{pin.version}-*.whl"):
        with contextlib.suppress(InvalidWheelFilename):
            tags = parse_wheel_filename(path.name)[3]
            rank = min((ranks[t] for t in tags if t in ranks), default=None)
            if rank is not None:
                fitting.append((rank, path))
    return min(fitting)[1] if fitting else None


def fetch_upstream(tree: Tree, target: Target = Target()) -> Tuple[str, bytes]:
    """Get the pinned upstream wheel for a target, from the cache or the index.

    Args:
        tree: The source tree.
        target: What the wheel is for.

    Returns:
        The file name of the wheel, and its content, whose hash is pinned.

    Raises:
        BuildError: If there is none, or none with a pinned hash.
    """
    pin = read_pin(tree.pin)
    path = cached_wheel(tree.cache, pin, target)
    if path:
        data = path.read_bytes()
        if hashlib.sha256(data).hexdigest() in pin.hashes:
            return path.name, data
        say(f"{path} does not have a pinned hash; fetching it anew")
    with contextlib.ExitStack() as stack:
        try:
            tree.cache.mkdir(parents=True, exist_ok=True)
            folder = tempfile.TemporaryDirectory(prefix=".download-", dir=tree.cache)
        except OSError:  # A source tree that cannot be written to.
            folder = tempfile.TemporaryDirectory(prefix="ray-upstream-")
        temporary = Path(stack.enter_context(folder))
        download(tree, pin, target, temporary)
        fetched = list(temporary.glob("*.whl"))
        if len(fetched) != 1:
            raise BuildError(f"pip fetched {len(fetched)} wheels for {target}, not one")
        data = fetched[0].read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        if digest not in pin.hashes:
            raise BuildError(
                f"{fetched[0].name} has the hash sha256:{digest}, which is not among "
                f"those in {tree.pin}"
            )
        if temporary.parent == tree.cache:
            # Whoever builds at the same time sees a whole file or none.
            with contextlib.suppress(PermissionError):  # Windows: it is open there.
                os.replace(fetched[0], tree.cache / fetched[0].name)
        return fetched[0].name, data


def download(tree: Tree, pin: Pin, target: Target, folder: Path) -> None:
    """Download the pinned wheel with pip, which checks its hash."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps"]
    command += ["--require-hashes", "--only-binary=:all:", "--progress-bar=off"]
    command += ["--disable-pip-version-check", "--no-input"]
    command += [*target.pip_options(), "-d", str(folder), "-r", str(tree.pin)]
    # A constraint on ray that stands in somebody's configuration has no hash.
    environment = {**os.environ, "PIP_CONSTRAINT": os.devnull}
    # Inside of a frontend's build environment there is no virtual one.
    environment["PIP_REQUIRE_VIRTUALENV"] = "0"
    say(f"fetching {NAME} {pin.version} for {target}")
    lines = []
    with subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
    ) as process:
        for line in process.stdout:
            lines.append(line.rstrip())
            say("  " + line.rstrip())
    if process.returncode:
        raise BuildError(explain_download(tree, pin, target, "\n".join(lines)))


def explain_download(tree: Tree, pin: Pin, target: Target, output: str) -> str:
    """Say in words why pip could not download a wheel."""
    what = f"{NAME} {pin.version} for {target}"
    if "No module named pip" in output:
        return (
            f"{sys.executable} has no pip to fetch {what} with; "
            "install it there (`python -m ensurepip`, `uv pip install pip`)"
        )
    if "DO NOT MATCH THE HASHES" in output:
        got = re.findall(r"Got\s+([0-9a-f]{64})", output)
        return (
            f"the index serves another file as {what} than the one pinned in "
            f"{tree.pin} (sha256:{', '.join(got)}). If upstream has published a new "
            f"wheel that you trust, write the pin anew: `{pin_command(pin.version)}`"
        )
    unreachable = re.search(
        r"(connection broken by|Could not fetch URL|ConnectionError|Connection refused|"
        r"Name or service not known|Temporary failure in name resolution|"
        r"Max retries exceeded|Read timed out|ProxyError).*",
        output,
    )
    known = re.search(r"from versions: (?!none)", output)
    if unreachable and not known:
        return (
            f"cannot fetch {what}: the package index cannot be reached "
            f"({unreachable[0][:300].strip()}). Check the network, or name another "
            f"index with PIP_INDEX_URL, or lay the wheel into {tree.cache}"
        )
    if "No matching distribution found" in output:
        return (
            f"there is no wheel of {what} on the package index. Upstream builds "
            "manylinux2014_x86_64, manylinux2014_aarch64, macosx_12_0_arm64 and "
            "win_amd64: choose one with -C platform=... -C python=..."
        )
    errors = [line for line in output.split("\n") if line.startswith("ERROR")]
    return f"pip cannot fetch {what}: " + ("; ".join(errors) or output[-500:])


# The patched wheel


class WheelWriter:
    """Writes the members of one wheel into another, and its RECORD anew.

    Args:
        source: The upstream wheel, in memory.
        file: Where the new wheel goes.
        pin: The upstream release.
    """

    def __init__(self, source: bytes, file, pin: Pin):
        self._bytes = source
        self._zip = zipfile.ZipFile(io.BytesIO(source))
        self._out = zipfile.ZipFile(file, "w", zipfile.ZIP_STORED)
        self._old_info = f"{NAME}-{pin.version}.dist-info/"
        self._new_info = f"{NAME}-{pin.local_version}.dist-info/"
        self._record_name = self._old_info + "RECORD"
        if self._record_name not in self._zip.namelist():
            raise BuildError(f"the upstream wheel has no {self._record_name}")
        rows = csv.reader(io.StringIO(self._zip.read(self._record_name).decode()))
        self._hashes = {row[0]: row[1:] for row in rows if row}
        self._record: List[list] = []
        # Fixed, so that the bytes of the wheel depend on nothing but its content.
        self._date = self._zip.getinfo(self._record_name).date_time

    def rename(self, name: str) -> str:
        if name.startswith(self._old_info):
            return self._new_info + name[len(self._old_info) :]
        return name

    def copy(self, member: zipfile.ZipInfo) -> None:
        """Copy a member without unpacking it."""
        if member.flag_bits & 0x8 or member.filename not in self._hashes:
            self.write(member.filename, self._zip.read(member), member)
            return
        header = member.header_offset
        name_length = int.from_bytes(self._bytes[header + 26 : header + 28], "little")
        extra_length = int.from_bytes(self._bytes[header + 28 : header + 30], "little")
        begin = header + 30 + name_length + extra_length
        info = copy.copy(member)
        info.filename = self.rename(member.filename)
        info.extra = b""
        # The `zipfile` module has no call for this: its own open() does just so.
        out = self._out
        out.fp.seek(out.start_dir)
        info.header_offset = out.fp.tell()
        out.fp.write(info.FileHeader())
        out.fp.write(memoryview(self._bytes)[begin : begin + member.compress_size])
        out.start_dir = out.fp.tell()
        out.filelist.append(info)
        out.NameToInfo[info.filename] = info
        out._didModify = True
        self._record.append([info.filename, *self._hashes[member.filename]])

    def write(
        self, name: str, data: bytes, like: Optional[zipfile.ZipInfo] = None
    ) -> None:
        """Write a member that upstream has otherwise, or not at all.

        Args:
            name: Its name in the upstream wheel.
            data: Its content.
            like: The member to take date and mode from.
        """
        info = zipfile.ZipInfo(self.rename(name), self._date)
        info.create_system = 3  # Unix, on Windows too: for the mode.
        info.external_attr = (stat.S_IFREG | 0o644) << 16
        if like:
            info.date_time = like.date_time
            info.external_attr = like.external_attr
        # Stored, not deflated: what zlib makes of it differs between its versions.
        self._out.writestr(info, data, zipfile.ZIP_STORED)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
        digest = digest.rstrip(b"=").decode()
        self._record.append([info.filename, f"sha256={digest}", str(len(data))])

    def write_record(self) -> None:
        name = self.rename(self._record_name)
        self._record.append([name, "", ""])
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\n").writerows(self._record)
        info = zipfile.ZipInfo(name, self._date)
        info.create_system = 3
        info.external_attr = (stat.S_IFREG | 0o644) << 16
        self._out.writestr(info, text.getvalue().encode(), zipfile.ZIP_STORED)

    def build(self, changed: Dict[str, bytes], added: Dict[str, bytes]) -> None:
        """Write the whole wheel.

        Args:
            changed: The new content of upstream's members.
            added: The content of new members.
        """
        with self._out:  # Closed also when the build breaks off.
            for member in self._zip.infolist():
                if member.is_dir() or member.filename == self._record_name:
                    continue
                if member.filename in changed:
                    self.write(member.filename, changed[member.filename], member)
                else:
                    self.copy(member)
            for name in sorted(added):
                self.write(name, added[name])
            self.write_record()


def patched_metadata(metadata: bytes, pin: Pin) -> bytes:
    """Give METADATA the local version, and our NOTICE among the license files."""
    head, separator, body = metadata.partition(b"\n\n")
    lines = head.split(b"\n")
    versions = [i for i, line in enumerate(lines) if line.startswith(b"Version:")]
    if len(versions) != 1:
        raise BuildError(f"upstream's METADATA has {len(versions)} Version fields")
    lines[versions[0]] = b"Version: " + pin.local_version.encode()
    licenses = [i for i, line in enumerate(lines) if line.startswith(b"License-File:")]
    if licenses:
        lines.insert(licenses[-1] + 1, b"License-File: NOTICE")
    return b"\n".join(lines) + separator + body


def make_wheel(
    tree: Tree, folder: Path, target: Target = Target(), editable: bool = False
) -> str:
    """Build the wheel.

    Args:
        tree: The source tree.
        folder: Where the wheel goes.
        target: What it is for.
        editable: Whether the files of `python/` stay where they are, and are found
            there by a hook that the wheel installs.

    Returns:
        The file name of the wheel.

    Raises:
        BuildError: If it cannot be built. Nothing is left in the folder then.
    """
    clock = Clock()
    pin = read_pin(tree.pin)
    upstream_name, source = fetch_upstream(tree, target)
    clock.lap("fetch and check upstream's wheel")
    try:
        upstream = zipfile.ZipFile(io.BytesIO(source))
        members = set(upstream.namelist())
    except zipfile.BadZipFile as e:
        raise BuildError(f"{upstream_name} is no wheel: {e}") from None
    changed = patched_members(tree, upstream)
    added = {}
    for name, path in read_new_files(tree).items():
        if name in members:
            raise BuildError(
                f"python/{name} is a file that upstream has; an edit of it belongs in "
                "patches/ (`ci/patch checkout`, commit there, `ci/patch export`)"
            )
        if not (editable and name.endswith(".py")):
            added[name] = path.read_bytes()
    if editable:
        added[EDITABLE_MODULE + ".py"] = EDITABLE_HOOK.encode()
        added[EDITABLE_MODULE + ".pth"] = (
            f"import {EDITABLE_MODULE}; "
            f"{EDITABLE_MODULE}.install({str(tree.new_files.resolve())!r})\n"
        ).encode()
    info = f"{NAME}-{pin.version}.dist-info/"
    if info + "METADATA" not in members:
        raise BuildError(f"{upstream_name} has no {info}METADATA")
    changed[info + "METADATA"] = patched_metadata(upstream.read(info + "METADATA"), pin)
    added[info + "licenses/NOTICE"] = read_text(tree.root / "NOTICE").encode()
    clock.lap("patch")
    prefix = f"{NAME}-{pin.version}-"
    name = f"{NAME}-{pin.local_version}-{upstream_name[len(prefix) :]}"
    with new_file(folder, name) as file:
        WheelWriter(source, file, pin).build(changed, added)
    clock.lap("write the wheel")
    say(f"{name}: {clock}")
    return name


@contextlib.contextmanager
def new_file(folder: Path, name: str) -> Iterator[io.BufferedIOBase]:
    """Open a file that appears under its name when it is whole, or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=folder)
    try:
        with open(handle, "w+b") as file:
            yield file
        os.chmod(temporary, 0o644)
        os.replace(temporary, folder / name)
    except BaseException:
        os.unlink(temporary)
        raise


# Runs at the start of every interpreter, so it imports nothing that is not there yet.
EDITABLE_HOOK = '''\
"""Finds the new modules of an editable ray where they are edited."""

import os
import sys


class Finder:
    """Finds modules that ray does not have in the source tree.

    It comes last in ``sys.meta_path``: a file that ray has is never hidden.

    Args:
        root: The folder that holds the ``ray`` folder of new files.
    """

    def __init__(self, root):
        self.root = root

    def find_spec(self, name, path=None, target=None):
        if not name.startswith("ray."):
            return None
        from importlib.machinery import ModuleSpec
        from importlib.util import spec_from_file_location

        if not os.path.isdir(self.root):
            raise ModuleNotFoundError(
                "No module named %r: ray is an editable install of %s, which is gone; "
                "install it again" % (name, self.root),
                name=name,
            )
        base = os.path.join(self.root, *name.split("."))
        init = os.path.join(base, "__init__.py")
        if os.path.isfile(init):
            return spec_from_file_location(
                name, init, submodule_search_locations=[base]
            )
        if os.path.isfile(base + ".py"):
            return spec_from_file_location(name, base + ".py")
        if os.path.isdir(base) and os.path.basename(base) != "__pycache__":
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [base]
            return spec
        return None


def install(root):
    if not any(getattr(f, "root", None) == root for f in sys.meta_path):
        sys.meta_path.append(Finder(root))
'''


# The source distribution


def make_sdist(tree: Tree, folder: Path) -> str:
    """Build the source distribution: all that a build needs but upstream's wheel.

    Args:
        tree: The source tree.
        folder: Where it goes.

    Returns:
        Its file name.

    Raises:
        BuildError: If a part of the tree is missing. Nothing is left then.
    """
    pin = read_pin(tree.pin)
    read_series(tree)
    read_new_files(tree)
    stem = f"{NAME}-{pin.local_version}"
    files = {"PKG-INFO": sdist_metadata(pin)}
    for part in SDIST_REQUIRED + SDIST_OPTIONAL:
        path = tree.root / part
        if path.is_file():
            files[part] = path.read_bytes()
        elif path.is_dir():
            for inner in walk(path):
                files[inner.relative_to(tree.root).as_posix()] = inner.read_bytes()
        elif part in SDIST_REQUIRED and part != "python":
            raise BuildError(f"{path} is missing; restore it from git")
    name = f"{stem}.tar.gz"
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(new_file(folder, name))
        packed = gzip.GzipFile("", "wb", fileobj=file, mtime=0)
        stack.enter_context(packed)
        tar = tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT)
        stack.enter_context(tar)
        for path, data in sorted(files.items()):
            member = tarfile.TarInfo(f"{stem}/{path}")
            member.size = len(data)
            member.mtime = 1577836800  # 2020-01-01: the same bytes every time.
            executable = os.access(tree.root / path, os.X_OK)
            member.mode = 0o755 if executable else 0o644
            tar.addfile(member, io.BytesIO(data))
    return name


def sdist_metadata(pin: Pin) -> bytes:
    fields = (
        ("Metadata-Version", "2.2"),
        ("Name", NAME),
        ("Version", pin.local_version),
        ("Summary", f"Ray {pin.version} with Ray Tune repaired, and ASHAv2"),
        ("License", "Apache 2.0"),
        ("Requires-Python", ">={}.{}".format(*MIN_PYTHON)),
        # What upstream's wheel says is known when it has been fetched.
        ("Dynamic", "Requires-Dist"),
        ("Dynamic", "Provides-Extra"),
        ("Dynamic", "Classifier"),
        ("Dynamic", "Description"),
    )
    return "".join(f"{name}: {value}\n" for name, value in fields).encode()


# What is said, and the hooks


class Clock:
    """Times the phases of a build, in seconds."""

    def __init__(self):
        self._laps: List[Tuple[str, float]] = []
        self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        now = time.perf_counter()
        self._laps.append((phase, now - self._last))
        self._last = now

    def __str__(self) -> str:
        total = sum(seconds for _, seconds in self._laps)
        laps = ", ".join(f"{phase} {seconds:.2f} s" for phase, seconds in self._laps)
        return f"{laps}, in all {total:.2f} s"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def check_python() -> None:
    if sys.version_info < MIN_PYTHON:
        raise BuildError(
            "Python {}.{} is too old: Ray needs {}.{} or newer (this is {})".format(
                *sys.version_info[:2], *MIN_PYTHON, sys.executable
            )
        )


@contextlib.contextmanager
def told_errors() -> Iterator[None]:
    """End the frontend's call with the message of an error instead of a traceback."""
    try:
        check_python()
        yield
    except ImportError as e:
        sys.exit(
            f"error: the build needs {e.name}, which {sys.executable} does not have; "
            "leave build isolation on, or install what pyproject.toml requires"
        )
    except (BuildError, OSError) as e:
        sys.exit(f"error: {e}")


HERE = Tree(Path(__file__).resolve().parent)


def get_requires_for_build_wheel(config_settings=None):
    with told_errors():
        parse_target(config_settings)
    return []


def get_requires_for_build_editable(config_settings=None):
    with told_errors():
        refuse_target(config_settings)
    return []


def get_requires_for_build_sdist(config_settings=None):
    with told_errors():
        parse_target(config_settings)
    return []


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    with told_errors():
        return make_wheel(HERE, Path(wheel_directory), parse_target(config_settings))


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    with told_errors():
        refuse_target(config_settings)
        return make_wheel(HERE, Path(wheel_directory), editable=True)


def build_sdist(sdist_directory, config_settings=None):
    with told_errors():
        parse_target(config_settings)
        return make_sdist(HERE, Path(sdist_directory))


def refuse_target(config_settings: Optional[dict]) -> None:
    target = parse_target(config_settings)
    if target != Target():
        raise BuildError(
            f"an editable install for {target} makes no sense: it is for the "
            "interpreter that runs it; leave -C platform and -C python out"
        )


if __name__ == "__main__":
    sys.exit("setup.py is a build backend, no script: run `python -m pip install .`")
