"""Programs out of npm's registry, where a package index has none.

npm fetches a package. By hand: one file is taken out of it and the package's hash
checked, since npm would install more than that.
"""

import base64
import hashlib
import shutil
import tarfile
import tempfile
from pathlib import Path

from ci.lib.console import BUILD, Failed, run_logged, say
from ci.lib.environments import prepared


def program(name, package, integrity, member):
    """Return the path of a program, fetched and checked if need be.

    Args:
        name: What it is called below build/.
        package: The package with its version.
        integrity: The package's hash, as npm writes it.
        member: The program's path in the package.
    """
    binary, known = BUILD / name, BUILD / f"{name}.integrity"
    if binary.is_file() and known.is_file() and known.read_text() == integrity:
        return binary
    say(f"fetching {package}")
    npm = shutil.which("npm")
    if npm is None:
        npm = prepared("venv-npm", "npm").path / "bin" / "npm"
    with tempfile.TemporaryDirectory(prefix="npm-", dir=BUILD) as folder:
        run_logged("npm", [npm, "pack", f"--cache={folder}/cache", package], cwd=folder)
        packed = list(Path(folder).glob("*.tgz"))
        if len(packed) != 1:
            raise Failed(f"npm pack {package} left {len(packed)} packages")
        digest = hashlib.sha512(packed[0].read_bytes()).digest()
        found = "sha512-" + base64.b64encode(digest).decode()
        if found != integrity:
            raise Failed(f"{package} has the hash {found}, and {integrity} is pinned")
        new = Path(folder, "program")
        with tarfile.open(packed[0]) as archive:
            new.write_bytes(archive.extractfile(member).read())
        new.chmod(0o755)
        new.replace(binary)
    known.write_text(integrity)
    return binary
