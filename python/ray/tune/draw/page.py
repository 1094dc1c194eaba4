"""Draws a history as one HTML page that needs nothing else."""

import html
from typing import List, Optional

from ray.tune.draw.history import History, RungHistory, Span

_WIDTH, _LEFT, _ROW = 1100, 130, 16
_MAX_TRIALS = 300

COLORS = {
    "new": "#4c78a8",
    "pause": "#54a24b",
    "failure": "#f58518",
    "restore": "#b279a2",
    "wait": "#d8d8d8",
}
NAMES = {
    "new": "trains (new)",
    "pause": "trains (resumed after a pause)",
    "failure": "trains (restarted after a failure)",
    "restore": "trains (experiment restored)",
    "wait": "waits, paused",
}
MARKS = {"fail": "#d62728", "retry": "#d62728", "lost": "#d62728", "stop": "#222222"}

_STYLE = """
body { font: 14px system-ui, sans-serif; margin: 24px; color: #222; }
h1 { font-size: 20px; } h2 { font-size: 16px; margin-top: 28px; }
svg text { font: 11px system-ui, sans-serif; fill: #444; }
.key span { display: inline-block; width: 12px; height: 12px; margin: 0 4px 0 14px; }
.dim { opacity: .15; }
#about { position: sticky; top: 0; background: #fffbe6; padding: 6px; }
table { border-collapse: collapse; } td, th { padding: 2px 10px; text-align: right; }
"""

_SCRIPT = """
const shapes = document.querySelectorAll("[data-trial]");
const about = document.getElementById("about");
const idle = about.textContent;
function show(trial, text) {
  shapes.forEach(s => s.classList.toggle("dim", trial && s.dataset.trial !== trial));
  about.textContent = trial ? trial + ": " + text : idle;
}
shapes.forEach(s => {
  s.addEventListener("mouseenter", () => show(s.dataset.trial, s.dataset.text));
  s.addEventListener("mouseleave", () => show(null));
});
document.body.dataset.ready = shapes.length;
"""


