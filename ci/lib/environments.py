"""The virtual environments and the wheels that the commands of ci/ work with.

They are made with venv and pip, which any machine with Python has, and which take the
package index from the machine's own configuration; uv and nox would have to be
installed first, and uv reads none of pip's settings. By hand: everything is kept below
build/ and made again only when what it is made from has changed.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ci.lib.console import (
    BUILD,
    CI,
    ROOT,
    SPACE_NEEDED,
    Failed,
    clean_environment,
    no_space,
    run_logged,
    say,
)

# What goes into the wheel.
WHEEL_INPUTS = (
    "python",
    "patches",
    "build_backend",
    "setup.py",
    "pyproject.toml",
    "LICENSE",
    "NOTICE",
    "ci/requirements-build.txt",
)

# Requirements that are not this repository's: the copy of a file of the caller's.
GIVEN = "given"


def prepared(name, *locks):
    """Make an environment, or bring it up to date.

    Args:
        name: The folder below build/.
        *locks: Names of ci/requirements-*.txt, in the order of installation.

    Returns:
        The `Environment`.
    """
    with _exclusive():
        return _prepare(Environment(name), locks)


def patched_environment(*locks):
    """Return the environment with the patched wheel and the given requirements."""
    with _exclusive():
        environment = _prepare(Environment("venv"), ("build", *locks))
        environment.install_ray(_built_wheel(environment))
    return environment


def stock_environment(*locks):
    """Return the same with stock Ray in it: the wheel that is patched."""
    with _exclusive():
        environment = _prepare(Environment("venv-stock"), ("build", *locks))
        environment.install_ray(_stock_wheel(environment))
    return environment


def upstream_environments(requirements):
    """Return environments for Ray's own tests: stock Ray, and the patched wheel.

    Args:
        requirements: A file for pip with all that the tests need beside Ray, pinned.

    Returns:
        The environments by build, `stock` and `patched`.
    """
    with _exclusive():
        shutil.copyfile(requirements, _requirements(GIVEN))
        builder = _prepare(Environment("venv"), ("build",))
        wheels = {"stock": _stock_wheel(builder), "patched": _built_wheel(builder)}
        environments = {}
        for build, wheel in wheels.items():
            environment = Environment(f"venv-upstream-{build}")
            environments[build] = _prepare(environment, (GIVEN,))
            environment.install_ray(wheel)
    return environments


class Environment:
    """A virtual environment below build/.

    Args:
        name: The folder's name.
    """

    def __init__(self, name):
        self.name = name
        self.path = BUILD / name
        self._stamp = self.path / "stamp.json"

    @property
    def stamp(self):
        """What is in it, or None where that is not known."""
        return _read_json(self._stamp)

    @stamp.setter
    def stamp(self, stamp):
        _write_json(self._stamp, stamp)

    @property
    def python(self):
        """The environment's Python, by a path without blanks.

        Ray starts its workers through a shell that splits the path at them.
        """
        path = self.path
        if any(character.isspace() for character in str(path)):
            name = hashlib.sha256(str(path).encode()).hexdigest()[:16]
            link = Path(
                tempfile.gettempdir(), f"ray-tune-repaired-{os.getuid()}-{name}"
            )
            if not link.is_symlink() or os.readlink(link) != str(path):
                link.unlink(missing_ok=True)
                link.symlink_to(path)
            path = link
        return path / "bin" / "python"

    def pip(self, step, command, *args):
        """Run pip of the environment; `step` names it in logs and errors."""
        options = ["--progress-bar=off"] if command == "install" else []
        return run_logged(
            step, [self.python, "-m", "pip", command, "--retries=3", *options, *args]
        )

    def install_ray(self, wheel):
        """Install a wheel of Ray, unless it is what the environment has."""
        stamp, found = self.stamp, _sha256(wheel)
        if stamp.pop("ray", None) == found:
            return
        say(f"{self.name}: installing {wheel.name}")
        self.stamp = stamp
        options = ["--no-deps", "--no-index", "--force-reinstall"]
        wheel = os.path.relpath(wheel, ROOT)
        self.pip(f"{self.name}-ray", "install", *options, wheel)
        self.stamp = {**stamp, "ray": found}

    def run(self, args, **kwargs):
        """Run the environment's Python in the open; return its exit code."""
        kwargs.setdefault("env", self.variables())
        return subprocess.call([str(self.python), *args], **kwargs)

    def variables(self, **extra):
        """Return environment variables with this environment switched on."""
        env = clean_environment(VIRTUAL_ENV=str(self.path), **extra)
        path = [str(self.path / "bin"), env.get("PATH", os.defpath)]
        return {**env, "PATH": os.pathsep.join(path)}


