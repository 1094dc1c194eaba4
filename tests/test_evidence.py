"""What the explorer notices: known faults of stock Ray, and patches taken out."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from virtual_cluster.evidence import patches
from virtual_cluster.evidence.known_faults import KNOWN_FAULTS, search

from ray.tune import schedulers

# Those that take the explorer seconds. `ci/explore --known-faults --stock` looks for
# all of them, two minutes each.
QUICK = (
    "hyperband-saving",
    "hyperband-early-end",
    "pbt-synch-failure",
    "pbt-synch-step",
    "max-concurrent-basic",
    "max-concurrent-limiter",
    "two-saves",
    "pause-pending",
)


def case(rule, events=10, **kwargs):
    return {
        "workload": "fifo",
        "seed": 1,
        "rule": rule,
        "what": "",
        "events": events,
        "ignore": [],
        **kwargs,
    }


def git(folder, *words):
    name = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    subprocess.run(["git", *name, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def tree(tmp_path):
    """A series of two patches of different files, and one that builds on the first."""
    git(tmp_path, "init", "-q")
    for subject, name, text in [
        ("base", "a", "1\n2\n3\n"),
        ("first", "a", "1\ntwo\n3\n"),
        ("second", "b", "1\n"),
        ("third", "a", "1\ntwo and more\n3\n"),
    ]:
        (tmp_path / name).write_text(text)
        git(tmp_path, "add", "-A")
        git(tmp_path, "commit", "-q", "-m", subject)
    return str(tmp_path)


def work_of(monkeypatch, cases, outcomes):
    """Let the workers find these cases; with the patch these outcomes come of them."""
    seen = []

    def work(folder, **order):
        content = {
            name: Path(folder, name).read_text() if Path(folder, name).exists() else ""
            for name in ("a", "b")
        }
        seen.append((order["mode"], content))
        if order["mode"] == "replay":
            return {"outcomes": outcomes}
        return {"runs": 5, "next_seed": order["seed"] + 5, "cases": cases}

    monkeypatch.setattr(patches, "_work", work)
    return seen


def verdict_of(tree, subject, seconds=0.2):
    [commit] = [c for c, s in patches.commits(tree) if s == subject]
    return patches.take_out(tree, commit, subject, seconds)


def test_commits_are_in_order(tree):
    assert [s for _, s in patches.commits(tree)] == ["first", "second", "third"]


@pytest.mark.parametrize(
    "outcome, noticed",
    [
        ((None, 30), True),  # whole
        (("hang", 30), True),  # another invariant, later
        (("hang", 10), False),  # at the same event
        (("two-saves", 30), False),  # the same invariant
    ],
)
def test_what_counts_as_noticed(monkeypatch, tree, outcome, noticed):
    work_of(monkeypatch, [case("two-saves")], [outcome])
    verdict = verdict_of(tree, "second")
    assert verdict.noticed == noticed
    assert ("two-saves (fifo, seed 1)" in verdict.line()) == noticed


def test_name_that_the_patch_brings_is_no_evidence(monkeypatch, tree):
    # Later patches may use it. The series up to the patch does not.
    seen = work_of(monkeypatch, [case("crash:AttributeError")], [(None, 30)])
    verdict = verdict_of(tree, "second")
    assert verdict.noticed and verdict.how == "with all that come after"
    assert seen[0] == ("explore", {"a": "1\ntwo and more\n3\n", "b": ""})
    assert seen[-1] == ("replay", {"a": "1\ntwo\n3\n", "b": "1\n"})


def test_full_storage_is_no_evidence(monkeypatch, tree):
    work_of(monkeypatch, [case("crash:OSError")], [(None, 30)])
    verdict = verdict_of(tree, "second")
    assert not verdict.noticed
    assert "NOT NOTICED" in verdict.line()


@pytest.mark.parametrize(
    "file, users",
    [
        ("tune/schedulers/pb2.py", ["pb2", "pb2-synch"]),
        ("tune/search/hebo/hebo_search.py", ["milestones", "searchers"]),
        ("tune/experiment/trial.py", None),  # all kinds
    ],
)
def test_kinds_that_use_a_file(monkeypatch, tree, file, users):
    path = Path(tree, "python", "ray", file)
    path.parent.mkdir(parents=True)
    path.write_text("")
    git(tree, "add", "-A")
    git(tree, "commit", "-q", "-m", "fourth")
    assert patches._users(tree, "HEAD") == users


def test_patch_is_taken_out_alone_if_it_can_be(monkeypatch, tree):
    seen = work_of(monkeypatch, [case("hang")], [(None, 30)])
    assert verdict_of(tree, "second").how == "alone"
    assert seen == [
        ("explore", {"a": "1\ntwo and more\n3\n", "b": ""}),
        ("replay", {"a": "1\ntwo and more\n3\n", "b": "1\n"}),
    ]


def test_patch_that_others_build_on_is_compared_with_the_series_before(
    monkeypatch, tree
):
    seen = work_of(monkeypatch, [case("hang")], [(None, 30)])
    assert verdict_of(tree, "first").how == "with all that come after"
    assert seen == [
        ("explore", {"a": "1\n2\n3\n", "b": ""}),
        ("replay", {"a": "1\ntwo\n3\n", "b": ""}),
    ]


def test_tree_that_does_not_run_is_told(monkeypatch, tree):
    error = {"error": "cannot run: SyntaxError"}
    monkeypatch.setattr(patches, "_work", lambda folder, **order: error)
    verdict = verdict_of(tree, "third")
    assert not verdict.noticed and verdict.rule == "cannot run: SyntaxError"


def test_checkout_is_left_as_it_was(monkeypatch, tree):
    work_of(monkeypatch, [case("hang")], [(None, 30)])
    verdict_of(tree, "second")
    worktrees = subprocess.run(
        ["git", "worktree", "list"], cwd=tree, capture_output=True, text=True
    ).stdout
    assert len(worktrees.splitlines()) == 1
    assert sorted(os.listdir(tree)) == [".git", "a", "b"]


def test_known_faults_have_names():
    names = [known.name for known in KNOWN_FAULTS]
    assert len(set(names)) == len(names) == 13
    assert set(QUICK) < set(names)


@pytest.mark.skipif(
    hasattr(schedulers, "ASHAv2"), reason="The patched build has none of these faults."
)
@pytest.mark.parametrize("name", QUICK)
def test_known_fault_is_found_and_shrunk(name):
    (known,) = (known for known in KNOWN_FAULTS if known.name == name)
    hit = search(known, seconds=60)
    assert hit.seconds is not None, f"not found in {hit.runs} runs"
    assert hit.events <= 12, hit.test
    assert hit.test.startswith("def test_")


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
