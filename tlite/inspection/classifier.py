"""Pictures of what a classifier gets right and wrong."""

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes

from tlite.inspection.plots import plain, plot_curves


def plot_confusion(
    counts: Int[np.ndarray, "C C"], classes: list[str], axes: Axes | None = None
) -> Axes:
    """How often each class (row) was taken for each (column): share of the row, and number."""
    size = 1.6 + 0.9 * len(classes)
    axes = axes or plt.subplots(figsize=(size + 1, size), layout="constrained")[1]
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for (row, column), share in np.ndenumerate(shares):
        text = f"{share:.0%}\n{counts[row, column]}"
        color = "white" if share > 0.6 else "black"
        axes.text(column, row, text, ha="center", va="center", color=color)
    names = [plain(name) for name in classes]
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right")
    axes.set_yticks(range(len(names)), names)
    axes.set(xlabel="predicted class", ylabel="true class")
    axes.figure.colorbar(image, ax=axes, label="share of the true class", shrink=0.8)
    return axes


def plot_probability_by_value(
    probabilities: Float[np.ndarray, "N"],
    values: list[str],
    name: str,
    axes: Axes | None = None,
) -> Axes:
    """How a probability is distributed over the texts of each true label: quartiles and outliers.

    Labels that the model was not trained on may be among them: the 3 stars, say, of a model that
    only knows negative and positive.
    """
    groups = sorted(set(values))
    chosen = [probabilities[[v == group for v in values]] for group in groups]
    width = 1.6 + 0.9 * len(groups)
    axes = axes or plt.subplots(figsize=(width, 4), layout="constrained")[1]
    sizes = [len(rows) for rows in chosen]
    labels = [f"{plain(g)}\n({size:,} texts)" for g, size in zip(groups, sizes, strict=True)]
    axes.boxplot(chosen, tick_labels=labels, widths=0.6, flierprops={"ms": 2, "alpha": 0.4})
    axes.set(xlabel="true label", ylabel=f"probability of {plain(name)}", ylim=(-0.02, 1.02))
    axes.grid(axis="y", alpha=0.3)
    return axes


def plot_predictions_by_value(
    predicted: Int[np.ndarray, "N"],
    values: list[str],
    classes: list[str],
    axes: Axes | None = None,
) -> Axes:
    """Which classes the texts of each true label were given: shares, stacked."""
    groups = sorted(set(values))
    shares = np.array(
        [
            np.bincount(predicted[[v == group for v in values]], minlength=len(classes))
            for group in groups
        ],
        float,
    )
    shares /= shares.sum(1, keepdims=True)
    width = 3.2 + 0.7 * len(groups)
    axes = axes or plt.subplots(figsize=(width, 4), layout="constrained")[1]
    below, labels = np.zeros(len(groups)), [plain(group) for group in groups]
    colors = plt.get_cmap("RdYlBu")(np.linspace(0.1, 0.9, len(classes)))
    for name, share, color in zip(classes, shares.T, colors, strict=True):
        axes.bar(labels, share, bottom=below, label=plain(name), color=color, width=0.7)
        below += share
    axes.set(xlabel="true label", ylabel="share of the predictions", ylim=(0, 1))
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(
        handles[::-1], labels[::-1], title="predicted", loc="center left", bbox_to_anchor=(1, 0.5)
    )
    return axes


def plot_learning_curves(
    runs: dict[str, list[dict]], name: str = "accuracy", axes: np.ndarray | None = None
) -> Axes:
    """The curves of several runs beside each other: with and without dropout, say.

    Args:
        runs: lines of metrics.jsonl by the title that each run's curves get.
    """
    if axes is None:
        axes = plt.subplots(
            1,
            len(runs),
            figsize=(5 * len(runs), 4),
            sharey=True,
            squeeze=False,
            layout="constrained",
        )[1][0]
    for (title, lines), panel in zip(runs.items(), axes, strict=True):
        plot_curves(lines, name, panel).set_title(plain(title))
    return axes[0]
