"""Pictures of a scaling law: losses by training tokens, and by compute."""

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes

from tlite.comparison.scaling import Law, Runs

NUM_POINTS = 100  # of a curve


def plot_losses(
    runs: Runs,
    law: Law,
    held_out: Runs | None = None,
    drawn: Float[np.ndarray, "2 held"] | None = None,
    unit: str = "token",
    axes: Axes | None = None,
) -> Axes:
    """Losses by training tokens: what was measured of each size, and the law's curve.

    Args:
        held_out: runs of a size that the law was not fitted to; drawn open, with a dashed curve.
        drawn: lower and upper end of what was predicted for each of them: a band.
    """
    axes = axes or plt.subplots(figsize=(6, 4.5), layout="constrained")[1]
    everything = runs if held_out is None else _joined(runs, held_out)
    tokens = np.geomspace(everything.tokens.min(), everything.tokens.max(), NUM_POINTS)
    colors = _colors(everything)
    for size in np.unique(runs.parameters):
        _points(axes, runs.chosen(runs.parameters == size), "tokens", colors[size])
        axes.plot(tokens, law.loss(size, tokens), color=colors[size])
    for size in () if held_out is None else np.unique(held_out.parameters):
        chosen = held_out.parameters == size
        style = {"mfc": "none", "marker": "D", "label": f"{_short(size)}, left out of the fit"}
        _points(axes, held_out.chosen(chosen), "tokens", colors[size], **style)
        axes.plot(tokens, law.loss(size, tokens), color=colors[size], linestyle="--")
        if drawn is not None:
            order = np.argsort(held_out.tokens[chosen])
            lower, upper = drawn[:, chosen][:, order]
            band = {"color": colors[size], "alpha": 0.2, "linewidth": 0, "label": "its prediction"}
            axes.fill_between(held_out.tokens[chosen][order], lower, upper, **band)
    axes.set(
        xscale="log", xlabel=f"training {unit}s D", ylabel=f"validation loss (nats per {unit})"
    )
    return _finished(axes, "parameters N")


def plot_compute(runs: Runs, law: Law, unit: str = "token", axes: Axes | None = None) -> Axes:
    """Losses by compute C = 6 N D, with the least loss that the law has for it."""
    axes = axes or plt.subplots(figsize=(6, 4.5), layout="constrained")[1]
    colors = _colors(runs)
    for size in np.unique(runs.parameters):
        chosen = runs.chosen(runs.parameters == size)
        _points(axes, chosen, "compute", colors[size])
        tokens = np.geomspace(chosen.tokens.min(), chosen.tokens.max(), NUM_POINTS)
        axes.plot(6 * size * tokens, law.loss(size, tokens), color=colors[size])
    flops = _compute(runs)
    flops = np.geomspace(flops.min(), flops.max(), NUM_POINTS)
    exponent = law.beta / (law.alpha + law.beta)
    label = f"compute-optimal: N* ~ C^{exponent:.2f}"
    best = law.loss(*law.optimal(flops))
    axes.plot(flops, best, color="black", linestyle=":", linewidth=2, label=label)
    axes.set(
        xscale="log",
        xlabel="training compute C = 6 N D (floating-point operations)",
        ylabel=f"validation loss (nats per {unit})",
    )
    return _finished(axes, "parameters N")


def _points(axes: Axes, runs: Runs, by: str, color, **style) -> None:
    """A mark for each run, with one standard deviation over its seeds."""
    places = runs.tokens if by == "tokens" else _compute(runs)
    spread = runs.losses.std(1, ddof=1) if runs.losses.shape[1] > 1 else None
    style = {"marker": "o", "label": _short(runs.parameters[0])} | style
    axes.errorbar(places, runs.losses.mean(1), spread, color=color, linestyle="none", **style)


def _compute(runs: Runs) -> np.ndarray:
    return 6 * runs.parameters * runs.tokens


def _joined(runs: Runs, others: Runs) -> Runs:
    return Runs(*(np.concatenate(pair) for pair in zip(runs, others, strict=True)))


def _colors(runs: Runs) -> dict:
    """A colour of each size, from dark to bright, none of them too pale to see."""
    sizes = np.unique(runs.parameters)
    shades = matplotlib.colormaps["viridis"](np.linspace(0, 0.85, len(sizes)))
    return dict(zip(sizes, shades, strict=True))


def _short(size: float) -> str:
    """7,344 as "7.3k"."""
    return f"{size / 1e6:.3g}M" if size >= 1e6 else f"{size / 1e3:.3g}k"


def _finished(axes: Axes, title: str) -> Axes:
    axes.grid(alpha=0.3, which="both")
    axes.legend(title=title, fontsize="small")
    return axes
