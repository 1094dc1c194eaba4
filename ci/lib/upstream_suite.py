"""Files of Ray's own tests, run on stock Ray and on the patched build, and compared.

The tests are laid out in a folder of the caller's: `DIR/run PYTHON FILE [arguments]`
runs one file with pytest and hands the arguments on to it. What is compared is pytest's
own report (`--junitxml`), test by test.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import xml.etree.ElementTree
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Tuple

BUILDS = ("stock", "patched")
PASSED, FAILED, SKIPPED, MISSING = "passed", "failed", "skipped", "missing"
# Stands for the file as a whole, where pytest could not report on its tests.
WHOLE_FILE = "(the file)"
# pytest's: all passed, some failed, there were none.
REPORTED = ("exit code 0", "exit code 1", "exit code 5")
# Seconds for pytest to write its report when its time is up.
GRACE_S = 30
# Further apart, in runs that failed, than chance makes a test that fails on both.
APART = 2
# What pytest's -k takes as one word. It has no quotes for others.
WORD = re.compile(r"[\w:+.\[\]\\/-]+")


class Outcome(NamedTuple):
    """How one test ended.

    Args:
        kind: `passed`, `failed`, `skipped` or `missing`.
        reason: The first line of what was said, if anything.
    """

    kind: str
    reason: str = ""


@dataclass
class Report:
    """How one run of one file ended.

    Args:
        tests: By name: the classes and the function, with `::` between them.
        seconds: How long it took.
    """

    tests: Dict[str, Outcome] = field(default_factory=dict)
    seconds: float = 0.0

    def end(self, test: str) -> Outcome:
        """Return how a test ended; the file as a whole passes unless it is said."""
        kind = PASSED if test == WHOLE_FILE else MISSING
        return self.tests.get(test, Outcome(kind))

    def counts(self) -> Tuple[int, int, int]:
        """Return how many passed, failed, and were skipped."""
        found = Counter(outcome.kind for outcome in self.tests.values())
        return found[PASSED], found[FAILED], found[SKIPPED]


@dataclass
class Compared:
    """One file on both builds.

    Args:
        first: By build, the run of the whole file.
        reruns: By test and build, how its runs after that ended.
        differences: Tests that are worse on the patched build, and how.
        unconfirmed: Tests that were worse in the first run only, and how.
    """

    first: Dict[str, Report]
    reruns: Dict[str, Dict[str, List[Outcome]]] = field(default_factory=dict)
    differences: Dict[str, str] = field(default_factory=dict)
    unconfirmed: Dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict:
        """Return it as what JSON has."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict) -> "Compared":
        """Return what `to_json` was called on."""

        def outcomes(found):
            return [Outcome(*outcome) for outcome in found]

        first = {
            build: Report(
                {test: Outcome(*end) for test, end in report["tests"].items()},
                report["seconds"],
            )
            for build, report in content["first"].items()
        }
        reruns = {
            test: {build: outcomes(found) for build, found in builds.items()}
            for test, builds in content["reruns"].items()
        }
        rest = (content["differences"], content["unconfirmed"])
        return cls(first, reruns, *rest)


