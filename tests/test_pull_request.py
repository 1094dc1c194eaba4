"""`ci/pull-request` lays requests of the plan on a checkout of Ray."""

import sys
from pathlib import Path

import made_up_release as made_up
import pytest
from made_up_release import CHANGED_NUMBERS, NUMBERS_PATH, run_git
from test_pull_request_plan import PLAN

from build_backend.errors import BuildError
from ci.lib import pull_request, requests
from ci.lib.requests import DocsLine
from ci.lib.series import Upstream

TEST_PATH = "python/ray/tune/tests/test_extra.py"
DOCS = "Title\n\n    Numbers\n    Others\n"
BUILD = """\
load("//bazel:python.bzl", "doctest")

py_test(
    name = "test_api",
    size = "large",
    srcs = ["tests/test_api.py"],
    deps = [":tune_lib"],
)

py_test(
    name = "test_var",
    srcs = ["tests/test_var.py"],
)

py_test(
    name = "test_caching",
    size = "small",
    srcs = ["tests/execution/test_caching.py"],
)
"""


@pytest.fixture
def tree(tmp_path):
    tree = made_up.make_tree(tmp_path)
    made_up.add_two_patches(tree)
    made_up.add_new_file(tree, "ray/tune/extra.py", "x = 1\n")
    test = tree.root / requests.TESTS / TEST_PATH
    test.parent.mkdir(parents=True)
    test.write_text("def test_x():\n    pass\n")
    (tree.patches / requests.NAME).write_text(PLAN)
    return tree


@pytest.fixture
def checkout(tree, tmp_path):
    """A checkout of Ray as a person has it: all of it, and some commits further."""
    files = Upstream.read(tree).files
    files.update(
        {"doc/page.rst": DOCS.encode(), pull_request.BUILD_FILE: BUILD.encode()}
    )
    for path, data in files.items():
        target = tmp_path / "ray" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    numbers = tmp_path / "ray" / NUMBERS_PATH
    numbers.write_text("# One more line.\n" + numbers.read_text())
    run_git(tmp_path / "ray", "init", "--quiet", "--initial-branch=master")
    run_git(tmp_path / "ray", "add", "--all")
    run_git(tmp_path / "ray", "commit", "--quiet", "-m", "Ray")
    return tmp_path / "ray"


def export(tree, checkout, *names):
    return pull_request.export(tree, list(names), checkout, checkout.parent / "text")


def show(checkout, revision, path):
    return run_git(checkout, "show", f"tune-repaired/{revision}:{path}")


def test_each_request_becomes_a_branch(tree, checkout):
    export(tree, checkout)
    log = run_git(checkout, "log", "--format=%an: %s", "tune-repaired/second")
    assert log.splitlines() == [
        "Sender: [tune] Fix the sixteenth number",
        "Sender: [tune] Fix the fifteenth number",
        "Grace: Ray",
    ]
    assert show(checkout, "first", NUMBERS_PATH).strip() == (
        f"# One more line.\n{CHANGED_NUMBERS}".strip()
    )
    assert "n16b = 2" in show(checkout, "second", NUMBERS_PATH)
    assert show(checkout, "first", "python/ray/tune/extra.py").strip() == "x = 1"
    # The checkout itself stays as it was, with no other work tree.
    assert run_git(checkout, "status", "--porcelain").strip() == ""
    assert run_git(checkout, "branch", "--show-current").strip() == "master"
    assert len(run_git(checkout, "worktree", "list").splitlines()) == 1


def test_tests_targets_and_docs_come_with_the_request(tree, checkout):
    export(tree, checkout, "first")
    assert show(checkout, "first", TEST_PATH).startswith("def test_x()")
    build = show(checkout, "first", pull_request.BUILD_FILE)
    names = [line for line in build.splitlines() if "name = " in line]
    assert [name.split('"')[1] for name in names] == [
        *("test_api", "test_extra", "test_var", "test_caching")
    ]
    page = show(checkout, "first", "doc/page.rst")
    assert "    Numbers\n    More numbers\n    Others" in page
    with pytest.raises(AssertionError):
        show(checkout, "second", TEST_PATH)


