"""Lays the patches, the new files and the tests out as commits for Ray's repository.

Written are what `git am` takes, the targets for Ray's BUILD file, and a page that says
what a person has to do: Ray takes such work only from somebody who has reviewed each
line, has run the tests and signs the commits off. That is not done here.
"""

import ast
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from build_backend.errors import BuildError
from build_backend.tree import HERE, SOURCE_PREFIX, read_new_files
from ci.lib.console import ROOT
from ci.lib.git import Git
from ci.lib.series import Upstream, lay_patches, lay_upstream, read_patches

TESTS = "python/ray/tune/tests"
# Tests of this repository's own tools, and their helpers.
OURS = (
    "conftest.py",
    "made_up_release.py",
    "stock_state",
    "test_bazel_targets.py",
    "test_patch*.py",
    "test_pull_request.py",
    "test_red.py",
    "test_stock_state.py",
    "test_upstream*.py",
    "test_wheel*.py",
)
MARKS = ("fixes", "ray", "hang")

FIXTURE = """

@pytest.fixture(scope="module")
def ray_start_2_cpus():
    yield ray.init(num_cpus=2, include_dashboard=False)
    ray.shutdown()
"""

GUIDE = """\
# For a pull request to Ray

{count} commits for a clone of Ray that stands at the release {version}:

    git checkout -b tune-repaired ray-{version}
    git am {folder}/*.patch

Then bring the branch up to Ray's master (`git rebase master`), and:

1. Review each line. Whoever opens the pull request answers for all of it.
2. Add the targets of BUILD.bazel.txt to python/ray/tune/BUILD.bazel.
3. Add public classes to the API reference (doc/source/tune/api/schedulers.rst) and to
   the key concepts; Ray's lint fails on a public class without an entry.
4. Run the tests (`python -m pytest python/ray/tune/tests/test_...`) and Ray's lint
   (`pre-commit run --all-files`).
5. Sign the commits off (`git rebase --signoff master`): the Developer Certificate of
   Origin is a person's word, so these commits carry no sign-off.

The controller's fixes and the scheduler can go as pull requests of their own: every
commit here brings the new files that it needs.
{by_hand}"""

TARGET = """\
py_test(
    name = "{name}",
    size = "{size}",
    srcs = ["tests/{name}.py"],
    env = {{"RAY_TRAIN_V2_ENABLED": "1"}},
    tags = [
        "exclusive",
        "team:ml",
    ],
    deps = [":tune_lib"],
)
"""


def upstream_message(text):
    """Turns the message of a patch into that of a commit of Ray's.

    Args:
        text: The message, with the fields `Bug:` and `Forwarded:` at its end.

    Returns:
        The message with `[tune]` for `tune:` and `Closes` lines for the bugs.
    """
    subject, _, body = text.partition("\n")
    part, colon, rest = subject.partition(": ")
    if colon and not subject.startswith("["):
        subject = f"[{part}] {rest[:1].upper()}{rest[1:]}"
    issues = re.findall(r"^Bug: \S*/issues/(\d+)", body, re.MULTILINE)
    body = re.sub(r"^(Bug|Forwarded|Origin): .*\n?", "", body, flags=re.MULTILINE)
    closes = "".join(f"Closes ray-project/ray#{issue}\n" for issue in issues)
    return "\n\n".join(filter(None, [subject, body.strip(), closes.strip()])) + "\n"


def place_new_files(patches, new_files):
    """Finds the commit that each new file has to come with.

    Args:
        patches: The text of each patch, in order.
        new_files: The text of each new file by its path in Ray's repository.

    Returns:
        The index of a patch by path: the first that names the module, directly or
        through another new file. For one that none names, the number of patches.
    """
    places = {}
    for path in new_files:
        word = re.compile(rf"\b{re.escape(Path(path).stem)}\b")
        places[path] = len(patches)
        for index, text in enumerate(patches):
            added = re.findall(r"^\+(?!\+\+ ).*", text, re.MULTILINE)
            if any(word.search(line) for line in added):
                places[path] = index
                break
    moved = True
    while moved:
        moved = False
        for path, text in new_files.items():
            imports = " ".join(
                re.findall(r"^\s*(?:from|import) .*", text, re.MULTILINE)
            )
            for other in new_files:
                if places[other] > places[path] and re.search(
                    rf"\b{re.escape(Path(other).stem)}\b", imports
                ):
                    places[other] = places[path]
                    moved = True
    return places


