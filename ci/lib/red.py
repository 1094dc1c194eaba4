"""Runs the tests marked fixes(...) against stock Ray and judges how they fail.

A regression test proves something only if it fails without the fix, and for the right
reason: in its call phase, by an assertion, an exception of Ray's or a hang. One that
passes, is skipped, cannot be collected, fails in a fixture, crashes the interpreter, or
misses a name that only the patched build has, proves nothing.
"""

import dataclasses
import json
import os
import re
import signal
import subprocess
import tempfile
import time
from pathlib import Path

PLUGINS = Path(__file__).resolve().parent

# Granted to a test beyond its own timeout before the process is ended from outside:
# code that never returns to the interpreter is deaf to pytest-timeout's signal.
GRACE_S = 15
# For a test without any timeout, and for collecting.
DEFAULT_LIMIT_S = 120
SLOW_S = 20


@dataclasses.dataclass
class Verdict:
    """How one test fared.

    Args:
        test: The pytest node id.
        names: What it says that it fixes.
        red: Whether it failed as it must.
        how: How it failed, or why that does not count.
        seconds: How long it took.
    """

    test: str
    names: list
    red: bool
    how: str
    seconds: float = 0.0


def marked_files(paths):
    """Returns the test files among files and folders that speak of the mark."""
    files = []
    for path in map(Path, paths):
        found = sorted(path.rglob("test_*.py")) if path.is_dir() else [path]
        for file in found:
            if re.search(r"\bmark\s*\.\s*fixes\b", file.read_text(errors="replace")):
                files.append(file)
    return files


def _own_name(message):
    """Returns the name that a TypeError or AttributeError says is unknown, or None."""
    match = re.search(
        r"unexpected keyword argument '(\w+)'|has no attribute '(\w+)'", message
    )
    return match and (match[1] or match[2])


def wrong_reason(chain, known):
    """Tells why an exception does not prove a fault of stock Ray's.

    Args:
        chain: The exception and its causes, as `red_plugin` tells them.
        known: Whether stock Ray knows a name: a function of the name.

    Returns:
        The reason, or None where the exception counts.
    """
    for error in chain:
        kinds = error["type"]
        first = (error["message"].strip().splitlines() or [""])[0][:160]
        if "ImportError" in kinds:
            return f"{kinds[0]}: {first}"
        if "NameError" in kinds:
            return f"{kinds[0]}: {first}"
        if "AttributeError" in kinds or "TypeError" in kinds:
            name = _own_name(error["message"]) or (
                error["name"] if "AttributeError" in kinds else None
            )
            if name and not known(name):
                return f"{kinds[0]}: stock Ray has no `{name}`"
        if re.search(r"\b(ModuleNotFoundError|ImportError): ", error["message"]):
            return f"{kinds[0]} out of a failed import: {first}"
    return None


