"""The patch tooling, with small made-up patches of a made-up release."""

import difflib
import os
import re
import shutil
import subprocess
import sys

import made_up_release as made_up
import pytest
from hypothesis import given, settings, strategies as st
from made_up_release import (
    CHANGED_NUMBERS,
    CONFIG_PATH,
    FILES,
    HEADER,
    NUMBERS,
    NUMBERS_PATH,
    ROOT,
    run_git,
)

from build_backend.errors import BuildError
from build_backend.patching import apply_patch, parse_patch
from build_backend.tree import HERE
from ci.commands import patch as command
from ci.lib.checkout import checkout, checkout_folder, export, rebase
from ci.lib.git import Git
from ci.lib.series import PATCHED_NAMES, slug
from ci.lib.verify import verify

FIRST = "tune-right-the-fifteenth-number.patch"
SECOND = "tune-add-to-the-sixteenth.patch"


@pytest.fixture
def tree(tmp_path):
    tree = made_up.make_tree(tmp_path)
    made_up.add_two_patches(tree)
    made_up.add_new_file(tree, "ray/tune/extra.py", "x = 1\n")
    return tree


@pytest.fixture
def laid(tree):
    """Lay the checkout, and return its folder."""
    checkout(tree)
    return checkout_folder(tree)


def stored(tree):
    """Return what `patches/` holds: the bytes by name."""
    return {path.name: path.read_bytes() for path in tree.patches.iterdir()}


def edit(folder, path, old, new):
    file = folder / path
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


MESSAGE = """\
tune: right the second number

It was wrong, as its users found. This is the right one.

Bug: none
Forwarded: no
"""


def commit_change(folder, message=MESSAGE, old="n2 = 2\n", new="n2 = 0\n", **options):
    edit(folder, NUMBERS_PATH, old, new)
    run_git(folder, "commit", "--quiet", "--all", "-m", message, **options)


def plain_clone(tree, tmp_path):
    """Make a repository as a person would: the upstream files, and one commit."""
    folder = tmp_path / "clone"
    folder.mkdir()
    run_git(folder, "init", "--quiet")
    for name, text in FILES.items():
        if name.startswith(("ray/tune", "ray/air")):
            path = folder / "python" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    run_git(folder, "add", "--all")
    run_git(folder, "commit", "--quiet", "-m", "Ray, as published")
    commit_change(folder)
    return folder


# The strict applier


X = "python/ray/tune/x.py"
HEAD = "--- a/python/ray/tune/x.py\n+++ b/python/ray/tune/x.py\n"
LINES = "a\nb\nc\nd\ne\n"


def apply(diff, text):
    patch = parse_patch("x.patch", f"diff --git a/{X} b/{X}\n{diff}")
    return apply_patch(patch, {X: text})[X]


@pytest.mark.parametrize(
    "hunks, before, after",
    [
        ("@@ -2,3 +2,3 @@\n b\n-c\n+C\n d\n", LINES, "a\nb\nC\nd\ne\n"),
        ("@@ -1,2 +1,3 @@\n+0\n a\n b\n", LINES, "0\n" + LINES),
        ("@@ -5 +5,2 @@\n e\n+f\n", LINES, LINES + "f\n"),
        ("@@ -0,0 +1,2 @@\n+a\n+b\n", "", "a\nb\n"),
        ("@@ -1,5 +0,0 @@\n-a\n-b\n-c\n-d\n-e\n", LINES, ""),
        ("@@ -1,2 +1,2 @@\n-a\n+A\n b\n@@ -4,2 +4 @@\n-d\n e\n", LINES, "A\nb\nc\ne\n"),
        (
            "@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+B\n",
            "a\nb",
            "a\nB\n",
        ),
        (
            "@@ -1,2 +1,2 @@\n a\n-b\n+B\n\\ No newline at end of file\n",
            "a\nb\n",
            "a\nB",
        ),
        ("@@ -1,2 +1,2 @@\n-a\n+A\n b\n\\ No newline at end of file\n", "a\nb", "A\nb"),
        ("@@ -1,2 +1,2 @@\n-a\r\n+A\r\n b\r\n", "a\r\nb\r\n", "A\r\nb\r\n"),
        ("@@ -1,3 +1,3 @@\n a\n-\x0c\n+x\n b\n", "a\n\x0c\nb\n", "a\nx\nb\n"),
        ("@@ -1,2 +1,2 @@\n-ä\u2028a\n+ö\n b\n", "ä\u2028a\nb\n", "ö\nb\n"),
    ],
)
def test_hunks_are_applied(hunks, before, after):
    assert apply(HEAD + hunks, before) == after


