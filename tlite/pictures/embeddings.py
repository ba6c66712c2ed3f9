"""Pictures of the rows of a matrix, with tokens as marks."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.text import Text

from tlite.errors import needs_extra
from tlite.pictures.figures import new_axes
from tlite.pictures.marks import visible


def plot_embedding(
    table: Float[np.ndarray, "V D"], tokens: Sequence[str], method: str = "pca"
) -> Axes:
    """The rows of a matrix in two dimensions, by "pca" or "tsne", with the tokens as marks.

    PCA keeps the two directions of the largest variance; t-SNE (van der Maaten and Hinton 2008)
    keeps neighbours together. Marks that would overlap stand beside their place, with a line to it.
    """
    places = principal_components(np.asarray(table)) if method == "pca" else neighbours(table)
    axes = new_axes(6.5, 6.5)
    names = {"pca": "principal component", "tsne": "t-SNE dimension"}
    axes.set(xlabel=f"{names[method]} 1", ylabel=f"{names[method]} 2")
    axes.scatter(*places.T, s=0)  # sets the limits
    axes.margins(0.08)
    axes.figure.draw_without_rendering()  # so that the axes are where they will be
    style = {"ha": "center", "va": "center", "size": 9, "in_layout": False}
    style["arrowprops"] = {"arrowstyle": "-", "color": "0.7", "lw": 0.5, "shrinkB": 0}
    marks = [
        axes.annotate(visible(token), place, place, color=colour_of(token), **style)
        for place, token in zip(places, tokens, strict=True)
    ]
    sizes = np.array([Text.get_window_extent(mark).size for mark in marks])
    sizes[:, 0] += 4  # a space between marks side by side
    free = spread_out(axes.transData.transform(places), sizes)
    for mark, place in zip(marks, axes.transData.inverted().transform(free), strict=True):
        mark.set_position(place)
    return axes


def neighbours(table: Float[np.ndarray, "V D"]) -> Float[np.ndarray, "V 2"]:
    """t-SNE, the same each time."""
    with needs_extra("text"):
        from sklearn.manifold import TSNE
        from threadpoolctl import threadpool_limits
    perplexity = min(30.0, (len(table) - 1) / 3)
    # Threads would wait for each other: on a busy machine it took a hundred times as long.
    with threadpool_limits(1):
        return TSNE(perplexity=perplexity, random_state=0, init="pca").fit_transform(table)


def principal_components(table: Float[np.ndarray, "V D"]) -> Float[np.ndarray, "V 2"]:
    """(x - mean) V, where V has the two directions of the largest variance."""
    centred = table - table.mean(0)
    return centred @ np.linalg.svd(centred, full_matrices=False)[2][:2].T


def spread_out(
    centres: Float[np.ndarray, "N 2"], sizes: Float[np.ndarray, "N 2"]
) -> Float[np.ndarray, "N 2"]:
    """Centres of boxes of these sizes, near the given ones, so that no two boxes overlap.

    Each in turn takes the nearest free place of a lattice around its own; far from all, its own.
    """
    lattice = np.indices((61, 61)).reshape(2, -1).T - 30
    lattice = 5 * lattice[np.argsort((lattice**2).sum(1), kind="stable")]
    free = np.array(centres, float)
    for index, size in enumerate(sizes):
        candidates, needed = free[index] + lattice, (sizes[:index] + size) / 2
        taken = (np.abs(candidates[:, None] - free[:index]) < needed).all(-1).any(-1)
        free[index] = candidates[taken.argmin()]
    return free


def colour_of(token: str) -> str:
    """Upper case blue, lower case green, digits red, everything else grey."""
    letters = token.strip("\u2581# ")
    if letters[:1].isalpha():
        return "tab:blue" if letters[0].isupper() else "tab:green"
    return "tab:red" if letters[:1].isdigit() else "tab:gray"
