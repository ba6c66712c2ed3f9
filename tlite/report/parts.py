"""The pictures of what models of every kind have: attention, heads, predictions, positions, ..."""

import importlib.util
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from tlite import functional as F
from tlite import inspection, pictures
from tlite.models import Learned, Stack
from tlite.models.parts import WORDS
from tlite.pictures import Picture, mark_of
from tlite.pictures.marks import chosen_tokens, symbols
from tlite.report.page import Page

SHOWN = 40  # tokens of a text whose attention is drawn
MARKS = 120  # tokens in a picture of an embedding
POSITIONS = 128  # whose encodings are drawn
PREDICTED = 24  # tokens of a text after which the next ones are shown
RANKS = 8  # most probable tokens
REPEATED = 64  # random tokens that are written twice, at most
SEQUENCES = 8  # of these: a large model takes seconds for each
KINDS = {
    "previous": "the token before the query",
    "duplicate": "earlier tokens that are the same as the query",
    "induction": "what came after those: what a model that copies needs",
}


# Logits, and the attention weights by name.
read = jax.jit(partial(inspection.run, capture="*attention.weights"))
# The most probable tokens at each depth.
lens = jax.jit(inspection.top_of_lens, static_argnames="most")


def marks_of(tokenizer, tokens: Iterable) -> list:
    """What stands for each token of a row, or of the rows of a table."""
    return [marks_of(tokenizer, t) if np.ndim(t) else mark_of(tokenizer, t) for t in tokens]


def next_token_loss(tokens: Int[Array, "T"]) -> Callable:
    """The mean loss of logits (T, V) on a text."""
    return lambda logits: F.token_cross_entropy(logits[:-1], tokens[1:]).mean()


def word_of(positions) -> str:
    """What a config may call them, "split_sinusoidal" say; a user's own by their class's name."""
    for word, known in WORDS["positions"].items():
        if type(known) is type(positions) and not (hasattr(known, "split") and known != positions):
            return word
    return type(positions).__name__


def position_pictures(stack: Stack, place: str = "") -> Iterator[Picture]:
    """What a stack of blocks knows of positions: a table, angles, or what is added to scores.

    `place` tells two stacks of a model apart.
    """
    config, word = stack.config, word_of(stack.config.positions)
    at = jnp.arange(min(config.context, POSITIONS))
    if isinstance(config.positions, Learned):
        table = np.asarray(config.positions.table(stack.learned_positions, config))[: len(at)]
        yield from table_pictures(table, f"{word}{place}")
    windows = sorted({*config.windows})
    has_local = getattr(config.positions, "local_base", None) is not None
    plain = F.Look(config.num_heads, positions=at, key_positions=at)
    for window in windows if has_local else windows[:1]:  # whose angles are their own
        look = stack.look_at(plain, window)
        if look.angles is not None:
            local = f"-window-{window}" if window and has_local else ""
            yield from angle_pictures(look.angles, f"rotary{place}{local}")
    if look.bias is not None:
        bias, middle = np.asarray(look.bias), len(at) // 2
        lines = {f"head {head}": row for head, row in enumerate(bias[:, middle])}
        labels = "position of the key less that of the query", "added to the score"
        yield Picture(
            f"bias-{word}{place}",
            f"What {word} positions add to the score of a key, by its distance from the query. A "
            "head whose line falls fast looks at what is near.",
            pictures.plot_lines(lines, *labels, np.arange(len(at)) - middle).figure,
        )


def table_pictures(table: Float[np.ndarray, "T D"], name: str) -> Iterator[Picture]:
    """A table of positions, some of its columns, and how alike its rows are."""
    kind = name.replace("_", " ")
    labels = {"label": "value", "xlabel": "column of the encoding", "ylabel": "position"}
    yield Picture(
        f"positions-{name}",
        f"The {kind} positions: row t is what is added to the embedding of the token at place t.",
        pictures.heat_map(table, signed=True, **labels).figure,
    )
    columns = {f"column {column}": table[:, column] for column in range(table.shape[1])[:16:4]}
    yield Picture(
        f"position-curves-{name}",
        "Some columns of that table over the positions.",
        pictures.plot_lines(columns, "position", "value").figure,
    )
    told = f"How alike two {kind} positions are: the cosine of the angle between their rows."
    yield similarity_picture(table, name, f"{told} Stripes mean that the distance counts.")


