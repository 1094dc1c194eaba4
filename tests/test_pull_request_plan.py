"""`ci/patch verify` finds what is wrong with the plan of the pull requests."""

import sys

import made_up_release as made_up
import pytest

from build_backend.errors import BuildError
from build_backend.tree import HERE
from ci.lib import requests
from ci.lib.dependencies import find_neighbours
from ci.lib.series import Upstream, read_patches
from ci.lib.verify import verify

FIRST = "tune-right-the-fifteenth-number.patch"
SECOND = "tune-add-to-the-sixteenth.patch"
PLAN = f"""\
# A comment.
Request: first
Title: [tune] Fix the fifteenth number
Patches: {FIRST}
Files: python/ray/tune/extra.py
Tests: python/ray/tune/tests/test_extra.py
Docs:
 doc/page.rst | Numbers | More numbers

Request: second
Title: [tune] Fix the sixteenth number
Patches:
 {SECOND}
Depends-On: first
"""


@pytest.fixture
def tree(tmp_path):
    tree = made_up.make_tree(tmp_path)
    made_up.add_two_patches(tree)
    made_up.add_new_file(tree, "ray/tune/extra.py", "x = 1\n")
    test = tree.root / requests.TESTS / "python/ray/tune/tests/test_extra.py"
    test.parent.mkdir(parents=True)
    test.touch()
    return tree


def faults(tree, plan=PLAN):
    (tree.patches / requests.NAME).write_text(plan)
    return verify(tree)


def test_plan_is_read():
    first, second = requests.parse_plan(PLAN)
    assert first.name == "first" and first.patches == [FIRST]
    assert first.docs == [("doc/page.rst", "Numbers", "More numbers")]
    assert second.title == "[tune] Fix the sixteenth number"
    assert second.depends_on == ["first"]


@pytest.mark.parametrize(
    "plan, said",
    [
        ("Request: a\nWord: b\n", "pull-requests:2: 'Word: b' is no field"),
        ("Request: a\nRequest: b\n", "pull-requests:2: Request stands twice"),
        (" a.patch\n", "pull-requests:1: 'a.patch' belongs to no field"),
        ("Request: a\n", "lacks the field Request or Title"),
        ("Request: a\nTitle: b\nDocs:\n x | y\n", "is not path"),
    ],
)
def test_malformed_plan_names_the_line(plan, said):
    with pytest.raises(BuildError, match=said):
        requests.parse_plan(plan)


def test_plan_that_is_as_it_should_be(tree):
    assert faults(tree) == []


def test_dependency_without_which_a_patch_does_not_fit(tree):
    patches = read_patches(tree)
    upstream = Upstream.read(tree)
    assert find_neighbours(upstream.files, patches) == {FIRST: set(), SECOND: {FIRST}}
    (fault,) = faults(tree, PLAN.replace("Depends-On: first\n", ""))
    assert "second does not depend on first, but" in fault
    first, second = PLAN.removeprefix("# A comment.\n").split("\n\n")
    swapped = f"{second.replace('Depends-On: first', '')}\n{first}"
    (fault,) = faults(tree, swapped)
    assert "stands before that" in fault


@pytest.mark.parametrize(
    "old, new, said",
    [
        (f"Patches: {FIRST}", "Patches:", f"{FIRST} is in no request"),
        (f" {SECOND}", f" {SECOND}\n {FIRST}", f"{FIRST} is in first already"),
        (f" {SECOND}", f" {SECOND}\n none.patch", "there is no none.patch"),
        (f"Patches: {FIRST}", f"Patches: {SECOND} {FIRST}", "not in the order of"),
        ("Request: second", "Request: first", "first stands twice"),
        ("Depends-On: first", "Depends-On: third", "third, which is no request before"),
        ("Title: [tune] Fix the f", "Title: Fix the f", "does not have the form"),
        ("fifteenth number\n", "fifteenth number.\n", "ends in a full stop"),
        ("fifteenth number\n", f"{'long' * 20}\n", "is over 72 long"),
        (
            "Depends-On: first",
            "Depends-On: first\nCloses: 5",
            "none of its patches has",
        ),
        ("test_extra.py", "test_none.py", "there is no tests/upstream/python/"),
        ("tune/extra.py", "tune/none.py", "there is no python/ray/tune/none.py"),
        (
            "Files: python/ray/tune/extra.py\n",
            "",
            "no patch names python/ray/tune/extra",
        ),
    ],
)
def test_fault_is_found(tree, old, new, said):
    assert old in PLAN
    found = faults(tree, PLAN.replace(old, new, 1))
    assert any(said in fault for fault in found), found


def test_issue_is_closed_once_and_by_a_patch_that_has_it(tree):
    plan = PLAN.replace("Depends-On: first", "Depends-On: first\nCloses: 1")
    assert faults(tree, plan) == []
    plan = plan.replace("Files:", "Closes: 1\nFiles:")
    (fault,) = faults(tree, plan)
    assert fault.endswith("second closes #1, and so does first")


def test_large_request_says_why(tree):
    made_up.add_new_file(tree, "ray/tune/extra.py", "x = 1\n" * 400)
    (fault,) = faults(tree)
    assert "first changes" in fault and "say why in `Size:`" in fault
    plan = PLAN.replace("Files:", "Size: It has much to say.\nFiles:")
    assert faults(tree, plan) == []


def test_file_that_imports_what_comes_later(tree):
    made_up.add_new_file(tree, "ray/tune/extra.py", "from ray.tune.more import x\n")
    made_up.add_new_file(tree, "ray/tune/more.py", "x = 1\n")
    found = faults(
        tree, PLAN.replace("Depends", "Files: python/ray/tune/more.py\nDepends")
    )
    assert found == [
        "pull-requests: first: python/ray/tune/extra.py imports x from "
        "python/ray/tune/more.py, which has it later or never"
    ]


def test_plan_of_this_repository_names_every_patch():
    plan = requests.read_plan(HERE)
    named = [name for request in plan for name in request.patches]
    assert sorted(named) == sorted(read_patches(HERE))


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