@pytest.mark.parametrize(
    "hunks, said",
    [
        # It matches one line further down: an offset.
        ("@@ -1,3 +1,3 @@\n b\n-c\n+C\n d\n", "hunk 1 of .*x.py .* at line 1: .*'b"),
        # Context that differs: fuzz.
        ("@@ -2,3 +2,3 @@\n B\n-c\n+C\n d\n", "at line 2: it expects 'B.*there is 'b"),
        ("@@ -2,3 +2,3 @@\n b\n-c\n+C\n d \n", "does not match at line 4"),
        ("@@ -4,3 +4,3 @@\n d\n-e\n+E\n f\n", "at line 6.*the end of the file"),
        ("@@ -90,2 +90,2 @@\n d\n-e\n+E\n", "at line 90.*the end of the file"),
        ("@@ -5 +5,2 @@\n e\n+f\n\\ No newline at end of file\n@@ -5 +6 @@\n-e\n+E\n",
         "hunk 2 .*overlaps the hunk before it"),
        ("@@ -2,3 +3,3 @@\n b\n-c\n+C\n d\n", "starts at line 3, but it is line 2"),
        ("@@ -2,3 +2,4 @@\n b\n-c\n+C\n d\n", "not a well-formed patch"),
        ("", "has no hunk"),
    ],
)  # fmt: skip
def test_mismatch_is_named(hunks, said):
    with pytest.raises(BuildError, match=said) as caught:
        apply(HEAD + hunks, LINES)
    assert "x.patch" in str(caught.value)


@pytest.mark.parametrize(
    "diff, said",
    [
        ("no diff here\n", "no `diff --git` line"),
        ("diff --git a/x b/x\nnew file mode 100644\n--- /dev/null\n+++ b/x\n"
         "@@ -0,0 +1 @@\n+a\n", "'new file mode'; put it into python/"),
        ("diff --git a/x b/x\ndeleted file mode 100644\n--- a/x\n+++ /dev/null\n"
         "@@ -1 +0,0 @@\n-a\n", "'deleted file mode'; edit lines only"),
        ("diff --git a/x b/y\nrename from x\nrename to y\n", "'rename from'"),
        ("diff --git a/x b/x\nold mode 100644\nnew mode 100755\n", "'old mode'"),
        ("diff --git a/x b/x\nBinary files a/x and b/x differ\n", "'Binary files'"),
        ("diff --git a/x b/y\n--- a/x\n+++ b/y\n@@ -1 +1 @@\n-a\n+b\n", "in place"),
        ("diff --git x x\n--- x\n+++ x\n@@ -1 +1 @@\n-a\n+b\n", "in place"),
    ],
)  # fmt: skip
def test_patch_that_does_more_than_edit_is_refused(diff, said):
    with pytest.raises(BuildError, match=said):
        parse_patch("x.patch", diff)


def test_unknown_file_is_named():
    diff = f"diff --git a/{X} b/{X}\n{HEAD}@@ -1 +1 @@\n-a\n+b\n"
    patch = parse_patch("x.patch", diff)
    with pytest.raises(BuildError, match=f"x.patch: upstream has no file {X}"):
        apply_patch(patch, {})


def test_removed_lines_that_look_like_headers_are_lines():
    before = "-- a comment\nx\n++ y\n"
    diff = HEAD + "@@ -1,3 +1,2 @@\n--- a comment\n x\n-++ y\n+--- z\n"
    assert apply(diff, before) == "x\n--- z\n"


TEXTS = st.lists(st.sampled_from(["a\n", "b\n", "\n", "  c\n", "-- d\n", "++ e\n"]))


@settings(max_examples=200, deadline=None)
@given(before=TEXTS, after=TEXTS)
def test_any_diff_is_applied_as_difflib_made_it(before, after):
    diff = "".join(difflib.unified_diff(before, after, f"a/{X}", f"b/{X}", n=1))
    if diff:
        assert apply(diff, "".join(before)) == "".join(after)


# Checkout


def test_checkout_is_upstream_with_a_commit_per_patch(tree, laid):
    subjects = run_git(laid, "log", "--reverse", "--format=%s").splitlines()
    assert subjects == [
        f"Ray {made_up.VERSION}: {PATCHED_NAMES} of the published wheel",
        "tune: right the fifteenth number",
        "tune: add to the sixteenth",
    ]
    root = run_git(laid, "rev-parse", "refs/patches/upstream").strip()
    listed = run_git(laid, "ls-tree", "-r", "--name-only", root).split()
    assert listed == sorted(
        f"python/{name}" for name in FILES if name.startswith(("ray/tune", "ray/air"))
    )
    assert run_git(laid, "show", f"{root}:{NUMBERS_PATH}") == NUMBERS
    assert "n15 = 0\nn16 = 1\nn16b = 2\n" in (laid / NUMBERS_PATH).read_text()
    who = run_git(laid, "log", "-1", "--format=%an <%ae> %ad").strip()
    assert who == "Ada Lovelace <ada@example.org> Fri Mar 1 10:20:30 2024 +0530"


