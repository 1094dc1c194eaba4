"""The build of the patched wheel, mostly with made-up wheels of a few lines."""

import ast
import csv
import email
import io
import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import threading
import zipfile
from pathlib import Path

import made_up_release as made_up
import pytest
from made_up_release import ANY, FILES, ROOT, VERSION

from build_backend import fetch, hooks, wheel
from build_backend.errors import BuildError
from build_backend.fetch import explain_download, fetch_upstream
from build_backend.sdist import make_sdist
from build_backend.target import Target, parse_target
from build_backend.tree import HERE, LOCAL_VERSION, Tree, read_new_files, read_pin
from build_backend.wheel import make_wheel

LOCAL = f"{VERSION}+{LOCAL_VERSION}"
INFO = f"ray-{LOCAL}.dist-info/"


@pytest.fixture
def tree(tmp_path):
    tree = made_up.make_tree(tmp_path)
    made_up.add_two_patches(tree)
    made_up.add_new_file(tree, "ray/tune/extra.py", "x = 1\n")
    return tree


@pytest.fixture
def index(tmp_path, monkeypatch):
    """Let pip see the made-up wheels only."""
    for name, value in made_up.index_environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    return tmp_path / "index"


def build(tree, **options):
    out = tree.root.parent / "out"
    return out / make_wheel(tree, out, **options)


def left_over(tree):
    """Return all that a failed build has left, hidden files too."""
    places = [tree.root.parent / "out", tree.cache]
    return [path.name for place in places if place.exists() for path in place.iterdir()]


def check_record(wheel: zipfile.ZipFile) -> None:
    """Check that RECORD lists each member once, with its hash and size."""
    [record] = [n for n in wheel.namelist() if n.endswith(f"{INFO_END}RECORD")]
    rows = list(csv.reader(io.StringIO(wheel.read(record).decode())))
    assert [row[0] for row in rows] == wheel.namelist()
    for name, digest, size in rows:
        if name == record:
            assert (digest, size) == ("", "")
            continue
        data = wheel.read(name)
        assert digest == "sha256=" + made_up.record_hash(data), name
        assert int(size) == len(data), name


INFO_END = f"+{LOCAL_VERSION}.dist-info/"


# What is in the wheel


def test_patches_are_applied_and_new_files_added(tree):
    wheel = zipfile.ZipFile(build(tree))
    expected = FILES["ray/tune/numbers.py"]
    expected = expected.replace("n15 = 15\n", "n15 = 0\n")
    expected = expected.replace("n16 = 16\n", "n16 = 1\nn16b = 2\n")
    assert wheel.read("ray/tune/numbers.py").decode() == expected
    assert b"return 3" in wheel.read("ray/air/config.py")
    assert wheel.read("ray/tune/extra.py") == b"x = 1\n"
    same = set(FILES) - {"ray/tune/numbers.py", "ray/air/config.py"}
    assert all(wheel.read(name).decode() == FILES[name] for name in same)


def test_name_and_metadata_carry_the_local_version(tree):
    path = build(tree)
    assert path.name == f"ray-{LOCAL}-{ANY}.whl"
    wheel = zipfile.ZipFile(path)
    assert not [n for n in wheel.namelist() if n.startswith(f"ray-{VERSION}.")]
    metadata = email.message_from_bytes(wheel.read(INFO + "METADATA"))
    assert metadata["Version"] == LOCAL
    assert metadata.get_all("Provides-Extra") == ["tune"]
    assert metadata.get_all("Requires-Dist") == [
        "click>=7.0",
        'pandas; extra == "tune"',
    ]
    assert metadata.get_payload() == "Version: of the description, which stays\n"
    assert metadata.get_all("License-File") == ["LICENSE.txt", "NOTICE"]
    assert b"derived from Ray" in wheel.read(INFO + "licenses/NOTICE")
    assert VERSION.encode() in wheel.read("ray/__init__.py")


def test_record_has_the_hash_of_every_member(tree):
    with zipfile.ZipFile(build(tree)) as wheel:
        assert wheel.testzip() is None
        check_record(wheel)


