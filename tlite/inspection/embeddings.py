"""Pictures of the rows of a matrix, with tokens as marks."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.text import Text  # an annotation's extent is that of its line too

from tlite.errors import needs_extra
from tlite.inspection.plots import visible


def plot_embedding(
    table: Float[np.ndarray, "V D"],
    tokens: Sequence[str],
    method: str = "pca",
    title: str = "",
    axes: Axes | None = None,
) -> Axes:
    """The rows of a matrix in two dimensions, by "pca" or "tsne", with the tokens as marks.

    PCA keeps the two directions of the largest variance; t-SNE (van der Maaten and Hinton 2008)
    keeps neighbours together. Marks that would overlap stand beside their place, with a line to it.
    """
    with needs_extra("text"):
        from sklearn.decomposition import PCA
        from sklearn.manifold import TSNE
        from threadpoolctl import threadpool_limits
    table = np.asarray(table)
    if method == "pca":
        places = PCA(n_components=2, random_state=0).fit_transform(table)
    else:
        perplexity = min(30.0, (len(table) - 1) / 3)
        # Threads would wait for each other: on a busy machine it took a hundred times as long.
        with threadpool_limits(1):
            places = TSNE(perplexity=perplexity, random_state=0, init="pca").fit_transform(table)
    axes = axes or plt.subplots(figsize=(7, 7), layout="constrained")[1]
    names = {"pca": "principal component", "tsne": "t-SNE dimension"}
    axes.set(xlabel=f"{names[method]} 1", ylabel=f"{names[method]} 2", title=title)
    axes.scatter(*places.T, s=0)  # sets the limits
    axes.margins(0.08)
    marks = [
        axes.annotate(
            visible(token),
            place,
            xytext=(0, 0),
            textcoords="offset points",
            ha="center",
            va="center",
            color=colour_of(token),
            size=9,
            arrowprops={"arrowstyle": "-", "color": "0.7", "linewidth": 0.5, "shrinkB": 0},
        )
        for place, token in zip(places, tokens, strict=True)
    ]
    figure = axes.get_figure(root=True)
    figure.draw_without_rendering()  # so that all is where it will be
    centres = axes.transData.transform(places)
    sizes = np.array([Text.get_window_extent(mark).size for mark in marks])
    sizes[:, 0] += 4  # a space between marks side by side
    moved = (spread_out(centres, sizes) - centres) * 72 / figure.dpi
    for mark, offset in zip(marks, moved, strict=True):
        mark.set_position(offset)
        mark.arrow_patch.set_visible(bool(np.abs(offset).max() > 6))
    return axes


def spread_out(
    centres: Float[np.ndarray, "N 2"], sizes: Float[np.ndarray, "N 2"], rounds: int = 500
) -> Float[np.ndarray, "N 2"]:
    """Centres of boxes of these sizes, near the given ones, so that no two boxes overlap.

    Every round, each two that overlap move apart along the axis on which that is the shorter way;
    after the last some may overlap still, where there is no room.
    """
    centres, needed = centres.astype(float), (sizes[:, None] + sizes) / 2
    order = np.sign(np.subtract.outer(np.arange(len(sizes)), np.arange(len(sizes))))[..., None]
    for _ in range(rounds):
        apart = centres[:, None] - centres
        overlap = needed - np.abs(apart)
        overlapping = (overlap > 0).all(-1, keepdims=True) & (order != 0)
        if not overlapping.any():
            break
        shorter = overlap == overlap.min(-1, keepdims=True)
        direction = np.where(apart == 0, order, np.sign(apart))
        centres += np.where(overlapping & shorter, direction * (overlap / 2 + 0.1), 0).sum(1) / 2
    return centres


def colour_of(token: str) -> str:
    """Upper case blue, lower case green, digits red, everything else grey."""
    letters = token.strip("\u2581# ")
    if letters[:1].isalpha():
        return "tab:blue" if letters[0].isupper() else "tab:green"
    return "tab:red" if letters[:1].isdigit() else "tab:gray"
