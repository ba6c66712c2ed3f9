"""Pictures: each function draws on a matplotlib Axes and returns it."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes

from tlite.terminal import printable

CARETS = {0x2400 + code: f"^{chr(code ^ 0x40)}" for code in range(0x20)} | {0x2421: "^?"}
STYLES = "-", "--", ":", "-."
COLOURS = [f"tab:{name}" for name in ("blue", "orange", "green", "red", "purple", "brown", "pink")]


def line_style(index: int) -> dict[str, str]:
    """Colour and style of a plot's line: no two of the first 28 have both in common."""
    style = STYLES[index // len(COLOURS) % len(STYLES)]
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": style}


def plot_curves(lines: list[dict], name: str = "loss", axes: Axes | None = None) -> Axes:
    """A quantity of metrics.jsonl by step, for training (smoothed) and validation, with its spread.

    Training values are averaged over 1/200 of the run, so that the noise of single batches does
    not hide the course. The band is one standard deviation over the members.
    """
    axes = axes or plt.subplots(figsize=(6, 4), layout="constrained")[1]
    for split, style in (("training", {"alpha": 0.8}), ("validation", {"marker": "o", "ms": 3})):
        chosen = [line for line in lines if line["split"] == split and line.get(name) is not None]
        if not chosen:
            continue
        width = max(len(chosen) // 200, 1) if split == "training" else 1
        steps = _averaged([line["step"] for line in chosen], width)
        mean = _averaged([line[name] for line in chosen], width)
        (curve,) = axes.plot(steps, mean, label=split, **style)
        if f"{name}_members" in chosen[0]:
            spread = _averaged([line[f"{name}_spread"] for line in chosen], width)
            axes.fill_between(
                steps, mean - spread, mean + spread, color=curve.get_color(), alpha=0.2
            )
    units = {"loss": "loss (nats)", "accuracy": "accuracy (share that is right)"}
    units |= {"bleu": "BLEU (13a, greedy)", "exact_match": "exact matches (share)"}
    axes.set(xlabel="step", ylabel=units.get(name, name))
    axes.grid(alpha=0.3)
    axes.legend()
    return axes


def plot_loss_by_position(losses: Float[np.ndarray, "M T"], axes: Axes | None = None) -> Axes:
    """Mean loss at each position of the context: how much a longer past helps."""
    axes = axes or plt.subplots(figsize=(6, 4), layout="constrained")[1]
    positions = np.arange(1, losses.shape[1] + 1)
    mean = losses.mean(0)
    (curve,) = axes.plot(positions, mean, marker=".")
    if len(losses) > 1:
        spread = losses.std(0, ddof=1)
        axes.fill_between(
            positions, mean - spread, mean + spread, color=curve.get_color(), alpha=0.2
        )
    axes.set(xlabel="tokens seen", ylabel="validation loss (nats per token)")
    axes.grid(alpha=0.3)
    return axes


def plot_next_token_probabilities(
    probabilities: Float[np.ndarray, "T V"],
    tokens: list[str],
    vocabulary: list[str],
    most: int = 8,
    axes: Axes | None = None,
) -> Axes:
    """The most probable next tokens after each token of a text, one column a position."""
    order = np.argsort(-probabilities, axis=-1)[:, :most]
    top = np.take_along_axis(probabilities, order, axis=-1)
    pieces = [[vocabulary[index] for index in row] for row in order]
    return plot_top_tokens(top, pieces, tokens, axes=axes)


def plot_top_tokens(
    top: Float[np.ndarray, "T N"],
    pieces: Sequence[Sequence[str]],
    tokens: Sequence[str],
    xlabel: str = "text so far, up to this token",
    ylabel: str = "rank of the next token",
    axes: Axes | None = None,
) -> Axes:
    """The largest probabilities at each position, with their pieces."""
    length, most = top.shape
    longest = max(len(visible(piece)) for row in pieces for piece in row)
    size = (max(0.45, 0.11 * longest + 0.12) * length + 1.5, 0.4 * most + 1.5)
    axes = axes or plt.subplots(figsize=size, layout="constrained")[1]
    image = axes.imshow(top.T, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for position in range(length):
        for rank in range(most):
            axes.text(
                position,
                rank,
                visible(pieces[position][rank]),
                ha="center",
                va="center",
                color="white" if top[position, rank] > 0.6 else "black",
            )
    label_tokens(axes, tokens)
    axes.set_yticks(range(most), [str(rank + 1) for rank in range(most)])
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.figure.colorbar(image, ax=axes, label="probability")
    return axes


def label_tokens(axes: Axes, tokens: Sequence[str]) -> None:
    """A tick for each token; words stand upright."""
    turn = 90 if max(map(len, tokens), default=0) > 1 else 0
    axes.set_xticks(range(len(tokens)), [visible(token) for token in tokens], rotation=turn)


def symbols(token: str) -> str:
    """A token with a symbol for each character that can't be seen: ␣, ↵, ⇥, ␌, ...; others \\u200b.

    The symbols of control characters are Unicode's own (U+2400 and on).
    """
    marks = {" ": "␣", "\n": "↵", "\t": "⇥"}
    return "".join(marks.get(c) or readable(c) for c in token)


def readable(text: str) -> str:
    """A text whose control characters but line ends are symbols; spaces stay spaces."""
    known = printable(text).replace("\t", "␉")
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in known)


def visible(token: str) -> str:
    """The same in a picture, letter by letter."""
    return plain(symbols(token))


def plain(text: str) -> str:
    """Text as matplotlib draws it letter by letter: a `$` would begin a formula.

    Its font has no symbols for control characters: a form feed is ^L, as keyboards have it.
    """
    return printable(text).translate(CARETS).replace("$", r"\$")


def _averaged(values: list, width: int) -> np.ndarray:
    usable = len(values) // width * width
    return np.asarray(values[:usable], float).reshape(-1, width).mean(1)
