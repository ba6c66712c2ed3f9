"""What a model shows on one text, without data: a function for each kind of model."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from tlite import functional as F
from tlite import inspection, pictures
from tlite.decoding import generate
from tlite.inspection.capture import matching
from tlite.models import count_parameters
from tlite.models.parts import PositionsFunction
from tlite.report import parts
from tlite.report.page import Page, bars, coloured_by_loss, sample

Tokens, Source = Int[np.ndarray, "T"], Int[np.ndarray, "S"]
PATCHED = 20  # tokens of a text whose values are put into another
HIDDEN = 5  # of so many tokens one is hidden


def tell_size(page: Page, model) -> None:
    """How many parameters a model has, and in what."""
    config = model.config
    blocks, own = f"{config.num_blocks} blocks", isinstance(config.positions, PositionsFunction)
    if hasattr(model, "decoder"):
        blocks = f"{config.num_blocks} encoder blocks and {config.blocks_of_decoder} decoder blocks"
    page.tell(
        "Size",
        f"{count_parameters(model):,} parameters",
        f"{blocks} of {config.num_heads} heads",
        f"width {config.width:,}",
        f"a context of {config.context:,} tokens",
        f"a vocabulary of {config.vocabulary_size:,}",
        "" if own else f"{parts.word_of(config.positions)} positions",
    )


def draw_losses(page: Page, marks: Sequence[str], losses: Float[np.ndarray, "N"], of: str) -> None:
    """A text whose tokens are coloured by how little they were expected."""
    how = "the redder the ground, the less it was expected; point at it for its bits."
    page.add("Predictions", coloured_by_loss(marks, losses), f"{of}: {how}")


def draw_stack(page: Page, model, tokenizer, tokens: Tokens, marks: Sequence[str]) -> Array:
    """Attention, positions and embedding of a single stack of blocks, whose logits it returns.

    Args:
        marks: what stands for the tokens; those after them are padding or features.
    """
    logits, weights = parts.read(model, jnp.asarray(tokens))
    parts.draw_attention(page, "attention", weights, model, [*marks], [*marks])
    parts.draw_positions(page, model)
    parts.draw_vocabulary(page, model.embedding.table, tokenizer, tokens[: len(marks)])
    return logits


def tell_continued(page: Page, model, tokenizer, prompt: Tokens, **settings) -> None:
    """A sample of what a generator writes after a prompt; `settings` go to `generate`."""
    written, count = generate(model, jnp.asarray(prompt), **settings)
    page.tell_html("Sample", sample(tokenizer.decode(np.r_[prompt, written[:count]])))


def draw_generator(
    page: Page, model, tokenizer, tokens: Tokens, by_step: Iterable[tuple[int, Any]] = ()
) -> Float[np.ndarray, "_"]:
    """The scores of the heads also of models by the step of their training.

    Returns the losses (T - 1,) of the text's tokens but the first.
    """
    text, table = jnp.asarray(tokens), model.embedding.table
    logits = draw_stack(page, model, tokenizer, tokens, parts.marks_of(tokenizer, tokens))
    heads = model.blocks[0].attention.value.kernel[...].reshape(model.config.width, -1)
    told = "What the heads of block 0 take from each token (embedding times value matrices)"
    parts.draw_vocabulary(page, table, tokenizer, tokens, "values-of-block-0", told, heads)
    parts.draw_predictions(page, model, (text,), tokenizer)
    parts.draw_scores(page, model, by_step)
    if len(tokens) > 1:  # else there is nothing to predict
        parts.draw_ablation(page, model, (text,), parts.next_token_loss(text))
    if len(tokens) > 5:
        parts.draw_patching(page, model, text[:PATCHED], tokenizer)
    return np.asarray(F.token_cross_entropy(logits[:-1], text[1:]))


def draw_encoder(page: Page, model, tokenizer, tokens: Tokens) -> None:
    """The text that its vectors are of."""
    page.tell_html("Sample", sample(tokenizer.decode(tokens)))
    draw_stack(page, model, tokenizer, tokens, parts.marks_of(tokenizer, tokens))


def draw_masked(page: Page, model, tokenizer, tokens: Tokens) -> None:
    """What a masked model fills in for each token alone, and for some of them together."""
    draw_encoder(page, model, tokenizer, tokens)
    special = {tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id}
    special |= {tokenizer.bos_id, tokenizer.eos_id}
    places = np.flatnonzero([token not in special for token in tokens])
    if tokenizer.mask_id is None or not len(places):
        return
    text, hidden = jnp.asarray(tokens), places[len(places) // 2 % HIDDEN :: HIDDEN]
    given = text.at[hidden].set(tokenizer.mask_id)

    def loss(logits):
        return F.token_cross_entropy(logits[hidden], text[hidden]).mean()

    draw_filled(page, model, tokenizer, text, places)
    parts.draw_predictions(page, model, (given,), tokenizer, "this")
    of = f"{len(hidden)} hidden tokens of the text"
    parts.draw_ablation(page, model, (given,), loss, of)


def draw_filled(
    page: Page, model, tokenizer, text: Int[Array, "T"], places: Int[np.ndarray, "N"]
) -> None:
    """What is filled in at each of the places when its token alone is hidden."""

    @jax.jit
    def filled(model, text, places):
        predicted = inspection.fill_in(model, text, tokenizer.mask_id, places)
        losses = -jnp.take_along_axis(predicted, text[places][:, None], axis=-1)[:, 0]
        most = min(parts.RANKS, model.config.vocabulary_size)
        return losses, *jax.lax.top_k(jnp.exp(predicted), most)

    losses, best, tokens = jax.device_get(filled(model, text, jnp.asarray(places)))
    asked, shown = parts.marks_of(tokenizer, np.asarray(text)[places]), parts.PREDICTED
    pieces = parts.marks_of(tokenizer, tokens.T)
    table = best.T[:, :shown], [row[:shown] for row in pieces], asked[:shown]
    axes = pictures.plot_top_tokens(*table, "the token that is hidden", "rank")
    page.draw("filled-in", axes)
    draw_losses(page, asked, losses, "Each token when it alone is hidden")
    right = sum(a == b for a, b in zip(asked, pieces[0], strict=True))
    page.tell("Score", f"{right} of {len(asked)} tokens right, each hidden alone")
    page.tell("Filled in", " ".join(pieces[0]))


def draw_classifier(
    page: Page,
    model,
    tokenizer,
    tokens: Tokens,
    pieces: Sequence[str],
    text: str,
    classes: Sequence[str],
    beside: Callable[[int], Mapping[str, np.ndarray]] = lambda predicted: {},
) -> None:
    """The classes' probabilities, what speaks for the first of them, what each head is worth.

    Args:
        pieces: what stands for the tokens; those after them are padding or features.
        beside: numbers for the pieces, by their title, from the predicted class.
    """
    logits = draw_stack(page, model, tokenizer, tokens, pieces)
    predicted, inputs = int(logits.argmax()), jnp.asarray(tokens)
    shares = dict(zip(classes, map(float, np.asarray(jax.nn.softmax(logits))), strict=True))
    page.tell_html("Sample", sample(text) + bars(shares))
    name, gradients = classes[predicted], jax.jit(inspection.gradient_times_input)
    speaks = np.asarray(gradients(model, inputs, predicted))[: len(pieces)]
    columns = {f"gradient x input\nfor {name!r}": speaks, **beside(predicted)}
    axes = pictures.plot_saliency(pieces, columns)
    page.draw("saliency", axes, name=name, share=shares[name])
    loss = lambda logits: -jax.nn.log_softmax(logits)[predicted]  # noqa: E731
    parts.draw_ablation(page, model, (inputs,), loss, f"the class {name!r}")


def draw_seq2seq(
    page: Page, model, tokenizers: tuple, source: Source, target: Tokens, text: str, beside: str
) -> None:
    """Attention within and between a source and what is written for it, start first.

    Args:
        tokenizers: of the source, and of the target.
        text: of the source.
        beside: what is told after what is written.
    """
    written = f"source: {text}\nwritten: {tokenizers[1].decode(target[1:])}{beside}"
    page.tell_html("Sample", sample(written))
    inputs = jnp.asarray(source), jnp.asarray(target)
    of_source, fed = map(parts.marks_of, tokenizers, (source, target))
    _, weights = parts.read(model, *inputs)
    layers = lambda place: {n: weights[n] for n in matching(f"{place}.weights", [*weights])}  # noqa: E731
    across, encoder, decoder = layers("decoder.*.cross_attention"), model.encoder, model.decoder
    parts.draw_attention(page, "cross-attention", across, None, fed, of_source)
    for name, stack, shown in (("encoder", encoder, of_source), ("decoder", decoder, fed)):
        parts.draw_attention(page, name, layers(f"{name}.*.attention"), stack, shown, shown)
    parts.draw_positions(page, encoder)
    if decoder.learned_positions is not None:
        parts.draw_positions(page, decoder, "-decoder")
    draw_vocabularies(page, model, tokenizers, source, target)
    if not (written := fed[1 : parts.SHOWN]):
        return
    means, keys = np.stack([np.asarray(a).mean(0) for a in across.values()]), of_source
    means, keys = means[:, : len(written), : parts.SHOWN], keys[: parts.SHOWN]
    page.draw("alignment", pictures.plot_attention(means, written, keys, each="decoder block"))
    parts.draw_predictions(page, model, inputs, tokenizers[1])
    for layer in ("encoder.attention", "decoder.attention", "decoder.cross_attention"):
        loss = parts.next_token_loss(inputs[1])
        parts.draw_ablation(page, model, inputs, loss, "its own output", layer)


def draw_vocabularies(page: Page, model, tokenizers: tuple, source: Source, target: Tokens) -> None:
    """The embeddings of both sides, which may be the same."""
    separate, table = model.config.head.embeddings == "separate", model.encoder.embedding.table
    shown = source if separate else [*source, *target]
    parts.draw_vocabulary(page, table, tokenizers[0], shown)
    if separate:
        named = "target-embedding", "The embeddings of the target's pieces"
        table = model.decoder.embedding.table
        parts.draw_vocabulary(page, table, tokenizers[1], target, *named)
