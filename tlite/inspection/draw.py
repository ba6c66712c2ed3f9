"""What models of every kind have to show on the page: positions, attention, embeddings, ..."""

import importlib.util
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from tlite import functional as F
from tlite.inspection.attention import plot_attention
from tlite.inspection.capture import run
from tlite.inspection.embeddings import plot_embedding
from tlite.inspection.gallery import Gallery
from tlite.inspection.head_view import Heads
from tlite.inspection.heads import plot_top_of_lens
from tlite.inspection.pieces import chosen_tokens, mark_of
from tlite.inspection.plots import plot_top_tokens
from tlite.inspection.positions import (
    cosine_similarity,
    plot_bias,
    plot_position_curves,
    plot_positions,
    plot_similarity,
    rotary_similarity,
)
from tlite.inspection.texts import plot_frequencies, plot_lengths
from tlite.inspection.tools import top_of_lens
from tlite.models.encoder import TABLES, Stack

SHOWN = 40  # tokens of a text whose attention is drawn
MARKS = 120  # tokens in a picture of an embedding
POSITIONS = 128  # whose encodings are drawn
PREDICTED = 24  # tokens of a text after which the next ones are shown
RANKS = 8  # most probable tokens


@partial(jax.jit, static_argnames="most")
def read(model, *inputs: jax.Array, most: int = 0):
    """Logits, the attention weights by name, and the `most` most probable tokens at each depth."""
    logits, weights = run(model, *inputs, capture="*attention.weights")
    return logits, weights, top_of_lens(model, *inputs, most=most) if most else None


def draw_positions(gallery: Gallery, stack: Stack, place: str = "") -> None:
    """What a stack of blocks knows of positions: a table, angles, or what is added to scores.

    `place` tells two stacks of a model apart.
    """
    config = stack.config
    length = min(config.context, POSITIONS)
    if config.positions in TABLES:
        draw_table(gallery, f"{config.positions}{place}", np.asarray(stack.position_table()))
    at, seen = jnp.arange(length), {}
    for window in sorted({config.window(index) for index in range(config.num_blocks)}):
        local = f"-window-{window}" if window and config.local_rotary_base else ""
        seen[local] = stack.position_settings(at, at, None, window)
    for local, settings in seen.items():  # blocks with a window can have angles of their own
        if settings["angles"] is not None:
            draw_angles(gallery, f"rotary{place}{local}", np.asarray(settings["angles"]))
    if (bias := seen[local]["bias"]) is not None:
        gallery.draw(
            "Positions",
            f"bias-{config.positions}{place}",
            f"What {config.positions} positions add to the score of a key, by its distance from "
            "the query. A head whose line falls fast looks at what is near.",
            lambda: plot_bias(np.asarray(bias)),
        )


def draw_table(gallery: Gallery, name: str, table: np.ndarray) -> None:
    """A table of positions, some of its columns, and how alike its rows are."""
    draw, table = partial(gallery.draw, "Positions"), table[:POSITIONS]
    kind = name.replace("_", " ")
    draw(
        f"positions-{name}",
        f"The {kind} positions: row t is what is added to the embedding of the token at place t.",
        lambda: plot_positions(table),
    )
    draw(
        f"position-curves-{name}",
        "Some columns of that table over the positions.",
        lambda: plot_position_curves(table),
    )
    draw(
        f"similarity-{name}",
        f"How alike two {kind} positions are: the cosine of the angle between their rows, 1 on "
        "the diagonal. Stripes along it mean that the distance counts.",
        lambda: plot_similarity(cosine_similarity(table)),
    )


def draw_angles(gallery: Gallery, name: str, angles: np.ndarray) -> None:
    """The angles by which vectors are turned, and how alike one is to itself at two places."""
    draw = partial(gallery.draw, "Positions")
    draw(
        f"angles-{name}",
        "Rotary positions: at place t the pair of columns i of each query and key is turned by an "
        "angle, whose cosine is drawn. The first pairs turn fast, the last ones slowly.",
        lambda: plot_positions(
            np.cos(angles), xlabel="pair of columns", label="cosine of the angle"
        ),
    )
    draw(
        f"similarity-{name}",
        "How alike a vector is to itself once it is turned to another place: the cosine between "
        "both. It depends on the distance alone.",
        lambda: plot_similarity(rotary_similarity(angles)),
    )


