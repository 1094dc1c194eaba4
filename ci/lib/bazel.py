"""The test targets of BUILD.bazel, run under Bazel.

How Bazel is to run stands in `.bazelrc`; `build/bazelrc`, which is written here, adds
where the tests' environment is, so that `build/bazel test //...` works without this
module.
"""

import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from ci.lib.console import BUILD, ROOT, say
from ci.lib.npm import program

BAZEL = {
    "name": "bazel",
    "package": "@bazel/bazel-linux_x64@2.1.0",
    "integrity": (
        "sha512-ag6ZwYMJblf1YuPhNRAMyCYf164mY8jhdIwPSVFI1CMi"
        "BRnSDJBkSg7rVIczPh+8Gp7TDqAno9MMTnfUXzxogA=="
    ),
    "member": "package/bazel-2.1.0-linux-x86_64",
}


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
        say(
            f"NOT RUN UNDER BAZEL: {BAZEL['package']} has no binary for "
            f"{' '.join(here)}"
        )
        return 0
    binary = program(**BAZEL)
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
