"""What a page shows of a model on one text: a function for each kind of model, and its pictures."""

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

import tlite.functional as F
from tlite import inspection, pictures
from tlite.decoding import generate
from tlite.models import BlockInputs, Learned, Sinusoidal, Transformer, count_parameters
from tlite.models.components import PositionsFunction
from tlite.models.config import PRESETS, positions_name
from tlite.models.inputs import causal_inputs, position_table, window_inputs
from tlite.models.transformer import list_blocks
from tlite.pictures.marks import chosen_tokens, mark_of, symbols
from tlite.report.page import Page, bars, coloured_by_loss, sample

Tokens, Source = Int[np.ndarray, "T"], Int[np.ndarray, "S"]
SHOWN = 40  # tokens of a text whose attention is drawn
MARKS = 120  # tokens in a picture of an embedding
POSITIONS = 128  # whose encodings are drawn
PREDICTED = 24  # tokens of a text after which the next ones are shown
PATCHED = 20  # tokens of a text whose values are put into another
HIDDEN = 5  # of so many tokens one is hidden
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
lens = jax.jit(inspection.logit_lens_top_k, static_argnames="k")


def tell_size(page: Page, model) -> None:
    """How many parameters a model has, and in what."""
    config = model.config
    blocks, own = f"{config.num_blocks} blocks", isinstance(config.positions, PositionsFunction)
    if hasattr(model, "decoder"):
        blocks = (
            f"{config.num_blocks} encoder blocks and {config.num_decoder_blocks} decoder blocks"
        )
    page.tell(
        "Size",
        f"{count_parameters(model):,} parameters",
        f"{blocks} of {config.num_heads} heads",
        f"width {config.width:,}",
        f"a context of {config.context:,} tokens",
        f"a vocabulary of {config.vocabulary_size:,}",
        "" if own else f"{word_of(config.positions)} positions",
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
    logits, weights = read(model, jnp.asarray(tokens))
    draw_attention(page, "attention", weights, model, [*marks], [*marks])
    draw_positions(page, model)
    draw_vocabulary(page, model.embedding.table, tokenizer, tokens[: len(marks)])
    return logits


def tell_continued(page: Page, model, tokenizer, prompt: Tokens, **settings) -> None:
    """Add a sample of the text that a generator writes after a prompt, up to a stop token."""
    text = tokenizer.decode(np.r_[prompt, generate(model, prompt, **settings)])
    page.tell_html("Sample", sample(text))


def draw_generator(
    page: Page, model, tokenizer, tokens: Tokens, by_step: Iterable[tuple[int, Any]] = ()
) -> Float[np.ndarray, "_"]:
    """The scores of the heads also of models by the step of their training.

    Returns the losses (T - 1,) of the text's tokens but the first.
    """
    text, table = jnp.asarray(tokens), model.embedding.table
    logits = draw_stack(page, model, tokenizer, tokens, marks_of(tokenizer, tokens))
    heads = list_blocks(model)[0].attention.value.kernel[...].reshape(model.config.width, -1)
    told = "What the heads of block 0 take from each token (embedding times value matrices)"
    draw_vocabulary(page, table, tokenizer, tokens, "values-of-block-0", told, heads)
    draw_predictions(page, model, (text,), tokenizer)
    draw_scores(page, model, by_step)
    if len(tokens) > 1:  # else there is nothing to predict
        draw_ablation(page, model, (text,), next_token_loss(text))
    if len(tokens) > 5:
        draw_patching(page, model, text[:PATCHED], tokenizer)
    return np.asarray(F.token_cross_entropy(logits[:-1], text[1:]))


def draw_masked(page: Page, model, tokenizer, tokens: Tokens) -> None:
    """What a masked model fills in for each token alone, and for some of them together."""
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
    draw_predictions(page, model, (given,), tokenizer, "this")
    draw_ablation(page, model, (given,), loss, f"{len(hidden)} hidden tokens of the text")


def draw_filled(
    page: Page, model, tokenizer, text: Int[Array, "T"], places: Int[np.ndarray, "N"]
) -> None:
    """What is filled in at each of the places when its token alone is hidden."""

    @jax.jit
    def filled(model, text, places):
        predicted = inspection.pseudo_log_likelihoods(model, text, tokenizer.mask_id, places)
        losses = -jnp.take_along_axis(predicted, text[places][:, None], axis=-1)[:, 0]
        most = min(RANKS, model.config.vocabulary_size)
        return losses, *jax.lax.top_k(jnp.exp(predicted), most)

    losses, best, tokens = jax.device_get(filled(model, text, jnp.asarray(places)))
    asked, shown = marks_of(tokenizer, np.asarray(text)[places]), PREDICTED
    pieces = marks_of(tokenizer, tokens.T)
    table = best.T[:, :shown], [row[:shown] for row in pieces], asked[:shown]
    named = "the token that is hidden", "rank"
    page.draw("filled-in", pictures.plot_top_tokens(*table, *named))
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
    page.draw("saliency", pictures.plot_saliency(pieces, columns), name=name, share=shares[name])
    loss = lambda logits: -jax.nn.log_softmax(logits)[predicted]  # noqa: E731
    draw_ablation(page, model, (inputs,), loss, f"the class {name!r}")


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
    of_source, fed = map(marks_of, tokenizers, (source, target))
    _, weights = read(model, *inputs)
    names_of = lambda layer: inspection.match_names(f"{layer}.weights", [*weights])  # noqa: E731
    layers = lambda layer: {name: weights[name] for name in names_of(layer)}  # noqa: E731
    across, encoder, decoder = layers("decoder.*.cross_attention"), model.encoder, model.decoder
    draw_attention(page, "cross-attention", across, None, fed, of_source)
    for name, stack, shown in (("encoder", encoder, of_source), ("decoder", decoder, fed)):
        draw_attention(page, name, layers(f"{name}.*.attention"), stack, shown, shown)
    draw_positions(page, encoder)
    if getattr(decoder, positions_name(decoder.config)) is not None:
        draw_positions(page, decoder, "-decoder")
    draw_vocabularies(page, model, tokenizers, source, target)
    if not (written := fed[1:SHOWN]):
        return
    means, keys = np.stack([np.asarray(a).mean(0) for a in across.values()]), of_source
    means, keys = means[:, : len(written), :SHOWN], keys[:SHOWN]
    page.draw("alignment", pictures.plot_attention(means, written, keys, each="decoder block"))
    draw_predictions(page, model, inputs, tokenizers[1])
    loss, attention = next_token_loss(inputs[1]), "blocks.*.attention"
    for layer in (
        f"encoder.{attention}",
        f"decoder.{attention}",
        "decoder.blocks.*.cross_attention",
    ):
        draw_ablation(page, model, inputs, loss, "its own output", layer)


def draw_vocabularies(page: Page, model, tokenizers: tuple, source: Source, target: Tokens) -> None:
    """The embeddings of both sides, which may be the same."""
    table = model.encoder.embedding.table
    if model.config.head.embeddings != "separate":
        return draw_vocabulary(page, table, tokenizers[0], [*source, *target])
    draw_vocabulary(page, table, tokenizers[0], source)
    named = "target-embedding", "The embeddings of the target's pieces"
    draw_vocabulary(page, model.decoder.embedding.table, tokenizers[1], target, *named)


# Pictures


def marks_of(tokenizer, tokens: Iterable) -> list:
    """What stands for each token of a row, or of the rows of a table."""
    return [marks_of(tokenizer, t) if np.ndim(t) else mark_of(tokenizer, t) for t in tokens]


def next_token_loss(tokens: Int[Array, "T"]) -> Callable:
    """The mean loss of logits (T, V) on a text."""
    return lambda logits: F.token_cross_entropy(logits[:-1], tokens[1:]).mean()


def word_of(positions) -> str:
    """What a config may call them, "split_sinusoidal" say; a user's own by their class's name."""
    for word, known in PRESETS["positions"].items():
        if type(known) is type(positions) and not (hasattr(known, "split") and known != positions):
            return word
    return type(positions).__name__


def draw_positions(page: Page, stack: Transformer, place: str = "") -> None:
    """What a stack of blocks knows of positions: a table, angles, or what is added to scores.

    `place` tells two stacks of a model apart.
    """
    config, word = stack.config, word_of(stack.config.positions)
    length = min(config.context, POSITIONS)
    if isinstance(config.positions, Learned | Sinusoidal):
        table = position_table(config.positions, stack.positions, config)
        draw_table(page, np.asarray(table)[:length], f"{word}{place}")
    windows = sorted({*config.windows})
    has_local = getattr(config.positions, "local_base", None) is not None
    for window in windows if has_local else windows[:1]:  # local blocks have angles of their own
        inputs = window_inputs(stack, positional_inputs(stack, length), window)
        if inputs.angles is not None:
            local = f"-window-{window}" if window and has_local else ""
            draw_angles(page, inputs.angles, f"rotary{place}{local}")
    if inputs.bias is not None:
        bias, middle = np.asarray(inputs.bias), length // 2
        lines = {f"head {head}": row for head, row in enumerate(bias[:, middle])}
        labels = "position of the key less that of the query", "added to the score"
        axes = pictures.plot_lines(lines, *labels, np.arange(length) - middle)
        page.draw("bias-{name}", axes, name=f"{word}{place}", kind=word)


def positional_inputs(stack: Transformer, length: int) -> BlockInputs:
    """The positions of a sequence, and the causal mask of a decoder."""
    if stack.is_causal:
        return causal_inputs(length)
    return BlockInputs(positions=jnp.arange(length), key_positions=jnp.arange(length))


def draw_table(page: Page, table: Float[np.ndarray, "T D"], name: str) -> None:
    """A table of positions, some of its columns, and how alike its rows are."""
    labels = {"label": "value", "xlabel": "column of the encoding", "ylabel": "position"}
    kind, axes = name.replace("_", " "), pictures.heat_map(table, signed=True, **labels)
    page.draw("positions-{name}", axes, name=name, kind=kind)
    columns = {f"column {column}": table[:, column] for column in range(table.shape[1])[:16:4]}
    axes = pictures.plot_lines(columns, "position", "value")
    page.draw("position-curves-{name}", axes, name=name)
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
    stack: Transformer | None,
    queries: list[str],
    keys: list[str],
) -> None:
    """The weights of all heads of some layers: in the view, and a picture for each block.

    Args:
        stack: where the layers look at themselves.
    """
    queries, keys, masks = queries[:SHOWN], keys[:SHOWN], [None] * len(weights)
    if stack:
        inputs, windows = positional_inputs(stack, len(keys)), stack.config.windows
        indices = [int(re.findall(r"blocks\.(\d+)", layer)[0]) for layer in weights]
        masks = [window_inputs(stack, inputs, windows[i]).mask for i in indices]
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
    top = lens(model, *inputs, k=min(RANKS, model.config.vocabulary_size))
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
    scores = jax.jit(inspection.score_attention_patterns)
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
    layer: str = "blocks.*.attention",
) -> None:
    """By how much the loss rises without each head of a layer."""

    @jax.jit
    def ablated(model, *inputs):
        whole = loss(model(*inputs))
        return whole, inspection.ablate_heads(model, *inputs, metric=loss, layer=layer) - whole

    whole, change = jax.device_get(ablated(model, *inputs))
    axes = pictures.plot_heads(change, "loss added (nats)", change=True)
    stack, _, name = layer.rpartition(".blocks.*.")
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
    axes = pictures.heat_map(
        table,
        rows=[f"block {layer}" for layer in range(len(table))],
        columns=[*map(symbols, marks_of(tokenizer, np.asarray(corrupted)))],
        xlabel="position that is restored",
        ylabel="after",
        label="log-probability (nats)",
    )
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
