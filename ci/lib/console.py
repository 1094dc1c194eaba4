"""What is said to the person at the terminal, and the programs that run for them."""

import errno
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
CI = ROOT / "ci"
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
_PIP_SETTINGS = {
    f"PIP_{name}"
    for name in (
        "USER TARGET PREFIX ROOT NO_BINARY ONLY_BINARY PRE REQUIREMENT PYTHON NO_DEPS "
        "BUILD_CONSTRAINT REQUIRE_HASHES IGNORE_INSTALLED"
    ).split()
}
_PYTHON_SETTINGS = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__"}

_started = time.monotonic()


class Failed(Exception):
    """What went wrong and what to do about it, for the person at the terminal."""


def say(text):
    """Print one line of progress with the seconds since the start."""
    print(f"[{time.monotonic() - _started:5.0f} s] {text}", flush=True)


def clean_environment(**extra):
    """Return environment variables that nothing of the caller's Python leaks into."""
    unwanted = _PIP_SETTINGS | _PYTHON_SETTINGS
    env = {k: v for k, v in os.environ.items() if k not in unwanted}
    env.setdefault("HOME", str(BUILD / "home"))
    # A machine's constraints are meant for other work than these pinned versions. pip
    # ignores an empty setting, hence an empty file.
    env["PIP_CONSTRAINT"] = os.devnull
    env.update(PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_NO_INPUT="1", **extra)
    return env


def run_logged(name, command, **kwargs):
    """Run a command with its output in build/log/<name>.txt, and return that.

    Args:
        name: Names the log, and the step in the error.
        command: The command and its arguments.
        **kwargs: For `subprocess.Popen`.

    Raises:
        Failed: It failed; says why as far as the output tells.
    """
    log = BUILD / "log" / f"{name}.txt"
    kwargs = {"env": clean_environment(), "cwd": ROOT, **kwargs}
    live = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns - 6
    lines = []
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with (
            open(log, "w") as out,
            subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                **kwargs,
            ) as process,
        ):
            for line in process.stdout:
                lines.append(line)
                out.write(line)
                if live:
                    print(f"\r\033[K    {line.strip()[:width]}", end="", flush=True)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise Failed(no_space()) from error
        raise Failed(f"{name}: `{command[0]}` cannot be run: {error}") from error
    finally:
        if live:
            print("\r\033[K", end="", flush=True)
    output = "".join(lines)
    if process.returncode:
        raise Failed(_why(name, command, output, process.returncode, log))
    return output


def no_space():
    """Return what to say when the disk is full."""
    free = shutil.disk_usage(BUILD if BUILD.exists() else ROOT).free
    return (
        f"the disk is full ({free / 1e9:.1f} GB free at {ROOT}, about "
        f"{2 * SPACE_NEEDED / 1e9:.0f} GB are needed). Free some and run it again."
    )


def _why(name, command, output, code, log):
    if _NO_SPACE.search(output):
        return no_space()
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
