"""Pictures of what the tools find: logit lens, heads, patches, saliency."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from tlite.inspection.plots import label_tokens, line_style, plain, visible


def plot_logit_lens(
    probabilities: Float[np.ndarray, "L1 T V"],
    tokens: Sequence[str],
    vocabulary: Sequence[str],
    axes: Axes | None = None,
) -> Axes:
    """Depth by position: the most probable next token in each cell, shaded by its probability."""
    top = probabilities.argmax(-1)
    pieces = [[vocabulary[index] for index in row] for row in top]
    return plot_top_of_lens(probabilities.max(-1), pieces, tokens, axes=axes)


def plot_top_of_lens(
    best: Float[np.ndarray, "L1 T"],
    pieces: Sequence[Sequence[str]],
    tokens: Sequence[str],
    xlabel: str = "text so far, up to this token",
    axes: Axes | None = None,
) -> Axes:
    """The same of the most probable tokens alone: their probabilities and their pieces."""
    depth, length = best.shape
    longest = max(len(visible(piece)) for row in pieces for piece in row)
    size = (max(0.34, 0.11 * longest + 0.12) * length + 2.2, 0.36 * depth + 1.4)
    axes = axes or plt.subplots(figsize=size, layout="constrained")[1]
    image = axes.imshow(best, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for level in range(depth):
        for position in range(length):
            axes.text(
                position,
                level,
                visible(pieces[level][position]),
                ha="center",
                va="center",
                fontsize=8,
                color="white" if best[level, position] > 0.6 else "black",
            )
    label_tokens(axes, tokens)
    axes.set_yticks(range(depth), ["embedding", *(f"block {i}" for i in range(depth - 1))])
    axes.set(xlabel=xlabel, ylabel="read out after")
    axes.figure.colorbar(image, ax=axes, label="probability")
    return axes


def plot_heads(
    table: Float[np.ndarray, "L H"],
    label: str,
    *,
    low: float | None = 0.0,
    high: float | None = None,
    axes: Axes | None = None,
) -> Axes:
    """A number for each layer and head, on a scale up to the largest of them unless one is given.

    With `low` None it is a change: 0 is white, more is red, less is blue.
    """
    layers, heads = table.shape
    size = (0.62 * heads + 2.4, max(0.45 * layers + 1.1, 2.4))
    axes = axes or plt.subplots(figsize=size, layout="constrained")[1]
    most = float(np.abs(table).max()) or 1.0
    high = most if high is None else high
    colours, low = ("RdBu_r", -high) if low is None else ("Blues", low)
    image = axes.imshow(table, cmap=colours, vmin=low, vmax=high, aspect="auto")
    digits = 2 if most >= 0.1 else 3
    for layer in range(layers):
        for head in range(heads):
            value = table[layer, head]
            share = (value - low) / (high - low)
            dark = share > 0.6 if colours == "Blues" else abs(share - 0.5) > 0.35
            style = {"ha": "center", "va": "center", "color": "white" if dark else "black"}
            number = f"{value.round(digits) + 0.0:.{digits}f}"  # no -0.00
            axes.text(head, layer, number, fontsize=9, **style)
    axes.set_xticks(range(heads))
    axes.set_yticks(range(layers))
    axes.set(xlabel="head", ylabel="block")
    axes.figure.colorbar(image, ax=axes, label=label)
    return axes


def plot_scores_by_step(
    steps: Sequence[int],
    scores: Float[np.ndarray, "N L H"],
    label: str,
    axes: Axes | None = None,
) -> Axes:
    """A score of every head at the checkpoints of a run: a panel for each block, or all in one."""
    layers, heads = scores.shape[1:]
    panels = [axes] * layers
    if axes is None:
        columns = min(layers, 4)
        rows = -(-layers // columns)
        size = (2.6 * columns + 1.4, 2.4 * rows + 0.6)
        shared = {"sharex": True, "sharey": True, "squeeze": False, "layout": "constrained"}
        figure, grid = plt.subplots(rows, columns, figsize=size, **shared)
        panels = list(grid.flat)
        for panel in panels[layers:]:
            panel.axis("off")
    for layer in range(layers):
        for head in range(heads):
            style = line_style(head if axes is None else layer * heads + head)
            name = f"head {head}" if axes is None else f"{layer}.{head}"
            panels[layer].plot(steps, scores[:, layer, head], marker="o", ms=3, label=name, **style)
        panels[layer].grid(alpha=0.3)
    if axes is None:
        for layer, panel in enumerate(panels[:layers]):
            panel.set_title(f"block {layer}", fontsize=10)
            panel.xaxis.set_major_locator(MaxNLocator(4))
        panels[0].set_ylim(0, 1.05 * float(scores.max()) or 1)
        for row in grid:
            row[0].set_ylabel(label)
        for panel in panels[max(layers - columns, 0) : layers]:
            panel.set_xlabel("step")
            panel.tick_params(labelbottom=True)
        handles, named = panels[0].get_legend_handles_labels()
        figure.legend(handles, named, loc="outside right center", fontsize=8)
        return panels[0]
    axes.set(xlabel="step", ylabel=label, ylim=(0, 1))
    axes.legend(title="block.head", ncols=4, fontsize=7)
    return axes


def plot_patches(
    table: Float[np.ndarray, "L T"], tokens: Sequence[str], label: str, axes: Axes | None = None
) -> Axes:
    """The metric after a patch at each depth and position."""
    layers, length = table.shape
    size = (0.34 * length + 2.4, 0.4 * layers + 1.4)
    axes = axes or plt.subplots(figsize=size, layout="constrained")[1]
    image = axes.imshow(table, cmap="Blues", aspect="auto")
    label_tokens(axes, tokens)
    axes.set_yticks(range(layers), [f"block {i}" for i in range(layers)])
    axes.set(xlabel="position that is restored", ylabel="after")
    axes.figure.colorbar(image, ax=axes, label=label)
    return axes


def plot_saliency(
    words: Sequence[str],
    columns: dict[str, Float[np.ndarray, "T"]],
    most: int = 24,
) -> Axes:
    """Numbers for the words of a text, side by side: the first `most` words."""
    words = list(words[:most])
    _, grid = plt.subplots(
        1,
        len(columns),
        figsize=(3.2 * len(columns) + 1.5, 0.24 * len(words) + 1.2),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for axes, (title, values) in zip(grid[0], columns.items(), strict=True):
        values = np.asarray(values)[: len(words)]
        axes.barh(range(len(words)), values, color=np.where(values > 0, "tab:green", "tab:red"))
        axes.set_title(plain(title), fontsize=10)
        axes.axvline(0, color="black", lw=0.8)
        axes.grid(alpha=0.3, axis="x")
    grid[0, 0].set_yticks(range(len(words)), [visible(word) for word in words])
    grid[0, 0].invert_yaxis()
    return grid[0, 0]