def angle_pictures(angles: Float[Array, "T half_K"], name: str) -> Iterator[Picture]:
    """The angles by which vectors are turned, and how alike one is to itself at two places."""
    labels = {"label": "cosine of the angle", "xlabel": "pair of columns", "ylabel": "position"}
    yield Picture(
        f"angles-{name}",
        "Rotary positions: at place t the pair of columns i of each query and key is turned by an "
        "angle, whose cosine is drawn. The first pairs turn fast, the last ones slowly.",
        pictures.heat_map(np.cos(angles), signed=True, **labels).figure,
    )
    length, pairs = angles.shape
    turned = np.asarray(F.rotate(jnp.ones((length, 2 * pairs)), angles))
    told = "The cosine between a vector that is turned to one place and to another:"
    yield similarity_picture(turned, name, f"{told} it depends on the distance alone.")


def similarity_picture(rows: Float[np.ndarray, "T D"], name: str, caption: str) -> Picture:
    """How alike what stands for two positions is."""
    labels = {"label": "cosine similarity", "xlabel": "position", "ylabel": "position"}
    alike = pictures.cosine_similarity(rows)
    plot = pictures.heat_map(alike, signed=True, aspect="equal", **labels)
    return Picture(f"similarity-{name}", caption, plot.figure)


def masks_of(stack: Stack, length: int) -> list[Bool[np.ndarray, "T T"] | None]:
    """By block where each of the first tokens may look; None: everywhere."""
    look = stack.look(length)
    masks = (stack.look_at(look, window).mask for window in stack.config.windows)
    return [None if m is None else np.asarray(m).reshape(length, length) for m in masks]


def draw_attention(
    page: Page,
    name: str,
    weights: Mapping[str, Float[Array, "H T S"]],
    stack: Stack | None,
    queries: list[str],
    keys: list[str],
) -> None:
    """The weights of all heads of some layers: in the view, and a picture for each block.

    Args:
        stack: where the layers look at themselves.
    """
    queries, keys = queries[:SHOWN], keys[:SHOWN]
    masks = masks_of(stack, len(keys)) if stack else [None] * len(weights)
    shown = [np.asarray(layer)[:, : len(queries), : len(keys)] for layer in weights.values()]
    page.add_heads(name, queries, keys, shown, masks)
    what = "" if name == "attention" else f", {name}"
    found = (
        Picture(
            layer.removesuffix(".weights").replace(".", "-"),
            f"Block {index}{what}: each row is a query, and shows how it divides its attention "
            f"among the keys.{'' if mask is None else ' Hatched: the mask forbids to look there.'}",
            pictures.plot_attention(of_block, queries, keys, mask=mask).figure,
        )
        for index, (layer, of_block, mask) in enumerate(zip(weights, shown, masks, strict=True))
    )
    page.draw("Attention", found)


def vocabulary_pictures(
    table,
    tokenizer,
    tokens: Iterable[int | np.integer] = (),
    what: str = "embedding",
    caption: str = "The embeddings of tokens",
    matrix: Float[Array, "D N"] | None = None,
) -> Iterator[Picture]:
    """Some tokens' rows of a table (V, D), times a matrix, in the plane; t-SNE of all is slow."""
    chosen = chosen_tokens(tokenizer, tokens, MARKS)
    rows, names = table[jnp.asarray(chosen)], marks_of(tokenizer, chosen)
    table = np.asarray(rows if matrix is None else rows @ matrix)
    ways = {"pca": "along the two directions in which they differ most (PCA)"}
    if importlib.util.find_spec("sklearn"):  # of the extra `text`
        ways["tsne"] = "so that neighbours stay neighbours (t-SNE): only what is near counts"
    for method, by in ways.items() if len(table) > 3 else ():
        yield Picture(
            f"{what}-{method}",
            f"{caption} in the plane, {by}. Capitals are blue, small letters green, digits red; a "
            "line leads to a mark's place.",
            pictures.plot_embedding(table, names, method).figure,
        )


def prediction_pictures(
    model, inputs: Sequence[Int[Array, "_"]], tokenizer, which: str = "the next"
) -> Iterator[Picture]:
    """The most probable tokens, and the logit lens, for the first tokens of a text.

    Args:
        inputs: the last of them is the text.
        which: token is predicted at each place: the next, or this.
    """
    is_next, marks = which == "the next", marks_of(tokenizer, np.asarray(inputs[-1])[:PREDICTED])
    xlabel = "text so far, up to this token" if is_next else "text that is read"
    top = lens(model, *inputs, most=min(RANKS, model.config.vocabulary_size))
    best, tokens = (np.asarray(part)[:, : len(marks)] for part in top)
    pieces = marks_of(tokenizer, tokens[-1].T)
    yield Picture(
        "next-token" if is_next else "tokens",
        f"What is most probable as {which} token, below each token of the text: the stronger "
        "the colour, the more probable. The first row is the model's choice.",
        pictures.plot_top_tokens(
            best[-1].T, pieces, marks, xlabel, f"rank of {which} token"
        ).figure,
    )
    pieces = marks_of(tokenizer, tokens[..., 0])
    yield Picture(
        "logit-lens",
        f"The logit lens: what would be {which} token if the model ended after the embedding, "
        "after block 0, and so on. Where a row first has what the last one has, the model knew.",
        pictures.plot_top_of_lens(best[..., 0], pieces, marks, xlabel).figure,
    )


