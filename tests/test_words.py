"""One word for one thing, in what is shipped."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# What not to write, and what to write instead.
WORDS = {
    r"let(s|ting)?[ _]go": "release",
    r"(un)?park(s|ed|ing)?": "pause, resume",
    r"climbers?": "TrialProgress",
    r"(gets?|got|getting) to the end": "complete",
    r"got to `*max_t": "reached max_t",
    r"unborn": "remaining samples",
    r"doomed|hopeless|losers?": "to stop, unpromotable, eliminated",
    r"survivors?|last[ _]resort": "fallback",
    r"under ?way": "in progress",
    r"by (itself|themselves)": "on its own",
    r"without a word": "silently",
    r"donors?": "source trial",
    r"adopt(s|ed|ing)?": "exploit",
    r"can not": "cannot",
    r"(is|are) no numbers?": "is not a number",
}
PATTERNS = {re.compile(rf"(?<![a-z])({w})(?![a-z])", re.I): WORDS[w] for w in WORDS}


def find_words(text):
    """What is to be replaced: each word, and what to write."""
    return [
        f"{match.group()!r}: write {instead!r}"
        for pattern, instead in PATTERNS.items()
        for match in pattern.finditer(text)
    ]


def own_lines(patch):
    """The lines of a patch that are ours: its header, and what it adds."""
    header, _, diff = patch.partition("\ndiff --git ")
    added = [line[1:] for line in diff.splitlines() if line.startswith("+")]
    return "\n".join([header, *added])


@pytest.mark.parametrize(
    "text, count",
    [
        ("_let_go_of(trial), which can not go on by itself", 3),
        ("The trial that got to max_t lets go of its donor.", 3),
        ("parked trials; the spark of a parking_lot", 2),
        ("It pauses the trial, releases its actor, and goes on on its own.", 0),
    ],
)
def test_words_are_found(text, count):
    assert len(find_words(text)) == count


@pytest.mark.parametrize("kind", ["python", "patches"])
def test_one_word_for_one_thing(kind):
    if kind == "python":
        texts = {p: p.read_text() for p in (ROOT / "python").rglob("*.py")}
    else:
        paths = (ROOT / "patches").glob("*.patch")
        texts = {path: own_lines(path.read_text()) for path in paths}
    assert texts
    found = {p.name: words for p, text in texts.items() if (words := find_words(text))}
    assert not found


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
