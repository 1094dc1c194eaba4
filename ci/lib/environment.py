"""The virtual environments and the wheel that the commands of ci/ work with.

Everything is kept below build/ and made again only when what it is made from has
changed, which is told by content hashes.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
CI = ROOT / "ci"

# What goes into the wheel.
WHEEL_INPUTS = (
    "python",
    "patches",
    "setup.py",
    "pyproject.toml",
    "MANIFEST.in",
    "LICENSE",
    "NOTICE",
    "ci/requirements-build.txt",
)
# In bytes: what one environment with all that the tests need takes, and some more.
SPACE_NEEDED = 1.5e9

_NO_INDEX = re.compile(
    r"connection broken by|NewConnectionError|ConnectTimeout|ReadTimeout|ProxyError"
    r"|SSLError|MaxRetryError|Name or service not known|Connection refused"
    r"|Network is unreachable|ENOTFOUND|ECONNREFUSED|EAI_AGAIN|ETIMEDOUT",
    re.IGNORECASE,
)
_NO_SPACE = re.compile(r"No space left on device|ENOSPC|Disk quota exceeded")

# Settings of pip that send packages elsewhere or change which are chosen.
_PIP_SETTINGS = (
    "PIP_USER",
    "PIP_TARGET",
    "PIP_PREFIX",
    "PIP_ROOT",
    "PIP_NO_BINARY",
    "PIP_ONLY_BINARY",
    "PIP_PRE",
    "PIP_REQUIREMENT",
    "PIP_BUILD_CONSTRAINT",
    "PIP_REQUIRE_HASHES",
    "PIP_NO_DEPS",
    "PIP_IGNORE_INSTALLED",
    "PIP_PYTHON",
)

_started = time.monotonic()


class Failed(Exception):
    """What went wrong and what to do about it, for the person at the terminal."""


def say(text):
    """Prints one line of progress with the seconds since the start."""
    print(f"[{time.monotonic() - _started:5.0f} s] {text}", flush=True)


def clean_environment(**extra):
    """Returns environment variables that nothing of the caller's Python leaks into."""
    env = {k: v for k, v in os.environ.items() if k not in _PIP_SETTINGS}
    for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__"):
        env.pop(name, None)
    # A machine's constraints are meant for other work than these pinned versions. pip
    # ignores an empty setting, hence an empty file.
    env["PIP_CONSTRAINT"] = os.devnull
    env["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    env["PIP_NO_INPUT"] = "1"
    env.setdefault("HOME", str(BUILD / "home"))
    env.update(extra)
    return env


def run_logged(name, command, **kwargs):
    """Runs a command with its output in build/log/<name>.txt.

    Args:
        name: Names the log, and the step in the error.
        command: The command and its arguments.
        **kwargs: For `subprocess.Popen`.

    Returns:
        What the command printed.

    Raises:
        Failed: It failed; says why as far as the output tells.
    """
    log = BUILD / "log" / f"{name}.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    kwargs.setdefault("env", clean_environment())
    kwargs.setdefault("cwd", ROOT)
    live = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns - 6
    lines = []
    try:
        with open(log, "w") as out:
            process = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                **kwargs,
            )
            try:
                for line in process.stdout:
                    lines.append(line)
                    out.write(line)
                    if live:
                        print(f"\r\033[K    {line.strip()[:width]}", end="", flush=True)
            finally:
                if live:
                    print("\r\033[K", end="", flush=True)
                if sys.exc_info()[0] is not None:
                    process.terminate()
                process.wait()
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise Failed(_no_space()) from error
        raise Failed(f"{name}: `{command[0]}` cannot be run: {error}") from error
    output = "".join(lines)
    if process.returncode:
        raise Failed(_why(name, command, output, process.returncode, log))
    return output


def _no_space():
    free = shutil.disk_usage(BUILD if BUILD.exists() else ROOT).free
    return (
        f"the disk is full ({free / 1e9:.1f} GB free at {ROOT}, about "
        f"{2 * SPACE_NEEDED / 1e9:.0f} GB are needed). Free some and run it again."
    )


def _why(name, command, output, code, log):
    if _NO_SPACE.search(output):
        return _no_space()
    tail = "".join(f"    {line}\n" for line in output.splitlines()[-15:])
    if _NO_INDEX.search(output):
        return (
            f"{name}: the package index cannot be reached. Check the network; behind a "
            "proxy set HTTPS_PROXY, for a mirror PIP_INDEX_URL (npm: a registry in "
            f"~/.npmrc).\n\n{tail}\nAll of it: {log}"
        )
    return (
        f"{name} failed (exit code {code}): "
        f"{shlex.join(str(part) for part in command)}\n\n{tail}\nAll of it: {log}"
    )


@contextlib.contextmanager
def exclusive():
    """Keeps two commands from working on build/ at once."""
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


