"""What a model shows on one text, without data: a function for each kind of model."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tlite import functional as F
from tlite import inspection as I
from tlite.inspection.translator import plot_alignment
from tlite.recipes.gallery import (
    PREDICTED,
    Gallery,
    look_at_attention,
    look_at_embedding,
    look_at_positions,
    look_at_predictions,
)
from tlite.recipes.heads import look_at_ablation, look_at_patching, look_at_scores, next_token_loss
from tlite.recipes.pieces import chosen_tokens, mark_of

SHOWN = 40  # tokens of a text whose attention is drawn
MARKS = 120  # tokens in a picture of an embedding
PATCHED = 20  # tokens of a text whose values are put into another
HIDDEN = 5  # of so many tokens one is hidden


def look_inside_generator(
    gallery: Gallery,
    model,
    tokenizer,
    tokens: np.ndarray,
    by_step: Iterable[tuple[int, Any]] = (),
    sequences: int = 16,
) -> None:
    """Tokens (T,); the scores of the heads also of models by the step of their training."""
    marks = [mark_of(tokenizer, token) for token in tokens]
    look_at_encoder(gallery, model, tokenizer, tokens)
    chosen = chosen_tokens(tokenizer, tokens, MARKS)
    heads = model.blocks[0].attention.value.kernel[...].reshape(model.config.width, -1)
    values = model.embedding.table[jnp.asarray(chosen)] @ heads
    names = [mark_of(tokenizer, token) for token in chosen]
    look_at_embedding(gallery, values, names, "values-of-block-0")
    tokens = jnp.asarray(tokens)
    look_at_predictions(gallery, model, (tokens,), marks, lambda token: mark_of(tokenizer, token))
    look_at_scores(gallery, model, by_step, sequences)
    if len(tokens) < 2:  # nothing to predict
        return
    look_at_ablation(gallery, model, (tokens,), next_token_loss(tokens))
    look_at_patching(gallery, model, tokens[:PATCHED], lambda t: [mark_of(tokenizer, i) for i in t])


def look_at_encoder(gallery: Gallery, model, tokenizer, tokens: np.ndarray) -> None:
    """Positions, attention and embedding of a single stack of blocks on tokens (T,)."""
    marks = [mark_of(tokenizer, token) for token in tokens[:SHOWN]]
    look_at_positions(gallery, model)
    look_at_one_stack(gallery, model, jnp.asarray(tokens), marks)
    look_at_vocabulary(gallery, model.embedding.table, tokenizer, tokens)


def look_at_one_stack(gallery: Gallery, model, tokens, marks: Sequence[str]) -> None:
    """Attention of a model with one stack of blocks, and the view of its heads."""
    weights = look_at_attention(gallery, model, (tokens,), "blocks.*.attention.weights", marks)
    shown = [of_block[:, : len(marks), : len(marks)] for of_block in weights]
    gallery.add("Attention", I.heads_view(shown, marks, marks))


def look_at_vocabulary(
    gallery: Gallery,
    table,
    tokenizer,
    tokens: Iterable[int | np.integer] = (),
    what: str = "embedding",
) -> None:
    """The rows of some tokens: of all that a large vocabulary has t-SNE would never end."""
    chosen = chosen_tokens(tokenizer, tokens, MARKS)
    names = [mark_of(tokenizer, token) for token in chosen]
    look_at_embedding(gallery, table[jnp.asarray(chosen)], names, what)


def look_inside_masked(gallery: Gallery, model, tokenizer, tokens: np.ndarray) -> None:
    """What a masked model fills in for each token (T,) alone, and for some of them together."""
    look_at_encoder(gallery, model, tokenizer, tokens)
    special = {getattr(tokenizer, f"{role}_id") for role in ("cls", "sep", "bos", "eos", "mask")}
    places = np.flatnonzero([token not in special for token in tokens])
    if tokenizer.mask_id is None or not len(places):
        return
    marks = [mark_of(tokenizer, token) for token in tokens]
    truth, asked = jnp.asarray(tokens[places]), [marks[place] for place in places]
    predicted = I.fill_in(model, jnp.asarray(tokens), tokenizer.mask_id, jnp.asarray(places))
    best, found = map(np.asarray, jax.lax.top_k(jnp.exp(predicted), min(8, predicted.shape[-1])))
    pieces = [[mark_of(tokenizer, token) for token in row] for row in found[:PREDICTED]]
    columns = best[:PREDICTED], pieces, asked[:PREDICTED]
    gallery.draw(
        "Predictions",
        "filled-in",
        "what is most probable where one token alone is hidden",
        lambda: I.plot_top_tokens(*columns, "the token that is hidden", "rank"),
    )
    losses = -jnp.take_along_axis(predicted, truth[:, None], axis=-1)[:, 0]
    gallery.add("Predictions", I.coloured_by_loss(asked, np.asarray(losses)))

    hidden = places[len(places) // 2 % HIDDEN :: HIDDEN]
    given = jnp.asarray(tokens).at[hidden].set(tokenizer.mask_id)
    shown = [mark_of(tokenizer, token) for token in np.asarray(given)]
    mark = lambda token: mark_of(tokenizer, token)  # noqa: E731
    look_at_predictions(gallery, model, (given,), shown, mark, "this")

    def loss(logits):
        return F.token_cross_entropy(logits[hidden], jnp.asarray(tokens[hidden])).mean()

    look_at_ablation(gallery, model, (given,), loss, f"{len(hidden)} hidden tokens of the text")


def look_inside_classifier(
    gallery: Gallery,
    model,
    tokens: np.ndarray,
    pieces: Sequence[str],
    classes: Sequence[str],
    text: str,
    beside: Callable[[int], Mapping[str, np.ndarray]] = lambda predicted: {},
) -> None:
    """Attention on tokens (T,) without padding, what speaks for the class, what each head is worth.

    Args:
        beside: numbers for the pieces, by their title, from the predicted class.
    """
    tokens = jnp.asarray(tokens)
    look_at_one_stack(gallery, model, tokens, pieces[:SHOWN])
    logits = model(tokens)
    predicted = int(logits.argmax())
    name, probability = classes[predicted], float(jax.nn.softmax(logits)[predicted])
    columns = {
        f"gradient x input\nfor {name!r}": np.asarray(
            I.gradient_times_input(model, tokens, predicted)
        ),
        **beside(predicted),
    }
    gallery.draw(
        "Saliency",
        "saliency",
        f"what speaks for {name!r} (probability {probability:.3f}) in: {text[:200]}",
        lambda: I.plot_saliency(pieces, columns),
    )
    loss = lambda logits: -jax.nn.log_softmax(logits)[predicted]  # noqa: E731
    look_at_ablation(gallery, model, (tokens,), loss, f"the class {name!r}")


def look_inside_seq2seq(
    gallery: Gallery,
    model,
    source: np.ndarray,
    target: np.ndarray,
    marks: tuple[Callable[[int], str], Callable[[int], str]],
    text: str,
) -> None:
    """Attention within and between a source (S,) and what is written for it (T,), start first.

    Args:
        marks: what stands for a token of the source, and of the target.
    """
    config = model.config
    read, fed = ([mark(t) for t in row] for mark, row in zip(marks, (source, target), strict=True))
    inputs = jnp.asarray(source), jnp.asarray(target)
    look_at_positions(gallery, model.encoder)
    if config.positions in ("learned", "relative"):
        look_at_positions(gallery, model.decoder, "-decoder")
    for stack, queries, keys in (
        ("encoder.blocks.*.attention", read, read),
        ("decoder.blocks.*.attention", fed, fed),
        ("decoder.blocks.*.cross_attention", fed, read),
    ):
        shown = queries[:SHOWN], keys[:SHOWN]
        weights = look_at_attention(gallery, model, inputs, f"{stack}.weights", *shown)
    across = [of_block[:, :SHOWN, :SHOWN] for of_block in weights]
    gallery.add("Attention", I.heads_view(across, *shown))
    written, looked_at = shown[0][1:], shown[1]
    if not written:
        return
    means = np.stack([of_block.mean(0)[: len(written)] for of_block in across])
    gallery.draw(
        "Attention",
        "alignment",
        f"alignment of {text!r}",
        lambda: plot_alignment(means, looked_at, written),
    )
    look_at_predictions(gallery, model, inputs, fed, marks[1])
    for stack, layer in (
        ("encoder", "attention"),
        ("decoder", "attention"),
        ("decoder", "cross_attention"),
    ):
        loss = next_token_loss(inputs[1])
        look_at_ablation(gallery, model, inputs, loss, "its own output", stack=stack, layer=layer)
