"""Find a Python that is new enough, then run one of the commands of ci/.

Has to be readable for any Python, old ones included: it is what tells them that they
are too old.
"""

from __future__ import print_function

import os
import re
import subprocess
import sys

OLDEST = (3, 10)
NEWEST = (3, 14)  # Upstream has no wheel for a later one.
SCRIPT = os.path.abspath(sys.argv[0])


def require_python():
    """Go on in another Python of the PATH if this one will not do."""
    if OLDEST <= tuple(sys.version_info[:2]) <= NEWEST:
        return
    for minor in range(NEWEST[1], OLDEST[1] - 1, -1):
        name = "python3.%d" % minor
        try:
            process = subprocess.Popen(
                [name, "--version"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            said = process.communicate()[0].decode()
        except OSError:
            continue
        # A pyenv shim exists for versions that are not switched on, and then fails.
        if process.returncode == 0 and re.match(r"Python 3\.%d\." % minor, said):
            sys.stdout.flush()
            os.execvp(name, [name, SCRIPT] + sys.argv[1:])
    command = os.path.basename(SCRIPT)
    sys.exit(
        "ci/%s: Python 3.%d to 3.%d is needed, and `%s` is Python %d.%d; no other was "
        "found on PATH. Install one, or name it: python3.12 ci/%s"
        % (
            (command, OLDEST[1], NEWEST[1], sys.executable)
            + tuple(sys.version_info[:2])
            + (command,)
        )
    )


def run(main):
    """Run a command on the arguments of the process, and exit with its status.

    Args:
        main: Takes the arguments and returns the exit status.
    """
    from build_backend.errors import BuildError
    from ci.lib.console import Failed

    # Progress is shown as it happens, also through a pipe.
    sys.stdout.reconfigure(line_buffering=True)
    command = os.path.basename(SCRIPT)
    try:
        sys.exit(main(sys.argv[1:]))
    except (BuildError, Failed) as failure:
        sys.exit("ci/%s: %s" % (command, failure))
    except KeyboardInterrupt:
        sys.exit("\nci/%s: interrupted" % command)
