"""Figures of their own, and every heat map: attention, heads, predictions, confusions."""

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from numbers import Real

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Bool, Float, Int
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from tlite.pictures.marks import plain, symbols, visible

BRIGHTNESS = 0.299, 0.587, 0.114  # of red, green and blue (ITU-R BT.601)
HATCHED = {"facecolor": "0.95", "edgecolor": "0.8", "hatch": "////"}  # where nothing may look


@contextlib.contextmanager
def own_figures() -> Iterator[None]:
    """Figures that are made meanwhile are not shown, and are closed; those that there were stay.

    Of scripts that the font has no letters for, boxes are drawn without a warning.
    """
    before = {*plt.get_fignums()}
    with plt.ioff(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        try:
            yield
        finally:
            for number in {*plt.get_fignums()} - before:
                plt.close(number)


def new_axes(width: Real = 6, height: Real = 4) -> Axes:
    """The Axes of a new figure of this size in inches."""
    return plt.subplots(figsize=(width, height), layout="constrained")[1]


def new_panels(number: int, columns: int, width: Real, height: Real, **settings) -> list[Axes]:
    """The Axes of a new figure in rows of at most so many, which share their vertical scale."""
    columns = min(number, columns)
    settings = {"figsize": (width, height), "sharey": True, "layout": "constrained"} | settings
    grid = plt.subplots(-(-number // columns), columns, squeeze=False, **settings)[1]
    for empty in grid.flat[number:]:
        empty.axis("off")
    for above in grid.flat[max(number - columns, 0) : number]:  # what is below may be empty
        above.tick_params(labelbottom=True)
    return [*grid.flat[:number]]


def finished(axes: Axes, xlabel: str, ylabel: str, grid: str = "both") -> Axes:
    """Labels, a grid along an axis or both, and a legend of what has a name."""
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.grid(alpha=0.3, axis=grid)
    if names := axes.get_legend_handles_labels()[1]:
        beside = {"loc": "center left", "bbox_to_anchor": (1, 0.5), "ncols": -(-len(names) // 16)}
        axes.legend(fontsize=8, **(beside if len(names) > 2 else {}))
    return axes


def heat_map(
    table: Float[np.ndarray, "R C"],
    axes: Axes | None = None,
    *,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    texts: Sequence[Sequence[str]] = (),
    scale: tuple[Real, Real] | None = None,
    signed: bool = False,
    label: str = "",
    **settings,
) -> Axes:
    """A table in colours, its first row on top, with a bar that says what they stand for.

    Args:
        rows, columns: names along the edges, numbers unless given; longer ones stand upright.
        texts: in the cells, white where the ground is dark.
        scale: the numbers that the first and the last colour stand for; the table's unless given.
        signed: 0 is white, more is red, less is blue.
        label: of the bar; without one there is no bar.
        settings: of the Axes, `xlabel` say.
    """
    if axes is None:
        axes = new_axes(*(_size(table.shape, texts, rows) if rows else ()))
    most = float(np.abs(table).max()) or 1.0
    low, high = (-most, most) if signed else scale or (None, None)
    colours = "RdBu_r" if signed else "Blues"
    image = axes.imshow(table, cmap=colours, vmin=low, vmax=high, aspect="auto")
    _write(axes, texts, image.cmap(image.norm(table))[..., :3] @ BRIGHTNESS)
    for axis, names in ((axes.xaxis, columns), (axes.yaxis, rows)):
        if names is None:
            axis.set_major_locator(MaxNLocator(integer=True))
        else:
            axis.set_ticks(range(len(names)), [plain(name) for name in names])
    if max(map(len, columns or ()), default=0) > 2:
        axes.tick_params(axis="x", rotation=90)
    axes.set(**settings)
    if label:
        axes.figure.colorbar(image, ax=axes, label=plain(label))
    return axes


def _write(axes: Axes, texts: Sequence[Sequence[str]], brightness: np.ndarray) -> None:
    for row, line in enumerate(texts):
        for column, text in enumerate(line):
            style = {"color": "white" if brightness[row, column] < 0.5 else "black", "fontsize": 9}
            axes.text(column, row, plain(text), ha="center", va="center", **style)


def _size(shape: tuple[int, int], texts, rows: Sequence[str]) -> tuple[float, float]:
    """Width and height in inches of a figure with room for its texts."""
    lines = [text.split("\n") for row in texts for text in row] or [[""]]
    wide = max(0.34, 0.12 + 0.11 * max(len(line) for text in lines for line in text))
    high = 0.2 + 0.2 * max(map(len, lines))
    edge = 2 + 0.08 * max(map(len, rows))
    return max(edge + wide * shape[1], 4.0), max(1.4 + high * shape[0], 2.4)


def plot_attention(
    weights: Float[np.ndarray, "N T S"],
    queries: Sequence[str],
    keys: Sequence[str] | None = None,
    title: str = "",
    *,
    mask: Bool[np.ndarray, "T S"] | None = None,
    each: str = "head",
) -> Axes:
    """A small heat map for each head: a row for each query, a column for each key it looks at.

    The scale, one for all, ends at the largest weight. What the mask forbids is hatched: it is
    not a weight of 0. The tokens stand at the outer edges.

    Args:
        keys: the queries unless given.
        each: what each of the N maps is of.
    """
    keys = queries if keys is None else keys
    number, most = len(weights), float(weights.max()) or 1
    columns = min(number, 4 if number > 4 else 2)
    cell = float(np.clip(9 / (columns * max(len(keys), len(queries))), 0.075, 0.19))  # inches
    panels, bar = _token_panels(number, columns, cell, queries, keys, title)
    for index, (axes, table) in enumerate(zip(panels, weights, strict=True)):
        shown = table if mask is None else np.ma.masked_array(table, ~mask)
        axes.patch.set(**HATCHED)
        below = [symbols(token) for token in keys] if index + columns >= number else ()
        beside = [symbols(token) for token in queries] if index % columns == 0 else ()
        heat_map(shown, axes, rows=beside, columns=below, scale=(0, most), aspect="equal")
        axes.tick_params(labelsize=min(72 * cell * 0.75, 8.0))
        axes.set_title(f"{each} {index}" if number > 1 or not title else "", fontsize=9)
    bar.figure.colorbar(panels[0].images[0], cax=bar, label="attention weight")
    return panels[0]


def _token_panels(
    number: int, columns: int, cell: float, queries: Sequence[str], keys: Sequence[str], title: str
) -> tuple[list[Axes], Axes]:
    """Panels with cells of so many inches and room for tokens at the outer edges, and a bar's Axes.

    To lay them out by itself, matplotlib would draw hundreds of tokens twice more.
    """
    room = 0.35  # inches, for a title
    edge = 0.45 + 0.07 * max(len(visible(token)) for token in [*queries, *keys])
    wide, high = (max(1.6, cell * len(tokens)) for tokens in (keys, queries))
    width = edge + (wide + room) * columns + 0.8
    height = edge + (high + room) * -(-number // columns) + room
    place = {"left": edge / width, "right": 1 - 1.15 / width, "wspace": room / wide}
    place |= {"bottom": edge / height, "top": 1 - (2 if title else 1) * room / height}
    place |= {"hspace": room / high}
    settings = {"sharey": False, "layout": "none", "gridspec_kw": place}
    panels = new_panels(number, columns, width, height, **settings)
    figure = panels[0].figure
    figure.suptitle(title)
    figure.supxlabel("key: what is looked at", fontsize=9, y=0.1 / height, va="bottom")
    figure.supylabel("query: what looks", fontsize=9, x=0.1 / width, ha="left")
    return panels, figure.add_axes((1 - 0.95 / width, edge / height, 0.15 / width, high / height))


def plot_heads(table: Float[np.ndarray, "L H"], label: str, *, change: bool = False) -> Axes:
    """A number for each layer and head, on a scale from 0 up to the largest of them.

    Of a `change` 0 is white, more is red, less is blue.
    """
    most = float(np.abs(table).max()) or 1.0
    digits = 2 if most >= 0.1 else 3
    texts = [[f"{n + 0.0:.{digits}f}" for n in row.round(digits)] for row in table]  # no -0.00
    rows, columns = ([*map(str, range(number))] for number in table.shape)
    names = {"rows": rows, "columns": columns, "xlabel": "head", "ylabel": "block"}
    return heat_map(table, **names, texts=texts, scale=(0, most), signed=change, label=label)


def plot_top_tokens(
    best: Float[np.ndarray, "R T"],
    pieces: Sequence[Sequence[str]],
    tokens: Sequence[str],
    xlabel: str = "text so far, up to this token",
    ylabel: str = "rank of the next token",
    rows: Sequence[str] | None = None,
) -> Axes:
    """The R most probable pieces at each position of a text, shaded by their probabilities.

    Args:
        rows: what a row is called: its rank unless given.
    """
    rows = rows or [str(rank + 1) for rank in range(len(best))]
    texts = [[symbols(piece) for piece in row] for row in pieces]
    names = {"rows": rows, "columns": [*map(symbols, tokens)], "xlabel": xlabel, "ylabel": ylabel}
    return heat_map(best, **names, texts=texts, scale=(0, 1), label="probability")


def plot_top_of_lens(
    best: Float[np.ndarray, "L1 T"],
    pieces: Sequence[Sequence[str]],
    tokens: Sequence[str],
    *xlabel: str,
) -> Axes:
    """The logit lens: the most probable token at each depth and position, and its probability."""
    depths = ["embedding", *(f"block {block}" for block in range(len(best) - 1))]
    return plot_top_tokens(best, pieces, tokens, *xlabel, ylabel="read out after", rows=depths)


def cosine_similarity(table: Float[np.ndarray, "L D"]) -> Float[np.ndarray, "L L"]:
    """x_i . x_j / (|x_i| |x_j|) for all rows of a table; of a row of zeros 0."""
    lengths = np.linalg.norm(table, axis=1, keepdims=True)
    unit = table / np.where(lengths > 0, lengths, 1)
    return unit @ unit.T


def plot_confusion(counts: Int[np.ndarray, "C C"], classes: Sequence[str]) -> Axes:
    """How often each class (row) was taken for each (column): share of the row, and number."""
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    texts = [
        [f"{share:.0%}\n{count}" for share, count in zip(*pair, strict=True)]
        for pair in zip(shares, counts, strict=True)
    ]
    names = {"rows": classes, "columns": classes, "texts": texts, "scale": (0, 1)}
    labels = {"xlabel": "predicted class", "ylabel": "true class"}
    return heat_map(shares, **names, **labels, label="share of the true class")
