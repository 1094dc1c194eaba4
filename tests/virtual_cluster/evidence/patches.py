"""Takes each patch of the series out in turn, to see whether the explorer notices.

A patch is noticed when a run breaks an invariant without it and, with it, gets past
that event and never breaks that invariant. Where later patches build on a patch, it
cannot be taken out alone: the series up to it is then compared with the one before it.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple

_HERE = os.path.abspath(__file__)
TESTS = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))
ROOT = os.path.dirname(TESTS)
# Of a patch that was taken out alone: what comes of a name that it brings, and that
# later ones use, is no evidence.
_NAMES = ("AttributeError", "ImportError", "NameError", "TypeError", "UnknownShape")
_AT_ONCE = 24  # cases to look for at first; then twice as many each time
# Which kinds of scenarios use a file of Ray's; all of them where none is named.
_USERS = {
    "tune/execution/tune_controller.py": (
        "buffers",
        "choices",
        "ended",
        "hooks",
        "idle",
        "milestones",
        "moved",
        "pbt",
        "planned",
        "searchers",
        "stalls",
    ),
    "tune/logger/logger.py": ("logged",),
    "tune/schedulers/async_hyperband.py": ("asha", "brackets"),
    "tune/schedulers/hb_bohb.py": ("bohb", "hyperband-sizes", "searchers"),
    "tune/schedulers/hyperband.py": (
        "bohb",
        "hyperband",
        "hyperband-sizes",
        "resources",
        "searchers",
    ),
    "tune/schedulers/median_stopping_rule.py": ("median",),
    "tune/schedulers/pb2.py": ("pb2", "pb2-synch"),
    "tune/schedulers/pbt.py": ("pbt", "pbt-synch", "replay"),
    "tune/schedulers/resource_changing_scheduler.py": ("resources",),
    "tune/search/": ("milestones", "searchers"),
}
_ALONE = "alone"


class Verdict(NamedTuple):
    """What came of taking out one patch.

    Args:
        subject: The patch.
        how: ``alone``, or ``with all that come after``.
        noticed: Whether a run broke that is whole with the patch.
        workload: The kind of scenario of that run.
        seed: Its seed.
        rule: The invariant that it broke, or what the worker said of a tree that
            does not run.
        what: What was broken.
        runs: How many runs it took.
        seconds: How long it took.
    """

    subject: str
    how: str
    noticed: bool
    workload: str = ""
    seed: int = 0
    rule: str = ""
    what: str = ""
    runs: int = 0
    seconds: float = 0.0

    def line(self) -> str:
        """Return the verdict as a line."""
        if not self.noticed:
            found = f"NOT NOTICED in {self.runs} runs {self.rule}".rstrip()
        else:
            found = f"{self.rule} ({self.workload}, seed {self.seed})"
        return f"{self.seconds:6.1f} s  {found:<50} {self.how:<24} {self.subject}"


def commits(tree: str) -> List[Tuple[str, str]]:
    """Return the patches of a checkout of the series.

    Args:
        tree: The checkout.

    Returns:
        ``(hash, subject)`` of each, in the order of the series.
    """
    log = _git(tree, "log", "--reverse", "--format=%H %s").stdout  # none if it fails
    return [tuple(line.split(" ", 1)) for line in log.splitlines()[1:]]


def take_out(
    tree: str,
    commit: str,
    subject: str,
    seconds: float,
    seed: int = 0,
    workloads: Optional[List[str]] = None,
) -> Verdict:
    """Look for a run that is broken without a patch and whole with it.

    Args:
        tree: A checkout of the series.
        commit: The patch's hash.
        subject: The patch's subject.
        seconds: For how long to look.
        seed: The first seed.
        workloads: Which kinds of scenarios; those that use its files if None.

    Returns:
        The verdict.
    """
    workloads = workloads or _users(tree, commit)
    verdict = Verdict(subject, _ALONE, False)
    with _worktree(tree, "HEAD") as without:
        if not _git(without, "revert", "--no-commit", commit).returncode:
            verdict = _compare(verdict, without, tree, seconds, seed, workloads)
            if verdict.noticed:
                return verdict
    whole = _git(tree, "rev-parse", "HEAD").stdout.strip()
    if commit == whole:
        return verdict
    verdict = verdict._replace(how="with all that come after")
    with _worktree(tree, f"{commit}~") as without, _worktree(tree, commit) as with_it:
        return _compare(verdict, without, with_it, seconds, seed, workloads)


def _users(tree: str, commit: str) -> Optional[List[str]]:
    """Name the kinds of scenarios that use the files of a patch; None for all."""
    files = _git(tree, "show", "--format=", "--name-only", commit).stdout.split()
    users = set()
    for file in files:
        known = [kinds for part, kinds in _USERS.items() if f"ray/{part}" in file]
        if not known:
            return None
        users.update(known[0])
    return sorted(users) or None


def _compare(
    verdict: Verdict,
    without: str,
    with_it: str,
    seconds: float,
    seed: int,
    workloads: Optional[List[str]],
) -> Verdict:
    begin = time.perf_counter()
    runs, at_most = 0, _AT_ONCE
    while True:
        spent = time.perf_counter() - begin
        verdict = verdict._replace(runs=runs, seconds=spent)
        if spent >= seconds:
            return verdict
        broken = _work(
            without,
            mode="explore",
            seconds=seconds - spent,
            seed=seed,
            workloads=workloads,
            at_most=at_most,
        )
        at_most *= 2
        if "error" in broken:
            return verdict._replace(rule=broken["error"])
        runs += broken["runs"]
        seed = broken["next_seed"]
        found = [case for case in broken["cases"] if _is_evidence(case, verdict.how)]
        if not found:
            continue
        again = _work(with_it, mode="replay", cases=found)
        if "error" in again:
            return verdict._replace(rule=again["error"])
        for case, (rule, events) in zip(found, again["outcomes"], strict=True):
            if rule is None or (rule != case["rule"] and events > case["events"]):
                return verdict._replace(
                    noticed=True,
                    workload=case["workload"],
                    seed=case["seed"],
                    rule=case["rule"],
                    what=case["what"],
                    runs=runs,
                    seconds=time.perf_counter() - begin,
                )


def _is_evidence(case: Dict, how: str) -> bool:
    if "OSError" in case["rule"]:
        return False  # The machine's own storage is full.
    said = case["rule"] + case["what"] if case["rule"].startswith("crash") else ""
    return how != _ALONE or not any(name in said for name in _NAMES)


def _work(tree: str, **order) -> Dict:
    """Let an interpreter of its own explore, or replay, with the Ray of a tree."""
    try:
        done = subprocess.run(
            [sys.executable, os.path.abspath(__file__), tree],
            input=json.dumps(order),
            capture_output=True,
            text=True,
            check=False,
            timeout=4 * order.get("seconds", 60) + 120,
        )
    except subprocess.TimeoutExpired:
        return {"error": "a run does not end"}
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no output"]
        return {"error": f"cannot run: {lines[-1]}"}
    return json.loads(done.stdout.splitlines()[-1])


@contextmanager
def _worktree(tree: str, commit: str) -> Iterator[str]:
    parent = tempfile.mkdtemp(prefix="without-")
    folder = os.path.join(parent, "ray")
    try:
        added = _git(tree, "worktree", "add", "--detach", folder, commit)
        if added.returncode:
            raise RuntimeError(f"{tree}: {added.stderr.strip()}")
        shutil.copytree(
            os.path.join(ROOT, "python"),
            os.path.join(folder, "python"),
            dirs_exist_ok=True,
        )
        yield folder
    finally:
        _git(tree, "worktree", "remove", "--force", folder)
        shutil.rmtree(parent, ignore_errors=True)


def _git(folder: str, *words: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["git", *words], cwd=folder, capture_output=True, text=True, check=False
    )


def _worker(tree: str, order: Dict) -> Dict:
    import ray

    ray.__path__.insert(0, os.path.join(os.path.abspath(tree), "python/ray"))
    sys.path.insert(0, TESTS)
    from virtual_cluster.core import builds
    from virtual_cluster.explore.draw import draw
    from virtual_cluster.explore.replay import run_scenario
    from virtual_cluster.explore.search import explore

    builds.set_partial()
    if order["mode"] == "replay":
        outcomes = []
        for case in order["cases"]:
            scenario = draw(case["seed"], case["workload"])
            scenario.ignore = tuple(case["ignore"])
            outcomes.append(run_scenario(scenario))
        return {"outcomes": [(outcome.rule, outcome.events) for outcome in outcomes]}
    cases: List[Dict] = []

    def until(finding) -> bool:
        cases.append(
            {
                "workload": finding.workload,
                "seed": finding.seed,
                "rule": finding.rule,
                "ignore": finding.scenario.ignore,
                "events": finding.outcome.events,
                "what": finding.outcome.what,
            }
        )
        return len(cases) >= order["at_most"]

    report = explore(
        order["seconds"],
        order["workloads"],
        order["seed"],
        states=False,
        look_behind=True,  # else what earlier patches left hides the rest
        until=until,
    )
    return {
        "runs": report.runs,
        "next_seed": report.next_seed,
        "cases": cases,
    }


if __name__ == "__main__":
    print(json.dumps(_worker(sys.argv[1], json.load(sys.stdin))))