def test_message_and_text_say_what_the_issues_are(tree, checkout):
    plan = PLAN.replace("Depends-On: first", "Depends-On: first\nCloses: 1")
    (tree.patches / requests.NAME).write_text(plan)
    export(tree, checkout)
    for name, said in (("first", "Related to #1"), ("second", "Closes #1")):
        message = run_git(checkout, "log", "-1", "--format=%B", f"tune-repaired/{name}")
        assert said in message
        for word in ("Bug:", "Forwarded:", "Signed-off-by"):
            assert word not in message
        text = (checkout.parent / "text" / f"{name}.md").read_text()
        assert said in text and "with the help of AI" in text and "--signoff" in text
    assert (
        f"python -m pytest -v {TEST_PATH}"
        in (checkout.parent / "text" / "first.md").read_text()
    )
    assert "`[tune] Fix the fifteenth number` has been merged" in text


def test_patch_that_does_not_fit_names_file_and_hunk(tree, checkout):
    numbers = checkout / NUMBERS_PATH
    numbers.write_text(numbers.read_text().replace("n15 = 15", "n15 = 16"))
    run_git(checkout, "commit", "--quiet", "--all", "-m", "Change")
    with pytest.raises(BuildError) as e:
        export(tree, checkout, "second")
    assert str(e.value).startswith(
        f"first does not fit this Ray: {NUMBERS_PATH}, hunk at line"
    )
    assert "-n15 = 15" in str(e.value)
    assert len(run_git(checkout, "worktree", "list").splitlines()) == 1


@pytest.mark.parametrize(
    "path, text, said",
    [
        (NUMBERS_PATH, None, f"does not fit this Ray: {NUMBERS_PATH}"),
        (TEST_PATH, "", f"first: {TEST_PATH} exists in this Ray already"),
        ("doc/page.rst", "Title\n", "has the line 'Numbers' 0 times, not once"),
        ("doc/page.rst", DOCS + DOCS, "has the line 'Numbers' 2 times, not once"),
        ("doc/page.rst", None, "this Ray has no doc/page.rst"),
        (pull_request.BUILD_FILE, "", "it has no target for a test in tests"),
    ],
)
def test_checkout_of_another_shape_is_refused(tree, checkout, path, text, said):
    if text is None:
        (checkout / path).unlink()
    else:
        (checkout / path).parent.mkdir(exist_ok=True)
        (checkout / path).write_text(text)
    run_git(checkout, "add", "--all")
    run_git(checkout, "commit", "--quiet", "-m", "Change")
    with pytest.raises(BuildError, match=said):
        export(tree, checkout)


def test_unknown_request_and_folder_without_git_are_refused(tree, checkout, tmp_path):
    with pytest.raises(BuildError, match="no request third"):
        export(tree, checkout, "third")
    with pytest.raises(BuildError, match="is no git checkout with a commit"):
        export(tree, tmp_path / "index")


@pytest.mark.parametrize(
    "source, neighbours",
    [
        ("tests/test_a.py", ("load", "test_api")),
        ("tests/test_b.py", ("test_api", "test_var")),
        ("tests/test_z.py", ("test_var", "test_caching")),
        ("tests/execution/test_d.py", ("test_caching", None)),
    ],
)
def test_target_is_put_where_its_name_belongs(source, neighbours):
    text = pull_request.add_target(BUILD, f"python/ray/tune/{source}")
    parts = text.split(f'py_test(\n    name = "{Path(source).stem}"')
    assert len(parts) == 2
    before, after = parts
    assert neighbours[0] in before.rstrip("\n").rpartition("\n\n")[2]
    following = after.partition(")\n\n")[2]
    assert neighbours[1] in following.partition("\n\n")[0] if neighbours[1] else True
    assert before.endswith("\n\n") and "\n\n\n" not in text


def test_target_that_is_there_is_refused():
    with pytest.raises(BuildError, match="has a target test_var already"):
        pull_request.add_target(BUILD, "python/ray/tune/tests/test_var.py")


def test_row_of_a_table_is_indented_as_its_rows_are():
    text = "   * - A\n     - B\n   * - C\n     - D\n"
    line = DocsLine("x.rst", "- B", r"\n* - X\n  - Y")
    assert pull_request.add_docs_line(text, line) == (
        "   * - A\n     - B\n   * - X\n     - Y\n   * - C\n     - D\n"
    )


def test_table_of_requests(tree):
    head, first, second = pull_request.list_requests(tree)
    assert head.startswith("request")
    assert first.split() == ["first", "5", "1"]
    assert second.split() == ["second", "3", "0", "first"]


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