class Suite:
    """Runs files of tests.

    Args:
        tree: The folder where the tests are laid out.
        pythons: By build, the interpreter.
        environments: By build, the environment variables for it.
        logs: The folder for what the runs print.
        timeout: In seconds, for one test; None for what the tests set.
        limit: In seconds, for one file.
    """

    def __init__(self, tree, pythons, environments, logs, timeout=None, limit=3600):
        self.tree = Path(tree)
        self.pythons = pythons
        self.environments = environments
        self.logs = Path(logs)
        self.timeout = timeout
        self.limit = limit

    def run(self, build: str, file: str, test: Optional[str] = None) -> Report:
        """Run a file, or one of its tests, on a build."""
        name = re.sub(r"\W+", ".", f"{file}.{test or ''}").strip(".")[:150]
        log = self.logs / build / f"{name}.txt"
        log.parent.mkdir(parents=True, exist_ok=True)
        # A socket's path may have 107 bytes; the usual temporary folders eat most.
        parent = "/tmp" if os.path.isdir("/tmp") else None
        folder = tempfile.mkdtemp(prefix="ut-", dir=parent)
        report = Path(folder, "report.xml")
        arguments = [f"--junitxml={report}"]
        if self.timeout:
            arguments.append(f"--timeout={self.timeout}")
        if test and test != WHOLE_FILE:
            arguments.append(f"-k={selection(test)}")
        start = time.monotonic()
        try:
            with open(log, "w") as out:
                ended = _call(
                    [self.tree / "run", self.pythons[build], file, *arguments],
                    {**self.environments[build], "RAY_TMPDIR": folder},
                    out,
                    self.limit,
                )
            try:
                tests = read_report(report.read_text(errors="replace"), file)
            except (OSError, xml.etree.ElementTree.ParseError):
                tests = {}
            if ended not in REPORTED and WHOLE_FILE not in tests:
                tests[WHOLE_FILE] = Outcome(FAILED, f"{ended}, see {log}")
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return Report(tests, time.monotonic() - start)

    def compare(self, file: str, reruns: int = 3, say=lambda text: None) -> Compared:
        """Run a file on both builds, then those of its tests that are worse.

        Args:
            file: The file, as the tree names it.
            reruns: How often such a test is run again on each build, in turn.
            say: Takes lines of progress.
        """
        first = {}
        for build in BUILDS:
            first[build] = self.run(build, file)
            passed, failed, skipped = first[build].counts()
            say(
                f"{file} on {build}: {passed} passed, {failed} failed, {skipped} "
                f"skipped in {first[build].seconds:.0f} s"
            )
        compared = Compared(first)
        for test in worse(first):
            ends = compared.reruns[test] = {build: [] for build in BUILDS}
            while len(ends["patched"]) < reruns and not settled(first, test, ends):
                for build in BUILDS:
                    report = self.run(build, file, test)
                    whole = report.tests.get(WHOLE_FILE)
                    ends[build].append(whole or report.end(test))
            said = ", ".join(
                f"{build} {' '.join(end.kind for end in ends[build])}"
                for build in BUILDS
            )
            say(f"{file}::{test} again: {said}")
        judge(compared)
        return compared


def selection(test: str) -> str:
    """Return an expression for pytest's -k that is true of a test.

    It may be true of others, too: of what -k takes, nothing names one alone.
    """
    words = []
    for part in test.split("::"):
        whole = WORD.fullmatch(part)
        words.append(part if whole else part.partition("[")[0])
    return " and ".join(word for word in words if word)


def read_report(text: str, file: str) -> Dict[str, Outcome]:
    """Read pytest's XML report of the run of one file.

    Args:
        text: The report.
        file: The file that was run.

    Returns:
        Outcomes by test. Of several for one name (parts of it that failed, a fixture
        that failed after it) the worst counts.
    """
    tests = {}
    module = Path(file).stem
    for case in xml.etree.ElementTree.fromstring(text).iter("testcase"):
        place = (case.get("classname") or "").split(".")
        # What pytest could not collect has the name of the module, and no class.
        classes = place[place.index(module) + 1 :] if module in place else []
        name = case.get("name")
        if not name:  # It was in progress when pytest was interrupted.
            continue
        if not any(place):
            name = WHOLE_FILE
        name = "::".join([*classes, name])
        outcome = Outcome(PASSED)
        for kind, tag in ((SKIPPED, "skipped"), (FAILED, "failure"), (FAILED, "error")):
            found = case.find(tag)
            if found is not None:
                lines = (found.get("message") or found.text or "").splitlines()
                outcome = Outcome(kind, lines[0][:200] if lines else "")
        rank = (PASSED, SKIPPED, FAILED).index
        if name not in tests or rank(outcome.kind) > rank(tests[name].kind):
            tests[name] = outcome
    return tests


