"""BUILD.bazel has one target for each test file, and none for files that are gone."""

import ast
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SIZES = {"small", "medium", "large", "enormous"}


def _targets():
    """Returns the arguments of each tune_test, by its name."""
    # Of Starlark, BUILD files use only what is Python too.
    tree = ast.parse((ROOT / "BUILD.bazel").read_text())
    calls = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and node.value.func.id in ("tune_test", "py_test")
    ]
    targets = {}
    for call in calls:
        values = {keyword.arg: keyword.value for keyword in call.keywords}
        name = ast.literal_eval(values["name"])
        assert name not in targets, f"{name} is declared twice"
        targets[name] = values
    return targets


def _files():
    return {path.stem: path for path in (ROOT / "tests").glob("test_*.py")}


def _names(name, *wanted):
    """Tells whether the code of a test file uses one of some names."""
    for node in ast.walk(ast.parse(_files()[name].read_text())):
        if isinstance(node, ast.arg) and node.arg in wanted:
            return True
        if isinstance(node, ast.Attribute) and ast.unparse(node) in wanted:
            return True
    return False


def _starts_ray(name):
    return _names(name, "ray_start_2_cpus", "pytest.mark.ray", "ray.init")


def _stanza(name):
    tags = ['"cpu:2"'] if _starts_ray(name) else []
    tags += ['"hang"'] if _names(name, "pytest.mark.hang") else []
    tags = f"    tags = [{', '.join(tags)}],\n" if tags else ""
    return f'\ntune_test(\n    name = "{name}",\n    size = "medium",\n{tags})\n'


def test_every_file_has_a_target():
    missing = sorted(_files().keys() - _targets().keys())
    assert not missing, "missing in BUILD.bazel:\n" + "".join(map(_stanza, missing))


def test_every_target_has_a_file():
    assert not sorted(_targets().keys() - _files().keys()), "stale in BUILD.bazel"


def test_targets_are_sorted():
    assert list(_targets()) == sorted(_targets())


def test_every_target_has_a_size_or_a_timeout():
    for name, values in _targets().items():
        assert "size" in values or "timeout" in values, name
        if "size" in values:
            assert ast.literal_eval(values["size"]) in SIZES, name


def test_no_test_hides_in_a_subfolder():
    nested = [p.relative_to(ROOT) for p in (ROOT / "tests").glob("*/**/test_*.py")]
    # Those of upstream/ get targets in Ray's own BUILD file.
    assert not [str(path) for path in nested if path.parts[1] != "upstream"]


def test_real_ray_gets_two_cpus():
    for name, values in _targets().items():
        if name in _files() and _starts_ray(name):
            tags = ast.literal_eval(values["tags"]) if "tags" in values else []
            assert "cpu:2" in tags, f"{name} starts Ray: give it the tag cpu:2"


def test_hang_regressions_are_there():
    tagged = [
        name
        for name, values in _targets().items()
        if "tags" in values and "hang" in ast.literal_eval(values["tags"])
    ]
    assert tagged, "ci/test runs the targets tagged `hang` under Bazel: there are none"


def test_files_with_hang_regressions_are_tagged():
    for name, values in _targets().items():
        if name in _files() and _names(name, "pytest.mark.hang"):
            tags = ast.literal_eval(values["tags"]) if "tags" in values else []
            assert "hang" in tags, f"{name} has tests marked `hang`: tag it so"


def test_every_file_runs_as_a_script():
    for name, path in _files().items():
        assert re.search(
            r'if __name__ == "__main__":\n    (import sys\n\n?    )?'
            r"sys\.exit\(pytest\.main\(\[.*__file__\]\)\)\n\Z",
            path.read_text(),
        ), f"{name} does not end with sys.exit(pytest.main(...))"


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