def test_unchanged_members_keep_bytes_date_and_mode(tree):
    path = build(tree)
    [source] = tree.cache.glob("*.whl")
    before, after = zipfile.ZipFile(source), zipfile.ZipFile(path)

    def packed(file, wheel, name):
        member = wheel.getinfo(name)
        begin = member.header_offset + 30 + len(name)
        return file.read_bytes()[begin : begin + member.compress_size]

    name = "ray/core.bin"
    assert packed(path, after, name) == packed(source, before, name)
    for field in ("date_time", "external_attr", "compress_type", "CRC"):
        assert getattr(after.getinfo(name), field) == getattr(
            before.getinfo(name), field
        )
    changed = "ray/tune/numbers.py"
    for field in ("date_time", "external_attr"):
        assert getattr(after.getinfo(changed), field) == getattr(
            before.getinfo(changed), field
        )


def test_a_member_with_a_data_descriptor_is_written_anew(tmp_path):
    tree = made_up.make_tree(tmp_path, cached=False)
    [source] = (tmp_path / "index").glob("*.whl")

    class Pipe(io.RawIOBase):  # Zip files written to one have data descriptors.
        def __init__(self, file):
            self.file = file

        def writable(self):
            return True

        def write(self, data):
            return self.file.write(data)

    tree.cache.mkdir(parents=True)
    with open(tree.cache / source.name, "wb") as file, zipfile.ZipFile(source) as old:
        with zipfile.ZipFile(Pipe(file), "w", zipfile.ZIP_DEFLATED) as new:
            for member in old.infolist():
                new.writestr(member, old.read(member))
    made_up.pin(tree, [tree.cache / source.name])
    with zipfile.ZipFile(build(tree)) as wheel:
        assert wheel.testzip() is None
        check_record(wheel)


def test_two_builds_give_the_same_bytes(tree, tmp_path):
    first = build(tree).read_bytes()
    other = tmp_path / "elsewhere" / "tree"
    shutil.copytree(tree.root, other, copy_function=shutil.copy)
    (other / "python/ray/tune/extra.py").chmod(0o700)
    (other / "python/ray/tune/__pycache__").mkdir()
    (other / "python/ray/tune/__pycache__/extra.cpython-311.pyc").write_bytes(b"x")
    (other / "python/ray/tune/.extra.py.swp").write_bytes(b"x")
    (other / "python/ray/tune/extra.py~").write_bytes(b"x")
    assert build(Tree(other)).read_bytes() == first


def test_without_patches_and_new_files_only_the_version_changes(tmp_path):
    tree = made_up.make_tree(tmp_path)
    shutil.rmtree(tree.new_files)  # Git keeps no empty folder.
    wheel = zipfile.ZipFile(build(tree))
    assert set(wheel.namelist()) == set(FILES) | {
        INFO + name
        for name in (
            "METADATA",
            "RECORD",
            "WHEEL",
            "licenses/LICENSE.txt",
            "licenses/NOTICE",
        )
    }
    assert all(wheel.read(name).decode() == text for name, text in FILES.items())


def test_pip_installs_it(tree, tmp_path):
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    command += ["--no-index", "--target", str(tmp_path / "site"), str(build(tree))]
    subprocess.run(command, check=True, timeout=100)
    assert (tmp_path / "site/ray/tune/extra.py").read_text() == "x = 1\n"
    assert (tmp_path / "site" / INFO).is_dir()


# Targets


@pytest.mark.parametrize("python", ["3.12", "312", "cp312", "py312"])
def test_target_is_read_from_the_config_settings(python):
    settings = {"platform": "win_amd64", "python": python}
    assert parse_target(settings) == Target("win_amd64", (3, 12))


@pytest.mark.parametrize(
    "settings, said",
    [
        (
            {"colour": "red"},
            "'colour'.*--config-settings platform=.*--config-settings python=",
        ),
        ({"python": "new"}, "python=new is no Python version"),
        ({"python": ["3.11", "3.12"]}, r"python= needs one value.*3\.11"),
        ({"platform": "Win 95"}, "platform=Win 95 is no platform tag"),
        ({"platform": ""}, "platform= needs one value"),
    ],
)
def test_bad_config_settings_are_refused_by_name(settings, said):
    with pytest.raises(BuildError, match=said):
        parse_target(settings)
    for hook in ("wheel", "editable", "sdist"):
        with pytest.raises(SystemExit, match=said):
            getattr(hooks, f"get_requires_for_build_{hook}")(settings)


TAGS = (
    "cp312-cp312-manylinux2014_aarch64",
    "cp313-cp313-macosx_12_0_arm64",
    "cp313-cp313-win_amd64",
)


