"""Pictures of a comparison: learning curves with bands, and differences with their intervals."""

import io

import numpy as np
from jaxtyping import Float
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tlite.comparison.results import Results
from tlite.comparison.rows import Row
from tlite.comparison.tables import clipped
from tlite.pictures import own_figures
from tlite.pictures.lines import LOOKS
from tlite.pictures.marks import plain

MANY = 10  # entries from which on bands are fainter and styles of lines differ too
LEGEND = 32  # letters of a name
AXES = {
    "steps": "step",
    "tokens": "tokens that a model was trained on",
    "flops": "FLOPs of a model's training",
    "minutes": "minutes of the run's training",
}


def draw(results: Results) -> dict[str, tuple[str, bytes]]:
    """By file name a caption and the PNG; of what nothing is known there is no picture."""
    figures, found = {}, {}
    for what, label in AXES.items():
        caption = f"{results.measure.title} by {label}: mean over seeds, band of one "
        caption += "standard deviation, a dot at the best step"
        figures[f"curves-{what}.png"] = caption, plot_curves(results, what)
    if results.intervals:
        caption = f"difference from {results.reference.label} with its 95 % interval"
        figures["differences.png"] = caption, plot_differences(results)
    with own_figures():
        for name, (caption, figure) in figures.items():
            if figure is not None:
                figure.savefig(file := io.BytesIO(), format="png", dpi=120)
                found[name] = caption, file.getvalue()
    return found


def spent(row: Row, what: str) -> Float[np.ndarray, "N"] | None:
    """Steps, tokens or FLOPs of each model, or minutes of the run, up to each validation.

    None if they are not known.
    """
    steps = row.curve[0].astype(float)
    if what == "minutes":
        known = len(row.trained) > 0
        return np.interp(steps, [0, *row.trained], [0.0, *row.minutes]) if known else None
    of_step = {
        "steps": 1, "tokens": row.cost.tokens_per_step, "flops": row.cost.flops_per_step
    }[what]  # fmt: skip
    return None if of_step is None else steps * of_step


def plot_curves(results: Results, what: str) -> Figure | None:
    """The measure at each validation against what was `spent`; None if there is nothing."""
    shown = [(index, row, spent(row, what)) for index, row in enumerate(results.rows)]
    shown = [(index, row, x) for index, row, x in shown if x is not None and len(x)]
    if not shown:
        return None
    columns = 1 if len(shown) <= 24 else 2
    figure = Figure(figsize=(8 + 2.2 * (columns - 1), 4.6), layout="constrained")
    axes = figure.subplots()
    for index, row, x in shown:
        steps, values = row.curve[0], results.measure.scale * row.curve[1]
        mean, look = values.mean(1), look_of(index, len(results.rows))
        axes.plot(x, mean, label=plain(clipped(row.label, LEGEND)), **look)
        if values.shape[1] > 1:
            band, alpha = values.std(1, ddof=1), 0.2 if len(shown) <= MANY else 0.06
            axes.fill_between(x, mean - band, mean + band, color=look["color"], alpha=alpha, lw=0)
        best = steps == row.best_step
        axes.plot(x[best], mean[best], "o", ms=5, color=look["color"])
    axes.set(xlabel=AXES[what], ylabel=results.measure.title)
    if axes.get_xlim()[1] >= 1e5:
        axes.xaxis.set_major_formatter(ticker.EngFormatter())
    _look_at_the_end(axes, [row for _, row, _ in shown], results.measure.scale)
    axes.grid(alpha=0.3)
    size = "small" if len(shown) <= MANY else "x-small"
    figure.legend(loc="outside right upper", fontsize=size, ncols=columns)
    return figure


def look_of(index: int, number: int) -> dict[str, object]:
    """Colour and style of a line: ten colours, then the same in other styles."""
    return [*LOOKS][index % len(LOOKS)] | {"linewidth": 1.6 if number <= MANY else 1.2}


def _look_at_the_end(axes: Axes, rows: list[Row], scale: float) -> None:
    """Leave out of the picture what lies above, or below, all that comes after the first third.

    The first validations are far from the rest, and what differs at the end would not be seen.
    """
    most, late = max(row.curve[0][-1] for row in rows), []
    for steps, values in (row.curve for row in rows):
        kept = values[steps >= min(most / 3, steps[-1])]
        deviation = kept.std(1, ddof=1) if kept.shape[1] > 1 else np.zeros(len(kept))
        late += [*(kept.mean(1) - deviation), *(kept.mean(1) + deviation)]
    low, high = scale * min(late), scale * max(late)
    if margin := 0.06 * (high - low):
        axes.set_ylim(low - margin, high + margin)


def plot_differences(results: Results) -> Figure:
    """A line for each entry: its difference from the first, and the 95 % interval."""
    rows, unit = results.intervals, results.measure.unit
    figure = Figure(figsize=(8, 1.3 + 0.3 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for place, row in enumerate(rows):
        found = row.difference
        better = results.measure.better(found.mean)
        colour = ("tab:green" if better else "tab:red") if found.shown else "tab:gray"
        axes.errorbar(found.mean, place, xerr=found.half_width, fmt="o", color=colour, capsize=4)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(rows)), [plain(clipped(row.label, LEGEND)) for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    side = "left" if results.measure.lower else "right"
    first = plain(clipped(results.reference.label, LEGEND))
    axes.set_xlabel(f"difference from {first} ({unit}; to the {side}: better)")
    axes.grid(alpha=0.3, axis="x")
    return figure
