"""Finds a Python that is new enough, then runs one of the commands of ci/.

Has to be readable for any Python, old ones included: it is what tells them that they
are too old.
"""

from __future__ import print_function

import os
import subprocess
import sys

OLDEST = (3, 10)
NEWEST = (3, 14)  # Upstream has no wheel for a later one.


def _suitable(version):
    return OLDEST <= tuple(version[:2]) <= NEWEST


def _other_python():
    """Returns the path of the newest suitable Python on PATH, or None."""
    code = "import sys; print(sys.executable); print('%d %d' % sys.version_info[:2])"
    for minor in range(NEWEST[1], OLDEST[1] - 1, -1):
        try:
            process = subprocess.Popen(
                ["python3.%d" % minor, "-c", code],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            lines = process.communicate()[0].decode().splitlines()
        except OSError:
            continue
        # A pyenv shim exists for versions that are not switched on, and then fails.
        if process.returncode == 0 and len(lines) == 2:
            if _suitable([int(part) for part in lines[1].split()]):
                return lines[0]
    return None


def run(command):
    """Runs `ci/lib/<command>_command.py`, in another Python where this one will not do.

    Args:
        command: The name of the command, as in `ci/<command>`.
    """
    if not _suitable(sys.version_info):
        other = _other_python()
        if other is None:
            sys.exit(
                "ci/%s: Python 3.%d to 3.%d is needed, and `%s` is Python %d.%d; no "
                "other was found on PATH. Install one, or name it: python3.12 ci/%s"
                % (
                    (command, OLDEST[1], NEWEST[1], sys.executable)
                    + tuple(sys.version_info[:2])
                    + (command,)
                )
            )
        sys.stdout.flush()
        os.execv(other, [other, os.path.abspath(sys.argv[0])] + sys.argv[1:])

    # Progress is shown as it happens, also through a pipe.
    sys.stdout.reconfigure(line_buffering=True)
    module = __import__("%s_command" % command.replace("-", "_"))
    from environment import Failed

    try:
        sys.exit(module.main(sys.argv[1:]))
    except Failed as failure:
        sys.exit("\nci/%s: %s" % (command, failure))
    except KeyboardInterrupt:
        sys.exit("\nci/%s: interrupted" % command)
