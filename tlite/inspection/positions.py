"""Pictures of position encodings."""

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from tlite.inspection.plots import line_style


def plot_positions(
    table: Float[np.ndarray, "L D"],
    axes: Axes | None = None,
    xlabel: str = "column of the encoding",
    label: str = "value",
) -> Axes:
    """The table as a heat map: a row for each position."""
    axes = axes or plt.subplots(figsize=(6, 4), layout="constrained")[1]
    most = np.abs(table).max()
    image = axes.imshow(table, cmap="RdBu", vmin=-most, vmax=most, aspect="auto")
    axes.set(xlabel=xlabel, ylabel="position")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.figure.colorbar(image, ax=axes, label=label)
    return axes


def plot_position_curves(
    table: Float[np.ndarray, "L D"],
    columns: tuple[int, ...] = (0, 4, 8, 12),
    axes: Axes | None = None,
) -> Axes:
    """Some of the table's columns over the positions: of a sinusoidal one, sines."""
    axes = axes or plt.subplots(figsize=(6, 4), layout="constrained")[1]
    for column in columns:
        if column < table.shape[1]:
            axes.plot(table[:, column], label=f"column {column}")
    axes.set(xlabel="position", ylabel="value")
    axes.grid(alpha=0.3)
    axes.margins(y=0.25)  # room for the legend over curves that fill -1 to 1
    axes.legend(loc="upper center", ncols=len(columns), fontsize=8)
    return axes


def plot_similarity(
    similarity: Float[np.ndarray, "L L"], title: str = "", axes: Axes | None = None
) -> Axes:
    """How alike the encodings of two positions are, from -1 to 1."""
    axes = axes or plt.subplots(figsize=(5, 4), layout="constrained")[1]
    image = axes.imshow(similarity, cmap="RdBu", vmin=-1, vmax=1)
    axes.set(xlabel="position", ylabel="position", title=title)
    axes.figure.colorbar(image, ax=axes, label="cosine similarity")
    return axes


def plot_bias(bias: Float[np.ndarray, "H T S"], axes: Axes | None = None) -> Axes:
    """What is added to each head's scores by the distance: of the middle query, to each key."""
    axes = axes or plt.subplots(figsize=(7, 4), layout="constrained")[1]
    middle = bias.shape[1] // 2
    for head, row in enumerate(bias[:, middle]):
        axes.plot(np.arange(len(row)) - middle, row, label=f"head {head}", **line_style(head))
    axes.set(xlabel="position of the key less that of the query", ylabel="added to the score")
    axes.grid(alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=7, ncols=-(-len(bias) // 16))
    return axes


def cosine_similarity(table: Float[np.ndarray, "L D"]) -> Float[np.ndarray, "L L"]:
    """x_i . x_j / (|x_i| |x_j|) for all rows of a table; of a row of zeros 0."""
    lengths = np.linalg.norm(table, axis=1, keepdims=True)
    unit = table / np.where(lengths > 0, lengths, 1)
    return unit @ unit.T


def rotary_similarity(angles: Float[np.ndarray, "L half_K"]) -> Float[np.ndarray, "L L"]:
    """The cosine of a vector of equal pairs, rotated to two positions: mean cos(a_i - a_j)."""
    return np.cos(angles[:, None] - angles[None]).mean(-1)