def test_new_files_are_linked_and_ignored(tree, laid):
    link = laid / "python/ray/tune/extra.py"
    assert link.is_symlink() and link.read_text() == "x = 1\n"
    link.write_text("x = 2\n")
    assert (tree.new_files / "ray/tune/extra.py").read_text() == "x = 2\n"
    assert run_git(laid, "status", "--porcelain") == ""
    made_up.add_new_file(tree, "ray/tune/box/more.py", "")
    (tree.new_files / "ray/tune/extra.py").unlink()
    checkout(tree)
    assert not link.is_symlink()
    assert (laid / "python/ray/tune/box/more.py").is_symlink()
    assert run_git(laid, "status", "--porcelain") == ""


def test_checkout_twice_gives_the_same_commits(tree, laid):
    before = run_git(laid, "rev-parse", "HEAD")
    checkout(tree)
    assert run_git(laid, "rev-parse", "HEAD") == before


def test_checkout_follows_the_series(tree, laid):
    tree.series.write_text(FIRST + "\n")
    (tree.patches / SECOND).unlink()
    checkout(tree)
    assert "n16 = 16\n" in (laid / NUMBERS_PATH).read_text()
    assert run_git(laid, "rev-list", "--count", "HEAD").strip() == "2"


def test_checkout_of_a_bad_series_leaves_what_was_there(tree, laid):
    before = run_git(laid, "rev-parse", "HEAD")
    path = tree.patches / SECOND
    path.write_text(path.read_text().replace("-n16 = 16", "-n16 = 17"))
    with pytest.raises(BuildError, match=f"{SECOND}: hunk 1 of {NUMBERS_PATH}"):
        checkout(tree)
    assert run_git(laid, "rev-parse", "HEAD") == before
    assert run_git(laid, "status", "--porcelain") == ""


def test_first_checkout_of_a_bad_series_leaves_nothing(tree):
    path = tree.patches / SECOND
    path.write_text(path.read_text().replace("-n16 = 16", "-n16 = 17"))
    with pytest.raises(BuildError):
        checkout(tree)
    assert [p.name for p in (tree.root / "build").iterdir()] == ["upstream"]


def test_folder_that_is_no_checkout_is_not_touched(tree):
    folder = checkout_folder(tree)
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(BuildError, match="in the way"):
        checkout(tree, force=True)
    assert (folder / "notes.txt").read_text() == "mine"


def test_new_file_that_upstream_has_is_refused(tree):
    made_up.add_new_file(tree, "ray/tune/names.py", "")
    with pytest.raises(BuildError, match="python/ray/tune/names.py is a file that up"):
        checkout(tree)


def test_checkout_keeps_uncommitted_work(tree, laid):
    edit(laid, NUMBERS_PATH, "n2 = 2", "n2 = 0")
    (laid / "python/ray/tune/new.py").write_text("")
    with pytest.raises(BuildError, match="uncommitted changes.*--force"):
        checkout(tree)
    assert "n2 = 0" in (laid / NUMBERS_PATH).read_text()
    said = checkout(tree, force=True)
    [branch] = re.findall(r"branch (saved-\w+)", "\n".join(said))
    assert "n2 = 2" in (laid / NUMBERS_PATH).read_text()
    assert not (laid / "python/ray/tune/new.py").exists()
    assert "n2 = 0" in run_git(laid, "show", f"{branch}:{NUMBERS_PATH}")
    assert run_git(laid, "show", f"{branch}:python/ray/tune/new.py") == ""


def test_checkout_keeps_unexported_commits(tree, laid):
    commit_change(laid)
    tip = run_git(laid, "rev-parse", "HEAD").strip()
    with pytest.raises(BuildError, match="HEAD has commits that are not in patches/"):
        checkout(tree)
    run_git(laid, "checkout", "--quiet", "--detach", "refs/patches/laid")
    with pytest.raises(BuildError, match="heads/patches has commits"):
        checkout(tree)
    assert run_git(laid, "rev-parse", "patches").strip() == tip
    said = checkout(tree, force=True)
    assert any(f"saved-{tip[:12]}" in line for line in said)
    assert run_git(laid, "rev-parse", f"saved-{tip[:12]}").strip() == tip