def score_pictures(model, by_step: Iterable[tuple[int, Any]] = ()) -> Iterator[Picture]:
    """Where the heads look in random tokens written twice; with models by step, over the steps."""
    config = model.config
    half = min(config.context // 2, REPEATED)
    twice = inspection.repeated_tokens(jax.random.key(0), half, config.vocabulary_size, SEQUENCES)
    scores = jax.jit(inspection.score_heads)
    of_model = jax.device_get(scores(model, twice))
    for name, told in KINDS.items():
        yield Picture(
            f"head-{name}",
            f"How much of each head's attention goes to {told}, on random tokens that are "
            "written twice: 0 nothing, 1 all. The scale ends at the largest score here.",
            pictures.plot_heads(of_model[name], f"{name} score").figure,
        )
    at_steps = {step: jax.device_get(scores(earlier, twice)) for step, earlier in by_step}
    for name in KINDS if len(at_steps) > 1 else ():
        table = np.stack([at_step[name] for at_step in at_steps.values()])
        yield Picture(
            f"{name}-by-step",
            f"The same {name} score at the checkpoints that the run has kept, a panel for each "
            "block: a line that rises is a head that has learned to look there.",
            pictures.plot_scores_by_step([*at_steps], table, f"{name} score").figure,
        )


def ablation_picture(
    model, inputs: tuple, loss: Callable, of: str = "the text", layer: str = "attention"
) -> Picture:
    """By how much the loss rises without each head.

    Args:
        layer: of an encoder-decoder with its stack: `decoder.cross_attention`.
    """
    stack, _, name = layer.rpartition(".")

    @jax.jit
    def ablated(model, *inputs):
        pattern = f"{stack}.blocks.*" if stack else "blocks.*"
        settings = {"metric": loss, "pattern": pattern, "layer": name}
        whole = loss(model(*inputs))
        return whole, inspection.ablate_heads(model, *inputs, **settings) - whole

    whole, change = jax.device_get(ablated(model, *inputs))
    heads = f"{name.replace('_', '-')} head of the {stack}" if stack else "head"
    return Picture(
        f"ablation-{stack}-{name}" if stack else "ablation",
        f"By how much the loss on {of} ({float(whole):.2f} nats) rises when the output of one "
        f"{heads} is set to zero: red heads are needed, without blue ones it would be better.",
        pictures.plot_heads(change, "loss added (nats)", change=True).figure,
    )


def patching_picture(model, tokens: Int[Array, "T"], tokenizer) -> Picture:
    """Where a clean text's value restores the prediction that a changed token has spoilt."""
    middle = len(tokens) // 2
    corrupted = tokens.at[middle].set((tokens[middle] + 1) % model.config.vocabulary_size)

    @jax.jit
    def patched(model, clean, corrupted):
        def truth(logits):  # two tokens after the changed one
            return jax.nn.log_softmax(logits[middle + 1])[clean[middle + 2]]

        ends = truth(model(clean)), truth(model(corrupted))
        return *ends, inspection.patch_residual(model, clean, corrupted, truth)

    before, after, table = jax.device_get(patched(model, tokens, corrupted))
    names = {
        "rows": [f"block {layer}" for layer in range(len(table))],
        "columns": [*map(symbols, marks_of(tokenizer, np.asarray(corrupted)))],
        "xlabel": "position that is restored",
        "ylabel": "after",
        "label": "log-probability (nats)",
    }
    return Picture(
        "patching",
        f"Activation patching: with token {middle} of the text changed, the log-probability of the "
        f"next token but one went from {before:.2f} to {after:.2f}. Each cell is that value when "
        "the clean text's residual stream is put back at one block and place: what counts is there "
        "where it is restored.",
        pictures.heat_map(table, **names).figure,
    )


def data_pictures(
    text: str, lengths: Mapping[str, Iterable[int]], unit: str = "character"
) -> Iterator[Picture]:
    """Frequencies of characters and words, and how long lines, passages or sentences are."""
    for kind, tokens in (("character", text), ("word", re.findall(r"\w+", text))):
        yield Picture(
            f"frequencies-{kind}",
            f"The most frequent {kind}s of the text, and what share of all {kind}s each is.",
            pictures.plot_frequencies(Counter(tokens), kind).figure,
        )
    for kind, values in lengths.items():
        yield Picture(
            f"lengths-{kind.replace(' ', '-')}",
            f"How long its {kind}s are; the longest hundredth of them is left out.",
            pictures.plot_lengths([*values], kind, unit).figure,
        )
