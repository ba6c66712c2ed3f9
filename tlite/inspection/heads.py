"""Pictures of what the tools find: logit lens, heads, patches, saliency."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes

from tlite.inspection.plots import label_tokens, plain, visible


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
    high: float | None = 1.0,
    axes: Axes | None = None,
) -> Axes:
    """A number for each layer and head."""
    layers, heads = table.shape
    size = (0.75 * heads + 2.2, max(0.5 * layers + 1.3, 3.2))
    axes = axes or plt.subplots(figsize=size, layout="constrained")[1]
    image = axes.imshow(table, cmap="viridis", vmin=low, vmax=high, aspect="auto")
    middle = (image.norm.vmin + image.norm.vmax) / 2
    for layer in range(layers):
        for head in range(heads):
            value = table[layer, head]
            colour = "white" if value < middle else "black"
            axes.text(head, layer, f"{value:.2f}", ha="center", va="center", color=colour)
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
    """A score of every head at the checkpoints of a run."""
    axes = axes or plt.subplots(figsize=(6, 4), layout="constrained")[1]
    for layer in range(scores.shape[1]):
        for head in range(scores.shape[2]):
            axes.plot(steps, scores[:, layer, head], marker="o", ms=3, label=f"{layer}.{head}")
    axes.set(xlabel="step", ylabel=label, ylim=(0, 1))
    axes.grid(alpha=0.3)
    axes.legend(title="block.head", ncols=4, fontsize=7)
    return axes


def plot_patches(
    table: Float[np.ndarray, "L T"], tokens: Sequence[str], label: str, axes: Axes | None = None
) -> Axes:
    """The metric after a patch at each depth and position."""
    layers, length = table.shape
    size = (0.34 * length + 2.4, 0.4 * layers + 1.4)
    axes = axes or plt.subplots(figsize=size, layout="constrained")[1]
    image = axes.imshow(table, cmap="viridis", aspect="auto")
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
