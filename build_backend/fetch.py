"""The upstream wheel: from the cache, else fetched by pip, which checks its hash."""

import contextlib
import hashlib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Optional, Tuple

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from build_backend.console import say
from build_backend.errors import BuildError
from build_backend.target import Target
from build_backend.tree import NAME, Pin, Tree, pin_command, read_pin


def cached_wheel(cache: Path, pin: Pin, target: Target) -> Optional[Path]:
    """Find the wheel of a target in the cache by its name."""
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
