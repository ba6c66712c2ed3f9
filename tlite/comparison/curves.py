"""Pictures of a comparison: learning curves with bands, and differences with their intervals."""

import io
from itertools import cycle

import numpy as np
from jaxtyping import Float, Int
from matplotlib import ticker
from matplotlib.figure import Figure

from tlite.comparison.results import Results
from tlite.comparison.summaries import RunSummary
from tlite.comparison.tables import shorten
from tlite.pictures import LINE_STYLES, isolate_figures
from tlite.pictures.labels import matplotlib_text

MAX_OPAQUE_BANDS = 10  # with more runs, bands are fainter
MAX_LEGEND = 32  # characters of a label
AXES = {
    "steps": "step",
    "tokens": "tokens that a model was trained on",
    "flops": "FLOPs of a model's training",
    "minutes": "minutes of the run's training",
}


def draw(results: Results) -> dict[str, tuple[str, bytes]]:
    """Return caption and PNG by file name; plots without data are left out."""
    figures, images = {}, {}
    for resource, label in AXES.items():
        caption = f"{results.metric.title} by {label}: mean over seeds, band of one "
        caption += "standard deviation, a dot at the last validation"
        figures[f"curves-{resource}.png"] = caption, plot_curves(results, resource)
    if results.intervals:
        caption = f"difference from {results.reference.label} with its 95 % interval"
        figures["differences.png"] = caption, plot_differences(results)
    if results.speedups:
        caption = "final loss against the number of steps; the line is the reference's final loss"
        figures["speedup.png"] = caption, plot_speedups(results)
    with isolate_figures():
        for name, (caption, figure) in figures.items():
            if figure is not None:
                figure.savefig(file := io.BytesIO(), format="png", dpi=120)
                images[name] = caption, file.getvalue()
    return images


def resource_used(
    run: RunSummary, steps: Int[np.ndarray, "N"], resource: str
) -> Float[np.ndarray, "N"] | None:
    """Return the amount of a resource (of `AXES`) used up to each of `steps`; None if unknown.

    Tokens and FLOPs are those of one model, minutes those of the run of all seeds.
    """
    if resource == "minutes":
        return np.interp(steps, [0, *run.rates], [0.0, *run.minutes]) if run.rates else None
    costs = {"steps": 1, "tokens": run.tokens_per_step, "flops": run.flops_per_step}
    per_step = costs[resource]
    return None if per_step is None else steps * float(per_step)


def plot_curves(results: Results, resource: str) -> Figure | None:
    """Plot the metric against a resource of `AXES`; None without validations.

    The y axis shows the values after the first third of the steps, so that differences at the end
    are visible.
    """
    curves, late_values = [], []
    for style, run in zip(cycle(LINE_STYLES), results.runs, strict=False):
        steps, values = run.curve(results.metric)
        x = resource_used(run, steps, resource)
        if x is not None and len(x):
            curves.append((style, run, steps, x, results.metric.scale * values))
    if not curves:
        return None
    figure = Figure(figsize=(8, max(4.6, 0.2 * len(curves))), layout="constrained")
    axes, alpha = figure.subplots(), 0.2 if len(curves) <= MAX_OPAQUE_BANDS else 0.06
    third = max(steps[-1] for _, _, steps, _, _ in curves) / 3
    for style, run, steps, x, values in curves:
        mean, band = values.mean(1), values.std(1, ddof=min(1, values.shape[1] - 1))
        axes.plot(x, mean, label=_legend_label(run.label), **style)
        axes.fill_between(x, mean - band, mean + band, color=style["color"], alpha=alpha, lw=0)
        last, is_late = steps == run.last_validation, steps >= min(third, steps[-1])
        axes.plot(x[last], mean[last], "o", ms=5, color=style["color"])
        late_values += [*(mean - band)[is_late], *(mean + band)[is_late]]
    low, high = min(late_values), max(late_values)
    if margin := 0.06 * (high - low):
        axes.set_ylim(low - margin, high + margin)
    axes.set(xlabel=AXES[resource], ylabel=results.metric.title)
    if axes.get_xlim()[1] >= 1e5:
        axes.xaxis.set_major_formatter(ticker.EngFormatter())
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", fontsize="small")
    return figure


def plot_differences(results: Results) -> Figure:
    """Plot the difference of each run from the reference with its 95 % interval."""
    runs, unit = results.intervals, results.metric.unit
    figure = Figure(figsize=(8, 1.3 + 0.3 * len(runs)), layout="constrained")
    axes = figure.subplots()
    for row, (_, difference) in enumerate(runs):
        better = results.metric.better(difference.mean)
        colour = ("tab:green" if better else "tab:red") if difference.significant else "tab:gray"
        half = difference.half_width
        axes.errorbar(difference.mean, row, xerr=half, fmt="o", color=colour, capsize=4)
    axes.axvline(0, color="black", linewidth=0.8)
    labels = [_legend_label(run.label) for run, _ in runs]
    axes.set_yticks(range(len(runs)), labels)
    axes.set_ylim(len(runs) - 0.5, -0.5)
    side = "left" if results.metric.lower else "right"
    reference = _legend_label(results.reference.label)
    axes.set_xlabel(f"difference from {reference} ({unit}; to the {side}: better)")
    axes.grid(alpha=0.3, axis="x")
    return figure


def plot_speedups(results: Results) -> Figure:
    """Plot the final loss against the number of steps, and the loss of the reference."""
    figure = Figure(figsize=(8, 4.6), layout="constrained")
    axes = figure.subplots()
    for style, entry in zip(cycle(LINE_STYLES), results.speedups, strict=False):
        x, y = [*entry.budgets], [*entry.budgets.values()]
        label = _legend_label(entry.label)
        if entry.speedup and 0 < entry.speedup.value < np.inf:
            label += f": {entry.speedup.value:.2f}"
        axes.plot(x, y, marker="o", ms=5, label=label, **style)
        if entry is results.speedups[0]:
            axes.axhline(y[-1], color=style["color"], lw=0.8)
    budgets = sorted({steps for entry in results.speedups for steps in entry.budgets})
    axes.set_xscale("log")
    axes.set_xticks(budgets, [f"{steps:,}" for steps in budgets])
    axes.minorticks_off()
    axes.set(xlabel="steps, each with its own decay", ylabel=results.metric.title)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", fontsize="small", title="speedup")
    return figure


def _legend_label(label: str) -> str:
    return matplotlib_text(shorten(label, MAX_LEGEND))
