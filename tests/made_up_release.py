"""Made-up releases of ray, a few lines long, for the tests of build and patches."""

import base64
import hashlib
import os
import shutil
import subprocess
import zipfile
from pathlib import Path

from build_backend.tree import Tree
from ci.lib.git import scratch_repository
from ci.lib.series import slug

ROOT = Path(__file__).resolve().parent.parent

VERSION = "1.2.3"
ANY = "py3-none-any"
NUMBERS = "".join(f"n{i} = {i}\n" for i in range(1, 31))
FILES = {
    "ray/__init__.py": f'__version__ = "{VERSION}"\n',
    "ray/core.bin": "compress me " * 500,
    "ray/tune/__init__.py": "",
    "ray/tune/numbers.py": NUMBERS,
    "ray/tune/names.py": "first = 'a'\nlast = 'z'\n",
    "ray/air/__init__.py": "",
    "ray/air/config.py": "def f():\n    return 1\n\n\ndef g():\n    return 2\n",
}
HEADER = """\
From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001
From: Ada Lovelace <ada@example.org>
Date: Fri, 1 Mar 2024 10:20:30 +0530
Subject: {subject}

The fifteenth number was wrong, so sums were off. This is the right one.

Bug: https://github.com/ray-project/ray/issues/1
Forwarded: no

"""


def make_wheel(folder: Path, tag: str = ANY, files=FILES, version=VERSION) -> Path:
    """Write a small upstream wheel, deflated, with RECORD and modes."""
    info = f"ray-{version}.dist-info"
    members = {
        **files,
        f"{info}/licenses/LICENSE.txt": "Apache 2.0\n",
        f"{info}/METADATA": (
            f"Metadata-Version: 2.4\nName: ray\nVersion: {version}\n"
            "License-File: LICENSE.txt\nRequires-Dist: click>=7.0\n"
            'Provides-Extra: tune\nRequires-Dist: pandas; extra == "tune"\n\n'
            "Version: of the description, which stays\n"
        ),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    record = "".join(
        f"{name},sha256={record_hash(text.encode())},{len(text.encode())}\n"
        for name, text in members.items()
    )
    members[f"{info}/RECORD"] = record + f"{info}/RECORD,,\n"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"ray-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, text in members.items():
            member = zipfile.ZipInfo(name, (2026, 10, 31, 21, 4, 56))
            mode = 0o100755 if name.endswith(".bin") else 0o100644
            member.external_attr = mode << 16
            member.create_system = 3
            wheel.writestr(member, text, zipfile.ZIP_DEFLATED)
    return path


def record_hash(data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
    return digest.rstrip(b"=").decode()


def make_tree(folder: Path, tags=(ANY,), cached: bool = True, files=FILES):
    """Make a source tree that is pinned to made-up wheels.

    Args:
        folder: Where it goes. The wheels lie in `index`, beside `tree`.
        tags: The tags of the wheels.
        cached: Whether they are fetched already.
        files: What is in them.

    Returns:
        The tree.
    """
    tree = Tree(folder / "tree")
    tree.patches.mkdir(parents=True)
    tree.new_files.mkdir()
    for name in ("setup.py", "pyproject.toml", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, tree.root / name)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "build_backend", tree.root / "build_backend", ignore=ignored)
    tree.series.write_bytes(b"")
    wheels = [make_wheel(folder / "index", tag, files) for tag in tags]
    pin(tree, wheels)
    if cached:
        tree.cache.mkdir(parents=True)
        for wheel in wheels:
            shutil.copy(wheel, tree.cache)
    return tree


def pin(tree, wheels, version=VERSION) -> None:
    hashes = [hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in wheels]
    lines = "".join(f" \\\n    --hash=sha256:{value}" for value in hashes)
    tree.pin.write_bytes(f"# A comment.\nray=={version}{lines}\n".encode())


def index_environment(folder: Path) -> dict:
    """Return what lets pip see the made-up wheels and nothing else."""
    return {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(folder / "index"),
        "PIP_NO_CACHE_DIR": "1",
    }


def add_new_file(tree, name: str, text: str) -> Path:
    path = tree.new_files / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return path


def make_diff(path: str, before: str, after: str) -> str:
    """Return git's diff of two texts, as a patch has it."""
    with scratch_repository() as git:
        trees = []
        for text in (before, after):
            blob = git.text("hash-object", "-w", "--stdin", stdin=text.encode())
            git.run("read-tree", "--empty")
            git.run("update-index", "--add", "--cacheinfo", f"100644,{blob},{path}")
            trees.append(git.text("write-tree"))
        return git.run(
            "diff-tree", "-p", "--unified=1", "--full-index", *trees
        ).decode()


def add_patch(tree, subject: str, changes, header: str = HEADER) -> Path:
    """Write a patch and list it.

    Args:
        tree: The source tree.
        subject: Its subject.
        changes: What to replace by what, `{path: (before, old, new)}`.
        header: What stands before the diff.

    Returns:
        Its file.
    """
    diff = "".join(
        make_diff(path, before, before.replace(old, new))
        for path, (before, old, new) in sorted(changes.items())
    )
    path = tree.patches / slug(subject)
    path.write_bytes((header.format(subject=subject) + diff).encode())
    with open(tree.series, "ab") as series:
        series.write(f"{path.name}\n".encode())
    return path


NUMBERS_PATH = "python/ray/tune/numbers.py"
CONFIG_PATH = "python/ray/air/config.py"
CHANGED_NUMBERS = NUMBERS.replace("n15 = 15\n", "n15 = 0\n")


def add_two_patches(tree) -> None:
    """Add two patches of which the second builds on the first."""
    add_patch(
        tree,
        "tune: right the fifteenth number",
        {
            NUMBERS_PATH: (NUMBERS, "n15 = 15\n", "n15 = 0\n"),
            CONFIG_PATH: (FILES["ray/air/config.py"], "return 2", "return 3"),
        },
    )
    add_patch(
        tree,
        "tune: add to the sixteenth",
        {NUMBERS_PATH: (CHANGED_NUMBERS, "n16 = 16\n", "n16 = 1\nn16b = 2\n")},
    )


def run_git(folder: Path, *args: str, **environment: str) -> str:
    """Run git as a person would, whose name is Grace."""
    who = {
        f"GIT_{role}_{field}": value
        for role in ("AUTHOR", "COMMITTER")
        for field, value in (("NAME", "Grace"), ("EMAIL", "grace@example.org"))
    }
    done = subprocess.run(
        ["git", "-C", str(folder), *args],
        env={**os.environ, **who, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stdout
    return done.stdout