def test_checkout_after_export_needs_no_force(tree, laid):
    commit_change(laid)
    export(tree)
    checkout(tree)
    # The same commits made anew, as a rebase does, are no work that could be lost.
    run_git(laid, "commit", "--quiet", "--amend", "--no-edit")
    checkout(tree)


def test_checkout_in_the_middle_of_a_rebase_is_refused(tree, laid):
    run_git(
        laid,
        "rebase",
        "--interactive",
        "HEAD~2",
        GIT_SEQUENCE_EDITOR="sed -i.bak s/^pick/edit/",
    )
    with pytest.raises(BuildError, match="rebase is in progress"):
        checkout(tree)
    with pytest.raises(BuildError, match="rebase is in progress"):
        export(tree)
    checkout(tree, force=True)
    assert Git(laid).operation() is None
    assert run_git(laid, "rev-parse", "HEAD") == run_git(
        laid, "rev-parse", "refs/patches/laid"
    )


# Export


def test_export_changes_nothing_when_nothing_changed(tree, laid):
    before = stored(tree)
    times = {path: path.stat().st_mtime_ns for path in tree.patches.iterdir()}
    assert export(tree) == ["2 patches, 0 files changed"]
    assert stored(tree) == before
    assert times == {path: path.stat().st_mtime_ns for path in tree.patches.iterdir()}


def test_export_writes_a_new_commit(tree, laid):
    before = stored(tree)
    commit_change(laid)
    export(tree)
    after = stored(tree)
    name = "tune-right-the-second-number.patch"
    assert after.pop("series") == f"{FIRST}\n{SECOND}\n{name}\n".encode()
    text = after.pop(name).decode()
    del before["series"]
    assert after == before
    assert text.startswith(
        "From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001\n"
        "From: Grace <grace@example.org>\nDate: "
    )
    assert "\nSubject: tune: right the second number\n\nIt was wrong" in text
    assert text.endswith("@@ -1,3 +1,3 @@\n n1 = 1\n-n2 = 2\n+n2 = 0\n n3 = 3\n")
    assert verify(tree) == []


def test_export_removes_and_renames(tree, laid):
    run_git(laid, "reset", "--quiet", "--hard", "HEAD~1")
    run_git(laid, "commit", "--quiet", "--amend", "-m", "tune: another subject")
    said = export(tree)
    assert set(stored(tree)) == {"series", "upstream.txt", "tune-another-subject.patch"}
    assert tree.series.read_text() == "tune-another-subject.patch\n"
    assert f"removed: patches/{FIRST}" in said


def test_export_follows_the_order_of_commits(tree, laid):
    run_git(laid, "reset", "--quiet", "--hard", "refs/patches/upstream")
    commit_change(laid)
    edit(laid, CONFIG_PATH, "return 1", "return 7")
    run_git(laid, "commit", "--quiet", "--all", "-m", "air: a later one")
    export(tree)
    names = ["tune-right-the-second-number.patch", "air-a-later-one.patch"]
    assert tree.series.read_text().split() == names


@pytest.mark.parametrize("zone", ["+0000", "-0330", "+1245", "-1100"])
def test_author_and_date_survive(tree, laid, zone):
    commit_change(
        laid,
        GIT_AUTHOR_NAME="Jürgen Ørsted, DSc",
        GIT_AUTHOR_EMAIL="jo@example.org",
        GIT_AUTHOR_DATE=f"1700000000 {zone}",
        message="tune: a long subject with ümlauts that goes on and on and on to 80\n\n"
        "Body — with “quotes”, a ü and\n\n    an indented line,\n\nand a last one.",
    )
    form = "--format=%an|%ae|%ad|%B"
    before = run_git(laid, "log", "-1", "--date=raw", form)
    export(tree)
    exported = stored(tree)
    (tree.root / "build/ray").rename(tree.root / "build/old")
    checkout(tree)
    assert run_git(laid, "log", "-1", "--date=raw", form) == before
    assert before.startswith(f"Jürgen Ørsted, DSc|jo@example.org|1700000000 {zone}|")
    export(tree)
    assert stored(tree) == exported


ODD_CONFIG = """\
[core]
	autocrlf = true
	quotepath = false
	attributesFile = %(home)s/attributes
[diff]
	noprefix = true
	algorithm = patience
	context = 7
	interHunkContext = 9
	mnemonicPrefix = true
	renames = copies
	external = false
[format]
	signature = mine
	subjectPrefix = MINE
	attach = true
	headers = X-Mine: yes
	signOff = true
	thread = deep
	to = you@example.org
	from = me@example.org
	useAutoBase = true
	notes = true
	coverLetter = true
	numbered = true
[color]
	ui = always
[log]
	showSignature = true
	date = relative
[i18n]
	logOutputEncoding = ISO-8859-1
"""


