"""Ray's wheel comes from the package index that the frontend was told to use."""

import http.server
import os
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import made_up_release as made_up
import pytest
from made_up_release import VERSION

from build_backend import processes
from build_backend.errors import BuildError
from build_backend.fetch import fetch_upstream
from build_backend.index import Source, frontend, sources
from build_backend.processes import Process

NOWHERE = "http://127.0.0.1:9/simple"
SETTINGS = ("PIP_", "UV_", "XDG_CONFIG")


class Index(http.server.SimpleHTTPRequestHandler):
    """Serve the made-up wheels as a package index, and note what is asked for."""

    asked = None

    def do_GET(self):
        self.asked.append(self.path)
        if "/nothing/" in self.path:
            self.send_error(404)
        elif self.path.endswith("/broken/ray/"):
            self.send_error(503)
        elif self.path.endswith("/ray/"):
            names = [path.name for path in Path(self.directory).glob("*.whl")]
            page = "".join(f'<a href="/{name}">{name}</a>' for name in names)
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(page.encode())
        else:
            super().do_GET()

    def log_message(self, *arguments):
        pass


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Make a tree whose wheel was not fetched, and take the machine's settings away."""
    for name in list(os.environ):
        if name.startswith(SETTINGS):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return made_up.make_tree(tmp_path, cached=False)


