"""Figures of arrays, each in one call: `plot_...` draws on new Axes and returns them."""

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

from tlite.data.tables import in_order
from tlite.errors import needs_extra
from tlite.pictures.marks import plain, symbols, visible

BRIGHTNESS = 0.299, 0.587, 0.114  # of red, green and blue (ITU-R BT.601)
HATCHED = {"facecolor": "0.95", "edgecolor": "0.8", "hatch": "////"}  # where nothing may look
LOOKS = cycler(linestyle=["-", "--", ":", "-."]) * cycler(color=[*TABLEAU_COLORS])
UNITS = {
    "loss": "loss (nats)",
    "accuracy": "accuracy (share that is right)",
    "bleu": "BLEU (13a, greedy)",
    "exact_match": "exact matches (share)",
}
MOST_WORDS = 24  # of a text


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


def _new_axes(width: Real = 6, height: Real = 4) -> Axes:
    """The Axes of a new figure of this size in inches."""
    return plt.subplots(figsize=(width, height), layout="constrained")[1]


def _new_panels(number: int, columns: int, width: Real, height: Real, **settings) -> list[Axes]:
    """The Axes of a new figure in rows of at most so many, which share their vertical scale."""
    columns = min(number, columns)
    settings = {"figsize": (width, height), "sharey": True, "layout": "constrained"} | settings
    grid = plt.subplots(-(-number // columns), columns, squeeze=False, **settings)[1]
    for empty in grid.flat[number:]:
        empty.axis("off")
    for above in grid.flat[max(number - columns, 0) : number]:  # what is below may be empty
        above.tick_params(labelbottom=True)
    return [*grid.flat[:number]]


def _finished(axes: Axes, xlabel: str, ylabel: str, grid: str = "both") -> Axes:
    """Labels, a grid along an axis or both, and a legend of what has a name."""
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.grid(alpha=0.3, axis=grid)
    if names := axes.get_legend_handles_labels()[1]:
        beside = {"loc": "center left", "bbox_to_anchor": (1, 0.5), "ncols": -(-len(names) // 16)}
        axes.legend(fontsize=8, **(beside if len(names) > 2 else {}))
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
        axes = _new_axes(*(_size(table.shape, texts, rows) if rows else ()))
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
    panels = _new_panels(number, columns, width, height, **settings)
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


# Curves by step and position


def plot_lines(
    curves: Mapping[str, Float[np.ndarray, "N"]],
    xlabel: str,
    ylabel: str,
    x: Iterable[Real] | None = None,
    axes: Axes | None = None,
    **style,
) -> Axes:
    """A curve for each name, in a colour and style of its own, over `x`: 0, 1, ... unless given."""
    axes = axes or _new_axes()
    axes.set_prop_cycle(LOOKS)
    for name, values in curves.items():
        axes.plot(range(len(values)) if x is None else x, values, label=name, **style)
    return _finished(axes, xlabel, ylabel)


def plot_curves(lines: Sequence[Mapping], name: str = "loss", axes: Axes | None = None) -> Axes:
    """A quantity of metrics.jsonl by step, for training (smoothed) and validation, with its spread.

    Training values are averaged over 1/200 of the run, so that the noise of single batches does
    not hide the course. The band is one standard deviation over the replicas.
    """
    axes = axes or _new_axes()
    for split, style in (("training", {"alpha": 0.8}), ("validation", {"marker": "o", "ms": 3})):
        chosen = [line for line in lines if line["split"] == split and line.get(name) is not None]
        if not chosen:
            continue
        width = max(len(chosen) // 200, 1) if split == "training" else 1
        columns = ["step", name] + [f"{name}_spread"] * (f"{name}_replicas" in chosen[0])
        values = np.array([[line[column] for column in columns] for line in chosen], float)
        usable = len(values) // width * width
        means = values[:usable].reshape(-1, width, len(columns)).mean(1)
        _curve(axes, *means.T, label=split, **style)
    return _finished(axes, "step", UNITS.get(name, name))


def _curve(axes: Axes, x: np.ndarray, mean: np.ndarray, spread=None, **style) -> None:
    """A curve, with a band of its spread if there is one."""
    (curve,) = axes.plot(x, mean, **style)
    if spread is not None:
        axes.fill_between(x, mean - spread, mean + spread, color=curve.get_color(), alpha=0.2)


def plot_schedule(rates: Mapping[str, Float[np.ndarray, "N"]]) -> Axes:
    """The learning rate of every update, by what a curve is called."""
    steps = 1 + np.arange(max(map(len, rates.values())))
    axes = plot_lines(rates, "step", "learning rate", steps)
    axes.set_ylim(bottom=0)
    return axes


def plot_loss_by_position(losses: Float[np.ndarray, "M T"]) -> Axes:
    """Mean loss at each position of the context: how much a longer past helps."""
    axes = _new_axes()
    spread = losses.std(0, ddof=1) if len(losses) > 1 else None
    _curve(axes, np.arange(1, losses.shape[1] + 1), losses.mean(0), spread, marker=".")
    return _finished(axes, "tokens seen", "validation loss (nats per token)")


def plot_scores_by_step(
    steps: Sequence[int], scores: Float[np.ndarray, "N L H"], label: str
) -> Axes:
    """A score of every head at the checkpoints of a run, a panel for each block."""
    layers = scores.shape[1]
    columns = min(layers, 4)
    size = 2.6 * columns + 1.4, 2.4 * -(-layers // columns) + 0.6
    panels = _new_panels(layers, columns, *size, sharex=True)
    for layer, panel in enumerate(panels):
        panel.set_prop_cycle(LOOKS)
        heads = panel.plot(steps, scores[:, layer], marker="o", ms=3)
        panel.set_title(f"block {layer}", fontsize=10)
        panel.grid(alpha=0.3)
    panels[0].set_ylim(0, 1.05 * float(scores.max()) or 1)
    figure, names = panels[0].figure, [f"head {head}" for head in range(len(heads))]
    figure.supxlabel("step", fontsize=10)
    figure.supylabel(label, fontsize=10)
    figure.legend(heads, names, loc="outside right center", fontsize=8)
    return panels[0]


# Bars and boxes of what is counted and grouped


def plot_saliency(words: Sequence[str], columns: Mapping[str, Float[np.ndarray, "T"]]) -> Axes:
    """Numbers for the first words of a text, side by side."""
    words = [visible(word) for word in words[:MOST_WORDS]]
    size = 3.2 * len(columns) + 1.5, 0.24 * len(words) + 1.2
    panels = _new_panels(len(columns), len(columns), *size)
    for axes, (title, values) in zip(panels, columns.items(), strict=True):
        values = np.asarray(values)[: len(words)]
        axes.barh(range(len(words)), values, color=np.where(values > 0, "tab:green", "tab:red"))
        axes.set_title(plain(title), fontsize=10)
        axes.axvline(0, color="black", lw=0.8)
        axes.grid(alpha=0.3, axis="x")
    panels[0].set_yticks(range(len(words)), words)
    panels[0].invert_yaxis()
    return panels[0]


def plot_frequencies(counts: Counter, kind: str) -> Axes:
    """The most frequent tokens and their shares."""
    axes = _new_axes(10, 3.5)
    top, total = counts.most_common(40), counts.total()
    axes.bar(range(len(top)), [100 * count / max(total, 1) for _, count in top], color="tab:blue")
    turn = 90 if max((len(token) for token, _ in top), default=0) > 1 else 0
    axes.set_xticks(range(len(top)), [visible(token) for token, _ in top], rotation=turn)
    axes.margins(x=0.01)
    return _finished(axes, f"most frequent {kind}s of {len(counts):,}", f"% of all {kind}s", "y")


def plot_lengths(lengths: Sequence[int], kind: str, unit: str) -> Axes:
    """How long the lines, passages or sentences are; the longest hundredth is left out."""
    axes = _new_axes(6, 3.5)
    lengths = np.asarray(lengths)
    top = max(int(np.quantile(lengths, 0.99)), 1)
    width = max(-(-top // 60), 1)  # whole tokens, so that no bar is wider than its neighbours
    bins = np.arange(lengths.min(), top + width + 1, width) - 0.5
    axes.hist(lengths[lengths <= top], bins=bins, color="tab:blue")
    median = np.median(lengths)
    axes.axvline(median, color="tab:orange", label=f"median {median:g}")
    return _finished(axes, f"length of a {kind} in {unit}s", f"number of {kind}s")


def plot_probability_by_value(
    probabilities: Float[np.ndarray, "N"],
    values: Sequence[str],
    name: str,
) -> Axes:
    """How a probability is distributed over the texts of each true label: quartiles and outliers.

    Labels that the model was not trained on may be among them: the 3 stars, say, of a model that
    only knows negative and positive.
    """
    groups = {group: probabilities[np.equal(values, group)] for group in in_order({*values})}
    axes = _new_axes(1.6 + 0.9 * len(groups), 4)
    labels = [f"{plain(group)}\n({len(rows):,} texts)" for group, rows in groups.items()]
    style = {"widths": 0.6, "flierprops": {"ms": 2, "alpha": 0.4}}
    axes.boxplot([*groups.values()], tick_labels=labels, **style)
    axes.set_ylim(-0.02, 1.02)
    return _finished(axes, "true label", f"probability of {plain(name)}", "y")


def plot_predictions_by_value(
    predicted: Int[np.ndarray, "N"],
    values: Sequence[str],
    classes: Sequence[str],
) -> Axes:
    """Which classes the texts of each true label were given: shares, stacked."""
    groups = {group: predicted[np.equal(values, group)] for group in in_order({*values})}
    shares = [np.bincount(rows, minlength=len(classes)) / len(rows) for rows in groups.values()]
    axes = _new_axes(3.2 + 0.7 * len(groups), 4)
    below, labels = np.zeros(len(groups)), [plain(group) for group in groups]
    colours = colormaps["RdYlBu"](np.linspace(0.1, 0.9, len(classes)))
    for name, share, colour in zip(classes, np.transpose(shares), colours, strict=True):
        axes.bar(labels, share, bottom=below, label=plain(name), color=colour, width=0.7)
        below += share
    axes.set(xlabel="true label", ylabel="share of the predictions", ylim=(0, 1))
    beside = {"title": "predicted", "loc": "center left", "bbox_to_anchor": (1, 0.5)}
    axes.legend(reverse=True, **beside)
    return axes


# The rows of a matrix in the plane


def plot_embedding(
    table: Float[np.ndarray, "V D"], tokens: Sequence[str], method: str = "pca"
) -> Axes:
    """The rows of a matrix in two dimensions, by "pca" or "tsne", with the tokens as marks.

    PCA keeps the two directions of the largest variance; t-SNE (van der Maaten and Hinton 2008)
    keeps neighbours together. Marks that would overlap stand beside their place, with a line to it.
    """
    places = _principal_components(np.asarray(table)) if method == "pca" else _neighbours(table)
    axes = _new_axes(6.5, 6.5)
    names = {"pca": "principal component", "tsne": "t-SNE dimension"}
    axes.set(xlabel=f"{names[method]} 1", ylabel=f"{names[method]} 2")
    axes.scatter(*places.T, s=0)  # sets the limits
    axes.margins(0.08)
    axes.figure.draw_without_rendering()  # so that the axes are where they will be
    style = {"ha": "center", "va": "center", "size": 9, "in_layout": False}
    style["arrowprops"] = {"arrowstyle": "-", "color": "0.7", "lw": 0.5, "shrinkB": 0}
    marks = [
        axes.annotate(visible(token), place, place, color=colour_of(token), **style)
        for place, token in zip(places, tokens, strict=True)
    ]
    sizes = np.array([Text.get_window_extent(mark).size for mark in marks])
    sizes[:, 0] += 4  # a space between marks side by side
    free = spread_out(axes.transData.transform(places), sizes)
    for mark, place in zip(marks, axes.transData.inverted().transform(free), strict=True):
        mark.set_position(place)
    return axes


def _neighbours(table: Float[np.ndarray, "V D"]) -> Float[np.ndarray, "V 2"]:
    """t-SNE, the same each time."""
    with needs_extra("text"):
        from sklearn.manifold import TSNE
        from threadpoolctl import threadpool_limits
    perplexity = min(30.0, (len(table) - 1) / 3)
    # Threads would wait for each other: on a busy machine it took a hundred times as long.
    with threadpool_limits(1):
        return TSNE(perplexity=perplexity, random_state=0, init="pca").fit_transform(table)


def _principal_components(table: Float[np.ndarray, "V D"]) -> Float[np.ndarray, "V 2"]:
    """(x - mean) V, where V has the two directions of the largest variance."""
    centred = table - table.mean(0)
    return centred @ np.linalg.svd(centred, full_matrices=False)[2][:2].T


def spread_out(
    centres: Float[np.ndarray, "N 2"], sizes: Float[np.ndarray, "N 2"]
) -> Float[np.ndarray, "N 2"]:
    """Centres of boxes of these sizes, near the given ones, so that no two boxes overlap.

    Each in turn takes the nearest free place of a lattice around its own; far from all, its own.
    """
    lattice = np.indices((61, 61)).reshape(2, -1).T - 30
    lattice = 5 * lattice[np.argsort((lattice**2).sum(1), kind="stable")]
    free = np.array(centres, float)
    for index, size in enumerate(sizes):
        candidates, needed = free[index] + lattice, (sizes[:index] + size) / 2
        taken = (np.abs(candidates[:, None] - free[:index]) < needed).all(-1).any(-1)
        free[index] = candidates[taken.argmin()]
    return free


def colour_of(token: str) -> str:
    """Upper case blue, lower case green, digits red, everything else grey."""
    letters = token.strip("\u2581# ")
    if letters[:1].isalpha():
        return "tab:blue" if letters[0].isupper() else "tab:green"
    return "tab:red" if letters[:1].isdigit() else "tab:gray"