@pytest.mark.parametrize("cached", [False, True], ids=["fetched", "cached"])
@pytest.mark.parametrize(
    "platform, python, tag",
    [
        ("manylinux2014_aarch64", (3, 12), TAGS[0]),
        ("macosx_12_0_arm64", (3, 13), TAGS[1]),
        ("macosx_14_0_arm64", (3, 13), TAGS[1]),
        ("win_amd64", (3, 13), TAGS[2]),
    ],
)
def test_wheel_of_another_target(
    tmp_path, index, monkeypatch, platform, python, tag, cached
):
    tree = made_up.make_tree(tmp_path, tags=TAGS, cached=cached)
    if cached:
        monkeypatch.setattr(fetch, "download", None)
    path = build(tree, target=Target(platform, python))
    assert path.name == f"ray-{LOCAL}-{tag}.whl"


def test_target_without_a_wheel_is_named(tmp_path, index):
    tree = made_up.make_tree(tmp_path, tags=TAGS)
    with pytest.raises(BuildError, match=r"no wheel of ray 1\.2\.3 for CPython 3\.10 "):
        build(tree, target=Target("win_amd64", (3, 10)))
    with pytest.raises(BuildError, match="CPython 3.13 on amiga.*manylinux2014_x86_64"):
        build(tree, target=Target("amiga", (3, 13)))
    assert sorted(left_over(tree)) == sorted(f"ray-{VERSION}-{tag}.whl" for tag in TAGS)


# The upstream wheel


def test_upstream_is_fetched_once(tmp_path, index, monkeypatch):
    tree = made_up.make_tree(tmp_path, cached=False)
    first = build(tree).read_bytes()
    assert [path.name for path in tree.cache.iterdir()] == [f"ray-{VERSION}-{ANY}.whl"]
    monkeypatch.setattr(fetch, "download", None)
    assert build(tree).read_bytes() == first


def test_wrong_hash_is_refused_and_nothing_kept(tmp_path, index):
    tree = made_up.make_tree(tmp_path, cached=False)
    tree.pin.write_text(f"ray=={VERSION} --hash=sha256:{'0' * 64}\n")
    with pytest.raises(BuildError, match="the index serves another file.*upstream.txt"):
        build(tree)
    assert left_over(tree) == []


def test_damaged_cached_wheel_is_fetched_anew(tmp_path, index, capsys):
    tree = made_up.make_tree(tmp_path)
    [cached] = tree.cache.iterdir()
    whole = cached.read_bytes()
    cached.write_bytes(whole[:-100])
    build(tree)
    assert cached.read_bytes() == whole
    assert f"{cached} does not have a pinned hash" in capsys.readouterr().err


def test_damaged_cached_wheel_is_never_used(tmp_path, index):
    tree = made_up.make_tree(tmp_path)
    [cached] = tree.cache.iterdir()
    cached.write_bytes(b"half")
    shutil.rmtree(index)
    with pytest.raises(BuildError):
        build(tree)
    assert not (tmp_path / "out").exists()


def test_unreachable_index_is_named(tmp_path, index, monkeypatch):
    tree = made_up.make_tree(tmp_path, cached=False)
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(BuildError, match="index cannot be reached.*PIP_INDEX_URL"):
        build(tree)
    assert left_over(tree) == []


def test_interpreter_without_pip_is_told_apart(tmp_path):
    tree = made_up.make_tree(tmp_path)
    said = explain_download(
        tree, read_pin(tree.pin), Target(), "python: No module named pip\n", ""
    )
    assert sys.executable in said and "ensurepip" in said


