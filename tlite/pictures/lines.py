"""Curves by step and position; bars and boxes of what is counted and grouped."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real

import numpy as np
from jaxtyping import Float, Int
from matplotlib import colormaps, cycler
from matplotlib.axes import Axes
from matplotlib.colors import TABLEAU_COLORS

from tlite.pictures.figures import finished, new_axes, new_panels
from tlite.pictures.marks import plain, visible

LOOKS = cycler(linestyle=["-", "--", ":", "-."]) * cycler(color=[*TABLEAU_COLORS])
UNITS = {
    "loss": "loss (nats)",
    "accuracy": "accuracy (share that is right)",
    "bleu": "BLEU (13a, greedy)",
    "exact_match": "exact matches (share)",
}
MOST_WORDS = 24  # of a text


def plot_lines(
    curves: Mapping[str, Float[np.ndarray, "N"]],
    xlabel: str,
    ylabel: str,
    x: Iterable[Real] | None = None,
    axes: Axes | None = None,
    **style,
) -> Axes:
    """A curve for each name, in a colour and style of its own, over `x`: 0, 1, ... unless given."""
    axes = axes or new_axes()
    axes.set_prop_cycle(LOOKS)
    for name, values in curves.items():
        axes.plot(range(len(values)) if x is None else x, values, label=name, **style)
    return finished(axes, xlabel, ylabel)


def plot_curves(lines: Sequence[Mapping], name: str = "loss", axes: Axes | None = None) -> Axes:
    """A quantity of metrics.jsonl by step, for training (smoothed) and validation, with its spread.

    Training values are averaged over 1/200 of the run, so that the noise of single batches does
    not hide the course. The band is one standard deviation over the members.
    """
    axes = axes or new_axes()
    for split, style in (("training", {"alpha": 0.8}), ("validation", {"marker": "o", "ms": 3})):
        chosen = [line for line in lines if line["split"] == split and line.get(name) is not None]
        if not chosen:
            continue
        width = max(len(chosen) // 200, 1) if split == "training" else 1
        columns = ["step", name] + [f"{name}_spread"] * (f"{name}_members" in chosen[0])
        values = np.array([[line[column] for column in columns] for line in chosen], float)
        usable = len(values) // width * width
        means = values[:usable].reshape(-1, width, len(columns)).mean(1)
        _curve(axes, *means.T, label=split, **style)
    return finished(axes, "step", UNITS.get(name, name))


def _curve(axes: Axes, x: np.ndarray, mean: np.ndarray, spread=None, **style) -> None:
    """A curve, with a band of its spread if there is one."""
    (curve,) = axes.plot(x, mean, **style)
    if spread is not None:
        axes.fill_between(x, mean - spread, mean + spread, color=curve.get_color(), alpha=0.2)


def plot_schedule(rates: Mapping[str, Float[np.ndarray, "N"]]) -> Axes:
    """The learning rate of every update, by what a curve is called."""
    steps = 1 + np.arange(max(map(len, rates.values())))
    axes = plot_lines(rates, "step", "learning rate", steps)
    axes.set_ylim(bottom=0)
    return axes


def plot_loss_by_position(losses: Float[np.ndarray, "M T"]) -> Axes:
    """Mean loss at each position of the context: how much a longer past helps."""
    axes = new_axes()
    spread = losses.std(0, ddof=1) if len(losses) > 1 else None
    _curve(axes, np.arange(1, losses.shape[1] + 1), losses.mean(0), spread, marker=".")
    return finished(axes, "tokens seen", "validation loss (nats per token)")


def plot_scores_by_step(
    steps: Sequence[int], scores: Float[np.ndarray, "N L H"], label: str
) -> Axes:
    """A score of every head at the checkpoints of a run, a panel for each block."""
    layers = scores.shape[1]
    columns = min(layers, 4)
    size = 2.6 * columns + 1.4, 2.4 * -(-layers // columns) + 0.6
    panels = new_panels(layers, columns, *size, sharex=True)
    for layer, panel in enumerate(panels):
        panel.set_prop_cycle(LOOKS)
        heads = panel.plot(steps, scores[:, layer], marker="o", ms=3)
        panel.set_title(f"block {layer}", fontsize=10)
        panel.grid(alpha=0.3)
    panels[0].set_ylim(0, 1.05 * float(scores.max()) or 1)
    figure, names = panels[0].figure, [f"head {head}" for head in range(len(heads))]
    figure.supxlabel("step", fontsize=10)
    figure.supylabel(label, fontsize=10)
    figure.legend(heads, names, loc="outside right center", fontsize=8)
    return panels[0]


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
