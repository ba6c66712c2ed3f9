"""Pictures of attention weights."""

import math
from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes

from tlite.inspection.plots import visible

MANY = 6  # heads


def plot_attention(
    weights: Float[np.ndarray, "H T S"],
    queries: Sequence[str],
    keys: Sequence[str] | None = None,
    title: str = "",
) -> Axes:
    """A small heat map for each head: a row for each query, a column for each key it looks at.

    Where there are many heads the tokens stand at the outer edges alone.
    """
    keys = queries if keys is None else keys
    number = len(weights)
    many = number > MANY
    columns = min(number, 4 if many or len(keys) <= 16 else 2)
    rows = math.ceil(number / columns)
    longest = max(len(visible(token)) for token in [*queries, *keys])
    # Room for each mark, and for words along the edges.
    cell, edge = (0.11, 0.1) if many else (0.19, 0.08 * longest + 0.5)
    across, down = (max(2.2, cell * len(tokens) + edge) for tokens in (keys, queries))
    figure, grid = plt.subplots(
        rows,
        columns,
        figsize=(across * columns + 1, down * rows + 0.6),
        squeeze=False,
        layout="constrained",
    )
    for head, axes in enumerate(grid.flat):
        if head >= number:
            axes.axis("off")
            continue
        image = axes.imshow(weights[head], cmap="viridis", vmin=0, vmax=1)
        turn = 90 if longest > 1 else 0
        left, lowest = head % columns == 0, head + columns >= number
        below, beside = keys if lowest or not many else (), queries if left or not many else ()
        size = 6 if many else 8
        axes.set_xticks(range(len(below)), map(visible, below), rotation=turn, fontsize=size)
        axes.set_yticks(range(len(beside)), map(visible, beside), fontsize=size)
        axes.set_title(f"head {head}", fontsize=9)
    figure.supxlabel("key: what is looked at", fontsize=9)
    figure.supylabel("query: what looks", fontsize=9)
    figure.colorbar(image, ax=grid.ravel().tolist(), label="attention weight", shrink=0.8)
    if title:
        figure.suptitle(title)
    return grid[0, 0]