@pytest.mark.parametrize("place", ["home", "repository"])
def test_export_does_not_depend_on_configuration(
    tree, laid, tmp_path, monkeypatch, place
):
    commit_change(laid, GIT_AUTHOR_NAME="Jürgen", GIT_AUTHOR_DATE="1700000000 +0100")
    export(tree)
    before = stored(tree)
    home = tmp_path / "home"
    home.mkdir()
    (home / "attributes").write_text("*.py diff=python\n")
    odd = ODD_CONFIG % {"home": home}
    if place == "home":
        (home / ".gitconfig").write_text(odd)
        monkeypatch.setenv("HOME", str(home))
    else:
        with open(laid / ".git/config", "a") as file:
            file.write(odd)
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    monkeypatch.setenv("GIT_AUTHOR_NAME", "Somebody else")
    monkeypatch.setenv("LANG", "C")
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    export(tree)
    assert stored(tree) == before
    checkout(tree)
    assert verify(tree) == []


def test_export_from_another_clone(tree, tmp_path):
    clone = plain_clone(tree, tmp_path)
    export(tree, clone)
    assert tree.series.read_text() == "tune-right-the-second-number.patch\n"
    assert verify(tree) == []
    # The checkout made of it gives the same files and patches.
    checkout(tree)
    before = stored(tree)
    export(tree)
    assert stored(tree) == before


def test_export_of_another_revision(tree, tmp_path):
    clone = plain_clone(tree, tmp_path)
    export(tree, clone, rev="HEAD~1")
    assert tree.series.read_text() == ""
    with pytest.raises(BuildError, match="no git repository with a commit nowhere"):
        export(tree, clone, rev="nowhere")


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda f: edit(f, NUMBERS_PATH, "n9 = 9", "n9 = 0"), "numbers.py differs"),
        (lambda f: (f / CONFIG_PATH).unlink(), "config.py is missing"),
        (lambda f: (f / "README").write_text("x"), "README is not in the wheel"),
    ],
)
def test_clone_of_something_else_is_refused(tree, tmp_path, change, said):
    clone = plain_clone(tree, tmp_path)
    run_git(clone, "reset", "--quiet", "--hard", "HEAD~1")
    change(clone)
    run_git(clone, "add", "--all")
    run_git(clone, "commit", "--quiet", "--amend", "--no-edit")
    before = stored(tree)
    with pytest.raises(BuildError, match=f"first commit .*{said}"):
        export(tree, clone)
    assert stored(tree) == before


def test_folder_without_a_repository_is_refused(tree, tmp_path):
    with pytest.raises(BuildError, match="nowhere is no git repository"):
        export(tree, tmp_path / "nowhere")
    with pytest.raises(BuildError, match="lay it with `ci/patch checkout`"):
        export(tree)


def test_export_refuses_uncommitted_changes(tree, laid):
    before = stored(tree)
    (laid / "python/ray/tune/new.py").write_text("")
    with pytest.raises(BuildError, match="new.py.*belong in python/"):
        export(tree)
    export(tree, force=True)
    assert stored(tree) == before


def test_export_does_not_undo_what_others_did_to_patches(tree, laid):
    (tree.patches / SECOND).unlink()
    tree.series.write_text(FIRST + "\n")
    with pytest.raises(BuildError, match="patches/ has changed since"):
        export(tree)
    assert not (tree.patches / SECOND).exists()
    export(tree, force=True)
    assert (tree.patches / SECOND).exists()


def bad_new_file(folder):
    (folder / "python/ray/tune/new.py").write_text("x = 1\n")
    run_git(folder, "add", "--all")
    run_git(folder, "commit", "--quiet", "-m", "tune: a new file")


def bad_merge(folder):
    run_git(folder, "checkout", "--quiet", "-b", "side", "HEAD~1")
    commit_change(folder)
    run_git(folder, "merge", "--quiet", "--no-edit", "patches")


def bad_empty(folder):
    run_git(folder, "commit", "--quiet", "--allow-empty", "-m", "tune: nothing")


def bad_message(message):
    return lambda folder: commit_change(folder, message)