def _is_ours(node):
    return re.match(rf"pytest\.mark\.({'|'.join(MARKS)})\b", ast.unparse(node))


def upstream_test(text, helpers):
    """Turns a test file, or a helper of tests, into one that fits Ray's repository.

    Args:
        text: The file.
        helpers: Names of the modules in tests/ that are no tests.

    Returns:
        The text without this repository's marks, with helpers imported from where
        they lie in Ray, and with the fixture that conftest.py gives here.
    """
    tree = ast.parse(text)
    gone = set()
    for node in ast.walk(tree):
        for decorator in getattr(node, "decorator_list", []):
            if _is_ours(decorator):
                gone.update(range(decorator.lineno, decorator.end_lineno + 1))
        if isinstance(node, ast.Assign) and _is_ours(node.value):
            gone.update(range(node.lineno, node.end_lineno + 1))
    lines = [
        line
        for number, line in enumerate(text.splitlines(keepends=True), 1)
        if number not in gone
    ]
    text = "".join(lines)
    names = "|".join(MARKS)
    text = re.sub(rf",\s*marks=pytest\.mark\.(?:{names})(?:\([^()]*\))?", "", text)
    for helper in helpers:
        text = re.sub(
            rf"^(\s*)from {helper}\b",
            rf"\1from ray.tune.tests.{helper}",
            text,
            flags=re.M,
        )
        text = re.sub(
            rf"^(\s*)import {helper}$",
            rf"\1from ray.tune.tests import {helper}",
            text,
            flags=re.M,
        )
    uses = any(
        isinstance(node, ast.arg) and node.arg == "ray_start_2_cpus"
        for node in ast.walk(tree)
    )
    if uses:
        text = _with_fixture(text)
    return text


def _with_fixture(text):
    body = ast.parse(text).body
    imports = [n for n in body if isinstance(n, (ast.Import, ast.ImportFrom))]
    end = max(node.end_lineno for node in imports)
    lines = text.splitlines(keepends=True)
    has_ray = any(
        isinstance(node, ast.Import) and any(a.name == "ray" for a in node.names)
        for node in imports
    )
    extra = FIXTURE if has_ray else "import ray\n" + FIXTURE
    return "".join(lines[:end]) + extra + "".join(lines[end:])


def read_tests():
    """Returns the test files and helpers that go to Ray, by path below tests/."""
    folder = ROOT / "tests"
    files = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        ours = any(Path(name.parts[0]).match(pattern) for pattern in OURS)
        if path.is_file() and "__pycache__" not in name.parts and not ours:
            files[name.as_posix()] = path.read_text()
    helpers = {
        Path(name).parts[0].removesuffix(".py")
        for name in files
        if not Path(name).parts[0].startswith("test_")
    }
    return {
        name: upstream_test(text, sorted(helpers)) if name.endswith(".py") else text
        for name, text in files.items()
    }


def read_sizes():
    """Returns the size of each target in BUILD.bazel by its name."""
    sizes = {}
    for node in ast.parse((ROOT / "BUILD.bazel").read_text()).body:
        call = getattr(node, "value", None)
        if isinstance(call, ast.Call) and call.func.id == "tune_test":
            values = {keyword.arg: keyword.value for keyword in call.keywords}
            sizes[values["name"].value] = values["size"].value
    return sizes


def _commit(git, message, author=None, date=None):
    git.run("add", "--all")
    options = []
    if author:
        options += [f"--author={author}", f"--date={date}"]
    git.run(
        *("-c", "user.name=Nobody", "-c", "user.email=nobody@invalid"),
        *("commit", "--quiet", "--allow-empty", "--file=-", *options),
        stdin=message.encode(),
    )


