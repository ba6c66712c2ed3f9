"""Bars and boxes: what speaks for a class, frequencies, lengths, scores of groups."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int
from matplotlib import colormaps
from matplotlib.axes import Axes

from tlite.pictures.figures import finished, new_axes, new_panels
from tlite.pictures.marks import plain, visible

MOST_WORDS = 24  # of a text


def plot_saliency(words: Sequence[str], columns: Mapping[str, Float[np.ndarray, "T"]]) -> Axes:
    """Numbers for the first words of a text, side by side."""
    words = [visible(word) for word in words[:MOST_WORDS]]
    size = 3.2 * len(columns) + 1.5, 0.24 * len(words) + 1.2
    panels = new_panels(len(columns), len(columns), *size)
    for axes, (title, values) in zip(panels, columns.items(), strict=True):
        values = np.asarray(values)[: len(words)]
        axes.barh(range(len(words)), values, color=np.where(values > 0, "tab:green", "tab:red"))
        axes.set_title(plain(title), fontsize=10)
        axes.axvline(0, color="black", lw=0.8)
        axes.grid(alpha=0.3, axis="x")
    panels[0].set_yticks(range(len(words)), words)
    panels[0].invert_yaxis()
    return panels[0]


def plot_frequencies(counts: Counter, kind: str) -> Axes:
    """The most frequent tokens and their shares."""
    axes = new_axes(10, 3.5)
    top, total = counts.most_common(40), counts.total()
    axes.bar(range(len(top)), [100 * count / max(total, 1) for _, count in top], color="tab:blue")
    turn = 90 if max((len(token) for token, _ in top), default=0) > 1 else 0
    axes.set_xticks(range(len(top)), [visible(token) for token, _ in top], rotation=turn)
    axes.margins(x=0.01)
    return finished(axes, f"most frequent {kind}s of {len(counts):,}", f"% of all {kind}s", "y")


def plot_lengths(lengths: Sequence[int], kind: str, unit: str) -> Axes:
    """How long the lines, passages or sentences are; the longest hundredth is left out."""
    axes = new_axes(6, 3.5)
    lengths = np.asarray(lengths)
    top = max(int(np.quantile(lengths, 0.99)), 1)
    width = max(-(-top // 60), 1)  # whole tokens, so that no bar is wider than its neighbours
    bins = np.arange(lengths.min(), top + width + 1, width) - 0.5
    axes.hist(lengths[lengths <= top], bins=bins, color="tab:blue")
    median = np.median(lengths)
    axes.axvline(median, color="tab:orange", label=f"median {median:g}")
    return finished(axes, f"length of a {kind} in {unit}s", f"number of {kind}s")


def plot_probability_by_value(
    probabilities: Float[np.ndarray, "N"],
    values: Sequence[str],
    name: str,
) -> Axes:
    """How a probability is distributed over the texts of each true label: quartiles and outliers.

    Labels that the model was not trained on may be among them: the 3 stars, say, of a model that
    only knows negative and positive.
    """
    groups = {group: probabilities[np.equal(values, group)] for group in sorted({*values})}
    axes = new_axes(1.6 + 0.9 * len(groups), 4)
    labels = [f"{plain(group)}\n({len(rows):,} texts)" for group, rows in groups.items()]
    style = {"widths": 0.6, "flierprops": {"ms": 2, "alpha": 0.4}}
    axes.boxplot([*groups.values()], tick_labels=labels, **style)
    axes.set_ylim(-0.02, 1.02)
    return finished(axes, "true label", f"probability of {plain(name)}", "y")


def plot_predictions_by_value(
    predicted: Int[np.ndarray, "N"],
    values: Sequence[str],
    classes: Sequence[str],
) -> Axes:
    """Which classes the texts of each true label were given: shares, stacked."""
    groups = {group: predicted[np.equal(values, group)] for group in sorted({*values})}
    shares = [np.bincount(rows, minlength=len(classes)) / len(rows) for rows in groups.values()]
    axes = new_axes(3.2 + 0.7 * len(groups), 4)
    below, labels = np.zeros(len(groups)), [plain(group) for group in groups]
    colours = colormaps["RdYlBu"](np.linspace(0.1, 0.9, len(classes)))
    for name, share, colour in zip(classes, np.transpose(shares), colours, strict=True):
        axes.bar(labels, share, bottom=below, label=plain(name), color=colour, width=0.7)
        below += share
    axes.set(xlabel="true label", ylabel="share of the predictions", ylim=(0, 1))
    beside = {"title": "predicted", "loc": "center left", "bbox_to_anchor": (1, 0.5)}
    axes.legend(reverse=True, **beside)
    return axes


def plot_score_by_length(
    lengths: Sequence[int],
    score: Callable[[Int[np.ndarray, "_"]], float],
    label: str,
) -> Axes:
    """A score of the sentences of similar length; the number of them is written on each bar.

    Args:
        lengths: in words.
        score: of some of the sentences together, by their indices.
    """
    axes, lengths = new_axes(7, 4), np.asarray(lengths)
    groups = np.digitize(lengths, np.quantile(lengths, np.linspace(0, 1, 7)[1:-1]).astype(int))
    members = [np.flatnonzero(groups == group) for group in np.unique(groups)]
    ends = [(lengths[rows].min(), lengths[rows].max()) for rows in members]
    names = [f"{low}-{high}" if high > low else f"{low}" for low, high in ends]
    bars = axes.bar(names, [score(rows) for rows in members], color="tab:blue", alpha=0.8)
    axes.bar_label(bars, [f"{len(rows):,}" for rows in members], padding=2)
    axes.set(xlabel="words of the source (number of sentences on top)", ylabel=label)
    axes.margins(y=0.12)
    return axes