@pytest.mark.parametrize(
    "change, said",
    [
        (bad_new_file, "'new file mode'; put it into python/"),
        (bad_merge, "is a merge; a series is linear"),
        (bad_empty, r"\(tune: nothing\) changes nothing"),
        (bad_message("tune: add to the sixteenth"), "two commits would be tune-add-to"),
        (bad_message("tune: two\nlines\n\nBody."), "needs a subject, of one line"),
        (bad_message("tune: x\n\nAbove\n---\nbelow"), "come back.* line such as `---`"),
        (bad_message("tune: x\n\ndiff -u a b\n"), "does not come back.*`diff ...`"),
        (bad_message("...\n\nBody."), "no word to name a patch after"),
        (bad_message("tune: x\n\nFrom: you@example.org\n\nBody"), "does not come back"),
    ],
)
def test_commits_that_are_no_patches_are_refused(tree, laid, change, said):
    before = stored(tree)
    change(laid)
    with pytest.raises(BuildError, match=said):
        export(tree)
    assert stored(tree) == before


def test_git_am_makes_the_same_tree_of_the_patches(tree, laid, tmp_path):
    clone = plain_clone(tree, tmp_path)
    run_git(clone, "reset", "--quiet", "--hard", "HEAD~1")
    names = tree.series.read_text().split()
    run_git(clone, "am", "--quiet", *(str(tree.patches / name) for name in names))
    for folder in (clone, laid):
        run_git(folder, "config", "user.name", "unused")
    trees = {run_git(f, "rev-parse", "HEAD^{tree}") for f in (clone, laid)}
    assert len(trees) == 1
    form = "--format=%an %ae %ad %B"
    assert run_git(clone, "log", "-2", form) == run_git(laid, "log", "-2", form)


@pytest.mark.parametrize(
    "subject, name",
    [
        ("tune: decisions have an order", "tune-decisions-have-an-order"),
        ("tune: don't lose `TUNE_X_S`, ever", "tune-dont-lose-tune_x_s-ever"),
        ("air: ünïcode – and / slashes", "air-unicode-and-slashes"),
    ],
)
def test_file_name_is_made_of_the_subject(subject, name):
    assert slug(subject) == name + ".patch"


# Another release


def pin_next_release(tree, numbers, **changed):
    files = {**FILES, "ray/tune/numbers.py": numbers, **changed}
    wheel = made_up.make_wheel(tree.cache, files=files, version="1.2.4")
    made_up.pin(tree, [wheel], "1.2.4")


def test_commits_are_carried_over_to_another_release(tree, laid):
    who = "--format=%an %ae %ad %B"
    before = run_git(laid, "log", "-2", who)
    pin_next_release(tree, "n0 = 0\n" + NUMBERS)
    with pytest.raises(BuildError, match=f"{FIRST}: hunk 1 .* does not match"):
        checkout(tree)
    rebase(tree)
    assert run_git(laid, "log", "-2", who) == before
    export(tree)
    assert "@@ -15,3 +15,3 @@" in (tree.patches / FIRST).read_text()
    assert verify(tree) == []
    assert "already" in rebase(tree)[0]
    checkout(tree)


def test_patch_that_upstream_has_taken_is_dropped(tree, laid):
    config = FILES["ray/air/config.py"].replace("return 2", "return 3")
    pin_next_release(tree, CHANGED_NUMBERS, **{"ray/air/config.py": config})
    rebase(tree)
    export(tree)
    assert tree.series.read_text() == SECOND + "\n"
    assert verify(tree) == []


def test_carrying_over_can_be_taken_back(tree, laid):
    before = stored(tree)
    pin_next_release(tree, NUMBERS.replace("n15 = 15", "n15 = 99"))
    with pytest.raises(BuildError, match="rebase --abort"):
        rebase(tree)
    run_git(laid, "rebase", "--abort")
    with pytest.raises(BuildError, match="rebase --abort"):
        rebase(tree)
    run_git(laid, "rebase", "--abort")
    (tree.patches / "upstream.txt").write_bytes(before["upstream.txt"])
    export(tree)
    checkout(tree)
    assert stored(tree) == before


def test_conflict_is_left_to_the_person(tree, laid):
    pin_next_release(tree, NUMBERS.replace("n15 = 15", "n15 = 99"))
    with pytest.raises(BuildError, match="(?s)could not apply.*ci/patch export"):
        rebase(tree)
    with pytest.raises(BuildError, match="in progress"):
        rebase(tree)
    with pytest.raises(BuildError, match="in progress"):
        export(tree)
    text = re.sub(
        r"(?s)<<<<<<<.*>>>>>>>[^\n]*\n", "n15 = 0\n", (laid / NUMBERS_PATH).read_text()
    )
    (laid / NUMBERS_PATH).write_text(text)
    run_git(laid, "add", "--all")
    run_git(laid, "rebase", "--continue", GIT_EDITOR="true")
    export(tree)
    assert "-n15 = 99\n" in (tree.patches / FIRST).read_text()


