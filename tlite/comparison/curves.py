"""Pictures of a comparison: learning curves with bands, and differences with their intervals."""

import io
import warnings
from collections.abc import Callable

import matplotlib
import numpy as np
from jaxtyping import Float
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tlite.comparison.results import Results, Row
from tlite.comparison.tables import clipped
from tlite.pictures.marks import plain

STYLES = "-", "--", ":", "-."
MANY = 10  # entries from which on bands are fainter and styles of lines differ too
LEGEND = 32  # letters of a name


def draw(results: Results) -> dict[str, tuple[str, bytes]]:
    """By file name a caption and the PNG; of what nothing is known there is no picture."""
    axes: dict[str, tuple[str, Callable[[Row], np.ndarray | None]]] = {
        "steps": ("step", lambda row: row.course.validated[0]),
        "tokens": ("tokens that a model was trained on", tokens),
        "flops": ("FLOPs of a model's training", flops),
        "minutes": ("minutes of the run's training", minutes),
    }
    found = {}
    for name, (label, place) in axes.items():
        figure = plot_curves(results, label, place)
        if figure is not None:
            caption = f"{results.measure.title} by {label}: mean over seeds, band of one "
            caption += "standard deviation, a dot at the best step"
            found[f"curves-{name}.png"] = caption, _png(figure)
    if results.intervals:
        caption = f"difference from {results.rows[0].label} with its 95 % interval"
        found["differences.png"] = caption, _png(plot_differences(results))
    return found


def plot_curves(
    results: Results, label: str, place: Callable[[Row], Float[np.ndarray, "N"] | None]
) -> Figure | None:
    """The measure against what `place` gives for each validation; None if there is nothing."""
    shown = [(index, row, place(row)) for index, row in enumerate(results.rows)]
    shown = [(index, row, x) for index, row, x in shown if x is not None and len(x)]
    if not shown:
        return None
    columns = 1 if len(shown) <= 24 else 2
    figure = Figure(figsize=(8 + 2.2 * (columns - 1), 4.6), layout="constrained")
    axes, scale = figure.subplots(), results.measure.scale
    for index, row, x in shown:
        steps, values = row.course.validated
        mean = scale * values.mean(1)
        look = look_of(index, len(results.rows))
        axes.plot(x, mean, label=plain(clipped(row.label, LEGEND)), **look)
        if values.shape[1] > 1:
            band = scale * values.std(1, ddof=1)
            alpha = 0.2 if len(shown) <= MANY else 0.06
            axes.fill_between(x, mean - band, mean + band, color=look["color"], alpha=alpha, lw=0)
        best = steps == row.course.best_step
        axes.plot(x[best], mean[best], "o", ms=5, color=look["color"])
    axes.set(xlabel=label, ylabel=results.measure.title)
    if axes.get_xlim()[1] >= 1e5:
        axes.xaxis.set_major_formatter(ticker.EngFormatter())
    _look_at_the_end(axes, shown, scale)
    axes.grid(alpha=0.3)
    size = "small" if len(shown) <= MANY else "x-small"
    figure.legend(loc="outside right upper", fontsize=size, ncols=columns)
    return figure


def look_of(index: int, number: int) -> dict[str, object]:
    """Colour and style of a line: ten colours, then the same in other styles."""
    colours = matplotlib.colormaps["tab10"].colors
    style = STYLES[index // len(colours) % len(STYLES)]
    width = 1.6 if number <= MANY else 1.2
    return {"color": colours[index % len(colours)], "linestyle": style, "linewidth": width}


def _look_at_the_end(axes: Axes, shown: list[tuple], scale: float) -> None:
    """Leave out of the picture what lies above, or below, all that comes after the first third.

    The first validations are far from the rest, and what differs at the end would not be seen.
    """
    most = max(row.course.validated[0][-1] for _, row, _ in shown)
    late = []
    for _, row, _ in shown:
        steps, values = row.course.validated
        kept = values[steps >= min(most / 3, steps[-1])]
        deviation = kept.std(1, ddof=1) if kept.shape[1] > 1 else np.zeros(len(kept))
        late += [*(kept.mean(1) - deviation), *(kept.mean(1) + deviation)]
    low, high = scale * min(late), scale * max(late)
    if margin := 0.06 * (high - low):
        axes.set_ylim(low - margin, high + margin)


def tokens(row: Row) -> Float[np.ndarray, "N"]:
    """Of each model, up to each validation."""
    return row.course.validated[0] * float(row.cost.tokens_per_step)


def flops(row: Row) -> Float[np.ndarray, "N"] | None:
    """Of each model, up to each validation; None if they are not known."""
    of_step = row.cost.flops_per_step
    return None if of_step is None else row.course.validated[0] * of_step


def minutes(row: Row) -> Float[np.ndarray, "N"] | None:
    """Of the whole run, up to each validation; None if there are none."""
    log = row.course.log
    if not len(log.steps):
        return None
    taken = row.course.minutes(row.cost.tokens_per_step)
    return np.interp(row.course.validated[0], [0, *log.steps], [0.0, *taken])


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
    first = plain(clipped(results.rows[0].label, LEGEND))
    axes.set_xlabel(f"difference from {first} ({unit}; to the {side}: better)")
    axes.grid(alpha=0.3, axis="x")
    return figure


def _png(figure: Figure) -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings():
        # Of scripts that the font has no letters for, boxes are drawn.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(file, format="png", dpi=120)
    return file.getvalue()
