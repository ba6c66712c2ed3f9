"""Pictures of attention weights."""

import math
from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes

from tlite.inspection.plots import visible


def plot_attention(
    weights: Float[np.ndarray, "H T S"],
    queries: Sequence[str],
    keys: Sequence[str] | None = None,
    title: str = "",
) -> Axes:
    """A small heat map for each head: a row for each query, a column for each key it looks at."""
    keys = queries if keys is None else keys
    number = len(weights)
    columns = min(number, 4 if len(keys) <= 16 else 2)
    rows = math.ceil(number / columns)
    longest = max(len(visible(token)) for token in [*queries, *keys])
    # Room for each mark, and for words along the edges.
    across, down = (
        max(2.2, 0.19 * len(tokens) + 0.08 * longest + 0.5) for tokens in (keys, queries)
    )
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
        axes.set_xticks(range(len(keys)), [visible(k) for k in keys], rotation=turn, fontsize=8)
        axes.set_yticks(range(len(queries)), [visible(q) for q in queries], fontsize=8)
        axes.set_title(f"head {head}", fontsize=9)
    figure.supxlabel("key: what is looked at", fontsize=9)
    figure.supylabel("query: what looks", fontsize=9)
    figure.colorbar(image, ax=grid.ravel().tolist(), label="attention weight", shrink=0.8)
    if title:
        figure.suptitle(title)
    return grid[0, 0]
