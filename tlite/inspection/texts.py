"""Pictures of texts: their losses, frequencies and lengths."""

import collections
import html
from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes

from tlite.inspection.plots import readable, visible


def plot_frequencies(
    counts: collections.Counter, kind: str, most: int = 40, axes: Axes | None = None
) -> Axes:
    """The most frequent tokens and their shares."""
    axes = axes or plt.subplots(figsize=(10, 3.5), layout="constrained")[1]
    top, total = counts.most_common(most), counts.total()
    axes.bar(range(len(top)), [100 * count / max(total, 1) for _, count in top], color="tab:blue")
    turn = 90 if max((len(token) for token, _ in top), default=0) > 1 else 0
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
        text = html.escape(readable(token)).replace("\n", "&#8629;<br>")
        spans.append(
            f'<span style="background:rgba(214,39,40,{shade:.2f})" title="{bits:.1f} bits">'
            f"{text}</span>"
        )
    return '<p class="text">' + "".join(spans) + "</p>"