def _write(folder, files):
    for path, text in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


def _tidy(folder):
    """Sorts imports and formats, since names of modules have become longer."""
    config = f"--config={ROOT / 'pyproject.toml'}"
    ruff = [sys.executable, "-m", "ruff"]
    for command in (["check", "--select=I", "--fix"], ["format"]):
        subprocess.run(
            [*ruff, *command, "--quiet", "--no-cache", config, str(folder)], check=True
        )


def export(output):
    """Writes the commits, the targets and the guide to a folder.

    Args:
        output: The folder; what an earlier run has left there is replaced.
    """
    upstream = Upstream.read(HERE)
    patches = read_patches(HERE)
    new_files = {
        SOURCE_PREFIX + name: path.read_text()
        for name, path in read_new_files(HERE).items()
    }
    places = place_new_files(list(patches.values()), new_files)
    tests = read_tests()

    with tempfile.TemporaryDirectory(prefix="pull-request-") as temporary:
        folder = Path(temporary) / "ray"
        folder.mkdir()
        git = Git(folder)
        git.run("init", "--quiet", "--template=", "--initial-branch=laid")
        base = lay_upstream(git, upstream)
        lay_patches(git, upstream, patches)
        laid = git.text("rev-list", "--reverse", f"{base}..HEAD").split()
        git.run("checkout", "--quiet", "-B", "main", base)
        for index, commit in enumerate(laid):
            git.run("checkout", "--quiet", commit, "--", ".")
            _write(folder, {p: t for p, t in new_files.items() if places[p] == index})
            author, date, text = git.text(
                "log", "-1", "--format=%an <%ae>%x00%ad%x00%B", commit
            ).split("\0")
            _commit(git, upstream_message(text), author, date)
        rest = {p: t for p, t in new_files.items() if places[p] == len(patches)}
        if rest:
            _write(folder, rest)
            names = "\n".join(sorted(rest))
            _commit(git, f"[tune] Add what stands on its own\n\n{names}\n")
        _write(folder, {f"{TESTS}/{name}": text for name, text in tests.items()})
        _tidy(folder / TESTS)
        _commit(git, "[tune] Test the controller, the schedulers and the searchers\n")

        shutil.rmtree(output, ignore_errors=True)
        output.mkdir(parents=True)
        git.run("format-patch", "--quiet", "-o", str(output), f"{base}..main")
        _check(git, base, output)

    sizes = read_sizes()
    names = [Path(name).stem for name in tests if Path(name).match("test_*.py")]
    (output / "BUILD.bazel.txt").write_text(
        "\n".join(
            TARGET.format(name=name, size=sizes.get(name, "medium")) for name in names
        )
    )
    by_hand = [
        name
        for name, text in tests.items()
        if re.search(rf"pytest\.mark\.({'|'.join(MARKS)})\b", text)
    ]
    count = len(list(output.glob("*.patch")))
    (output / "README.md").write_text(
        GUIDE.format(
            count=count,
            version=upstream.version,
            folder=output,
            by_hand="\nMarks that are left to take out by hand:\n"
            + "".join(f"- tests/{name}\n" for name in by_hand)
            if by_hand
            else "",
        )
    )
    print(f"{output}: {count} commits, {len(names)} test targets.")
    print("Nothing is signed off: README.md there says what is left to a person.")


def _check(git, base, output):
    """Demands that `git am` makes of the files what they were made from."""
    wanted = git.text("rev-parse", "main^{tree}")
    git.run("checkout", "--quiet", "-B", "again", base)
    git.run(
        *("-c", "user.name=Nobody", "-c", "user.email=nobody@invalid"),
        *("am", "--quiet", *map(str, sorted(output.glob("*.patch")))),
    )
    if git.text("rev-parse", "again^{tree}") != wanted:
        raise BuildError(f"{output}: `git am` makes something else of it")


if __name__ == "__main__":
    try:
        export(Path(sys.argv[1]))
    except BuildError as error:
        sys.exit(f"error: {error}")
