"""What a page shows of models of every kind: positions, attention, predictions, heads, data."""

import importlib.util
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from tlite import functional as F
from tlite import inspection, pictures
from tlite.models import Learned, Stack
from tlite.models.parts import WORDS
from tlite.pictures.marks import chosen_tokens, mark_of, symbols
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


def draw_positions(page: Page, stack: Stack, place: str = "") -> None:
    """What a stack of blocks knows of positions: a table, angles, or what is added to scores.

    `place` tells two stacks of a model apart.
    """
    config, word = stack.config, word_of(stack.config.positions)
    at = jnp.arange(min(config.context, POSITIONS))
    if isinstance(config.positions, Learned):
        table = np.asarray(config.positions.table(stack.learned_positions, config))[: len(at)]
        draw_table(page, table, f"{word}{place}")
    windows = sorted({*config.windows})
    has_local = getattr(config.positions, "local_base", None) is not None
    plain = F.Look(config.num_heads, positions=at, key_positions=at)
    for window in windows if has_local else windows[:1]:  # whose angles are their own
        look = stack.look_at(plain, window)
        if look.angles is not None:
            local = f"-window-{window}" if window and has_local else ""
            draw_angles(page, look.angles, f"rotary{place}{local}")
    if look.bias is not None:
        bias, middle = np.asarray(look.bias), len(at) // 2
        lines = {f"head {head}": row for head, row in enumerate(bias[:, middle])}
        labels = "position of the key less that of the query", "added to the score"
        axes = pictures.plot_lines(lines, *labels, np.arange(len(at)) - middle)
        page.draw("bias-{name}", axes, name=f"{word}{place}", kind=word)


def draw_table(page: Page, table: Float[np.ndarray, "T D"], name: str) -> None:
    """A table of positions, some of its columns, and how alike its rows are."""
    labels = {"label": "value", "xlabel": "column of the encoding", "ylabel": "position"}
    kind, axes = name.replace("_", " "), pictures.heat_map(table, signed=True, **labels)
    page.draw("positions-{name}", axes, name=name, kind=kind)
    columns = {f"column {column}": table[:, column] for column in range(table.shape[1])[:16:4]}
    page.draw(
        "position-curves-{name}", pictures.plot_lines(columns, "position", "value"), name=name
    )
    told = f"How alike two {kind} positions are: the cosine of the angle between their rows."
    draw_similarity(page, table, name, f"{told} Stripes mean that the distance counts.")


def draw_angles(page: Page, angles: Float[Array, "T half_K"], name: str) -> None:
    """The angles by which vectors are turned, and how alike one is to itself at two places."""
    labels = {"label": "cosine of the angle", "xlabel": "pair of columns", "ylabel": "position"}
    page.draw("angles-{name}", pictures.heat_map(np.cos(angles), signed=True, **labels), name=name)
    length, pairs = angles.shape
    turned = np.asarray(F.rotate(jnp.ones((length, 2 * pairs)), angles))
    told = "The cosine between a vector that is turned to one place and to another:"
    draw_similarity(page, turned, name, f"{told} it depends on the distance alone.")


def draw_similarity(page: Page, rows: Float[np.ndarray, "T D"], name: str, told: str) -> None:
    """How alike what stands for two positions is."""
    labels = {"label": "cosine similarity", "xlabel": "position", "ylabel": "position"}
    alike = pictures.cosine_similarity(rows)
    axes = pictures.heat_map(alike, signed=True, aspect="equal", **labels)
    page.draw("similarity-{name}", axes, name=name, told=told)


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
    queries, keys, masks = queries[:SHOWN], keys[:SHOWN], [None] * len(weights)
    if stack:
        look = stack.look(len(keys))
        masks = [stack.look_at(look, window).mask for window in stack.config.windows]
        masks = [None if m is None else np.asarray(m).reshape(m.shape[-2:]) for m in masks]
    shown = [np.asarray(layer)[:, : len(queries), : len(keys)] for layer in weights.values()]
    page.add_heads(name, queries, keys, shown, masks)
    what = "" if name == "attention" else f", {name}"
    for block, (layer, of_block, mask) in enumerate(zip(weights, shown, masks, strict=True)):
        page.draw(
            "{layer}",
            pictures.plot_attention(of_block, queries, keys, mask=mask),
            layer=layer.removesuffix(".weights").replace(".", "-"),
            block=block,
            what=what,
            hatched="" if mask is None else " Hatched: the mask forbids to look there.",
        )


