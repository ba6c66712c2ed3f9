"""Draw arrays: each `plot_...` draws on new Axes and returns them."""

import contextlib
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Real

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Bool, Float, Int
from matplotlib import colormaps, cycler
from matplotlib.axes import Axes
from matplotlib.colors import TABLEAU_COLORS
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator

from tlite.data.tables import sort_labels
from tlite.pictures.labels import matplotlib_label, matplotlib_text, show_whitespace

BRIGHTNESS = 0.299, 0.587, 0.114  # of red, green and blue (ITU-R BT.601)
HATCHED = {"facecolor": "0.95", "edgecolor": "0.8", "hatch": "////"}  # masked cells
LINE_STYLES = cycler(linestyle=["-", "--", ":", "-."]) * cycler(color=[*TABLEAU_COLORS])
UNITS = {
    "loss": "loss (nats)",
    "accuracy": "accuracy (share)",
    "bleu": "BLEU (13a, greedy)",
    "exact_match": "exact matches (share)",
}
MAX_WORDS = 24  # of a text


@contextlib.contextmanager
def isolate_figures() -> Iterator[None]:
    """Neither show nor keep the figures that the block makes; earlier ones stay open.

    Characters that the font lacks are drawn as boxes without a warning.
    """
    before = {*plt.get_fignums()}
    with plt.ioff(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        try:
            yield
        finally:
            for number in {*plt.get_fignums()} - before:
                plt.close(number)


def _new_axes(width: Real = 6, height: Real = 4) -> Axes:
    """Return the Axes of a new figure of a size in inches."""
    return plt.subplots(figsize=(width, height), layout="constrained")[1]


def _new_panels(number: int, columns: int, width: Real, height: Real, **settings) -> list[Axes]:
    """Return the Axes of a new figure in rows of at most `columns`; they share the y scale."""
    columns = min(number, columns)
    settings = {"figsize": (width, height), "sharey": True, "layout": "constrained"} | settings
    grid = plt.subplots(-(-number // columns), columns, squeeze=False, **settings)[1]
    for empty in grid.flat[number:]:
        empty.axis("off")
    for above in grid.flat[max(number - columns, 0) : number]:  # what is below may be empty
        above.tick_params(labelbottom=True)
    return [*grid.flat[:number]]


def _add_labels(axes: Axes, xlabel: str, ylabel: str, grid: str = "both") -> Axes:
    """Add labels, a grid along an axis or both, and a legend of the named curves."""
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.grid(alpha=0.3, axis=grid)
    if names := axes.get_legend_handles_labels()[1]:
        outside = {"loc": "center left", "bbox_to_anchor": (1, 0.5), "ncols": -(-len(names) // 16)}
        axes.legend(fontsize=8, **(outside if len(names) > 2 else {}))
    return axes


# Heat maps: attention, heads, predictions, confusions


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
    """Draw a table in colours, its first row on top, with a colour bar.

    Args:
        rows, columns: labels along the edges; numbers by default.
        texts: in the cells, white on dark cells.
        scale: values of the first and the last colour; by default those of the table.
        signed: draw 0 white, positive values red, negative ones blue.
        label: of the colour bar; without one there is no bar.
        settings: of the Axes, such as `xlabel`.
    """
    if axes is None:
        axes = _new_axes(*(_figure_size(table.shape, texts, rows) if rows else ()))
    limit, colours = float(np.abs(table).max()) or 1.0, "RdBu_r" if signed else "Blues"
    low, high = (-limit, limit) if signed else scale or (None, None)
    image = axes.imshow(table, cmap=colours, vmin=low, vmax=high, aspect="auto")
    if len(texts):
        _write_cells(axes, texts, image.cmap(image.norm(table))[..., :3] @ BRIGHTNESS)
    for axis, names in ((axes.xaxis, columns), (axes.yaxis, rows)):
        if names is None:
            axis.set_major_locator(MaxNLocator(integer=True))
        else:
            axis.set_ticks(range(len(names)), [matplotlib_text(name) for name in names])
    if max(map(len, columns or ()), default=0) > 2:
        axes.tick_params(axis="x", rotation=90)
    axes.set(**settings)
    if label:
        axes.figure.colorbar(image, ax=axes, label=matplotlib_text(label))
    return axes


def _write_cells(axes: Axes, texts: Sequence[Sequence[str]], brightness: np.ndarray) -> None:
    """Write texts into the cells of a heat map, white on dark ones."""
    for (row, column), level in np.ndenumerate(brightness):
        style = {"color": "white" if level < 0.5 else "black", "fontsize": 9}
        text = matplotlib_text(texts[row][column])
        axes.text(column, row, text, ha="center", va="center", **style)


def _figure_size(shape: tuple[int, int], texts, rows: Sequence[str]) -> tuple[float, float]:
    """Return the width and height in inches of a figure whose texts fit in their cells."""
    lines = [text.split("\n") for row in texts for text in row] or [[""]]
    width = max(0.34, 0.12 + 0.11 * max(len(line) for text in lines for line in text))
    height = 0.2 + 0.2 * max(map(len, lines))
    margin = 2 + 0.08 * max(map(len, rows))
    return max(margin + width * shape[1], 4.0), max(1.4 + height * shape[0], 2.4)


def plot_attention(
    weights: Float[np.ndarray, "N T S"],
    queries: Sequence[str],
    keys: Sequence[str] | None = None,
    title: str = "",
    *,
    mask: Bool[np.ndarray, "T S"] | None = None,
    each: str = "head",
) -> Axes:
    """Draw a heat map for each head: a row for each query, a column for each key.

    All have one scale, which ends at the largest weight. Masked cells are hatched.

    Args:
        keys: the queries by default.
        each: name of each of the N maps.
    """
    keys = queries if keys is None else keys
    number, limit = len(weights), float(weights.max()) or 1
    columns = min(number, 4 if number > 4 else 2)
    cell = float(np.clip(9 / (columns * max(len(keys), len(queries))), 0.075, 0.19))  # inches
    panels, bar = _token_panels(number, columns, cell, queries, keys, title)
    for index, (axes, table) in enumerate(zip(panels, weights, strict=True)):
        cells = table if mask is None else np.ma.masked_array(table, ~mask)
        axes.patch.set(**HATCHED)
        below = [*map(show_whitespace, keys)] if index + columns >= number else ()
        beside = [*map(show_whitespace, queries)] if index % columns == 0 else ()
        heat_map(cells, axes, rows=beside, columns=below, scale=(0, limit), aspect="equal")
        axes.tick_params(labelsize=min(72 * cell * 0.75, 8.0))
        axes.set_title(f"{each} {index}" if number > 1 or not title else "", fontsize=9)
    bar.figure.colorbar(panels[0].images[0], cax=bar, label="attention weight")
    return panels[0]


def _token_panels(
    number: int, columns: int, cell: float, queries: Sequence[str], keys: Sequence[str], title: str
) -> tuple[list[Axes], Axes]:
    """Return panels with cells of a size in inches and tokens at the edges, and a bar's Axes.

    The layout of matplotlib would draw hundreds of tokens twice more.
    """
    gap = 0.35  # inches, for a title
    edge = 0.45 + 0.07 * max(len(matplotlib_label(token)) for token in [*queries, *keys])
    wide, high = (max(1.6, cell * len(tokens)) for tokens in (keys, queries))
    width = edge + (wide + gap) * columns + 0.8
    height = edge + (high + gap) * -(-number // columns) + gap
    grid = {"left": edge / width, "right": 1 - 1.15 / width, "wspace": gap / wide}
    grid |= {"bottom": edge / height, "top": 1 - (2 if title else 1) * gap / height}
    grid |= {"hspace": gap / high}
    settings = {"sharey": False, "layout": "none", "gridspec_kw": grid}
    panels = _new_panels(number, columns, width, height, **settings)
    figure = panels[0].figure
    figure.suptitle(title)
    figure.supxlabel("key", fontsize=9, y=0.1 / height, va="bottom")
    figure.supylabel("query", fontsize=9, x=0.1 / width, ha="left")
    return panels, figure.add_axes((1 - 0.95 / width, edge / height, 0.15 / width, high / height))


def plot_heads(
    table: Float[np.ndarray, "L H"],
    label: str,
    *,
    change: bool = False,
    blocks: Sequence[int] | None = None,
) -> Axes:
    """Draw a number for each layer and head, on a scale from 0 to the largest of them.

    With `change`, 0 is white, positive values are red, negative ones blue.

    Args:
        blocks: numbers of the layers' blocks; 0, 1, ... by default.
    """
    limit = float(np.abs(table).max()) or 1.0
    digits = 2 if limit >= 0.1 else 3
    texts = [[f"{n + 0.0:.{digits}f}" for n in row.round(digits)] for row in table]  # no -0.00
    rows, columns = blocks or range(len(table)), range(table.shape[1])
    labels = {"rows": [*map(str, rows)], "columns": [*map(str, columns)]}
    labels |= {"xlabel": "head", "ylabel": "block"}
    return heat_map(table, **labels, texts=texts, scale=(0, limit), signed=change, label=label)


def plot_top_tokens(
    probabilities: Float[np.ndarray, "R T"],
    predicted: Sequence[Sequence[str]],
    tokens: Sequence[str],
    xlabel: str = "text up to this token",
    ylabel: str = "rank of the next token",
    rows: Sequence[str] | None = None,
) -> Axes:
    """Draw the R most probable tokens at each position of a text, shaded by their probabilities.

    Args:
        rows: labels of the rows; their ranks by default.
    """
    rows = rows or [str(rank + 1) for rank in range(len(probabilities))]
    texts = [[*map(show_whitespace, row)] for row in predicted]
    labels = {"rows": rows, "columns": [*map(show_whitespace, tokens)]}
    labels |= {"xlabel": xlabel, "ylabel": ylabel, "label": "probability"}
    return heat_map(probabilities, **labels, texts=texts, scale=(0, 1))


def plot_top_of_lens(
    probabilities: Float[np.ndarray, "L1 T"],
    predicted: Sequence[Sequence[str]],
    tokens: Sequence[str],
) -> Axes:
    """Draw the logit lens: the most probable token at each depth and position."""
    rows = ["embedding", *(f"block {block}" for block in range(len(probabilities) - 1))]
    return plot_top_tokens(probabilities, predicted, tokens, ylabel="read out after", rows=rows)


def cosine_similarity(table: Float[np.ndarray, "L D"]) -> Float[np.ndarray, "L L"]:
    """Return x_i . x_j / (|x_i| |x_j|) for all rows of a table; 0 for rows of zeros."""
    lengths = np.linalg.norm(table, axis=1, keepdims=True)
    unit = table / np.where(lengths > 0, lengths, 1)
    return unit @ unit.T


def plot_confusion(counts: Int[np.ndarray, "C C"], classes: Sequence[str]) -> Axes:
    """Draw how often each class (row) was predicted as each (column): share of the row, count."""
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    texts = [
        [f"{share:.0%}\n{count}" for share, count in zip(*pair, strict=True)]
        for pair in zip(shares, counts, strict=True)
    ]
    labels = {"rows": classes, "columns": classes, "label": "share of the true class"}
    labels |= {"xlabel": "predicted class", "ylabel": "true class"}
    return heat_map(shares, **labels, texts=texts, scale=(0, 1))


# Curves by step and position


def plot_lines(
    curves: Mapping[str, Float[np.ndarray, "N"]],
    xlabel: str,
    ylabel: str,
    x: Iterable[Real] | None = None,
    axes: Axes | None = None,
    **style,
) -> Axes:
    """Draw a curve for each name over `x`, by default 0, 1, ...; each has its own style."""
    axes = axes or _new_axes()
    axes.set_prop_cycle(LINE_STYLES)
    for name, values in curves.items():
        axes.plot(range(len(values)) if x is None else x, values, label=name, **style)
    return _add_labels(axes, xlabel, ylabel)


def plot_curves(lines: Sequence[Mapping], name: str = "loss", axes: Axes | None = None) -> Axes:
    """Draw a metric of metrics.jsonl by step, for training and validation.

    Training values are means over 1/200 of the run. The band is one standard deviation over the
    replicas.
    """
    axes = axes or _new_axes()
    for split, style in (("training", {"alpha": 0.8}), ("validation", {"marker": "o", "ms": 3})):
        rows = [line for line in lines if line["split"] == split and line.get(name) is not None]
        if not rows:
            continue
        width = max(len(rows) // 200, 1) if split == "training" else 1
        columns = ["step", name] + [f"{name}_spread"] * (f"{name}_replicas" in rows[0])
        values = np.array([[line[column] for column in columns] for line in rows], float)
        usable = len(values) // width * width
        means = values[:usable].reshape(-1, width, len(columns)).mean(1)
        _plot_band(axes, *means.T, label=split, **style)
    return _add_labels(axes, "step", UNITS.get(name, name))


def _plot_band(axes: Axes, x: np.ndarray, mean: np.ndarray, spread=None, **style) -> None:
    """Draw a curve, with a band of its spread if there is one."""
    (curve,) = axes.plot(x, mean, **style)
    if spread is not None:
        axes.fill_between(x, mean - spread, mean + spread, color=curve.get_color(), alpha=0.2)


def plot_schedule(rates: Mapping[str, Float[np.ndarray, "N"]]) -> Axes:
    """Draw the learning rate of every update; `rates` has a curve for each name."""
    steps = 1 + np.arange(max(map(len, rates.values())))
    axes = plot_lines(rates, "step", "learning rate", steps)
    axes.set_ylim(bottom=0)
    return axes


def plot_trials(
    trials: Sequence[Mapping], logarithmic: Mapping[str, bool], unit: str = "validation loss (nats)"
) -> Axes:
    """Draw the validation loss of tuned values, a panel for each field and a curve for each rung.

    Error bars are one standard deviation over the seeds; the lowest loss at the last rung is
    encircled. Trials that have diverged are left out.

    Args:
        trials: with `change` (label or number by field), `step` and `loss` by seed or None.
        logarithmic: for each field, True if its values are on a logarithmic scale.
    """
    panels = _new_panels(len(logarithmic), 3, 6 + 3 * min(len(logarithmic) - 1, 2), 4)
    trials = [trial for trial in trials if trial["loss"] is not None]
    steps = sorted({trial["step"] for trial in trials})
    colours = colormaps["viridis_r"](np.linspace(0.15, 1, len(steps)))
    for axes, (field, is_log) in zip(panels, logarithmic.items(), strict=True):
        for step, colour in zip(steps, colours, strict=True):
            rung = [trial for trial in trials if trial["step"] == step]
            x = [trial["change"][field] for trial in rung]
            order = np.argsort(x) if is_log else np.arange(len(x))
            x, losses = np.array(x)[order], [rung[i]["loss"] for i in order]
            means, spreads = np.mean(losses, 1), np.std(losses, 1, ddof=len(losses[0]) > 1)
            style = {"fmt": "o-" if len(panels) == 1 and is_log else "o", "capsize": 2, "ms": 4}
            axes.errorbar(x, means, spreads, color=colour, label=f"step {step:,}", **style)
            if step == steps[-1]:
                best = means.argmin()
                axes.plot(x[best : best + 1], means[best], "o", ms=12, mfc="none", color="tab:red")
        if is_log:
            axes.set_xscale("log")
        axes.set(xlabel=matplotlib_text(field), ylabel=unit if axes is panels[0] else "")
        axes.grid(alpha=0.3)
    panels[-1].legend(fontsize=8)
    return panels[0]


def plot_loss_by_position(losses: Float[np.ndarray, "M T"]) -> Axes:
    """Draw the mean loss at each position of the context."""
    axes = _new_axes()
    spread = losses.std(0, ddof=1) if len(losses) > 1 else None
    _plot_band(axes, np.arange(1, losses.shape[1] + 1), losses.mean(0), spread, marker=".")
    return _add_labels(axes, "tokens seen", "validation loss (nats per token)")


# Bars and boxes


def plot_saliency(words: Sequence[str], columns: Mapping[str, Float[np.ndarray, "T"]]) -> Axes:
    """Draw a number for each of the first words of a text, in a panel for each column."""
    words = [matplotlib_label(word) for word in words[:MAX_WORDS]]
    size = 3.2 * len(columns) + 1.5, 0.24 * len(words) + 1.2
    panels = _new_panels(len(columns), len(columns), *size)
    for axes, (title, values) in zip(panels, columns.items(), strict=True):
        values = np.asarray(values)[: len(words)]
        axes.barh(range(len(words)), values, color=np.where(values > 0, "tab:green", "tab:red"))
        axes.set_title(matplotlib_text(title), fontsize=10)
        axes.axvline(0, color="black", lw=0.8)
        axes.grid(alpha=0.3, axis="x")
    panels[0].set_yticks(range(len(words)), words)
    panels[0].invert_yaxis()
    return panels[0]


def plot_frequencies(counts: Counter, kind: str) -> Axes:
    """Draw the shares of the most frequent tokens."""
    axes = _new_axes(10, 3.5)
    top, total = counts.most_common(40), counts.total()
    axes.bar(range(len(top)), [100 * count / max(total, 1) for _, count in top], color="tab:blue")
    angle = 90 if max((len(token) for token, _ in top), default=0) > 1 else 0
    axes.set_xticks(range(len(top)), [matplotlib_label(token) for token, _ in top], rotation=angle)
    axes.margins(x=0.01)
    return _add_labels(axes, f"most frequent {kind}s of {len(counts):,}", f"% of all {kind}s", "y")


def plot_lengths(lengths: Sequence[int], kind: str, unit: str) -> Axes:
    """Draw the distribution of lengths without the longest 1 %."""
    axes = _new_axes(6, 3.5)
    lengths = np.asarray(lengths)
    top = max(int(np.quantile(lengths, 0.99)), 1)
    width = max(-(-top // 60), 1)  # an integer, so that all bars have as many lengths
    bins = np.arange(lengths.min(), top + width + 1, width) - 0.5
    axes.hist(lengths[lengths <= top], bins=bins, color="tab:blue")
    median = np.median(lengths)
    axes.axvline(median, color="tab:orange", label=f"median {median:g}")
    return _add_labels(axes, f"length of a {kind} in {unit}s", f"number of {kind}s")


def plot_probability_by_value(
    probabilities: Float[np.ndarray, "N"],
    values: Sequence[str],
    name: str,
) -> Axes:
    """Draw the quartiles and outliers of a probability over the texts of each true label.

    Labels may be none of the model's classes, such as the 3 stars of a binary classifier.
    """
    groups = {group: probabilities[np.equal(values, group)] for group in sort_labels({*values})}
    axes = _new_axes(1.6 + 0.9 * len(groups), 4)
    labels = [f"{matplotlib_text(group)}\n({len(rows):,} texts)" for group, rows in groups.items()]
    style = {"widths": 0.6, "flierprops": {"ms": 2, "alpha": 0.4}}
    axes.boxplot([*groups.values()], tick_labels=labels, **style)
    axes.set_ylim(-0.02, 1.02)
    return _add_labels(axes, "true label", f"probability of {matplotlib_text(name)}", "y")


def plot_predictions_by_value(
    predicted: Int[np.ndarray, "N"],
    values: Sequence[str],
    classes: Sequence[str],
) -> Axes:
    """Draw the shares of the predicted classes for the texts of each true label, stacked."""
    groups = {group: predicted[np.equal(values, group)] for group in sort_labels({*values})}
    shares = [np.bincount(rows, minlength=len(classes)) / len(rows) for rows in groups.values()]
    axes = _new_axes(3.2 + 0.7 * len(groups), 4)
    below, labels = np.zeros(len(groups)), [matplotlib_text(group) for group in groups]
    colours = colormaps["RdYlBu"](np.linspace(0.1, 0.9, len(classes)))
    for name, share, colour in zip(classes, np.transpose(shares), colours, strict=True):
        axes.bar(labels, share, bottom=below, label=matplotlib_text(name), color=colour, width=0.7)
        below += share
    axes.set(xlabel="true label", ylabel="share of the predictions", ylim=(0, 1))
    axes.legend(reverse=True, title="predicted", loc="center left", bbox_to_anchor=(1, 0.5))
    return axes


# Embeddings


def plot_embedding(table: Float[np.ndarray, "V D"], tokens: Sequence[str]) -> Axes:
    """Draw tokens at the two principal components of their rows in a table.

    Labels that would overlap are moved, with a line to their point.
    """
    centred = table - table.mean(0)
    points = centred @ np.linalg.svd(centred, full_matrices=False)[2][:2].T
    axes = _new_axes(6.5, 6.5)
    axes.set(xlabel="principal component 1", ylabel="principal component 2")
    axes.scatter(*points.T, s=0)  # sets the limits
    axes.margins(0.08)
    axes.figure.draw_without_rendering()  # lays out the axes
    style = {"ha": "center", "va": "center", "size": 9, "in_layout": False}
    style["arrowprops"] = {"arrowstyle": "-", "color": "0.7", "lw": 0.5, "shrinkB": 0}
    labels = [
        axes.annotate(matplotlib_label(token), point, point, color=token_colour(token), **style)
        for point, token in zip(points, tokens, strict=True)
    ]
    sizes = np.array([Text.get_window_extent(label).size for label in labels])
    sizes[:, 0] += 4  # a space between neighbours
    centres = spread_out(axes.transData.transform(points), sizes)
    for label, position in zip(labels, axes.transData.inverted().transform(centres), strict=True):
        label.set_position(position)
    return axes


def spread_out(
    centres: Float[np.ndarray, "N 2"], sizes: Float[np.ndarray, "N 2"]
) -> Float[np.ndarray, "N 2"]:
    """Return centres of boxes, near the given ones, at which no two boxes overlap.

    Each box in turn takes the nearest free point of a lattice around its centre.
    """
    lattice = np.indices((61, 61)).reshape(2, -1).T - 30
    lattice = 5 * lattice[np.argsort((lattice**2).sum(1), kind="stable")]
    free = np.array(centres, float)
    for index, size in enumerate(sizes):
        candidates, needed = free[index] + lattice, (sizes[:index] + size) / 2
        is_taken = (np.abs(candidates[:, None] - free[:index]) < needed).all(-1).any(-1)
        free[index] = candidates[is_taken.argmin()]
    return free


def token_colour(token: str) -> str:
    """Return blue for upper case, green for lower case, red for digits, grey for the rest."""
    letters = token.strip("\u2581# ")
    if letters[:1].isalpha():
        return "tab:blue" if letters[0].isupper() else "tab:green"
    return "tab:red" if letters[:1].isdigit() else "tab:gray"