def test_builds_at_the_same_time_do_not_disturb_each_other(tmp_path, index):
    tree = made_up.make_tree(tmp_path, cached=False)
    made_up.add_two_patches(tree)
    results = []

    def run(number):
        out = tmp_path / "out" / str(number)
        results.append((out / make_wheel(tree, out)).read_bytes())

    threads = [threading.Thread(target=run, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 3 and len(set(results)) == 1
    assert [path.name for path in tree.cache.iterdir()] == [f"ray-{VERSION}-{ANY}.whl"]


def test_tree_that_cannot_be_written_to_still_builds(tmp_path, index):
    tree = made_up.make_tree(tmp_path, cached=False)
    (tree.root / "build").write_bytes(b"")  # Root may write anywhere, but not here.
    assert build(tree).is_file()


@pytest.mark.parametrize(
    "text, said",
    [
        ("", "pins 0 releases of ray with 0 hashes.*uv pip compile"),
        ("ray==1.2.3\n", "with 0 hashes"),
        ("ray==1.2.3 --hash=sha256:12\n", "'sha256:12' is not a SHA-256 hash"),
        ("ray==1 --hash=md5:12\n", "'md5:12' is not"),
    ],
)
def test_malformed_pin_is_refused(tree, text, said):
    tree.pin.write_text(text)
    with pytest.raises(BuildError, match=said):
        build(tree)


# Bad source trees


def test_patch_that_does_not_match_is_named(tree):
    path = tree.patches / "tune-right-the-fifteenth-number.patch"
    path.write_text(path.read_text().replace(" n16 = 16", " n16 = 17"))
    match = r"tune-right-the-fifteenth-number\.patch: hunk 1 of python/ray/tune/numbers"
    with pytest.raises(BuildError, match=match + r"\.py does not match at line 16"):
        build(tree)
    assert not (tree.root.parent / "out").exists()


@pytest.mark.parametrize(
    "series, said",
    [
        ("gone.patch\n", "series:1: there is no patches/gone.patch"),
        ("../x.patch\n", r"series:1: '\.\./x\.patch' is not a patch name"),
        ("\n", "series:1: '' is not a patch name"),
    ],
)
def test_bad_series_is_refused(tree, series, said):
    tree.series.write_text(series)
    with pytest.raises(BuildError, match=said):
        build(tree)


def test_patch_listed_twice_is_refused(tree):
    tree.series.write_text(tree.series.read_text() * 2)
    with pytest.raises(BuildError, match="series:3: tune-right.* is listed twice"):
        build(tree)


def test_missing_parts_are_named(tree):
    (tree.root / "NOTICE").unlink()
    with pytest.raises(BuildError, match="NOTICE is missing"):
        build(tree)
    tree.series.unlink()
    with pytest.raises(BuildError, match="series is missing"):
        build(tree)


def test_new_file_that_upstream_has_belongs_in_patches(tree):
    made_up.add_new_file(tree, "ray/tune/names.py", "")
    with pytest.raises(BuildError, match="ray/tune/names.py.*belongs in patches/"):
        build(tree)


def test_new_file_outside_of_ray_is_refused(tree):
    made_up.add_new_file(tree, "elsewhere/x.py", "")
    with pytest.raises(BuildError, match="python/elsewhere/x.py is outside"):
        build(tree)


def test_dangling_link_is_refused(tree):
    (tree.new_files / "ray/tune/dangling.py").symlink_to("nowhere")
    with pytest.raises(BuildError, match="dangling.py is not a file"):
        build(tree)


def test_build_that_breaks_off_leaves_nothing(tree, monkeypatch):
    def fail(self):
        raise KeyboardInterrupt

    whole = build(tree)
    before = whole.read_bytes()
    monkeypatch.setattr(wheel.WheelWriter, "write_record", fail)
    with pytest.raises(KeyboardInterrupt):
        build(tree)
    assert [path.name for path in whole.parent.iterdir()] == [whole.name]
    assert whole.read_bytes() == before


def test_wheel_that_is_none_is_refused(tmp_path):
    tree = made_up.make_tree(tmp_path)
    [cached] = tree.cache.iterdir()
    cached.write_bytes(b"not a zip file")
    made_up.pin(tree, [cached])
    with pytest.raises(
        BuildError, match=r"ray-1\.2\.3-py3-none-any\.whl is not a wheel"
    ):
        build(tree)


def test_old_python_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 9, 18, "final", 0))
    with pytest.raises(SystemExit, match=r"Python 3\.9 is too old: Ray needs 3\.10"):
        runpy.run_path(str(ROOT / "setup.py"), run_name="setup")


@pytest.mark.parametrize("door", ["setup.py", "ci/lib/launch.py", "ci/test"])
def test_old_python_can_read_the_doors(door):
    ast.parse((ROOT / door).read_text(), feature_version=(3, 4))


def test_missing_requirement_is_named(tree):
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import setup"],
        cwd=tree.root,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "the build needs packaging, which" in done.stderr


def test_hooks_end_with_a_message(monkeypatch, tmp_path):
    def fail(*arguments, **options):
        raise OSError(28, "No space left on device", "x.whl")

    monkeypatch.setattr(hooks, "make_wheel", fail)
    for hook in (hooks.build_wheel, hooks.build_editable):
        with pytest.raises(SystemExit, match="No space left.*'x.whl'"):
            hook(str(tmp_path))