@pytest.fixture
def index(tree, tmp_path):
    """Serve the index; give its address, and what it is asked for."""
    asked = []
    handler = type("Asked", (Index,), {"asked": asked})
    handler = partial(handler, directory=str(tmp_path / "index"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/simple", asked
        server.shutdown()
        thread.join()


def build(tree, tool, *options, **environment):
    """Build the wheel with a frontend."""
    out = tree.root.parent / "out"
    command = {
        "pip": "pip wheel --no-build-isolation --no-deps -w",
        "uv": f"uv build --wheel --no-build-isolation --python {sys.executable} -o",
        "build": "build --wheel --no-isolation --outdir",
    }[tool]
    if tool != "pip":
        pytest.importorskip(tool)
    command = [sys.executable, "-m", *command.split(), str(out), *options]
    where = [] if "-r" in options else [str(tree.root)]
    done = subprocess.run(
        command + where,
        cwd=tree.root.parent,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=100,
    )
    return done.returncode, done.stdout + done.stderr


def pip_config(tmp_path, url):
    path = tmp_path / "pip.conf"
    path.write_text(f"[global]\nindex-url = {url}\n")
    return path


def requirements(tmp_path, url):
    inner = tmp_path / "inner.txt"
    inner.write_text(f"--no-binary=nothing \\\n  --index-url={url}\n")
    outer = tmp_path / "outer.txt"
    outer.write_text(f"# A comment\n-r inner.txt\n{tmp_path / 'tree'}\n")
    return outer


def uv_config(tmp_path, url):
    path = tmp_path / "config" / "uv" / "uv.toml"
    path.parent.mkdir(parents=True)
    path.write_text(f'[[index]]\nname = "mine"\nurl = "{url}"\ndefault = true\n')
    return path


WAYS = {
    "pip --index-url": ("pip", lambda url, _: (["--index-url", url], {})),
    "pip -i": ("pip", lambda url, _: ([f"-i{url}"], {})),
    "pip --extra-index-url": (
        "pip",
        lambda url, _: (["-i", f"{url}/nothing", f"--extra-index-url={url}"], {}),
    ),
    "pip --find-links": (
        "pip",
        lambda url, _: (["--no-index", "--find-links", f"{url}/ray/"], {}),
    ),
    "pip -r": ("pip", lambda url, path: (["-r", str(requirements(path, url))], {})),
    "PIP_INDEX_URL": ("pip", lambda url, _: ([], {"PIP_INDEX_URL": url})),
    "pip.conf": (
        "pip",
        lambda url, path: ([], {"PIP_CONFIG_FILE": str(pip_config(path, url))}),
    ),
    "uv --index-url": ("uv", lambda url, _: (["--index-url", url], {})),
    "uv --default-index": ("uv", lambda url, _: ([f"--default-index={url}"], {})),
    "uv --index": ("uv", lambda url, _: (["--index", f"mine={url}"], {})),
    "UV_INDEX_URL": ("uv", lambda url, _: ([], {"UV_INDEX_URL": url})),
    "UV_DEFAULT_INDEX": ("uv", lambda url, _: ([], {"UV_DEFAULT_INDEX": url})),
    "UV_INDEX": (
        "uv",
        lambda url, _: ([], {"UV_INDEX": f"{url}/nothing mine={url}"}),
    ),
    "UV_EXTRA_INDEX_URL": ("uv", lambda url, _: ([], {"UV_EXTRA_INDEX_URL": url})),
    "uv.toml": (
        "uv",
        lambda url, path: ([], {"UV_CONFIG_FILE": str(uv_config(path, url))}),
    ),
    "uv with PIP_INDEX_URL": ("uv", lambda url, _: ([], {"PIP_INDEX_URL": url})),
    "build with PIP_INDEX_URL": ("build", lambda url, _: ([], {"PIP_INDEX_URL": url})),
    "build with UV_INDEX_URL": ("build", lambda url, _: ([], {"UV_INDEX_URL": url})),
}


@pytest.mark.parametrize("way", WAYS)
def test_wheel_is_fetched_from_the_index_given(tree, index, tmp_path, way):
    if way == "uv.toml" and sys.version_info < (3, 11):
        pytest.skip("Python 3.10 has no parser for it")
    url, asked = index
    tool, settings = WAYS[way]
    options, environment = settings(url, tmp_path)
    code, said = build(tree, tool, *options, **environment)
    assert code == 0, said
    assert f"/ray-{VERSION}-{made_up.ANY}.whl" in asked


def test_option_beats_the_environment(tree, index):
    url, asked = index
    code, said = build(tree, "pip", "-i", url, PIP_INDEX_URL=NOWHERE)
    assert code == 0 and asked, said
    code, said = build(
        tree, "uv", "--default-index", url, UV_INDEX_URL=NOWHERE, PIP_INDEX_URL=NOWHERE
    )
    assert code == 0, said


# What is said


@pytest.mark.parametrize(
    "settings",
    [
        {"PIP_INDEX_URL": NOWHERE},
        {"PIP_INDEX_URL": NOWHERE, "PIP_QUIET": "3"},
        {"UV_DEFAULT_INDEX": NOWHERE},
        {"PIP_INDEX_URL": "https://nowhere.invalid/simple"},
        {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/nowhere/wheels"},
        {"PIP_INDEX_URL": "file:///nowhere/simple"},
    ],
)
def test_index_that_cannot_be_reached_is_named(tree, monkeypatch, settings):
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    url = list(settings.values())[-1] if "PIP_NO_INDEX" in settings else None
    url = url or settings.get("UV_DEFAULT_INDEX") or settings["PIP_INDEX_URL"]
    with pytest.raises(BuildError, match=f"index cannot be reached: .*{url}"):
        fetch_upstream(tree)


def test_host_that_pip_does_not_trust_is_named(tree, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", "http://nowhere.invalid/simple")
    with pytest.raises(BuildError, match=r"nowhere.invalid \(.*--trusted-host"):
        fetch_upstream(tree)


def test_index_that_fails_is_named(tree, index, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", f"{index[0]}/broken")
    with pytest.raises(BuildError, match="cannot be reached: .*/broken/ray/.*503"):
        fetch_upstream(tree)


def test_mirror_that_cannot_be_reached_is_named_beside_one_that_can(
    tree, index, monkeypatch
):
    monkeypatch.setenv("PIP_INDEX_URL", NOWHERE)
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", index[0])
    made_up.pin(tree, [next((tree.root.parent / "index").glob("*.whl"))], "9.9.9")
    with pytest.raises(
        BuildError, match="ray 9.9.9 .*cannot be reached: .*127.0.0.1:9"
    ):
        fetch_upstream(tree)


def test_index_without_the_wheel_is_not_called_unreachable(
    tree, index, monkeypatch, tmp_path
):
    monkeypatch.setenv("PIP_INDEX_URL", f"{index[0]}/nothing")
    with pytest.raises(BuildError, match="there is no wheel of ray"):
        fetch_upstream(tree)
    (tmp_path / "simple").mkdir()
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "simple").as_uri())
    with pytest.raises(BuildError, match="there is no wheel of ray"):
        fetch_upstream(tree)


# Which frontend it is


@pytest.mark.parametrize(
    "command, name, arguments",
    [
        ("/usr/bin/python3.12 -m pip wheel .", "pip", "wheel ."),
        ("python -Im pip wheel .", "pip", "wheel ."),
        ("python -I -X dev -m pip wheel .", "pip", "wheel ."),
        ("/v/bin/python /v/bin/pip3.12 wheel .", "pip", "wheel ."),
        ("python /v/site-packages/pip/__pip-runner__.py install x", "pip", "install x"),
        ("python.exe C:/v/pip/__main__.py install", "pip", "install"),
        ("/home/me/.local/bin/uv build --wheel", "uv", "build --wheel"),
        ("python -m build .", "build", "."),
        ("python /v/bin/pyproject-build", "build", ""),
        ("python setup.py pip", None, ""),
        ("bash -c pip", None, ""),
        ("python -c pip", None, ""),
        ("python", None, ""),
        ("", None, ""),
    ],
)
def test_frontend_is_told_by_its_command_line(command, name, arguments):
    assert frontend(command.split()) == (name, arguments.split())


def asked_of(command, environment=None, folder="/"):
    process = Process(command.split(), Path(folder))
    shell = Process(["bash"], Path("/"))
    return sources(environment or {"XDG_CONFIG_HOME": "/nowhere"}, [shell, process])


def test_options_of_pip_are_handed_on():
    options = "--index-url http://a --trusted-host a --proxy b --no-cache-dir"
    command = f"pip install -U {options} -w dist --no-deps -e . x"
    assert asked_of(command) == [Source(options.split())]
    assert asked_of("pip install .") == [Source([])]


def test_nearest_frontend_counts():
    pip = Process("pip install -i http://a .".split(), Path("/"))
    uv = Process("uv run --index-url http://b tox".split(), Path("/"))
    assert sources({}, [pip, uv]) == [Source(["--index-url", "http://a"])]


def test_folders_are_those_of_the_frontend(tmp_path):
    (tmp_path / "wheels").mkdir()
    wheels = str(tmp_path / "wheels")
    assert asked_of("pip install -f wheels .", folder=tmp_path) == [
        Source(["--find-links", wheels])
    ]
    assert asked_of("uv build --default-index wheels", folder=tmp_path) == [
        Source([], wheels)
    ]


def test_uv_asks_one_index_after_the_other():
    environment = {"UV_INDEX": "https://b https://c", "UV_DEFAULT_INDEX": "https://d"}
    assert [s.index for s in asked_of("uv build", environment)] == [
        "https://b",
        "https://c",
        "https://d",
    ]
    assert [s.index for s in asked_of("uv build --index https://a", environment)] == [
        "https://a",
        "https://d",
    ]
    assert [s.index for s in asked_of("uv build", {"UV_INDEX": "https://b"})] == [
        "https://b",
        None,
    ]


def test_plain_http_index_of_uvs_is_trusted():
    assert asked_of("uv build --index mine=http://me:x@a:80/simple") == [
        Source(["--trusted-host", "a:80"], "http://me:x@a:80/simple"),
        Source(["--trusted-host", "a:80"]),
    ]


def test_login_of_an_index_of_uvs_is_found():
    environment = {
        "UV_INDEX": "my-own.mirror=https://a/simple",
        "UV_INDEX_MY_OWN_MIRROR_USERNAME": "me",
        "UV_INDEX_MY_OWN_MIRROR_PASSWORD": "p@ss",
        "UV_DEFAULT_INDEX": "https://b/simple?a=b",
    }
    assert [s.index for s in asked_of("uv build", environment)] == [
        "https://me:p%40ss@a/simple",
        "https://b/simple?a=b",
    ]


@pytest.mark.parametrize(
    "command, environment",
    [
        ("uv build --offline --index-url http://a", {}),
        ("uv build", {"UV_NO_INDEX": "1", "UV_INDEX_URL": "http://a"}),
    ],
)
def test_without_an_index_none_is_asked(command, environment):
    assert asked_of(command, environment) == [Source(["--no-index"])]


def test_processes_above_are_seen(monkeypatch):
    pytest_itself = [sys.executable, *sys.orig_argv[1:]]
    command = [sys.executable, "-m", "processes_above"]
    program = "from build_backend.processes import ancestors; print(next(ancestors()))"
    command = [sys.executable, "-c", program]
    root = Path(processes.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert pytest_itself[-1] in done.stdout, done.stderr
    assert str(Path.cwd()) in done.stdout


@pytest.mark.skipif(not Path("/bin/ps").exists(), reason="there is no ps")
def test_processes_are_seen_without_proc(monkeypatch):
    monkeypatch.setattr(processes.os.path, "isdir", lambda path: False)
    monkeypatch.setenv("PWD", "/somewhere")
    first = next(processes.ancestors())
    assert first.arguments and first.folder == Path("/somewhere")


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