def test_nothing_to_carry_over_is_said(tree):
    with pytest.raises(BuildError, match="while the old release is still pinned"):
        rebase(tree)


# Verify


def test_good_series_has_no_faults(tree):
    assert verify(tree) == []


def test_empty_series_has_no_faults(tmp_path):
    assert verify(made_up.make_tree(tmp_path)) == []


def replace(old, new, name=FIRST):
    def change(tree):
        path = tree.patches / name
        text = path.read_bytes().decode()
        assert old in text
        path.write_bytes(text.replace(old, new).encode())

    return change


BODY = "The fifteenth number was wrong, so sums were off. This is the right one.\n"
BUG = "Bug: https://github.com/ray-project/ray/issues/1\n"


def wide_context(tree):
    path = tree.patches / FIRST
    text = path.read_bytes().decode()
    text = text.replace("@@ -14,3 +14,3 @@", "@@ -13,5 +13,5 @@")
    text = text.replace(" n14 = 14\n", " n13 = 13\n n14 = 14\n")
    path.write_bytes(text.replace(" n16 = 16\n", " n16 = 16\n n17 = 17\n").encode())


def does_not_compile(tree):
    made_up.add_patch(
        tree,
        "tune: break the names",
        {"python/ray/tune/names.py": (FILES["ray/tune/names.py"], "'a'", "(")},
    )


def touches_another_package(tree):
    made_up.add_patch(
        tree,
        "core: the version",
        {"python/ray/__init__.py": (FILES["ray/__init__.py"], "1.2.3", "1.2.4")},
    )


def adds_a_file(tree):
    text = HEADER.format(subject="tune: a file")
    text += (
        "diff --git a/python/ray/tune/y.py b/python/ray/tune/y.py\n"
        "new file mode 100644\n--- /dev/null\n+++ b/python/ray/tune/y.py\n"
        "@@ -0,0 +1 @@\n+x = 1\n"
    )
    (tree.patches / "tune-a-file.patch").write_text(text)
    with open(tree.series, "a") as series:
        series.write("tune-a-file.patch\n")


def second_first(tree):
    tree.series.write_text(f"{SECOND}\n{FIRST}\n")


def new_subject(subject):
    return replace("tune: right the fifteenth number", subject)


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda t: (t.patches / SECOND).unlink(), f"there is no patches/{SECOND}"),
        (lambda t: t.series.write_text(FIRST + "\n"), f"{SECOND} is not in patches/se"),
        (
            lambda t: t.series.write_text(f"{FIRST}\n{SECOND}\n{FIRST}\n"),
            "listed twice",
        ),
        (lambda t: t.series.unlink(), "series is missing"),
        (lambda t: (t.patches / "x.orig").write_text(""), "x.orig is not a patch"),
        (lambda t: t.pin.unlink(), "upstream.txt is missing"),
        (
            new_subject("tune: another subject"),
            "its name is tune-another-subject.patch",
        ),
        (new_subject("tune: " + "long " * 20), "keep to 72"),
        (new_subject("Right the number"), r"not have the form `\[tune\] Fix X when Y`"),
        (new_subject("[tune] right it"), r"not have the form `\[tune\] Fix X when Y`"),
        (new_subject("[core] Right it"), r"not have the form `\[tune\] Fix X when Y`"),
        (new_subject("tune: right it."), "ends with a full stop"),
        (new_subject("fixup! tune: right it"), "--autosquash"),
        (replace("Subject: tune: right", "X: "), "header has no subject"),
        (replace("Date: Fri, 1 Mar 2024 10:20:30 +0530\n", ""), "has no date"),
        (replace("Fri, 1 Mar 2024 10:20:30 +0530", "today"), "'today' is not a date"),
        (replace("From: Ada Lovelace <ada@example.org>\n", ""), "has no author"),
        (replace(BODY, ""), "body does not say what was wrong"),
        (replace(BUG, ""), "no `Bug:` line"),
        (replace(BUG, "Bug: 12\n"), "`Bug: 12` is neither"),
        (replace("Forwarded: no\n", ""), "has 0 `Forwarded:` lines"),
        (replace("Forwarded: no", "Forwarded: maybe"), "`Forwarded: maybe` is not"),
        (replace("Forwarded: no\n", "Forwarded: no\nTests:\n"), "names no test"),
        (
            replace("Forwarded: no\n", "Forwarded: no\nTests: tests/test_gone.py::x\n"),
            "`Tests: tests/test_gone.py::x`: there is no such file",
        ),
        (wide_context, f"{FIRST}: export would change it"),
        (
            replace("\n n14 = 14", "\n n14 = 13"),
            "hunk 1 of .*numbers.py does not match",
        ),
        (replace("-14,3 +14,3", "-13,3 +13,3"), "does not match at line 13"),
        (replace("From 0000000000", "From 1234567890"), "export would change it"),
        (
            replace("\n n16 = 16\n", "\n n16 = 16\n-- \n2.39.5\n"),
            "export would|not a w",
        ),
        (does_not_compile, "tune-break-the-names.patch: .*names.py does not compile"),
        (
            touches_another_package,
            "upstream has no file python/ray/__init__.py|touches",
        ),
        (adds_a_file, "'new file mode'; put it into python/"),
        (second_first, f"{SECOND}: hunk 1 of {NUMBERS_PATH} does not match"),
        (
            lambda t: made_up.add_new_file(t, "ray/tune/names.py", ""),
            "python/ray/tune/names.py is a file that upstream has",
        ),
        (
            lambda t: made_up.add_new_file(t, "ray/util/x.py", ""),
            "python/ray/util/x.py is outside of ray/tune, ray/air and ray/train",
        ),
        (
            lambda t: made_up.add_new_file(t, "other/x.py", ""),
            "python/other/x.py is outside of python/ray/",
        ),
    ],
)
def test_each_fault_is_told(tree, change, said, capsys):
    change(tree)
    faults = verify(tree)
    assert any(re.search(said, fault) for fault in faults), faults
    assert command.main(["verify"], tree) == 1
    assert re.search(said, capsys.readouterr().err)


