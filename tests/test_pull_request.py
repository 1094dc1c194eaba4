"""`ci/pull-request` gives patches, new files and tests the form that Ray takes."""

import ast
import sys
import textwrap
from pathlib import Path

import pytest

from ci.lib import pull_request


def test_message_takes_the_form_of_upstream():
    text = (
        "tune: keep one save in flight\n\nWhat was wrong.\n\n"
        "Bug: https://github.com/ray-project/ray/issues/123\nForwarded: no\n"
    )
    assert pull_request.upstream_message(text) == (
        "[tune] Keep one save in flight\n\nWhat was wrong.\n\n"
        "Closes ray-project/ray#123\n"
    )


def test_message_without_an_issue_closes_none():
    text = "air: order the results\n\nWhy.\n\nBug: none\nForwarded: no\n"
    assert pull_request.upstream_message(text) == "[air] Order the results\n\nWhy.\n"


def test_new_files_come_with_the_first_commit_that_needs_them():
    patches = [
        "+++ b/python/ray/tune/a.py\n+nothing = 1\n",
        "+from ray.tune.execution.orders import Order\n",
        "+from ray.tune.schedulers.mine import Mine\n",
    ]
    base = "python/ray/tune"
    files = {
        f"{base}/execution/orders.py": "",
        f"{base}/schedulers/_rungs.py": "from ray.tune.execution.numbers_ import n\n",
        f"{base}/schedulers/mine.py": "from ray.tune.schedulers._rungs import Rung\n",
        f"{base}/execution/numbers_.py": "",
        f"{base}/examples/mine_example.py": "from ray.tune.schedulers import Mine\n",
    }
    places = pull_request.place_new_files(patches, files)
    assert {Path(path).stem: place for path, place in places.items()} == {
        "orders": 1,
        "mine": 2,
        "_rungs": 2,
        "numbers_": 2,
        "mine_example": 3,
    }


def test_tests_lose_our_marks_and_import_helpers_from_ray():
    text = textwrap.dedent(
        """
        import pytest
        import helper
        from virtual_cluster import Cluster

        pytestmark = pytest.mark.ray


        @pytest.mark.fixes(
            "ray#1",
        )
        @pytest.mark.timeout(5)
        @pytest.mark.parametrize(
            "x", [pytest.param(1, marks=pytest.mark.fixes("ray#2")), 2]
        )
        def test_x(ray_start_2_cpus, x):
            from helper import y
        """
    )
    new = pull_request.upstream_test(text, ["helper", "virtual_cluster"])
    ast.parse(new)
    for word in ("fixes", "pytest.mark.ray", "ray#"):
        assert word not in new
    assert "@pytest.mark.timeout(5)" in new
    assert "from ray.tune.tests import helper\n" in new
    assert "from ray.tune.tests.virtual_cluster import Cluster\n" in new
    assert "    from ray.tune.tests.helper import y\n" in new
    assert new.count("def ray_start_2_cpus():") == 1
    assert "import ray\n" in new


def test_tests_of_our_own_tools_stay_here():
    names = pull_request.read_tests().keys()
    assert not names & {"conftest.py", "test_red.py", "test_pull_request.py"}


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
