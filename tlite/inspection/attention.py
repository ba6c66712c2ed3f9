"""Pictures of attention weights."""

import math
from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from tlite.inspection.plots import visible

HATCHED = {"facecolor": "0.95", "edgecolor": "0.8", "hatch": "////"}  # where nothing may look


def plot_attention(
    weights: Float[np.ndarray, "H T S"],
    queries: Sequence[str],
    keys: Sequence[str] | None = None,
    title: str = "",
    *,
    mask: Bool[np.ndarray, "T S"] | None = None,
) -> Axes:
    """A small heat map for each head: a row for each query, a column for each key it looks at.

    The scale, one for all heads, ends at the largest weight. What the mask forbids is hatched: it
    is not a weight of 0. The tokens stand at the outer edges.
    """
    keys = queries if keys is None else keys
    number = len(weights)
    columns = min(number, 4 if number > 4 else 2)
    rows = math.ceil(number / columns)
    tokens = max(len(keys), len(queries))
    cell = float(np.clip(9 / (columns * tokens), 0.075, 0.19))  # inches
    room = 0.35  # for a title, and for labels
    wide, high = (max(1.6, cell * len(tokens)) for tokens in (keys, queries))
    longest = max(len(visible(token)) for token in [*queries, *keys])
    edge = room + 0.07 * longest + 0.1  # for words along the edges
    width, height = edge + (wide + room) * columns + 0.8, edge + (high + room) * rows + room
    figure, grid = plt.subplots(rows, columns, figsize=(width, height), squeeze=False)
    # To lay it out by itself, matplotlib would draw hundreds of tokens twice more.
    figure.subplots_adjust(
        left=edge / width,
        right=1 - 1.15 / width,
        bottom=edge / height,
        top=1 - (2 * room if title else room) / height,
        wspace=room / wide,
        hspace=room / high,
    )
    size, turn = min(72 * cell * 0.75, 8), 90 if longest > 1 else 0
    for head, axes in enumerate(grid.flat):
        if head >= number:
            axes.axis("off")
            continue
        shown = weights[head] if mask is None else np.ma.masked_array(weights[head], ~mask)
        axes.patch.set(**HATCHED)
        image = axes.imshow(shown, cmap="Blues", vmin=0, vmax=float(weights.max()) or 1)
        below = keys if head + columns >= number else ()
        beside = queries if head % columns == 0 else ()
        axes.set_xticks(range(len(below)), map(visible, below), rotation=turn, fontsize=size)
        axes.set_yticks(range(len(beside)), map(visible, beside), fontsize=size)
        axes.set_title(f"head {head}" if number > 1 or not title else "", fontsize=9)
    figure.supxlabel("key: what is looked at", fontsize=9, y=0.1 / height, va="bottom")
    figure.supylabel("query: what looks", fontsize=9, x=0.1 / width, ha="left")
    beside = figure.add_axes((1 - 0.95 / width, edge / height, 0.15 / width, high / height))
    figure.colorbar(image, cax=beside, label="attention weight")
    if title:
        figure.suptitle(title)
    return grid[0, 0]


def plot_head_lines(
    weights: Float[np.ndarray, "T S"],
    queries: Sequence[str],
    keys: Sequence[str] | None = None,
    *,
    least: float = 0.05,
    colour: str = "C0",
    axes: Axes | None = None,
) -> Axes:
    """One head's attention as lines between the tokens of a text, the stronger the larger.

    Of a text that looks at itself, arcs above one line, from each query to its keys; a token that
    looks at itself has a bar above it. With keys of another text a line of each, the keys above.
    Weights below `least` are left out. Text has the colour `text.color` of matplotlib's settings.
    """
    weights = np.asarray(weights, float)
    below = _places(queries)
    across = keys is not None
    above = _places(keys) if across else below
    width = max(below[-1][1], above[-1][1])
    shift_below, shift_above = ((width - places[-1][1]) / 2 for places in (below, above))
    middle = [shift_below + (a + b) / 2 for a, b in below]
    of_keys = [shift_above + (a + b) / 2 for a, b in above]
    gap = 0.12 * width if across else 0.0
    spans = [abs(middle[t] - of_keys[s]) for t, s in np.argwhere(weights >= least)]
    height = gap if across else 0.5 * max([*spans, 4.0])
    if axes is None:
        scale = 7 / width  # inches of a unit, which is the width of a letter or so
        tall = scale * (height + (5 if across else 3.2))
        axes = plt.subplots(figsize=(7, max(tall, 0.8)), layout="constrained")[1]
    for query, key in np.argwhere(weights >= least):
        start, end, weight = middle[query], of_keys[key], weights[query, key]
        if across:
            turn = 0.9 + gap / 2
            points = [(start, 0.9), (start, turn), (end, turn), (end, gap + 0.9)]
        elif query == key:
            points = [
                (start - 0.3, 1.0),
                (start - 0.1, 1.0),
                (start + 0.1, 1.0),
                (start + 0.3, 1.0),
            ]
        else:  # half an ellipse, nearly
            top = 0.9 + abs(start - end) * 2 / 3
            points = [(start, 0.9), (start, top), (end, top), (end, 0.9)]
        curve = Path(points, [Path.MOVETO, *[Path.CURVE4] * 3])
        style = {"lw": 0.5 + 2.5 * weight, "alpha": min(0.15 + 0.85 * weight, 1.0)}
        axes.add_patch(PathPatch(curve, fill=False, ec=colour, capstyle="round", **style))
    ink = plt.rcParams["text.color"]
    rows = [(queries, middle, 0.0)] + ([(keys, of_keys, gap + 1.0)] if across else [])
    size = 72 * axes.get_figure(root=True).get_figwidth() / width * 1.25
    for tokens, places, y in rows:
        for token, x in zip(tokens, places, strict=True):
            marked = visible(token)
            faint = {"alpha": 0.45} if marked.strip("␣↵⇥") == "" else {}
            style = {"ha": "center", "va": "baseline", "fontsize": min(size, 14), "color": ink}
            axes.text(x, y + 0.1, marked, **style, **faint)
    axes.set(xlim=(-0.4, width + 0.4), ylim=(-0.6, height + (2.4 if across else 1.2)))
    axes.axis("off")
    return axes


def _places(tokens: Sequence[str]) -> list[tuple[float, float]]:
    """Where each token of a line begins and ends; a unit is about the width of a letter."""
    ends = np.cumsum([max(len(visible(token).replace("\\", "")), 1) + 0.35 for token in tokens])
    ends = ends.tolist()
    return list(zip([0.0, *ends[:-1]], ends, strict=True))
