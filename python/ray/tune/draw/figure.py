"""Draws a history as a PNG, with matplotlib."""

from ray.tune.draw.history import History
from ray.tune.draw.page import COLORS, MARKS, NAMES


def save_figure(history: History, title: str, path: str) -> None:
    """Write the picture of a history.

    Args:
        history: What to draw.
        title: Name of the experiment.
        path: Where to write the PNG.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
        from matplotlib.ticker import MaxNLocator
    except ImportError as e:
        raise ImportError(
            "The PNG is drawn with matplotlib, which is not installed: "
            "`pip install matplotlib`. The HTML page needs nothing."
        ) from e
    brackets = sorted({bracket for bracket, _ in history.rungs})
    num_rows = min(len(history.trials), 60)
    heights = [max(1.5, 0.25 * history.num_slots), max(1.5, 0.16 * num_rows)]
    heights += [3.0] * len(brackets)
    figure = Figure(figsize=(12, sum(heights) + 1.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(
        len(heights), 1, gridspec_kw={"height_ratios": heights}, squeeze=False
    )[:, 0]
    state = " (going on)" if history.going_on else ""
    figure.suptitle(f"{title}{state}: {history.header.get('scheduler')}")
    rows = {trial: row for row, trial in enumerate(history.trials[:num_rows])}
    _draw_spans(axes[0], history, history.slots, lambda span: span.slot, 0.8)
    axes[0].set(ylabel="slot", xlabel="seconds", ylim=(history.num_slots - 0.5, -0.5))
    _draw_spans(axes[1], history, history.waits, lambda s: rows.get(s.trial), 0.3)
    _draw_spans(axes[1], history, history.slots, lambda s: rows.get(s.trial), 0.8)
    axes[1].set(ylabel="trial", xlabel="seconds", ylim=(num_rows - 0.5, -0.5))
    for axis in axes[:2]:
        axis.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0].legend(
        handles=[
            *(Patch(color=color, label=NAMES[kind]) for kind, color in COLORS.items()),
            Patch(color=MARKS["fail"], label="failed"),
            Patch(color=MARKS["stop"], label="stopped"),
        ],
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=4,
        fontsize=8,
        frameon=False,
    )
    for axis, bracket in zip(axes[2:], brackets, strict=True):
        _draw_bracket(axis, history, bracket)
    figure.savefig(path, format="png", dpi=100)


def _draw_spans(axis, history: History, spans, row_of, height: float) -> None:
    for span in spans:
        row = row_of(span)
        if row is None:
            continue
        end = history.end if span.end is None else span.end
        start = span.start - history.start
        width = max(end - span.start, 0.002 * (history.end - history.start))
        axis.barh(row, width, left=start, height=height, color=COLORS[span.kind])
        if span.ended_by in MARKS:
            left, right = row - height / 2, row + height / 2
            axis.vlines(end - history.start, left, right, color=MARKS[span.ended_by])


def _draw_bracket(axis, history: History, bracket: int) -> None:
    rungs = [rung for key, rung in sorted(history.rungs.items()) if key[0] == bracket]
    for place, rung in enumerate(rungs):
        number = len(rung.scores)
        for i, (trial, score) in enumerate(rung.scores.items()):
            if score is None:
                continue
            color = "tab:blue"
            if trial in rung.went_on:
                color = "tab:green"
            elif trial in rung.stopped:
                color = "tab:gray"
            x = place + 0.7 * ((i + 0.5) / number - 0.5)
            axis.plot(x, score, "o", color=color, markersize=4)
        if rung.cutoff is not None:
            axis.hlines(
                rung.cutoff, place - 0.4, place + 0.4, color="tab:red", linestyle="--"
            )
    axis.set_xticks(range(len(rungs)), [f"{rung.milestone:g}" for rung in rungs])
    axis.set(
        xlabel=f"milestone (bracket {bracket}); green: went on, gray: stopped there",
        ylabel=str(history.header.get("metric")),
    )
