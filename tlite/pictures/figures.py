"""What all pictures share: figures of their own, heat maps, and the looks of lines."""

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from numbers import Real
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tlite.pictures.marks import plain

BRIGHTNESS = 0.299, 0.587, 0.114  # of red, green and blue (ITU-R BT.601)


class Picture(NamedTuple):
    """A figure with what a page or a folder needs of it."""

    name: str
    """That of its file, without an ending."""
    caption: str
    """A sentence or two on what is seen."""
    figure: Figure


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
    texts: Sequence[Sequence[str]] | None = None,
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
    _write(axes, texts or (), image.cmap(image.norm(table))[..., :3] @ BRIGHTNESS)
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
    lines = [text.split("\n") for row in texts or () for text in row] or [[""]]
    wide = max(0.34, 0.12 + 0.11 * max(len(line) for text in lines for line in text))
    high = 0.2 + 0.2 * max(map(len, lines))
    edge = 2 + 0.08 * max(map(len, rows), default=0)
    return max(edge + wide * shape[1], 4.0), max(1.4 + high * shape[0], 2.4)
