"""Curves: metrics by step, losses by position, scores of heads."""

from collections.abc import Iterable, Mapping, Sequence
from numbers import Real

import numpy as np
from jaxtyping import Float
from matplotlib import cycler
from matplotlib.axes import Axes
from matplotlib.colors import TABLEAU_COLORS

from tlite.pictures.figures import finished, new_axes, new_panels
from tlite.pictures.marks import plain

LOOKS = cycler(linestyle=["-", "--", ":", "-."]) * cycler(color=[*TABLEAU_COLORS])
UNITS = {
    "loss": "loss (nats)",
    "accuracy": "accuracy (share that is right)",
    "bleu": "BLEU (13a, greedy)",
    "exact_match": "exact matches (share)",
}


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
        found = (_averaged([line[column] for line in chosen], width) for column in columns)
        _mean(axes, *found, label=split, **style)
    return finished(axes, "step", UNITS.get(name, name))


def _averaged(values: list, width: int) -> np.ndarray:
    usable = len(values) // width * width
    return np.asarray(values[:usable], float).reshape(-1, width).mean(1)


def _mean(axes: Axes, x: np.ndarray, mean: np.ndarray, spread=None, **style) -> None:
    """A curve, with a band of its spread if there is one."""
    (curve,) = axes.plot(x, mean, **style)
    if spread is not None:
        axes.fill_between(x, mean - spread, mean + spread, color=curve.get_color(), alpha=0.2)


def plot_learning_curves(runs: Mapping[str, Sequence[Mapping]]) -> Axes:
    """The accuracies of several runs beside each other: with and without dropout, say.

    Args:
        runs: lines of metrics.jsonl by the title that each run's curves get.
    """
    panels = new_panels(len(runs), len(runs), 5 * len(runs), 4)
    for (title, lines), panel in zip(runs.items(), panels, strict=True):
        plot_curves(lines, "accuracy", panel).set_title(plain(title))
    return panels[0]


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
    _mean(axes, np.arange(1, losses.shape[1] + 1), losses.mean(0), spread, marker=".")
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