def draw_vocabulary(
    page: Page,
    table,
    tokenizer,
    tokens: Iterable[int | np.integer] = (),
    name: str = "embedding",
    told: str = "The embeddings of tokens",
    matrix: Float[Array, "D N"] | None = None,
) -> None:
    """Some tokens' rows of a table (V, D), times a matrix, in the plane; t-SNE of all is slow."""
    chosen = chosen_tokens(tokenizer, tokens, MARKS)
    rows, marks = table[jnp.asarray(chosen)], marks_of(tokenizer, chosen)
    table = np.asarray(rows if matrix is None else rows @ matrix)
    ways = {"pca": "along the two directions in which they differ most (PCA)"}
    if importlib.util.find_spec("sklearn"):  # of the extra `text`
        ways["tsne"] = "so that neighbours stay neighbours (t-SNE): only what is near counts"
    for method, by in ways.items() if len(table) > 3 else ():
        axes = pictures.plot_embedding(table, marks, method)
        page.draw("{name}-{method}", axes, name=name, method=method, told=told, by=by)


def draw_predictions(
    page: Page, model, inputs: Sequence[Int[Array, "_"]], tokenizer, which: str = "the next"
) -> None:
    """The most probable tokens, and the logit lens, for the first tokens of a text.

    Args:
        inputs: the last of them is the text.
        which: token is predicted at each place: the next, or this.
    """
    is_next, marks = which == "the next", marks_of(tokenizer, np.asarray(inputs[-1])[:PREDICTED])
    xlabel = "text so far, up to this token" if is_next else "text that is read"
    top = lens(model, *inputs, most=min(RANKS, model.config.vocabulary_size))
    best, tokens = (np.asarray(part)[:, : len(marks)] for part in top)
    ranked = best[-1].T, marks_of(tokenizer, tokens[-1].T), marks
    axes = pictures.plot_top_tokens(*ranked, xlabel, f"rank of {which} token")
    page.draw("next-token" if is_next else "tokens", axes)
    by_depth = best[..., 0], marks_of(tokenizer, tokens[..., 0]), marks
    page.draw("logit-lens", pictures.plot_top_of_lens(*by_depth, xlabel), which=which)


def draw_scores(page: Page, model, by_step: Iterable[tuple[int, Any]] = ()) -> None:
    """Where the heads look in random tokens written twice; with models by step, over the steps."""
    config = model.config
    half = min(config.context // 2, REPEATED)
    twice = inspection.repeated_tokens(jax.random.key(0), half, config.vocabulary_size, SEQUENCES)
    scores = jax.jit(inspection.score_heads)
    of_model = jax.device_get(scores(model, twice))
    for kind, told in KINDS.items():
        axes = pictures.plot_heads(of_model[kind], f"{kind} score")
        page.draw("head-{kind}", axes, kind=kind, told=told)
    at_steps = {step: jax.device_get(scores(earlier, twice)) for step, earlier in by_step}
    for kind in KINDS if len(at_steps) > 1 else ():
        table = np.stack([at_step[kind] for at_step in at_steps.values()])
        axes = pictures.plot_scores_by_step([*at_steps], table, f"{kind} score")
        page.draw("{kind}-by-step", axes, kind=kind)


def draw_ablation(
    page: Page,
    model,
    inputs: tuple,
    loss: Callable,
    of: str = "the text",
    layer: str = "attention",
) -> None:
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
    axes = pictures.plot_heads(change, "loss added (nats)", change=True)
    head = f"{name.replace('_', '-')} head of the {stack}" if stack else "head"
    place = f"-{stack}-{name}" if stack else ""
    page.draw("ablation{place}", axes, place=place, of=of, loss=float(whole), head=head)


def draw_patching(page: Page, model, tokens: Int[Array, "T"], tokenizer) -> None:
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
    axes = pictures.heat_map(table, **names)
    page.draw("patching", axes, middle=middle, before=before, after=after)


def draw_data(
    page: Page, text: str, lengths: Mapping[str, Iterable[int]], unit: str = "character"
) -> None:
    """Frequencies of characters and words, and how long lines, passages or sentences are."""
    for kind, tokens in (("character", text), ("word", re.findall(r"\w+", text))):
        axes = pictures.plot_frequencies(Counter(tokens), kind)
        page.draw("frequencies-{kind}", axes, kind=kind)
    for kind, values in lengths.items():
        page.draw("lengths-{kind}", pictures.plot_lengths([*values], kind, unit), kind=kind)