def make_page(history: History, title: str) -> str:
    """Return the page.

    Args:
        history: What to draw.
        title: Name of the experiment.

    Returns:
        HTML, with all that it needs in it.
    """
    header, title = history.header, html.escape(title)
    facts = [
        f"scheduler {header.get('scheduler')}",
        f"metric {header.get('metric')}",
        f"{len(history.trials)} trials",
        f"{history.num_slots} slots",
        f"{history.end - history.start:.0f} s",
    ]
    if history.going_on:
        facts.append("still going on when the log was read")
    if history.num_dropped:
        facts.append(f"the first {history.num_dropped} decisions are no longer kept")
    keys = "".join(
        f'<span style="background:{COLORS[kind]}"></span>{NAMES[kind]}'
        for kind in COLORS
    )
    keys += '<span style="background:#d62728"></span>failed'
    keys += '<span style="background:#222222"></span>stopped'
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>{_STYLE}</style></head><body>
<h1>{title}</h1><p>{html.escape(", ".join(facts))}</p>
<p class="key">{keys}</p>
<div id="about">Point at a bar or a dot to follow its trial.</div>
<h2>Slots over time</h2>
{_draw_slots(history)}
<h2>Trials over time</h2>
{_draw_trials(history)}
<h2>Rungs</h2>
{_draw_rungs(history)}
<script>{_SCRIPT}</script></body></html>
"""


class _Axis:
    """Where a time is on the page."""

    def __init__(self, history: History):
        self.start, self.end = history.start, history.end
        self._scale = (_WIDTH - _LEFT - 10) / max(self.end - self.start, 1e-9)

    def x(self, time: float) -> float:
        return _LEFT + (time - self.start) * self._scale

    def draw(self, height: int) -> str:
        ticks = []
        for i in range(6):
            time = self.start + (self.end - self.start) * i / 5
            x, text = self.x(time), _as_duration(time - self.start)
            ticks.append(
                f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height}" '
                f'stroke="#eee"/><text x="{x:.1f}" y="{height + 12}" '
                f'text-anchor="{"end" if i == 5 else "middle"}">{text}</text>'
            )
        return "".join(ticks)


def _as_duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} s"
    if seconds < 7200:
        return f"{seconds / 60:.3g} min"
    return f"{seconds / 3600:.3g} h"


def _svg(name: str, height: int, content: str) -> str:
    return (
        f'<svg id="{name}" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}">{content}</svg>'
    )


def _draw_span(span: Span, axis: _Axis, y: float, height: float) -> str:
    x = axis.x(span.start)
    end = axis.x(axis.end if span.end is None else span.end)
    text = NAMES[span.kind] + (f"; {span.text}" if span.text else "; goes on")
    shape = (
        f'<rect class="{"wait" if span.kind == "wait" else "run"}" '
        f'data-trial="{html.escape(span.trial)}" data-text="{html.escape(text)}" '
        f'x="{x:.1f}" y="{y:.1f}" width="{max(end - x, 1):.1f}" height="{height}" '
        f'fill="{COLORS.get(span.kind, "#888")}">'
        f"<title>{html.escape(f'{span.trial}: {text}')}</title></rect>"
    )
    mark = MARKS.get(span.ended_by)
    if mark:
        shape += (
            f'<rect class="end-{span.ended_by}" x="{end - 2:.1f}" y="{y:.1f}" '
            f'width="3" height="{height}" fill="{mark}"/>'
        )
    return shape


def _draw_slots(history: History) -> str:
    axis, height = _Axis(history), max(history.num_slots, 1) * _ROW
    content = [axis.draw(height)]
    for slot in range(history.num_slots):
        y = slot * _ROW + 12
        content.append(f'<text x="4" y="{y}">slot {slot}</text>')
    for span in history.slots:
        content.append(_draw_span(span, axis, span.slot * _ROW + 2, _ROW - 3))
    return _svg("slots", height + 18, "".join(content))


def _draw_trials(history: History) -> str:
    shown = history.trials[:_MAX_TRIALS]
    rows = {trial: row for row, trial in enumerate(shown)}
    axis, height = _Axis(history), max(len(shown), 1) * _ROW
    content = [axis.draw(height)]
    for trial, row in rows.items():
        content.append(f'<text x="4" y="{row * _ROW + 12}">{html.escape(trial)}</text>')
    for spans, inset in ((history.waits, 6), (history.slots, 2)):
        for span in spans:
            if span.trial in rows:
                y = rows[span.trial] * _ROW + inset
                content.append(_draw_span(span, axis, y, _ROW + 1 - 2 * inset))
    for time, trial, text in history.exploits:
        if trial in rows:
            content.append(
                f'<circle class="exploit" data-trial="{html.escape(trial)}" '
                f'data-text="{html.escape(text)}" cx="{axis.x(time):.1f}" '
                f'cy="{rows[trial] * _ROW + 8}" r="4" fill="#e45756"/>'
            )
    left_out = len(history.trials) - len(shown)
    note = f"<p>{left_out} more trials are not shown.</p>" if left_out else ""
    return _svg("trials", height + 18, "".join(content)) + note


def _draw_rungs(history: History) -> str:
    if not history.rungs:
        return "<p>This scheduler has told of no milestones.</p>"
    parts: List[str] = []
    brackets = sorted({bracket for bracket, _ in history.rungs})
    for bracket in brackets:
        rungs = [history.rungs[key] for key in sorted(history.rungs)]
        rungs = [rung for rung in rungs if rung.bracket == bracket]
        if len(brackets) > 1:
            parts.append(f"<h3>Bracket {bracket}</h3>")
        parts.append(_draw_bracket(rungs, bracket))
        parts.append(_tabulate(rungs))
    return "".join(parts)


def _draw_bracket(rungs: List[RungHistory], bracket: int) -> str:
    height, column = 260, (_WIDTH - _LEFT) / max(len(rungs), 1)
    scores = [s for rung in rungs for s in rung.scores.values() if s is not None]
    low, high = min(scores, default=0.0), max(scores, default=1.0)

    def y(score: Optional[float]) -> float:
        if score is None:
            return height - 6
        return 14 + (height - 40) * (high - score) / ((high - low) or 1.0)

    content = [
        f'<text x="4" y="18">{high:.4g}</text>'
        f'<text x="4" y="{height - 26}">{low:.4g}</text>'
    ]
    for number, rung in enumerate(rungs):
        x = _LEFT + column * (number + 0.5)
        content.append(
            f'<text x="{x:.0f}" y="{height + 12}" text-anchor="middle">'
            f"milestone {rung.milestone:g}</text>"
        )
        if rung.cutoff is not None:
            content.append(
                f'<line class="cutoff" x1="{x - column * 0.4:.0f}" '
                f'x2="{x + column * 0.4:.0f}" y1="{y(rung.cutoff):.1f}" '
                f'y2="{y(rung.cutoff):.1f}" stroke="#e45756" stroke-dasharray="5 3"/>'
            )
        for place, (trial, score) in enumerate(rung.scores.items()):
            shift = column * 0.7 * ((place + 0.5) / len(rung.scores) - 0.5)
            fate, color = _fate_of(trial, rung)
            shown = "not a number" if score is None else f"{score:.6g}"
            text = f"milestone {rung.milestone:g}, score {shown}, {fate}"
            content.append(
                f'<circle class="score" data-trial="{html.escape(trial)}" '
                f'data-text="{html.escape(text)}" cx="{x + shift:.1f}" '
                f'cy="{y(score):.1f}" r="4" fill="{color}">'
                f"<title>{html.escape(f'{trial}: {text}')}</title></circle>"
            )
    return _svg(f"bracket-{bracket}", height + 18, "".join(content))


def _fate_of(trial: str, rung: RungHistory):
    if trial in rung.went_on:
        return "went on", "#54a24b"
    if trial in rung.stopped:
        return "stopped", "#888888"
    return "waits, or has ended otherwise", "#4c78a8"


def _tabulate(rungs: List[RungHistory]) -> str:
    head = ("milestone", "recorded", "went on", "stopped", "others", "cutoff")
    rows = ["".join(f"<th>{name}</th>" for name in head)]
    for rung in rungs:
        recorded, went_on = len(rung.scores), len(rung.went_on)
        stopped = len([trial for trial in rung.stopped if trial not in rung.went_on])
        cells = (
            f"{rung.milestone:g}",
            recorded,
            went_on,
            stopped,
            recorded - went_on - stopped,
            "none" if rung.cutoff is None else f"{rung.cutoff:.6g}",
        )
        rows.append("".join(f"<td>{cell}</td>" for cell in cells))
    return "<table>" + "".join(f"<tr>{row}</tr>" for row in rows) + "</table>"
