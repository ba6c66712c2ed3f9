"""Pictures of the rows of a matrix, with tokens as marks."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

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
    table = np.asarray(table)
    if method == "pca":
        places = principal_components(table)
    else:
        with needs_extra("text"):
            from sklearn.manifold import TSNE
            from threadpoolctl import threadpool_limits
        perplexity = min(30.0, (len(table) - 1) / 3)
        # Threads would wait for each other: on a busy machine it took a hundred times as long.
        with threadpool_limits(1):
            places = TSNE(perplexity=perplexity, random_state=0, init="pca").fit_transform(table)
    axes = axes or plt.subplots(figsize=(6.5, 6.5), layout="constrained")[1]
    names = {"pca": "principal component", "tsne": "t-SNE dimension"}
    axes.set(xlabel=f"{names[method]} 1", ylabel=f"{names[method]} 2", title=title)
    axes.scatter(*places.T, s=0)  # sets the limits
    axes.margins(0.08)
    figure = axes.get_figure(root=True)
    figure.draw_without_rendering()  # so that the axes are where they will be
    style = {"ha": "center", "va": "center", "size": 9, "in_layout": False}
    marks = [
        axes.text(*place, visible(token), color=colour_of(token), **style)
        for place, token in zip(places, tokens, strict=True)
    ]
    centres = axes.transData.transform(places)
    sizes = np.array([mark.get_window_extent().size for mark in marks])
    sizes[:, 0] += 4  # a space between marks side by side
    free = spread_out(centres, sizes)
    away = (np.abs(free - centres) > 6 * figure.dpi / 72).any(-1)
    free = axes.transData.inverted().transform(free)
    for mark, place in zip(marks, free, strict=True):
        mark.set_position(place)
    lines = np.stack([places, free], axis=1)[away]
    axes.add_collection(LineCollection(lines, colors="0.7", linewidths=0.5, zorder=1))
    return axes


def principal_components(table: Float[np.ndarray, "V D"]) -> Float[np.ndarray, "V 2"]:
    """(x - mean) V, where V has the two directions of the largest variance.

    A direction's sign is free: the component of its largest number is above 0.
    """
    centred = table - table.mean(0)
    directions = np.linalg.svd(centred, full_matrices=False)[2][:2]
    largest = np.take_along_axis(directions, np.abs(directions).argmax(1)[:, None], axis=1)
    return centred @ (directions * np.sign(largest)).T


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
