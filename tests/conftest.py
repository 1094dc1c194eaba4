"""What every test file shares: marks, the Ray under test, clean surroundings."""

import os
import shutil
import tempfile
from importlib import metadata

import pytest

# Ray writes below ~, and Bazel's sandbox (like a bare container) sets no HOME.
if not os.environ.get("HOME"):
    os.environ["HOME"] = tempfile.mkdtemp(prefix="home-")

# As upstream's Bazel targets set it. Has to stand before `ray` is imported.
os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")
os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# Tests start a Ray of their own, whatever cluster the caller works with.
os.environ.pop("RAY_ADDRESS", None)

_PREFIXES = ("TUNE_", "RAY_")


def pytest_configure(config):
    config.addinivalue_line(
        "markers",
        "fixes(*names): a regression test for a fault of stock Ray, which fails on "
        "the stock wheel in its call phase; a name is an upstream issue (ray#12345) "
        "or a short one of our own.",
    )
    config.addinivalue_line("markers", "ray: starts a real Ray runtime.")
    config.addinivalue_line("markers", "hang: guards against a hang; Bazel runs it.")
    _check_ray_under_test(metadata.version("ray"), os.environ.get("RAY_UNDER_TEST"))


def pytest_report_header(config):
    return f"ray: {metadata.version('ray')}"


def _check_ray_under_test(version, wanted):
    """Fails the session when the Ray installed is not the one that CI means."""
    if wanted in (None, ""):
        return
    if wanted not in ("patched", "stock"):
        raise pytest.UsageError(
            f"RAY_UNDER_TEST={wanted!r}: must be 'patched', 'stock' or unset."
        )
    if wanted != ("patched" if "+ashav2" in version else "stock"):
        raise pytest.UsageError(
            f"RAY_UNDER_TEST={wanted}, but ray {version} is installed. Let ci/test "
            "make the environments, or unset RAY_UNDER_TEST."
        )


@pytest.fixture(autouse=True)
def _environment_restored():
    """Gives back the TUNE_* and RAY_* variables that a test has changed."""
    before = {k: v for k, v in os.environ.items() if k.startswith(_PREFIXES)}
    yield
    for name in [k for k in os.environ if k.startswith(_PREFIXES)]:
        if name not in before:
            del os.environ[name]
    os.environ.update(before)


@pytest.fixture(autouse=True)
def _named_fault_shows(request):
    """On stock Ray, lets a test show the fault that it names, not a more common one.

    The name may be that of the invariant which shows it.
    """
    marks = list(request.node.iter_markers("fixes"))
    if not marks or "+ashav2" in metadata.version("ray"):
        yield
        return
    from virtual_cluster.core import monitor
    from virtual_cluster.invariants import COMMON_ON_STOCK

    names = {name for mark in marks for name in mark.args}
    monitor.never_checked.update(COMMON_ON_STOCK - names)
    yield
    monitor.never_checked.clear()


@pytest.fixture(scope="module")
def ray_start_2_cpus():
    """A local Ray of two CPUs for the tests of one module."""
    import ray

    # A socket's path may have 107 bytes; the usual temporary folders eat most of them.
    parent = "/tmp" if os.path.isdir("/tmp") else None
    temp_dir = tempfile.mkdtemp(prefix="ray-", dir=parent)
    try:
        yield ray.init(
            num_cpus=2, include_dashboard=False, log_to_driver=False, _temp_dir=temp_dir
        )
    finally:
        ray.shutdown()
        shutil.rmtree(temp_dir, ignore_errors=True)