UPSTREAM_FORM = """\
[tune] Fix the second number when it is asked for

It was wrong, as its users found. This is the right one.

Bug: none
Forwarded: no
Tests: tests/test_numbers.py::test_second, tests/test_numbers.py
"""


def test_subject_and_fields_of_upstreams_form(tree, laid):
    (tree.root / "tests").mkdir()
    (tree.root / "tests" / "test_numbers.py").write_text("")
    commit_change(laid, UPSTREAM_FORM)
    export(tree)
    name = "tune-fix-the-second-number-when-it-is-asked-for.patch"
    assert tree.series.read_text() == f"{FIRST}\n{SECOND}\n{name}\n"
    assert verify(tree) == []
    checkout(tree)
    assert run_git(laid, "log", "-1", "--format=%B").strip() == UPSTREAM_FORM.strip()


def test_two_changes_two_lines_apart_share_their_context(tmp_path):
    tree = made_up.make_tree(tmp_path)
    made_up.add_patch(
        tree,
        "tune: right two numbers",
        {NUMBERS_PATH: (NUMBERS, "n5 = 5\nn6 = 6\nn7 = 7\nn8 = 8\n",
                        "n5 = 0\nn6 = 6\nn7 = 7\nn8 = 0\n")},
    )  # fmt: skip
    assert verify(tree) == []


def test_faults_are_all_told_at_once(tree):
    replace(BUG, "")(tree)
    replace("Forwarded: no\n", "", SECOND)(tree)
    (tree.patches / "x.orig").write_text("")
    assert len(verify(tree)) == 3


# The command


def run_command(tree, *arguments):
    """Run the command of a made-up tree, from a folder of its own."""
    if not (tree.root / "ci").exists():
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "ci", tree.root / "ci", ignore=ignored)
    return subprocess.run(
        [sys.executable, str(tree.root / "ci/patch"), *arguments],
        cwd=tree.root.parent,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_command_runs_from_any_folder(tree):
    for arguments in (["verify"], ["checkout"], ["export"], ["checkout", "--force"]):
        done = run_command(tree, *arguments)
        assert done.returncode == 0, done.stderr
        assert "2 patches" in done.stdout
    assert not list(tree.root.rglob("__pycache__"))


def test_command_says_what_is_wrong_and_fails(tree):
    (tree.patches / SECOND).unlink()
    for name in ("verify", "checkout"):
        done = run_command(tree, name)
        assert done.returncode == 1
        assert f"there is no patches/{SECOND}" in done.stderr
        assert "Traceback" not in done.stderr


def test_command_is_executable():
    assert os.access(ROOT / "ci/patch", os.X_OK)
    assert CHANGED_NUMBERS != NUMBERS


def test_series_of_this_repository_is_as_it_should_be():
    assert verify(HERE) == []


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
