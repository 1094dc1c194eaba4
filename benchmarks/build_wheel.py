"""Times the build of the wheel beside `wheel unpack` and `wheel pack`.

Both start from the upstream wheel that has been fetched already, and alternate, so that
what else the machine does hits both. Needs the `wheel` package.
"""

import argparse
import contextlib
import importlib.util
import io
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from build_backend.errors import BuildError  # noqa: E402
from build_backend.fetch import fetch_upstream  # noqa: E402
from build_backend.tree import HERE  # noqa: E402
from build_backend.wheel import make_wheel  # noqa: E402


def seconds(call, *arguments) -> float:
    begin = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - begin


def build(folder: Path) -> str:
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        make_wheel(HERE, folder)
    return said.getvalue().strip()


def wheel(*arguments) -> None:
    command = [sys.executable, "-m", "wheel", *map(str, arguments)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="how often (default 3)")
    rounds = parser.parse_args().rounds
    if rounds < 1:
        parser.error(f"--rounds {rounds}: give 1 or more")
    if importlib.util.find_spec("wheel") is None:
        sys.exit(f"error: run `{sys.executable} -m pip install wheel` first")
    try:
        name, data = fetch_upstream(HERE)
    except BuildError as e:
        sys.exit(f"error: {e}")
    times = {"build": [], "wheel unpack": [], "wheel pack": []}
    phases = ""
    with tempfile.TemporaryDirectory(prefix="build-wheel-") as temporary:
        folder = Path(temporary)
        upstream = folder / name
        upstream.write_bytes(data)
        stem = "-".join(name.split("-")[:2])
        for n in range(rounds):
            place = folder / str(n)
            begin = time.perf_counter()
            phases = build(place / "built")
            times["build"].append(time.perf_counter() - begin)
            unpack = ("unpack", "--dest", place, upstream)
            times["wheel unpack"].append(seconds(wheel, *unpack))
            pack = ("pack", "--dest-dir", place, place / stem)
            times["wheel pack"].append(seconds(wheel, *pack))
    print(f"{name}: {len(data) / 1e6:.1f} MB, median of {rounds} rounds\n")
    median = {what: statistics.median(values) for what, values in times.items()}
    median["unpack + pack"] = median["wheel unpack"] + median["wheel pack"]
    print(f"{'':16}{'seconds':>9}{'ratio to build':>16}")
    for what, value in median.items():
        print(f"{what:16}{value:9.2f}{value / median['build']:15.1f}x")
    print(f"\nphases of the last build: {phases}")


if __name__ == "__main__":
    main()
