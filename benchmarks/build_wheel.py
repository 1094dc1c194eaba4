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

ROOT = Path(__file__).resolve().parent.parent


def load_backend():
    spec = importlib.util.spec_from_file_location(
        "ray_wheel_backend", ROOT / "setup.py"
    )
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def seconds(call, *arguments) -> float:
    begin = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - begin


def build(backend, folder: Path) -> str:
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        backend.make_wheel(backend.HERE, folder)
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
    backend = load_backend()
    try:
        name, data = backend.fetch_upstream(backend.HERE)
    except backend.BuildError as e:
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
            phases = build(backend, place / "built")
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
