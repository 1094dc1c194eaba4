"""Run the tests marked fixes(...) on stock Ray, and judge how they fail.

A regression test proves something only if it fails without the fix, and for the right
reason: in its call phase, by an assertion, an exception of Ray's or a hang. One that
passes, is skipped, cannot be collected, fails in a fixture, crashes the interpreter, or
misses a name that only the patched build has, proves nothing.

pytest runs the tests, and pytest-timeout ends those that hang; `must_fail_plugin` tells
what happens. By hand: pytest is started again behind a test that took it down, which
pytest-forked and pytest-xdist do only at the price of a new process for each test.
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

from ci.lib.console import ROOT

# Granted to a test beyond its own timeout before its process ends: code that never
# returns to the interpreter is deaf to the signal of pytest-timeout.
GRACE_S = 15
# For a test without any timeout, for fixtures, and for collecting.
DEFAULT_LIMIT_S = 120
PYTEST = (
    "-m pytest -p no:cacheprovider -p ci.lib.must_fail_plugin "
    "-o timeout_method=signal --override-ini=addopts= --tb=short -q "
    "--continue-on-collection-errors"
)


@dataclasses.dataclass
class Verdict:
    """How one test fared.

    Args:
        test: The pytest node id.
        names: What it says that it fixes.
        counts: Whether it failed as it must.
        how: How it failed, or why that does not count.
        seconds: How long it took.
    """

    test: str
    names: list
    counts: bool
    how: str
    seconds: float = 0.0


def marked_files(paths):
    """Return the test files among files and folders that speak of the mark."""
    files = []
    for path in map(Path, paths):
        found = sorted(path.rglob("test_*.py")) if path.is_dir() else [path]
        for file in found:
            if re.search(r"\bmark\s*\.\s*fixes\b", file.read_text(errors="replace")):
                files.append(file)
    return files


def wrong_reason(chain, known):
    """Tell why an exception does not prove a fault of stock Ray's.

    Args:
        chain: The exception and its causes, as the plugin tells them.
        known: Whether stock Ray knows a name: a function of the name.

    Returns:
        The reason, or None where the exception counts.
    """
    for error in chain:
        kinds, message = error["type"], error["message"]
        first = (message.strip().splitlines() or [""])[0][:160]
        if "ImportError" in kinds or "NameError" in kinds:
            return f"{kinds[0]}: {first}"
        if "AttributeError" in kinds or "TypeError" in kinds:
            told = re.search(
                r"unexpected keyword argument '(\w+)'|has no attribute '(\w+)'", message
            )
            name = told and (told[1] or told[2])
            if not name and "AttributeError" in kinds:
                name = error["name"]
            if name and not known(name):
                return f"{kinds[0]}: stock Ray has no `{name}`"
        if re.search(r"\b(ModuleNotFoundError|ImportError): ", message):
            return f"{kinds[0]} out of a failed import: {first}"
    return None


def names_known(folder):
    """Return a function that tells whether Ray's Tune knows a name.

    Args:
        folder: Where the package lies; None for no Ray, which knows every name.
    """
    if folder is None:
        return lambda name: True
    words = set()
    for part in ("tune", "air", "train", "util"):
        for file in Path(folder, part).rglob("*.py"):
            words.update(re.findall(r"\w+", file.read_text(errors="replace")))
    return lambda name: name in words


class MustFail:
    """The tests marked fixes(...) of some files, run and judged.

    Args:
        python: The interpreter that has stock Ray.
        files: Test files.
        root: The folder that pytest runs in.
        env: The environment variables.
        tell: Called with a `Verdict` once there is one.
    """

    def __init__(self, python, files, root, env, tell=lambda verdict: None):
        self._command = [str(python), *PYTEST.split(), *map(str, files)]
        self._root = root
        path = [str(ROOT), *filter(None, [env.get("PYTHONPATH")])]
        self._env = {**env, "PYTHONPATH": os.pathsep.join(path)}
        self._tell = tell
        self._names = {}
        self._known = names_known(None)
        self._done = set()
        self._current = None
        self.verdicts = []
        self.uncollected = []
        self.output = ""

    def run(self):
        """Run everything; fill `verdicts`, `uncollected` and `output`."""
        with tempfile.TemporaryDirectory(prefix="must-fail-") as folder:
            done = None
            while done != self._done and (done is None or self._current):
                done = set(self._done)
                self._run_once(Path(folder))
        for test in self._names.keys() - self._done:
            self._judge(Verdict(test, self._names[test], False, "was not run"))

    def _run_once(self, folder):
        """Run pytest until it ends; `_current` is the test that took it down."""
        self._current, self._outcomes = None, []
        env = {
            **self._env,
            "MUST_FAIL_EVENTS": str(folder / "events"),
            "MUST_FAIL_DONE": json.dumps(sorted(self._done)),
            "MUST_FAIL_LIMITS": json.dumps([DEFAULT_LIMIT_S, GRACE_S]),
        }
        (folder / "events").write_bytes(b"")
        with open(folder / "events") as events, open(folder / "log", "w+") as log:
            process = subprocess.Popen(
                self._command,
                cwd=self._root,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                ended = False
                while not ended:
                    time.sleep(0.05)
                    ended = process.poll() is not None  # Asked before the last events.
                    for line in events:
                        self._take(json.loads(line))
            finally:
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                process.wait()
            log.seek(0)
            self.output += log.read()
        if self._current and not any(o["when"] == "call" for o in self._outcomes):
            self._judge(self._broken_off(process.returncode))
        elif self._current:
            self._judge_current()

    def _take(self, event):
        kind = event["event"]
        if kind == "ray":
            self._known = names_known(event["folder"])
        elif kind == "collected":
            self._names[event["test"]] = event["names"]
        elif kind == "uncollected" and not self._done:
            self.uncollected.append((event["file"], event["why"]))
        elif kind == "started":
            self._current, self._called, self._outcomes = event["test"], False, []
            self._limit = event["limit"] or DEFAULT_LIMIT_S
            self._since = time.monotonic()
        elif kind == "called":
            self._called = True
        elif kind == "finished":
            self._outcomes.append(event)
            if event["when"] == "teardown":
                self._judge_current()
                self._current = None

    def _judge(self, verdict):
        self._done.add(verdict.test)
        self.verdicts.append(verdict)
        self._tell(verdict)

    def _judge_current(self):
        names = self._names[self._current]
        seconds = sum(outcome["seconds"] for outcome in self._outcomes)
        counts, how = self._verdict(names)
        self._judge(Verdict(self._current, names, counts, how, seconds))

    def _broken_off(self, code):
        """Judge a test that neither passed nor failed when pytest ended."""
        names = self._names[self._current]
        seconds = time.monotonic() - self._since
        hung = seconds >= self._limit
        if not hung:
            how = f"crashes the interpreter (exit code {code})"
        elif self._called:
            how = "hang (deaf to its timeout)"
        else:
            how = "hangs before its call"
        return Verdict(self._current, names, hung and self._called, how, seconds)

    def _verdict(self, names):
        if not names:
            return False, "its mark names nothing: fixes() needs an issue"
        for outcome in self._outcomes:
            if outcome["when"] == "call":
                return self._verdict_of_call(outcome)
            if outcome["outcome"] == "failed":
                return False, f"failed in a fixture: {_shortly(outcome)}"
            if outcome["outcome"] == "skipped":
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
