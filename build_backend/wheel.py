"""The patched wheel: upstream's members as they are, patched or added ones stored."""

import base64
import csv
import hashlib
import io
import stat
import zipfile
from pathlib import Path
from typing import BinaryIO, Dict, List, Optional

from build_backend import editable_finder
from build_backend.console import Clock, say
from build_backend.errors import BuildError
from build_backend.fetch import fetch_upstream
from build_backend.files import new_file, read_text
from build_backend.patching import patched_members
from build_backend.target import Target
from build_backend.tree import NAME, Pin, Tree, read_new_files, read_pin
from build_backend.zip_writer import ZipWriter, packed_content

EDITABLE_MODULE = "_ray_ashav2_editable"


class WheelWriter:
    """Write the members of one wheel into another, and its RECORD anew.

    Args:
        source: The upstream wheel, in memory.
        file: Where the new wheel goes.
        pin: The upstream release.
    """

    def __init__(self, source: bytes, file: BinaryIO, pin: Pin):
        self._bytes = source
        self._zip = zipfile.ZipFile(io.BytesIO(source))
        self._out = ZipWriter(file)
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
        name = self.rename(member.filename)
        self._out.copy(member, name, packed_content(self._bytes, member))
        self._record.append([name, *self._hashes[member.filename]])

    def write(
        self, name: str, data: bytes, like: Optional[zipfile.ZipInfo] = None
    ) -> None:
        """Write a member that upstream has otherwise, or not at all.

        Args:
            name: Its name in the upstream wheel.
            data: Its content.
            like: The member to take date and mode from.
        """
        info = self._store(name, data, like)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
        digest = digest.rstrip(b"=").decode()
        self._record.append([info.filename, f"sha256={digest}", str(len(data))])

    def write_record(self) -> None:
        self._record.append([self.rename(self._record_name), "", ""])
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\n").writerows(self._record)
        self._store(self._record_name, text.getvalue().encode())

    def _store(
        self, name: str, data: bytes, like: Optional[zipfile.ZipInfo] = None
    ) -> zipfile.ZipInfo:
        info = zipfile.ZipInfo(
            self.rename(name), like.date_time if like else self._date
        )
        info.create_system = 3  # Unix, on Windows too: for the mode.
        mode = (stat.S_IFREG | 0o644) << 16
        info.external_attr = like.external_attr if like else mode
        # Stored, not deflated: what zlib makes of it differs between its versions.
        self._out.store(info, data)
        return info

    def build(self, changed: Dict[str, bytes], added: Dict[str, bytes]) -> None:
        """Write the whole wheel.

        Args:
            changed: The new content of upstream's members.
            added: The content of new members.
        """
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
        self._out.finish()


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


def new_members(tree: Tree, upstream: List[str], editable: bool) -> Dict[str, bytes]:
    """Read the files that the wheel gets beyond upstream's.

    Args:
        tree: The source tree.
        upstream: The names of upstream's members.
        editable: Whether Python files of `python/` stay where they are.

    Returns:
        The content of each by its name in the wheel.

    Raises:
        BuildError: If upstream has a file of that name.
    """
    added = {}
    for name, path in read_new_files(tree).items():
        if name in upstream:
            raise BuildError(
                f"python/{name} is a file that upstream has; an edit of it belongs in "
                "patches/ (`ci/patch checkout`, commit there, `ci/patch export`)"
            )
        if not (editable and name.endswith(".py")):
            added[name] = path.read_bytes()
    if editable:
        finder = Path(editable_finder.__file__).read_bytes()
        folder = str(tree.new_files.resolve())
        start = f"import {EDITABLE_MODULE} as m; m.install({folder!r})\n"
        added[EDITABLE_MODULE + ".py"] = finder
        added[EDITABLE_MODULE + ".pth"] = start.encode()
    return added


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
    except zipfile.BadZipFile as e:
        raise BuildError(f"{upstream_name} is not a wheel: {e}") from None
    changed = patched_members(tree, upstream)
    added = new_members(tree, upstream.namelist(), editable)
    info = f"{NAME}-{pin.version}.dist-info/"
    if info + "METADATA" not in upstream.namelist():
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