def digest(*paths):
    """Returns a hash over the names and contents of files and folders."""
    total = hashlib.sha256()
    for path in paths:
        path = Path(path)
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if file.is_file() and "__pycache__" not in file.parts:
                name = file.relative_to(ROOT) if file.is_relative_to(ROOT) else file
                content = hashlib.sha256(file.read_bytes()).hexdigest()
                total.update(f"{name}\0{content}\n".encode())
    return total.hexdigest()


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

    def _stamped(self):
        try:
            return json.loads(self._stamp.read_text())
        except (OSError, ValueError):
            return None

    def _write_stamp(self, stamp):
        new = self._stamp.with_suffix(".new")
        new.write_text(json.dumps(stamp, indent=2))
        new.replace(self._stamp)

    def prepare(self, *locks):
        """Makes the environment, or brings it up to date.

        Args:
            *locks: Names of ci/requirements-*.txt, in the order of installation.
        """
        wanted = {lock: digest(CI / f"requirements-{lock}.txt") for lock in locks}
        python = [platform.python_version(), os.path.realpath(sys.executable)]
        stamp = self._stamped()
        stale = (
            stamp is None
            or stamp["python"] != python
            or stamp["path"] != str(self.path)
            or any(
                digest(CI / f"requirements-{lock}.txt") != found
                for lock, found in stamp["locks"].items()
            )
        )
        if stale:
            self._create()
            stamp = {"python": python, "path": str(self.path), "locks": {}}
        for lock in locks:
            if lock in stamp["locks"]:
                continue
            say(f"{self.name}: installing ci/requirements-{lock}.txt")
            options = [
                "--no-deps",
                "--require-hashes",
                "-r",
                f"ci/requirements-{lock}.txt",
            ]
            if lock == "bohb":
                # Published as source only, and plain Python.
                options += ["--no-build-isolation"]
            else:
                options += ["--only-binary=:all:"]
            self.pip(f"{self.name}-{lock}", "install", *options)
            stamp["locks"][lock] = wanted[lock]
            self._write_stamp(stamp)

    def _create(self):
        free = shutil.disk_usage(BUILD).free
        if free < SPACE_NEEDED:
            raise Failed(_no_space())
        try:
            import ensurepip  # noqa: F401
            import venv  # noqa: F401
        except ImportError as error:
            raise Failed(
                f"{sys.executable} cannot make virtual environments ({error}). Install "
                "what it lacks (Debian, Ubuntu: apt install python3-venv), or name "
                "another Python: python3.12 ci/..."
            ) from error
        say(f"{self.name}: making it with Python {platform.python_version()}")
        if self.path.exists():
            shutil.rmtree(self.path)
        run_logged(self.name, [sys.executable, "-m", "venv", self.path])

    def pip(self, step, command, *args):
        """Runs pip of the environment; `step` names it in logs and errors."""
        options = ["--progress-bar=off"] if command in ("install", "download") else []
        return run_logged(
            step, [self.python, "-m", "pip", command, "--retries=3", *options, *args]
        )

    def install_ray(self, wheel):
        """Installs a wheel of Ray, unless it is what the environment has.

        Args:
            wheel: The wheel's path.
        """
        stamp = self._stamped()
        found = hashlib.sha256(wheel.read_bytes()).hexdigest()
        if stamp.get("ray") == found:
            return
        say(f"{self.name}: installing {wheel.name}")
        stamp.pop("ray", None)
        self._write_stamp(stamp)
        self.pip(
            f"{self.name}-ray",
            "install",
            "--no-deps",
            "--no-index",
            "--force-reinstall",
            os.path.relpath(wheel, ROOT),
        )
        stamp["ray"] = found
        self._write_stamp(stamp)

    def run(self, args, **kwargs):
        """Runs the environment's Python in the open; returns its exit code."""
        kwargs.setdefault("env", self.variables())
        return subprocess.call([str(self.python), *args], **kwargs)

    def variables(self, **extra):
        """Returns environment variables with this environment switched on."""
        env = clean_environment(**extra)
        env["VIRTUAL_ENV"] = str(self.path)
        env["PATH"] = os.pathsep.join(
            [str(self.path / "bin"), env.get("PATH", os.defpath)]
        )
        return env


def build_wheel(environment):
    """Builds the patched wheel in an environment that has the build requirements.

    Args:
        environment: The `Environment`.

    Returns:
        The wheel's path.
    """
    folder = BUILD / "wheel"
    stamp = folder / "stamp.json"
    inputs = digest(*(ROOT / name for name in WHEEL_INPUTS if (ROOT / name).exists()))
    inputs = [inputs, platform.python_version()]
    try:
        known = json.loads(stamp.read_text())
        if known["inputs"] == inputs:
            wheel = folder / known["wheel"]
            if hashlib.sha256(wheel.read_bytes()).hexdigest() == known["sha256"]:
                return wheel
    except (OSError, ValueError, KeyError):
        pass
    say("building the wheel (the first time, upstream's is downloaded: 80 MB)")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    start = time.monotonic()
    environment.pip(
        "wheel",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        os.path.relpath(folder, ROOT),
        ".",
    )
    (wheel,) = folder.glob("*.whl")
    stamp.write_text(
        json.dumps(
            {
                "inputs": inputs,
                "wheel": wheel.name,
                "sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
            }
        )
    )
    say(f"built {wheel.name} in {time.monotonic() - start:.1f} s")
    return wheel


def stock_wheel(environment):
    """Returns the path of the upstream wheel that is patched, fetched if need be.

    Args:
        environment: An `Environment` that has the build requirements.
    """
    code = (
        "import setup; name, _ = setup.fetch_upstream(setup.HERE, setup.Target()); "
        "print(setup.HERE.cache / name)"
    )
    output = run_logged("upstream", [environment.python, "-c", code])
    return Path(output.splitlines()[-1])


def patched_environment(*locks):
    """Returns the environment with the patched wheel and the given requirements."""
    environment = Environment("venv")
    environment.prepare("build", *locks)
    environment.install_ray(build_wheel(environment))
    return environment


def stock_environment(*locks):
    """Returns the same with stock Ray in it."""
    environment = Environment("venv-stock")
    environment.prepare("build", *locks)
    environment.install_ray(stock_wheel(environment))
    return environment
