"""Ray's lints find what is new in a file, and nothing that stock Ray has."""

import subprocess
import sys

import pytest

from ci.lib.console import ROOT
from ci.lib.environments import prepared

CLEAN = '''"""A module."""


def double(x: int) -> int:
    """Double a number.

    Args:
        x: The number.

    Returns:
        Twice the number.
    """
    return 2 * x
'''
# An old violation for each linter.
KNOWN = '''import sys
import os


def odd(x,y):
    """Tell something.

    Args:
        x: Any number.
    """
    return x
'''
BUILD = """\
py_test(
    name = "test_double",
    size = "small",
    srcs = ["tests/test_double.py"],
)
"""


@pytest.fixture(scope="module")
def linters():
    return prepared("venv-lint", "build", "lint")


@pytest.fixture
def lint(linters, tmp_path):
    def lint(ours, stock=None, build=BUILD):
        for name, text in (("stock", stock), ("ours", ours)):
            (tmp_path / name).mkdir()
            if text is not None:
                (tmp_path / name / "double.py").write_text(text)
        (tmp_path / "ours" / "BUILD.bazel").write_text(build)
        done = subprocess.run(
            [
                linters.python,
                "-m",
                "ci.lib.lint",
                tmp_path / "stock",
                tmp_path / "ours",
            ],
            cwd=ROOT,
            env=linters.variables(),
            capture_output=True,
            text=True,
        )
        found, linter = {}, None
        for line in done.stdout.splitlines():
            if line.startswith(" "):
                found[linter].append(line.strip())
            else:
                linter = line.partition(":")[0]
                found[linter] = []
        assert done.returncode == sum(map(bool, found.values())), done.stderr
        assert set(found) >= {"ruff", "black", "pydoclint", "buildifier"}, done.stderr
        return {name: lines for name, lines in found.items() if lines}

    return lint


def test_clean_file_has_no_violation(lint):
    assert not lint(CLEAN)


@pytest.mark.parametrize(
    "linter, old, new, said",
    [
        ("ruff", "\n\ndef", "\nimport os\n\n\ndef", "double.py:3: F401"),
        ("ruff", "\n\ndef", "\nimport b\nimport a\n\n\nc = a, b\n\n\ndef", "I001"),
        ("ruff", "2 * x", "dict([(2, x)])", "C406"),
        ("black", "2 * x", "2*x", "double.py:0: black would reformat it"),
        ("black", "2 * x", "(2 * x", "double.py:0: black would reformat it"),
        ("pydoclint", "        x: The number.\n", "        y: It.\n", "DOC103"),
        ("pydoclint", "        x: The number.\n", "        x (int): It.\n", "DOC111"),
        ("pydoclint", "\n    Returns:\n        Twice the number.\n", "", "DOC201"),
    ],
)
def test_violation_of_a_new_file_is_found(lint, linter, old, new, said):
    assert old in CLEAN
    found = lint(CLEAN.replace(old, new))
    assert any(said in line for line in found[linter]), found


def test_what_stock_has_does_not_count(lint):
    assert not lint(KNOWN + "\n\nadded = 1\n", stock=KNOWN)


def test_lines_may_move(lint):
    assert not lint(f'"""Said."""\n\n{KNOWN}', stock=KNOWN)


def test_one_more_of_a_kind_that_stock_has_is_found(lint):
    more = KNOWN.replace("import sys\n", "import sys\nimport json\nimport sys\n")
    found = lint(more, stock=KNOWN)
    assert any("`json` imported but unused" in line for line in found["ruff"])
    assert any("Redefinition of unused `sys`" in line for line in found["ruff"])


@pytest.mark.parametrize(
    "old, new, said",
    [
        ("    size", "  size", "# reformat"),
        ("srcs = [", "srcs = [1,", "# reformat"),
        (")\n", "    bad = 1 / 2,\n)\n", "integer-division"),
    ],
)
def test_buildifier_finds_form_and_faults(lint, old, new, said):
    found = lint(CLEAN, build=BUILD.replace(old, new))
    assert any(said in line for line in found["buildifier"]), found


@pytest.mark.parametrize("result, code", [(4, 0), (5, 1)])
def test_examples_in_docstrings_are_run(tmp_path, result, code):
    example = f"    >>> double(2)\n    {result}\n"
    file = tmp_path / "double.py"
    file.write_text(CLEAN.replace("    Args:", f"{example}\n    Args:"))
    command = [sys.executable, "-m", "ci.lib.doctests", file]
    assert subprocess.run(command, cwd=ROOT, capture_output=True).returncode == code


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
