"""Pictures of texts and of the tokens in them."""

import collections
import html
from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes

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
    keeps neighbours together.
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
    axes = axes or plt.subplots(figsize=(6, 6), layout="constrained")[1]
    axes.scatter(*places.T, s=0)  # sets the limits
    for (x, y), token in zip(places, tokens, strict=True):
        axes.text(x, y, visible(token), ha="center", va="center", color=colour_of(token))
    names = {"pca": "principal component", "tsne": "t-SNE dimension"}
    axes.set(xlabel=f"{names[method]} 1", ylabel=f"{names[method]} 2", title=title)
    axes.margins(0.08)
    return axes


def colour_of(token: str) -> str:
    """Upper case blue, lower case green, digits red, everything else grey."""
    letters = token.strip("\u2581# ")
    if letters[:1].isalpha():
        return "tab:blue" if letters[0].isupper() else "tab:green"
    return "tab:red" if letters[:1].isdigit() else "tab:gray"


def plot_frequencies(
    counts: collections.Counter, kind: str, most: int = 40, axes: Axes | None = None
) -> Axes:
    """The most frequent tokens and their shares."""
    axes = axes or plt.subplots(figsize=(10, 3.5), layout="constrained")[1]
    top, total = counts.most_common(most), counts.total()
    axes.bar(range(len(top)), [100 * count / total for _, count in top], color="tab:blue")
    turn = 90 if max(len(token) for token, _ in top) > 1 else 0
    axes.set_xticks(range(len(top)), [visible(token) for token, _ in top], rotation=turn)
    axes.set(xlabel=f"most frequent {kind}s of {len(counts):,}", ylabel=f"% of all {kind}s")
    axes.margins(x=0.01)
    axes.grid(alpha=0.3, axis="y")
    return axes


def plot_lengths(lengths: Sequence[int], kind: str, unit: str, axes: Axes | None = None) -> Axes:
    """How long the lines, passages or sentences are; the longest hundredth is left out."""
    axes = axes or plt.subplots(figsize=(6, 3.5), layout="constrained")[1]
    lengths = np.asarray(lengths)
    top = max(int(np.quantile(lengths, 0.99)), 1)
    width = max(-(-top // 60), 1)  # whole tokens, so that no bar is wider than its neighbours
    bins = np.arange(lengths.min(), top + width + 1, width) - 0.5
    axes.hist(lengths[lengths <= top], bins=bins, color="tab:blue")
    median = np.median(lengths)
    axes.axvline(median, color="tab:orange", label=f"median {median:g}")
    axes.set(xlabel=f"length of a {kind} in {unit}s", ylabel=f"number of {kind}s")
    axes.legend()
    axes.grid(alpha=0.3)
    return axes


def coloured_by_loss(tokens: Sequence[str], losses: Float[np.ndarray, "N"]) -> str:
    """HTML of a text whose tokens are the redder the less the model expected them (-log2 p)."""
    spans = []
    for token, loss in zip(tokens, losses, strict=True):
        bits = float(loss) / np.log(2)
        shade = min(bits / 8, 1)
        text = html.escape(token).replace("\n", "&#8629;<br>")
        spans.append(
            f'<span style="background:rgba(214,39,40,{shade:.2f})" title="{bits:.1f} bits">'
            f"{text}</span>"
        )
    return '<p class="text">' + "".join(spans) + "</p>"


def plot_text_losses(
    tokens: Sequence[str],
    losses: Float[np.ndarray, "N"],
    width: int = 64,
    axes: Axes | None = None,
) -> Axes:
    """The text in lines of `width` tokens, each on a ground coloured by its loss."""
    rows = -(-len(tokens) // width)
    axes = axes or plt.subplots(figsize=(10, 0.3 * rows + 0.9), layout="constrained")[1]
    table = np.full(rows * width, np.nan)
    table[: len(tokens)] = losses
    image = axes.imshow(table.reshape(rows, width), cmap="Reds", vmin=0, vmax=6, aspect="auto")
    for index, token in enumerate(tokens):
        row, column = divmod(index, width)
        colour = "white" if losses[index] > 4 else "black"
        axes.text(column, row, visible(token), ha="center", va="center", fontsize=7, color=colour)
    axes.set_yticks([])
    axes.set(xlabel="character of the line")
    axes.figure.colorbar(image, ax=axes, label="loss (nats)")
    return axes
