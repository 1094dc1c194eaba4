"""The code on the pages of `docs/` runs, and does what the page says."""

import re
import sys
from pathlib import Path

import pytest
from virtual_cluster import VirtualCluster

from ray import tune

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES = sorted(path.name for path in DOCS.glob("*.md"))

pytestmark = pytest.mark.timeout(120)


def run_page(name):
    """Run the code of a page, block by block; returns the names that it defines."""
    blocks = re.findall(
        r"^```python\n(.*?)^```$", (DOCS / name).read_text(), re.M | re.S
    )
    names = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, name, "exec"), names)
    return names


@pytest.mark.parametrize("name", PAGES)
def test_code_of_the_page_runs(name):
    pytest.importorskip("optuna")
    assert run_page(name)


def run(names, search_alg):
    return VirtualCluster.of(
        names["ASHAv2"](max_t=9, reduction_factor=3),
        search_alg=search_alg,
        num_samples=12,
        slots=2,
        param_space={"x": tune.uniform(0, 1)},
        trainable=lambda config, t: {"score": t - 10 * (config["x"] - 0.8) ** 2},
    ).run(max_events=3000)


def test_searcher_of_the_page_on_search_algorithms_learns():
    pytest.importorskip("optuna")
    names = run_page("search-algorithms.md")
    searcher = names["BestOfAll"]()
    searcher.set_search_properties = lambda *args, **spec: True
    record = run(names, searcher)
    assert "promotion=deferred" in record.scheduler.debug_string()
    assert abs(record.trials[-1].config["x"] - 0.8) < 0.15
    last = {t.trial_id: t.last_result["score"] for t in record.trials}
    assert searcher.scores == last


@pytest.mark.parametrize(
    "name, learns",
    [
        ("optuna.OptunaSearch", True),
        ("hyperopt.HyperOptSearch", True),
        ("bohb.TuneBOHB", True),
        ("bayesopt.BayesOptSearch", True),
        ("hebo.HEBOSearch", True),
        ("ax.AxSearch", True),
        ("nevergrad.NevergradSearch", False),
        ("zoopt.ZOOptSearch", False),
    ],
)
def test_table_of_search_algorithms_is_right(name, learns):
    module, _, name = name.partition(".")
    text = (DOCS / "search-algorithms.md").read_text()
    (row,) = [line for line in text.splitlines() if re.match(rf"\|.*`{name}`", line)]
    assert row.split("|")[2].strip() == ("learns" if learns else "does not")
    cls = getattr(__import__(f"ray.tune.search.{module}", fromlist=[name]), name)
    said = cls.learns_from_pauses
    assert isinstance(said, property) if module == "optuna" else said is learns


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