def _prepare(environment, locks):
    def digest(lock):
        return _digest(_requirements(lock))

    name = environment.name
    made = {
        "python": [platform.python_version(), os.path.realpath(sys.executable)],
        "path": str(environment.path),
    }
    stamp = environment.stamp
    if (
        stamp is None
        or any(stamp[key] != value for key, value in made.items())
        or any(digest(lock) != found for lock, found in stamp["locks"].items())
    ):
        _create(environment)
        environment.stamp = stamp = {**made, "locks": {}}
    for lock in locks:
        if lock in stamp["locks"]:
            continue
        requirements = os.path.relpath(_requirements(lock), ROOT)
        say(f"{name}: installing {requirements}")
        options = ["--no-deps", "-r", requirements]
        if lock != GIVEN:
            # What stands there is published as source only, and plain Python.
            source = lock == "bohb"
            options.append("--no-build-isolation" if source else "--only-binary=:all:")
            options.append("--require-hashes")
        environment.pip(f"{name}-{lock}", "install", *options)
        stamp["locks"][lock] = digest(lock)
        environment.stamp = stamp
    return environment


def _requirements(lock):
    return (BUILD if lock == GIVEN else CI) / f"requirements-{lock}.txt"


def _create(environment):
    if shutil.disk_usage(BUILD).free < SPACE_NEEDED:
        raise Failed(no_space())
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError as error:
        raise Failed(
            f"{sys.executable} cannot make virtual environments ({error}). Install "
            "what it lacks (Debian, Ubuntu: apt install python3-venv), or name "
            "another Python: python3.12 ci/..."
        ) from error
    say(f"{environment.name}: making it with Python {platform.python_version()}")
    shutil.rmtree(environment.path, ignore_errors=True)
    run_logged(environment.name, [sys.executable, "-m", "venv", environment.path])


def _stock_wheel(environment):
    """Return the path of upstream's wheel, fetched if need be."""
    said = run_logged("upstream", [environment.python, "-m", "build_backend"])
    return Path(said.splitlines()[-1])


def _built_wheel(environment):
    """Build the patched wheel, unless it is there already; return its path."""
    folder = BUILD / "wheel"
    made = {
        "inputs": _digest(*(ROOT / name for name in WHEEL_INPUTS)),
        "python": platform.python_version(),
    }
    stamp = _read_json(folder / "stamp.json") or {}
    wheel = folder / stamp.get("wheel", "none")
    if wheel.is_file() and stamp == {**made, "wheel": wheel.name}:
        return wheel
    say("building the wheel (the first time, upstream's is downloaded: 80 MB)")
    shutil.rmtree(folder, ignore_errors=True)
    start = time.monotonic()
    options = ["--no-deps", "--no-build-isolation", "--wheel-dir"]
    environment.pip("wheel", "wheel", *options, os.path.relpath(folder, ROOT), ".")
    (wheel,) = folder.glob("*.whl")
    _write_json(folder / "stamp.json", {**made, "wheel": wheel.name})
    say(f"built {wheel.name} in {time.monotonic() - start:.1f} s")
    return wheel


@contextlib.contextmanager
def _exclusive():
    """Keep two commands from working on build/ at once."""
    try:
        BUILD.mkdir(exist_ok=True)
        lock = open(BUILD / ".lock", "w")
    except OSError as error:
        raise Failed(f"{BUILD} cannot be written to: {error}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another run in this folder to end")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _digest(*paths):
    """Return a hash over the names and contents of files and folders."""
    total = hashlib.sha256()
    for path in paths:
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if file.is_file() and "__pycache__" not in file.parts:
                total.update(f"{file.relative_to(ROOT)}\0{_sha256(file)}\n".encode())
    return total.hexdigest()


def _sha256(file):
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _read_json(path):
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def _write_json(path, content):
    new = path.with_suffix(".new")
    new.write_text(json.dumps(content, indent=2))
    new.replace(path)
