"""What a model shows on one text, without data: a function for each kind of model."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tlite import functional as F
from tlite.inspection.capture import matching
from tlite.inspection.draw import (
    MARKS,
    PREDICTED,
    RANKS,
    SHOWN,
    draw_attention,
    draw_embedding,
    draw_positions,
    draw_predictions,
    draw_vocabulary,
    masks_of,
    read,
)
from tlite.inspection.draw_heads import draw_ablation, draw_patching, draw_scores, next_token_loss
from tlite.inspection.gallery import Gallery
from tlite.inspection.heads import plot_saliency
from tlite.inspection.pieces import chosen_tokens, mark_of
from tlite.inspection.plots import plot_top_tokens
from tlite.inspection.texts import coloured_by_loss
from tlite.inspection.tools import fill_in, gradient_times_input
from tlite.inspection.translator import plot_alignment
from tlite.modules.summary import count_parameters

PATCHED = 20  # tokens of a text whose values are put into another
HIDDEN = 5  # of so many tokens one is hidden
COLOURED = "the redder the ground, the less it was expected; point at it for its bits."


def tell_size(gallery: Gallery, model) -> None:
    """How many parameters a model has, and in what."""
    config = model.config
    blocks = f"{config.num_blocks} blocks"
    if hasattr(model, "decoder"):
        decoders = config.decoder_blocks or config.num_blocks
        blocks = f"{config.num_blocks} encoder blocks and {decoders} decoder blocks"
    gallery.tell(
        "Size",
        f"{count_parameters(model):,} parameters",
        f"{blocks} of {config.num_heads} heads",
        f"width {config.width:,}",
        f"a context of {config.context:,} tokens",
        f"a vocabulary of {config.vocabulary_size:,}",
        "" if callable(config.positions) else f"{config.positions} positions",
    )


def draw_generator(
    gallery: Gallery,
    model,
    tokenizer,
    tokens: np.ndarray,
    by_step: Iterable[tuple[int, Any]] = (),
    sequences: int = 16,
) -> np.ndarray:
    """Tokens (T,); the scores of the heads also of models by the step of their training.

    Returns the losses (T - 1,) of the text's tokens but the first.
    """
    mark = lambda token: mark_of(tokenizer, token)  # noqa: E731
    marks = [mark(token) for token in tokens]
    logits, top = draw_encoder(gallery, model, tokenizer, tokens, most=RANKS)
    chosen = chosen_tokens(tokenizer, tokens, MARKS)
    heads = model.blocks[0].attention.value.kernel[...].reshape(model.config.width, -1)
    values = model.embedding.table[jnp.asarray(chosen)] @ heads
    told = "What the heads of block 0 take from each token (embedding times value matrices)"
    draw_embedding(gallery, values, [mark(t) for t in chosen], "values-of-block-0", told)
    draw_predictions(gallery, top, marks, mark)
    draw_scores(gallery, model, by_step, sequences)
    tokens = jnp.asarray(tokens)
    if len(tokens) > 1:  # else there is nothing to predict
        draw_ablation(gallery, model, (tokens,), next_token_loss(tokens))
        draw_patching(gallery, model, tokens[:PATCHED], lambda row: [mark(t) for t in row])
    return np.asarray(F.token_cross_entropy(logits[:-1], tokens[1:]))


def draw_encoder(
    gallery: Gallery, model, tokenizer, tokens: np.ndarray, most: int = 0
) -> tuple[jax.Array, Any]:
    """Attention, positions and embedding of a single stack of blocks on tokens (T,).

    Returns its logits, and the `most` most probable tokens at each depth.
    """
    marks = [mark_of(tokenizer, token) for token in tokens[:SHOWN]]
    found = draw_one_stack(gallery, model, tokens, marks, most)
    draw_positions(gallery, model)
    draw_vocabulary(gallery, model.embedding.table, tokenizer, tokens)
    return found


def draw_one_stack(
    gallery: Gallery, model, tokens: np.ndarray, marks: Sequence[str], most: int = 0
) -> tuple[jax.Array, Any]:
    """Attention of a model with one stack of blocks."""
    most = min(most, model.config.vocabulary_size)
    logits, weights, top = read(model, jnp.asarray(tokens), most=most)
    draw_attention(gallery, "attention", weights, masks_of(model, len(tokens)), [*marks])
    return logits, top


def draw_masked(
    gallery: Gallery, model, tokenizer, tokens: np.ndarray
) -> tuple[list[str], list[str]]:
    """What a masked model fills in for each token (T,) alone, and for some of them together.

    Returns the tokens that were hidden one by one, and the first choice for each.
    """
    draw_encoder(gallery, model, tokenizer, tokens)
    special = {getattr(tokenizer, f"{role}_id") for role in ("cls", "sep", "bos", "eos", "mask")}
    places = np.flatnonzero([token not in special for token in tokens])
    if tokenizer.mask_id is None or not len(places):
        return [], []
    mark = lambda token: mark_of(tokenizer, token)  # noqa: E731
    truth, asked = jnp.asarray(tokens[places]), [mark(token) for token in tokens[places]]
    text, most = jnp.asarray(tokens), min(RANKS, model.config.vocabulary_size)

    @jax.jit
    def filled(model, text, places):
        predicted = fill_in(model, text, tokenizer.mask_id, places)
        losses = -jnp.take_along_axis(predicted, truth[:, None], axis=-1)[:, 0]
        return losses, *jax.lax.top_k(jnp.exp(predicted), most)

    losses, best, found = jax.device_get(filled(model, text, jnp.asarray(places)))
    pieces = [[mark(token) for token in row] for row in found]
    columns = best[:PREDICTED], pieces[:PREDICTED], asked[:PREDICTED]
    gallery.draw(
        "Predictions",
        "filled-in",
        "What is most probable in the place of each token when that token alone is hidden: the "
        "stronger the colour, the more probable.",
        lambda: plot_top_tokens(*columns, "the token that is hidden", "rank"),
    )
    told = f"Each token when it alone is hidden: {COLOURED}"
    gallery.add("Predictions", coloured_by_loss(asked, losses), told)

    hidden = places[len(places) // 2 % HIDDEN :: HIDDEN]
    given = text.at[hidden].set(tokenizer.mask_id)
    shown = [mark(token) for token in np.asarray(given)]
    draw_predictions(gallery, read(model, given, most=most)[2], shown, mark, "this")

    def loss(logits):
        return F.token_cross_entropy(logits[hidden], text[hidden]).mean()

    draw_ablation(gallery, model, (given,), loss, f"{len(hidden)} hidden tokens of the text")
    return asked, [row[0] for row in pieces]


def draw_classifier(
    gallery: Gallery,
    model,
    tokens: np.ndarray,
    pieces: Sequence[str],
    classes: Sequence[str],
    beside: Callable[[int], Mapping[str, np.ndarray]] = lambda predicted: {},
) -> dict[str, float]:
    """Attention on tokens (T,) without padding, what speaks for the class, what each head is worth.

    Returns the probabilities of the classes.

    Args:
        beside: numbers for the pieces, by their title, from the predicted class.
    """
    logits, _ = draw_one_stack(gallery, model, tokens, pieces[:SHOWN])
    draw_positions(gallery, model)
    predicted, text = int(logits.argmax()), jnp.asarray(tokens)
    name, probabilities = classes[predicted], np.asarray(jax.nn.softmax(logits))
    speaks = jax.jit(gradient_times_input)(model, text, predicted)
    columns = {f"gradient x input\nfor {name!r}": np.asarray(speaks), **beside(predicted)}
    gallery.draw(
        "Predictions",
        "saliency",
        f"What speaks for {name!r}, which has probability {probabilities[predicted]:.3f}: words "
        "with a green bar speak for it, those with a red one against it.",
        lambda: plot_saliency(pieces, columns),
    )
    loss = lambda logits: -jax.nn.log_softmax(logits)[predicted]  # noqa: E731
    draw_ablation(gallery, model, (text,), loss, f"the class {name!r}")
    return dict(zip(classes, map(float, probabilities), strict=True))


def draw_seq2seq(
    gallery: Gallery,
    model,
    source: np.ndarray,
    target: np.ndarray,
    marks: tuple[Callable[[int], str], Callable[[int], str]],
) -> None:
    """Attention within and between a source (S,) and what is written for it (T,), start first.

    Args:
        marks: what stands for a token of the source, and of the target.
    """
    config, length = model.config, len(target)
    of_source, fed = ([m(t) for t in row] for m, row in zip(marks, (source, target), strict=True))
    inputs = jnp.asarray(source), jnp.asarray(target)
    most = min(RANKS, config.vocabulary_size)
    _, weights, top = read(model, *inputs, most=most)
    shown, free = (of_source[:SHOWN], fed[:SHOWN]), [None] * len(model.decoder.blocks)
    across = []
    for name, place, masks, queries, keys in (
        ("cross-attention", "decoder.*.cross_attention", free, shown[1], shown[0]),
        ("encoder", "encoder.*.attention", masks_of(model.encoder, len(source)), shown[0], None),
        ("decoder", "decoder.*.attention", masks_of(model.decoder, length), shown[1], None),
    ):
        of_layer = {n: weights[n] for n in matching(f"{place}.weights", [*weights])}
        found = draw_attention(gallery, name, of_layer, masks, queries, keys)
        across = across or found
    draw_positions(gallery, model.encoder)
    if config.positions in ("learned", "relative"):
        draw_positions(gallery, model.decoder, "-decoder")
    written = shown[1][1:]
    if not written:
        return
    means = np.stack([of_block.mean(0)[: len(written)] for of_block in across])
    gallery.draw(
        "Attention",
        "alignment",
        "Where each piece that is written (rows) looks in the source (columns), a mean over the "
        "heads of each decoder block: of a translator, which words belong together.",
        lambda: plot_alignment(means, shown[0], written),
    )
    draw_predictions(gallery, top, fed, marks[1])
    for stack, layer in (
        ("encoder", "attention"),
        ("decoder", "attention"),
        ("decoder", "cross_attention"),
    ):
        loss = next_token_loss(inputs[1])
        draw_ablation(gallery, model, inputs, loss, "its own output", stack=stack, layer=layer)