def test_backend_is_no_script(tree):
    command = [sys.executable, str(tree.root / "setup.py"), "install"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and "pip install ." in done.stderr


# The source distribution


def test_sdist_has_all_that_a_build_needs(tree, tmp_path):
    first = build(tree).read_bytes()
    name = make_sdist(tree, tmp_path / "out")
    assert name == f"ray-{LOCAL}.tar.gz"
    with tarfile.open(tmp_path / "out" / name) as tar:
        assert {n.split("/")[0] for n in tar.getnames()} == {f"ray-{LOCAL}"}
        facts = tar.extractfile(f"ray-{LOCAL}/PKG-INFO").read().decode()
        # Made by the test itself, so nothing in it is to be feared.
        if sys.version_info >= (3, 12):
            tar.extractall(tmp_path / "unpacked", filter="fully_trusted")
        else:
            tar.extractall(tmp_path / "unpacked")
    assert f"Name: ray\nVersion: {LOCAL}\n" in facts
    unpacked = Tree(tmp_path / "unpacked" / f"ray-{LOCAL}")
    shutil.copytree(tree.cache, unpacked.cache)
    assert build(unpacked).read_bytes() == first


def test_two_sdists_are_the_same(tree, tmp_path):
    paths = [tmp_path / n / make_sdist(tree, tmp_path / n) for n in "ab"]
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_sdist_of_a_broken_tree_is_refused(tree, tmp_path):
    (tree.root / "LICENSE").unlink()
    with pytest.raises(BuildError, match="LICENSE is missing"):
        make_sdist(tree, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("frontend", ["build", "uv", "pip"])
def test_frontends_build_it(tree, tmp_path, frontend):
    if frontend != "pip":
        pytest.importorskip(frontend)
    out = tmp_path / "dist"
    command = {
        "build": ["build", "--no-isolation", "--outdir", str(out)],
        "uv": ["uv", "build", "--no-build-isolation", "--offline", "-o", str(out)],
        "pip": ["pip", "wheel", "--no-build-isolation", "--no-deps", "-w", str(out)],
    }[frontend]
    if frontend == "uv":
        command += ["--python", sys.executable]
    environment = {**os.environ, **made_up.index_environment(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", *command, str(tree.root)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (out / f"ray-{LOCAL}-{ANY}.whl").read_bytes() == build(tree).read_bytes()


def test_frontends_show_the_error_without_a_traceback(tree):
    (tree.patches / "tune-add-to-the-sixteenth.patch").unlink()
    command = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation"]
    done = subprocess.run(
        [*command, "--no-deps", str(tree.root)],
        cwd=tree.root.parent,
        env={**os.environ, **made_up.index_environment(tree.root.parent)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    said = done.stdout + done.stderr
    assert done.returncode and "there is no patches/tune-add-to-the-sixteenth" in said
    assert "Traceback" not in said


# The editable install


def run_installed(tree, tmp_path, code, *arguments):
    """Run code where the editable wheel is installed, and no other package is."""
    site = tmp_path / "site"
    if not site.exists():
        with zipfile.ZipFile(build(tree, editable=True)) as wheel:
            check_record(wheel)
            wheel.extractall(site)
    start = f"import site, sys; sys.path.insert(0, {str(site)!r}); site.addsitedir("
    command = [sys.executable, "-S", "-c", f"{start}{str(site)!r})\n{code}"]
    return subprocess.run(
        [*command, *arguments], capture_output=True, text=True, cwd=tmp_path, timeout=60
    )


def test_editable_files_are_live(tree, tmp_path):
    def value(expression):
        done = run_installed(
            tree, tmp_path, f"import ray.tune.extra as m; print({expression})"
        )
        return (done.stdout + done.stderr).strip()

    assert value("m.x") == "1"
    made_up.add_new_file(tree, "ray/tune/extra.py", "x = 'edited'\n")
    assert value("m.x") == "edited"
    assert value("m.__file__") == str(tree.new_files / "ray/tune/extra.py")
    # Added after the install: a module, a package, a folder without __init__.py.
    made_up.add_new_file(tree, "ray/tune/more.py", "x = 'more'\n")
    made_up.add_new_file(tree, "ray/tune/box/__init__.py", "")
    made_up.add_new_file(tree, "ray/tune/box/inner.py", "x = 'inner'\n")
    made_up.add_new_file(tree, "ray/tune/plain/leaf.py", "x = 'leaf'\n")
    made_up.add_new_file(tree, "ray/tune/extra.py", "from . import more\nx = more.x\n")
    assert value("m.x") == "more"
    assert value("__import__('ray.tune.box.inner', fromlist=['x']).x") == "inner"
    assert value("__import__('ray.tune.plain.leaf', fromlist=['x']).x") == "leaf"


def test_editable_modules_run_with_m(tree, tmp_path):
    made_up.add_new_file(tree, "ray/tune/script.py", "print(__name__, __file__)\n")
    code = "import runpy; runpy.run_module('ray.tune.script', run_name='__main__')"
    done = run_installed(tree, tmp_path, code)
    assert done.stdout == f"__main__ {tree.new_files}/ray/tune/script.py\n"


def test_editable_has_upstream_files_patched(tree, tmp_path):
    code = "from ray.tune import numbers as n; print(n.n15, n.n16b, n.n17)"
    assert run_installed(tree, tmp_path, code).stdout == "0 2 17\n"
    # A file that upstream has is never hidden by one of python/.
    made_up.add_new_file(tree, "ray/tune/names.py", "first = 'hidden'\n")
    code = "from ray.tune.names import first; print(first)"
    assert run_installed(tree, tmp_path, code).stdout == "a\n"


def test_editable_tree_that_is_gone_is_named(tree, tmp_path):
    run_installed(tree, tmp_path, "")
    shutil.move(str(tree.new_files), str(tmp_path / "moved"))
    done = run_installed(tree, tmp_path, "import ray.tune.extra")
    assert f"editable install of {tree.new_files}, which is gone" in done.stderr


def test_editable_module_that_is_nowhere_is_missing(tree, tmp_path):
    done = run_installed(tree, tmp_path, "import ray.tune.nowhere")
    assert "ModuleNotFoundError: No module named 'ray.tune.nowhere'" in done.stderr


def test_editable_install_is_for_the_running_interpreter():
    with pytest.raises(SystemExit, match="editable install for CPython 3.12 on win_a"):
        hooks.build_editable("out", {"platform": "win_amd64", "python": "3.12"})


# The real one


@pytest.fixture(scope="module")
def real_wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("real")
    return out / make_wheel(HERE, out)


def test_real_wheel_has_a_right_record_and_upstreams_extras(real_wheel):
    from packaging.requirements import Requirement

    with zipfile.ZipFile(real_wheel) as wheel:
        check_record(wheel)
        [name] = [n for n in wheel.namelist() if n.endswith(INFO_END + "METADATA")]
        metadata = email.message_from_bytes(wheel.read(name))
    _, source = fetch_upstream(HERE)
    pin = read_pin(HERE.pin)
    with zipfile.ZipFile(io.BytesIO(source)) as upstream:
        before = email.message_from_bytes(
            upstream.read(f"ray-{pin.version}.dist-info/METADATA")
        )
    for field in ("Provides-Extra", "Requires-Dist", "Requires-Python", "Name"):
        assert metadata.get_all(field) == before.get_all(field)
    assert Requirement(f"ray=={pin.version}").specifier.contains(metadata["Version"])


def test_real_wheel_has_every_new_file(real_wheel):
    with zipfile.ZipFile(real_wheel) as wheel:
        for name, path in read_new_files(HERE).items():
            assert wheel.read(name) == Path(path).read_bytes(), name


# What an installation is told


def test_build_requirements_have_upper_bounds():
    from packaging.requirements import Requirement

    # Python 3.10 has no parser for TOML.
    text = (HERE.root / "pyproject.toml").read_text()
    requires = ast.literal_eval(
        re.search(r"^requires = (\[.*?\])", text, re.M | re.S)[1]
    )
    assert requires
    for requirement in map(Requirement, requires):
        assert any(s.operator in ("<", "<=") for s in requirement.specifier), (
            requirement
        )


def test_readme_installs_with_any_pip():
    # Python 3.10 brings pip 23.0, which does not know -C.
    text = (HERE.root / "README.md").read_text()
    code = "\n".join(re.findall(r"^```console\n(.*?)^```$", text, re.M | re.S))
    assert "--config-settings platform=" in code
    # git has an option of that name, too.
    assert not re.search(r"(?<!git )(?<![\w-])-C\b", code)


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
