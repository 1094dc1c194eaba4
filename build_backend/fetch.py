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
from urllib.parse import unquote, urlsplit

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from build_backend.console import say
from build_backend.errors import BuildError
from build_backend.index import Source, sources
from build_backend.target import Target
from build_backend.tree import NAME, Pin, Tree, pin_command, read_pin

UNREACHABLE = r"Could not fetch URL (\S+): (.*?)(?: - skipping)?(?=\n)"


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
    say(f"fetching {NAME} {pin.version} for {target}")
    faults = []
    for source in sources():
        fault = download_from(source, tree, pin, target, folder)
        if fault is None:
            return
        faults.append(fault)
    raise BuildError("; ".join(dict.fromkeys(faults)))


def download_from(
    source: Source, tree: Tree, pin: Pin, target: Target, folder: Path
) -> Optional[str]:
    """Download the pinned wheel from a source; return what went wrong, if anything."""
    log = folder / "pip.log"
    command = [sys.executable, "-m", "pip", "download", "--no-deps"]
    command += ["--require-hashes", "--only-binary=:all:", "--progress-bar=off"]
    command += ["--disable-pip-version-check", "--no-input", "--log", str(log)]
    command += [*source.options, *target.pip_options(), "-d", str(folder)]
    # A constraint on ray that stands in somebody's configuration has no hash.
    environment = {**os.environ, "PIP_CONSTRAINT": os.devnull}
    # Inside of a frontend's build environment there is no virtual one.
    environment["PIP_REQUIRE_VIRTUALENV"] = "0"
    if source.index:  # Not among the arguments, which others can see.
        environment.update(PIP_INDEX_URL=source.index, PIP_NO_INDEX="0")
    lines = []
    with subprocess.Popen(
        [*command, "-r", str(tree.pin)],
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
    if not process.returncode:
        return None
    # It has what pip does not print, too.
    logged = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    return explain_download(tree, pin, target, "\n".join(lines), logged)


def explain_download(
    tree: Tree, pin: Pin, target: Target, output: str, log: str
) -> str:
    """Say in words why pip could not download a wheel.

    Args:
        tree: The source tree.
        pin: The release.
        target: What the wheel is for.
        output: What pip printed.
        log: What it logged.

    Returns:
        What went wrong, and the remedy.
    """
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
    nothing = "No matching distribution found" in output
    unreachable = {
        url: reason
        for url, reason in re.findall(UNREACHABLE, log)
        if not reason.startswith("404 ")  # An index that has no ray answers so.
    }
    for place in re.findall(r"Location '(.*)' is ignored: it is n?either", log):
        path = Path(unquote(urlsplit(place).path if "://" in place else place))
        if path.name != NAME or not path.parent.is_dir():  # A folder without ray.
            unreachable[place] = "there is neither a file nor a folder"
    for host in re.findall(r"located at (\S+) is not a trusted or secure host", log):
        unreachable[host] = "pip asks no host that is not secure; see --trusted-host"
    broken = re.search(
        r"(Max retries exceeded|Connection refused|Read timed out|ProxyError).*", output
    )
    if broken and not nothing:
        unreachable["the package index"] = broken[0]
    if unreachable:
        said = "; ".join(
            f"{url} ({reason[:300]})" for url, reason in unreachable.items()
        )
        return (
            f"cannot fetch {what}: the package index cannot be reached: {said}. Check "
            "the network, or name another index (pip --index-url, PIP_INDEX_URL, uv "
            f"--default-index, UV_DEFAULT_INDEX), or lay the wheel into {tree.cache}"
        )
    if nothing:
        return (
            f"there is no wheel of {what} on the package index. Upstream builds "
            "manylinux2014_x86_64, manylinux2014_aarch64, macosx_12_0_arm64 and "
            "win_amd64: choose one with --config-settings platform=... and "
            "--config-settings python=..."
        )
    errors = [line for line in output.split("\n") if line.startswith("ERROR")]
    return f"pip cannot fetch {what}: " + ("; ".join(errors) or output[-500:])