def draw_attention(
    gallery: Gallery,
    name: str,
    weights: dict[str, jax.Array],
    masks: Sequence[np.ndarray | None],
    queries: list[str],
    keys: list[str] | None = None,
) -> list[np.ndarray]:
    """The weights of all heads of some layers: in the view, and a picture for each block."""
    to = keys or queries
    masks = [None if m is None else np.asarray(m)[: len(queries), : len(to)] for m in masks]
    shown = [np.asarray(layer)[:, : len(queries), : len(to)] for layer in weights.values()]
    gallery.heads.append(Heads(name, queries, to, shown, masks))
    for index, (layer, of_block, mask) in enumerate(zip(weights, shown, masks, strict=True)):
        what = "" if name == "attention" else f", {name}"
        gallery.draw(
            "Attention",
            layer.removesuffix(".weights").replace(".", "-"),
            f"Block {index}{what}: each row is a query, and shows how it divides its attention "
            f"among the keys.{'' if mask is None else ' Hatched: the mask forbids to look there.'}",
            lambda w=of_block, m=mask: plot_attention(w, queries, keys, mask=m),
        )
    return shown


def masks_of(stack: Stack, length: int) -> list[np.ndarray | None]:
    """By block where each of the first tokens may look (T, T); None: everywhere."""
    at, config = jnp.arange(length), stack.config
    causal = F.causal_mask(length) if stack.causal else None
    windows = [config.window(index) for index in range(len(stack.blocks))]
    found = (stack.position_settings(at, at, causal, window)["mask"] for window in windows)
    return [None if m is None else np.asarray(m).reshape(length, length) for m in found]


def draw_vocabulary(
    gallery: Gallery, table, tokenizer, tokens: Iterable[int | np.integer] = ()
) -> None:
    """The rows of some tokens: of all that a large vocabulary has t-SNE would never end."""
    chosen = chosen_tokens(tokenizer, tokens, MARKS)
    names = [mark_of(tokenizer, token) for token in chosen]
    draw_embedding(gallery, table[jnp.asarray(chosen)], names)


def draw_embedding(
    gallery: Gallery,
    table,
    names: list[str],
    what: str = "embedding",
    told: str = "The embeddings of tokens",
) -> None:
    """The rows of a matrix in the plane."""
    table = np.asarray(table)[: len(names)]
    if len(table) < 4:
        return
    marks = "Capitals are blue, small letters green, digits red; a line leads to a mark's place."
    ways = [("pca", "along the two directions in which they differ most (PCA)")]
    if importlib.util.find_spec("sklearn"):  # of the extra `text`
        by = "so that neighbours stay neighbours (t-SNE): only what is near counts"
        ways.append(("tsne", by))
    for method, by in ways:
        gallery.draw(
            "Embeddings",
            f"{what}-{method}",
            f"{told} in the plane, {by}. {marks}",
            lambda m=method: plot_embedding(table, names, m),
        )


def draw_predictions(
    gallery: Gallery,
    top: tuple[jax.Array, jax.Array],
    marks: list[str],
    mark: Callable[[int], str],
    which: str = "the next",
) -> None:
    """The most probable tokens, and the logit lens, for the first tokens of a text.

    Args:
        top: of `top_of_lens`, (L + 1, T, N) each.
        marks: of the tokens.
        mark: what stands for a token.
        which: token is predicted at each place: the next, or this.
    """
    marks = marks[:PREDICTED]
    best, tokens = (np.asarray(part)[:, : len(marks)] for part in top)
    pieces = [[mark(token) for token in row] for row in tokens[-1]]
    reads = "text so far, up to this token" if which == "the next" else "text that is read"
    gallery.draw(
        "Predictions",
        "next-token" if which == "the next" else "tokens",
        f"What is most probable as {which} token, below each token of the text: the stronger "
        "the colour, the more probable. The first row is the model's choice.",
        lambda: plot_top_tokens(best[-1], pieces, marks, reads, f"rank of {which} token"),
    )
    first = [[mark(token) for token in row] for row in tokens[:, :, 0]]
    gallery.draw(
        "Predictions",
        "logit-lens",
        f"The logit lens: what would be {which} token if the model ended after the embedding, "
        "after block 0, and so on. Where a row first has what the last one has, the model knew.",
        lambda: plot_top_of_lens(best[:, :, 0], first, marks, reads),
    )


def draw_data(gallery: Gallery, text: str, lengths: dict, unit: str = "character") -> None:
    """Frequencies of characters and words, and how long lines, passages or sentences are."""
    for kind, tokens in (("character", text), ("word", re.findall(r"\w+", text))):
        counts = Counter(tokens)
        gallery.draw(
            "Data",
            f"frequencies-{kind}",
            f"The most frequent {kind}s of the text, and what share of all {kind}s each is.",
            lambda c=counts, k=kind: plot_frequencies(c, k),
        )
    for kind, values in lengths.items():
        gallery.draw(
            "Data",
            f"lengths-{kind.replace(' ', '-')}",
            f"How long its {kind}s are; the longest hundredth of them is left out.",
            lambda v=list(values), k=kind: plot_lengths(v, k, unit),
        )