def stock_names(python):
    """Returns a function that tells whether stock Ray's Tune knows a name.

    Args:
        python: The interpreter that has stock Ray; one without Ray knows every name.
    """
    code = "import importlib.util as u; print(u.find_spec('ray').origin)"
    try:
        origin = subprocess.run(
            [python, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
    except subprocess.CalledProcessError:
        return lambda name: True
    words = set()
    for part in ("tune", "air", "train", "util"):
        for file in (Path(origin).parent / part).rglob("*.py"):
            words.update(re.findall(r"\w+", file.read_text(errors="replace")))
    return lambda name: name in words


class _Run:
    """One pytest process and what it has told so far."""

    def __init__(self, python, files, root, report, done, env):
        self._report = report
        self._position = report.stat().st_size if report.exists() else 0
        self.process = subprocess.Popen(
            [
                str(python),
                "-m",
                "pytest",
                "-p",
                "no:cacheprovider",
                "-p",
                "red_plugin",
                "-o",
                "timeout_method=signal",
                "--override-ini=addopts=",
                "--tb=short",
                "-q",
                "--continue-on-collection-errors",
                *map(str, files),
            ],
            cwd=root,
            env={
                **env,
                "PYTHONPATH": os.pathsep.join(
                    [str(PLUGINS), *filter(None, [env.get("PYTHONPATH")])]
                ),
                "RED_REPORT": str(report),
                "RED_DONE": json.dumps(sorted(done)),
            },
            stdin=subprocess.DEVNULL,
            stdout=open(report.with_suffix(".log"), "a"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def events(self):
        """Yields what was told since the last call."""
        try:
            with open(self._report) as report:
                report.seek(self._position)
                text = report.read()
        except FileNotFoundError:
            return
        whole = text.rfind("\n") + 1
        self._position += len(text[:whole].encode())
        for line in text[:whole].splitlines():
            yield json.loads(line)

    def end(self):
        """Ends the process and those of its group."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()


class Red:
    """The tests marked fixes(...) of some files, run and judged.

    Args:
        python: The interpreter that has stock Ray.
        files: Test files.
        root: The folder that pytest runs in.
        env: The environment variables.
        tell: Called with a `Verdict` once there is one.
    """

    def __init__(self, python, files, root, env, tell=lambda verdict: None):
        self._python = python
        self._files = files
        self._root = root
        self._env = env
        self._tell = tell
        self._names = {}
        self._known = stock_names(python)
        self.verdicts = []
        self.uncollected = []
        self.output = ""

    def run(self):
        """Runs everything; fills `verdicts` and `uncollected`."""
        with tempfile.TemporaryDirectory(prefix="red-") as folder:
            report = Path(folder) / "report.jsonl"
            done = set()
            while True:
                before = len(done)
                finished = self._run_once(report, done)
                if finished or len(done) == before:
                    break
            log = report.with_suffix(".log")
            self.output = log.read_text(errors="replace") if log.exists() else ""
        for test in self._names.keys() - done:
            self._judge(Verdict(test, self._names[test], False, "was not run"))

    def _judge(self, verdict):
        self.verdicts.append(verdict)
        self._tell(verdict)

    def _run_once(self, report, done):
        """Runs pytest until it ends or hangs; returns whether it ended well."""
        run = _Run(self._python, self._files, self._root, report, done, self._env)
        current, called, outcomes = None, False, []
        deadline = time.monotonic() + DEFAULT_LIMIT_S
        since = time.monotonic()
        try:
            while True:
                ended = run.process.poll() is not None
                for event in run.events():
                    kind = event["event"]
                    if kind == "collected":
                        self._names[event["test"]] = event["names"]
                    elif kind == "uncollected" and not done:
                        self.uncollected.append((event["file"], event["why"]))
                    elif kind == "started":
                        if current:
                            done.add(current)
                            self._finish(current, outcomes)
                        current, called, outcomes = event["test"], False, []
                        since = time.monotonic()
                        # Setup, call and teardown may each take the limit.
                        limit = event["limit"] or DEFAULT_LIMIT_S
                        deadline = since + limit + GRACE_S
                    elif kind == "called":
                        called = True
                    elif kind == "finished":
                        outcomes.append(event)
                        if event["when"] == "call":
                            deadline = time.monotonic() + DEFAULT_LIMIT_S
                if ended or time.monotonic() > deadline:
                    break
                time.sleep(0.05)
            hung = not ended
        finally:
            run.end()
        if current is None:
            return not hung
        done.add(current)
        complete = any(o["when"] == "teardown" for o in outcomes)
        if complete or any(o["when"] == "call" for o in outcomes):
            # Judged by its call, also when what came after it hung or crashed.
            self._finish(current, outcomes)
        else:
            seconds = time.monotonic() - since
            if not hung:
                how = f"crashes the interpreter (exit code {run.process.returncode})"
            elif called:
                how = "hang (deaf to its timeout)"
            else:
                how = "hangs before its call"
            red = hung and called
            self._judge(Verdict(current, self._names[current], red, how, seconds))
        return not hung and complete

    def _finish(self, test, outcomes):
        names = self._names[test]
        seconds = sum(o["seconds"] for o in outcomes)
        red, how = self._verdict(names, outcomes)
        self._judge(Verdict(test, names, red, how, seconds))

    def _verdict(self, names, outcomes):
        if not names:
            return False, "its mark names nothing: fixes() needs an issue"
        for outcome in outcomes:
            if outcome["when"] == "call":
                return self._verdict_of_call(outcome)
            if outcome["when"] == "setup" and outcome["outcome"] == "failed":
                return False, f"failed in a fixture: {_shortly(outcome)}"
            if outcome["when"] == "setup" and outcome["outcome"] == "skipped":
                return False, f"was skipped: {outcome.get('message', '')}"
        return False, "has no call"

    def _verdict_of_call(self, call):
        if call["outcome"] == "passed":
            return False, "passes on stock"
        if call["outcome"] == "skipped":
            return False, f"was skipped or expected to fail: {_shortly(call)}"
        if call["timeout"]:
            return True, "timeout"
        reason = wrong_reason(call["chain"], self._known)
        if reason:
            return False, f"fails for the wrong reason: {reason}"
        if call["type"] in ("AssertionError", "Failed"):
            return True, f"assert: {call['message']}" if call["message"] else "assert"
        return True, _shortly(call)


def _shortly(outcome):
    return f"{outcome.get('type', '')}: {outcome.get('message', '')}"
