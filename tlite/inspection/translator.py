"""Pictures of a translator: alignment, schedule, BLEU by length."""

from functools import partial

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes

from tlite.bleu import bleu
from tlite.inspection.plots import visible
from tlite.training.config import TrainingConfig
from tlite.training.optimizer import schedule


def plot_alignment(
    weights: Float[np.ndarray, "L T S"], source: list[str], target: list[str]
) -> Axes:
    """Cross-attention of each decoder block, averaged over heads: from target to source pieces.

    The scale, one for all blocks, ends at the largest mean weight.
    """
    size = max(len(source), len(target)) * 0.22 + 1
    figure, grid = plt.subplots(
        1,
        len(weights),
        figsize=(size * len(weights) + 1, size + 1),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for number, (axes, table) in enumerate(zip(grid[0], weights, strict=True)):
        image = axes.imshow(table, cmap="Blues", vmin=0, vmax=float(weights.max()) or 1)
        axes.set_xticks(range(len(source)), [visible(piece) for piece in source], rotation=90)
        axes.set_yticks(range(len(target)), [visible(piece) for piece in target])
        axes.set(title=f"decoder block {number}", xlabel="source")
    grid[0, 0].set_ylabel("written piece")
    figure.colorbar(
        image, ax=grid[0].tolist(), label="attention weight (mean of the heads)", shrink=0.7
    )
    return grid[0, 0]


def plot_schedule(config: TrainingConfig, axes: Axes | None = None) -> Axes:
    """The learning rate of every update."""
    axes = axes or plt.subplots(figsize=(6, 4), layout="constrained")[1]
    steps = np.unique(np.linspace(0, config.steps - 1, 500).astype(int))
    for variant in config.variants:
        fractions = np.asarray(jax.vmap(partial(schedule, variant))(jnp.asarray(steps)))
        rate = variant.learning_rate
        axes.plot(steps + 1, rate * fractions, label=f"peak {rate:g}")
    axes.set(xlabel="step", ylabel="learning rate")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    return axes


def plot_bleu_by_length(
    lengths: list[int], hypotheses: list[str], references: list[str], axes: Axes | None = None
) -> Axes:
    """BLEU of the sentences of similar length; the number of them is written on each bar."""
    axes = axes or plt.subplots(figsize=(7, 4), layout="constrained")[1]
    bounds = np.unique(np.quantile(lengths, np.linspace(0, 1, 7)).astype(int))
    groups = np.clip(np.searchsorted(bounds, lengths, side="right") - 1, 0, max(len(bounds) - 2, 0))
    names, scores, sizes = [], [], []
    for group in np.unique(groups):
        rows = np.flatnonzero(groups == group)
        shortest, longest = (f(lengths[row] for row in rows) for f in (min, max))
        names.append(f"{shortest}-{longest}" if longest > shortest else str(shortest))
        scores.append(bleu([hypotheses[r] for r in rows], [references[r] for r in rows])[0])
        sizes.append(len(rows))
    bars = axes.bar(names, scores, color="tab:blue", alpha=0.8)
    axes.bar_label(bars, [f"{size:,}" for size in sizes], padding=2)
    axes.set(xlabel="words of the source (number of sentences on top)", ylabel="BLEU (13a)")
    axes.margins(y=0.12)
    return axes