def worse(first: Dict[str, Report]) -> List[str]:
    """Return the tests that fail on the patched build, or only pass on stock."""
    stock, patched = (first[build] for build in BUILDS)
    found = []
    for test in {**patched.tests, **stock.tests}:
        kind, before = patched.end(test).kind, stock.end(test).kind
        # Where the whole file failed, that is said of it alone.
        alone = kind == MISSING and WHOLE_FILE in patched.tests
        if kind == FAILED or (before == PASSED != kind and not alone):
            found.append(test)
    return found


def settled(first, test, ends) -> bool:
    """Tell whether more runs of a test are of no use: it fails on stock as well."""
    again = any(end.kind == FAILED for end in ends["stock"])
    return again and first["stock"].end(test).kind == FAILED


def judge(compared: Compared) -> None:
    """Sort the tests that were run again into differences and others.

    Args:
        compared: Gets its `differences` and `unconfirmed`.
    """
    compared.differences.clear()
    compared.unconfirmed.clear()
    for test, ends in compared.reruns.items():
        runs = {
            build: [compared.first[build].end(test), *ends[build]] for build in BUILDS
        }
        bad = {
            build: [end for end in runs[build] if end.kind != PASSED]
            for build in BUILDS
        }
        kind = bad["patched"][-1].kind
        said = ", ".join(
            f"{build} {len(bad[build])} of {len(runs[build])}" for build in BUILDS
        )
        reason = bad["patched"][-1].reason
        said = f"{kind}: {said}" + (f" ({reason})" if reason else "")
        again = [end for end in ends["patched"] if end.kind != PASSED]
        more = len(bad["patched"]) - len(bad["stock"])
        if settled(compared.first, test, ends):
            continue
        if ends["patched"] and not again:
            compared.unconfirmed[test] = said
        elif not bad["stock"] or more >= APART:
            compared.differences[test] = said


def shard(files: List[str], which: str) -> List[str]:
    """Return a part of a list: with `2/3` every third, from the second on.

    Raises:
        ValueError: It is no such part.
    """
    index, slash, count = which.partition("/")
    if not (slash and index.isdecimal() and count.isdecimal()):
        raise ValueError(f"{which!r} is not of the form 1/3")
    if not 1 <= int(index) <= int(count):
        raise ValueError(f"there is no part {index} of {count}")
    return files[int(index) - 1 :: int(count)]


def table(files: Dict[str, Compared]) -> List[str]:
    """Return the lines of a table of all files, and what it says of the tests."""
    width = max([len("in all"), *map(len, files)])
    form = f"{{:{width}}}  {{:>6}} {{:>6}} {{:>7}}   {{:>6}} {{:>6}} {{:>7}}   {{:>11}}"
    counted = ("passed", "failed", "skipped")
    lines = [
        f"{'':{width}}  {'stock':22} patched",
        form.format("file", *counted, *counted, "differences"),
    ]
    total = [0] * 7
    for file, compared in files.items():
        row = [n for build in BUILDS for n in compared.first[build].counts()]
        row.append(len(compared.differences))
        total = [a + b for a, b in zip(total, row, strict=True)]
        lines.append(form.format(file, *row))
    lines.append(form.format("in all", *total))
    for attribute, title in (
        ("differences", "worse on the patched build"),
        ("unconfirmed", "worse in one run, then passed each time it was run again"),
    ):
        found = [
            f"  {file}::{test}\n      {said}"
            for file, compared in files.items()
            for test, said in getattr(compared, attribute).items()
        ]
        lines += ["", f"{title}:", *found] if found else []
    return lines


def _call(command, env, out, limit) -> str:
    """Run a program in a session of its own, and say how it ended."""
    with subprocess.Popen(
        [str(part) for part in command],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        try:
            return f"exit code {process.wait(timeout=limit)}"
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=GRACE_S)
            return f"ended after {limit:g} s"
        finally:
            # What it has left behind would take the next run's time.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
