"""Facts and pictures of a model on one text: a function for each kind of model."""

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
from tlite.report.page import Page, preformatted, render_bars, render_losses

Tokens, Source = Int[np.ndarray, "T"], Int[np.ndarray, "S"]
MAX_ATTENTION_TOKENS = 40
MAX_EMBEDDING_TOKENS = 120
MAX_POSITIONS = 128
MAX_PREDICTIONS = 24  # positions of a text
MAX_PATCHED_TOKENS = 20
MASK_EVERY = 5  # tokens
MAX_RANKS = 8  # most probable tokens
MAX_REPEATED_TOKENS = 64  # random tokens, written twice
NUM_REPEATED_SEQUENCES = 8  # a large model takes seconds for each
HEAD_PATTERNS = {
    "previous": "the token before the query",
    "duplicate": "earlier tokens equal to the query",
    "induction": "the tokens after those, which copying needs",
}
SEQ2SEQ_ATTENTION = (
    "encoder.blocks.*.attention",
    "decoder.blocks.*.attention",
    "decoder.blocks.*.cross_attention",
)
# Return the logits, and the attention weights by name.
run_with_attention = jax.jit(partial(inspection.run, capture="*attention.weights"))
logit_lens_top_k = jax.jit(inspection.logit_lens_top_k, static_argnames="k")


def add_size(page: Page, model) -> None:
    """Add the number of parameters and the sizes of a model."""
    config, blocks = model.config, f"{model.config.num_blocks} blocks"
    if hasattr(model, "decoder"):
        blocks = f"{config.num_blocks} encoder and {config.num_decoder_blocks} decoder blocks"
    is_custom = isinstance(config.positions, PositionsFunction)
    page.add_fact(
        "Size",
        f"{count_parameters(model):,} parameters",
        f"{blocks} of {config.num_heads} heads",
        f"width {config.width:,}",
        f"a context of {config.context:,} tokens",
        f"a vocabulary of {config.vocabulary_size:,}",
        "" if is_custom else f"{positions_label(config.positions)} positions",
    )


def add_losses(page: Page, labels: Sequence[str], losses: Float[np.ndarray, "N"], of: str) -> None:
    """Add a text whose tokens are coloured by their loss."""
    caption = f"{of}: the redder the background, the larger the loss; hover to see it in bits."
    page.add_figure("Predictions", render_losses(labels, losses), caption)


def add_sample(page: Page, model, tokenizer, prompt: Tokens, **settings) -> None:
    """Add a prompt with the text generated after it, up to a stop token."""
    text = tokenizer.decode(np.r_[prompt, generate(model, prompt, **settings)])
    page.add_html_fact("Sample", preformatted(text))


def draw_stack(page: Page, model, tokenizer, tokens: Tokens, labels: Sequence[str]) -> Array:
    """Draw attention, positions and embedding of a single stack of blocks; return its logits.

    Args:
        labels: of the first tokens; the others are padding or features.
    """
    logits, weights = run_with_attention(model, jnp.asarray(tokens))
    draw_attention(page, "attention", weights, model, [*labels], [*labels])
    draw_positions(page, model)
    draw_vocabulary(page, model.embedding.table, tokenizer, tokens[: len(labels)])
    return logits


def draw_generator(
    page: Page, model, tokenizer, tokens: Tokens, by_step: Iterable[tuple[int, Any]] = ()
) -> Float[np.ndarray, "_"]:
    """Draw a causal language model; return the losses (T - 1,) of the tokens after the first.

    Args:
        by_step: models by training step, whose attention patterns are drawn too.
    """
    text, table = jnp.asarray(tokens), model.embedding.table
    logits = draw_stack(page, model, tokenizer, tokens, token_labels(tokenizer, tokens))
    values = list_blocks(model)[0].attention.value.kernel[...].reshape(model.config.width, -1)
    title = "The values of tokens in block 0 (embedding times value matrices)"
    draw_vocabulary(page, table, tokenizer, tokens, "values-of-block-0", title, values)
    draw_predictions(page, model, (text,), tokenizer)
    draw_attention_patterns(page, model, by_step)
    if len(tokens) > 1:  # a single token has no next token
        draw_ablation(page, model, (text,), next_token_loss(text))
    if len(tokens) > 5:
        draw_patching(page, model, text[:MAX_PATCHED_TOKENS], tokenizer)
    return np.asarray(F.token_cross_entropy(logits[:-1], text[1:]))


def draw_masked(page: Page, model, tokenizer, tokens: Tokens) -> None:
    """Draw the predictions of a masked model with one token masked, and with every fifth."""
    special = {tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id}
    special |= {tokenizer.bos_id, tokenizer.eos_id}
    positions = np.flatnonzero([token not in special for token in tokens])
    if tokenizer.mask_id is None or not len(positions):
        return
    text, masked = jnp.asarray(tokens), positions[len(positions) // 2 % MASK_EVERY :: MASK_EVERY]
    inputs = text.at[masked].set(tokenizer.mask_id)

    def loss(logits):
        return F.token_cross_entropy(logits[masked], text[masked]).mean()

    draw_mask_predictions(page, model, tokenizer, text, positions)
    draw_predictions(page, model, (inputs,), tokenizer, "this")
    draw_ablation(page, model, (inputs,), loss, f"{len(masked)} masked tokens of the text")


def draw_mask_predictions(
    page: Page, model, tokenizer, text: Int[Array, "T"], positions: Int[np.ndarray, "N"]
) -> None:
    """Draw the predictions at each of the positions when its token alone is masked."""

    @jax.jit
    def predict(model, text, positions):
        log_probs = inspection.pseudo_log_likelihoods(model, text, tokenizer.mask_id, positions)
        losses = -jnp.take_along_axis(log_probs, text[positions][:, None], axis=-1)[:, 0]
        num_ranks = min(MAX_RANKS, model.config.vocabulary_size)
        return losses, *jax.lax.top_k(jnp.exp(log_probs), num_ranks)

    losses, best, tokens = jax.device_get(predict(model, text, jnp.asarray(positions)))
    targets = token_labels(tokenizer, np.asarray(text)[positions])
    predicted = [token_labels(tokenizer, row) for row in tokens.T]  # by rank
    axes = pictures.plot_top_tokens(
        best.T[:, :MAX_PREDICTIONS],
        [row[:MAX_PREDICTIONS] for row in predicted],
        targets[:MAX_PREDICTIONS],
        "masked token",
        "rank",
    )
    page.draw("filled-in", axes)
    add_losses(page, targets, losses, "Each token when it alone is masked")
    correct = sum(a == b for a, b in zip(targets, predicted[0], strict=True))
    page.add_fact("Score", f"{correct} of {len(targets)} tokens right, each masked alone")
    page.add_fact("Filled in", " ".join(predicted[0]))


def draw_classifier(
    page: Page,
    model,
    tokenizer,
    tokens: Tokens,
    labels: Sequence[str],
    text: str,
    classes: Sequence[str],
    baseline: Callable[[int], Mapping[str, np.ndarray]] = lambda predicted: {},
) -> None:
    """Draw class probabilities, the saliency of tokens, and the ablation of heads.

    Args:
        labels: of the first tokens; the others are padding or features.
        baseline: from the predicted class to further columns of saliency by title.
    """
    logits = draw_stack(page, model, tokenizer, tokens, labels)
    predicted, inputs = int(logits.argmax()), jnp.asarray(tokens)
    shares = dict(zip(classes, map(float, np.asarray(jax.nn.softmax(logits))), strict=True))
    page.add_html_fact("Sample", preformatted(text) + render_bars(shares))
    name = classes[predicted]
    saliency = np.asarray(jax.jit(inspection.gradient_times_input)(model, inputs, predicted))
    columns = {f"gradient x input\nfor {name!r}": saliency[: len(labels)], **baseline(predicted)}
    page.draw("saliency", pictures.plot_saliency(labels, columns), name=name, share=shares[name])
    loss = lambda logits: -jax.nn.log_softmax(logits)[predicted]  # noqa: E731
    draw_ablation(page, model, (inputs,), loss, f"the class {name!r}")


def draw_seq2seq(
    page: Page,
    model,
    tokenizers: tuple,
    source: Source,
    target: Tokens,
    text: str,
    reference: str | None = None,
) -> None:
    """Draw an encoder-decoder on a source and the target it has written.

    Args:
        tokenizers: of the source and of the target.
        target: begins with the start token.
        text: of the source.
        reference: correct target.
    """
    lines = [f"source: {text}", f"written: {tokenizers[1].decode(target[1:])}"]
    lines += [] if reference is None else [f"reference: {reference}"]
    page.add_html_fact("Sample", preformatted("\n".join(lines)))
    inputs = jnp.asarray(source), jnp.asarray(target)
    sources, targets = map(token_labels, tokenizers, (source, target))
    _, weights = run_with_attention(model, *inputs)

    def select(layer: str) -> dict:
        names = inspection.match_names(f"{layer}.weights", [*weights])
        return {name: weights[name] for name in names}

    cross = select("decoder.*.cross_attention")
    draw_attention(page, "cross-attention", cross, None, targets, sources)
    draw_attention(page, "encoder", select("encoder.*.attention"), model.encoder, sources, sources)
    draw_attention(page, "decoder", select("decoder.*.attention"), model.decoder, targets, targets)
    draw_seq2seq_embeddings(page, model, tokenizers, source, target)
    if len(targets) > 1:
        draw_alignment(page, cross.values(), targets, sources)
        draw_predictions(page, model, inputs, tokenizers[1])
        loss = next_token_loss(inputs[1])
        for layer in SEQ2SEQ_ATTENTION:
            draw_ablation(page, model, inputs, loss, "the written target", layer)


def draw_seq2seq_embeddings(
    page: Page, model, tokenizers: tuple, source: Source, target: Tokens
) -> None:
    """Draw positions and embeddings of encoder and decoder."""
    encoder, decoder = model.encoder, model.decoder
    draw_positions(page, encoder)
    if getattr(decoder, positions_name(decoder.config)) is not None:
        draw_positions(page, decoder, "-decoder")
    if model.config.head.embeddings == "separate":
        draw_vocabulary(page, encoder.embedding.table, tokenizers[0], source)
        title, table = "The embeddings of target tokens", decoder.embedding.table
        draw_vocabulary(page, table, tokenizers[1], target, "target-embedding", title)
    else:
        draw_vocabulary(page, encoder.embedding.table, tokenizers[0], [*source, *target])


# Pictures


def token_labels(tokenizer, tokens: Iterable[int | np.integer]) -> list[str]:
    """Return how each token is shown in pictures."""
    return [mark_of(tokenizer, token) for token in tokens]


def next_token_loss(tokens: Int[Array, "T"]) -> Callable:
    """Return the function from logits (T, V) to the mean loss on a text."""
    return lambda logits: F.token_cross_entropy(logits[:-1], tokens[1:]).mean()


def positions_label(positions) -> str:
    """Return the preset's name of positions, "split_sinusoidal" for one, or their class's name."""
    for name, preset in PRESETS["positions"].items():
        same_type = type(preset) is type(positions)
        if same_type and not (hasattr(preset, "split") and preset != positions):
            return name
    return type(positions).__name__


def draw_positions(page: Page, stack: Transformer, suffix: str = "") -> None:
    """Draw the positional encoding of a stack of blocks: a table, angles, or a bias of scores.

    Args:
        suffix: of the pictures' names, to distinguish two stacks of a model.
    """
    config, label = stack.config, positions_label(stack.config.positions)
    length = min(config.context, MAX_POSITIONS)
    if isinstance(config.positions, Learned | Sinusoidal):
        table = position_table(config.positions, stack.positions, config)
        draw_position_table(page, np.asarray(table)[:length], f"{label}{suffix}")
    windows = sorted({*config.windows})
    has_local = getattr(config.positions, "local_base", None) is not None
    for window in windows if has_local else windows[:1]:  # local blocks have other angles
        inputs = window_inputs(stack, positional_inputs(stack, length), window)
        if inputs.angles is not None:
            local = f"-window-{window}" if window and has_local else ""
            draw_angles(page, inputs.angles, f"rotary{suffix}{local}")
    if inputs.bias is not None:
        bias, middle = np.asarray(inputs.bias), length // 2
        lines = {f"head {head}": row for head, row in enumerate(bias[:, middle])}
        distances = np.arange(length) - middle
        axes = pictures.plot_lines(lines, "key position - query position", "bias", distances)
        page.draw("bias-{name}", axes, name=f"{label}{suffix}", kind=label)


def positional_inputs(stack: Transformer, length: int) -> BlockInputs:
    """Return the positions of a sequence, with the causal mask for a decoder."""
    if stack.is_causal:
        return causal_inputs(length)
    return BlockInputs(positions=jnp.arange(length), key_positions=jnp.arange(length))


def draw_position_table(page: Page, table: Float[np.ndarray, "T D"], name: str) -> None:
    """Draw a table of positions, four of its columns, and the similarity of its rows."""
    labels = {"label": "value", "xlabel": "column of the encoding", "ylabel": "position"}
    kind, axes = name.replace("_", " "), pictures.heat_map(table, signed=True, **labels)
    page.draw("positions-{name}", axes, name=name, kind=kind)
    columns = {f"column {column}": table[:, column] for column in range(table.shape[1])[:16:4]}
    axes = pictures.plot_lines(columns, "position", "value")
    page.draw("position-curves-{name}", axes, name=name)
    caption = f"Cosine similarity of the rows of {kind} positions."
    draw_similarity(page, table, name, f"{caption} Stripes: it depends on the distance.")


def draw_angles(page: Page, angles: Float[Array, "T half_K"], name: str) -> None:
    """Draw rotary angles, and the similarity of one vector rotated to two positions."""
    labels = {"label": "cosine of the angle", "xlabel": "pair of columns", "ylabel": "position"}
    page.draw("angles-{name}", pictures.heat_map(np.cos(angles), signed=True, **labels), name=name)
    length, pairs = angles.shape
    rotated = np.asarray(F.rotate(jnp.ones((length, 2 * pairs)), angles))
    caption = "Cosine similarity of one vector rotated to two positions:"
    draw_similarity(page, rotated, name, f"{caption} it depends on the distance alone.")


def draw_similarity(page: Page, rows: Float[np.ndarray, "T D"], name: str, caption: str) -> None:
    """Draw the cosine similarity of the vectors of two positions."""
    labels = {"label": "cosine similarity", "xlabel": "position", "ylabel": "position"}
    table = pictures.cosine_similarity(rows)
    axes = pictures.heat_map(table, signed=True, aspect="equal", **labels)
    page.draw("similarity-{name}", axes, name=name, caption=caption)


def draw_attention(
    page: Page,
    name: str,
    weights: Mapping[str, Float[Array, "H T S"]],
    stack: Transformer | None,
    queries: list[str],
    keys: list[str],
) -> None:
    """Draw the weights of all heads of some layers in the head view, and each block in a picture.

    Args:
        stack: whose mask is drawn; None for cross-attention.
    """
    queries, keys = queries[:MAX_ATTENTION_TOKENS], keys[:MAX_ATTENTION_TOKENS]
    shown = [np.asarray(layer)[:, : len(queries), : len(keys)] for layer in weights.values()]
    masks = [None] * len(weights)
    if stack:
        inputs, windows = positional_inputs(stack, len(keys)), stack.config.windows
        indices = [int(re.findall(r"blocks\.(\d+)", layer)[0]) for layer in weights]
        masks = [window_inputs(stack, inputs, windows[i]).mask for i in indices]
        masks = [None if m is None else np.asarray(m).reshape(m.shape[-2:]) for m in masks]
    page.add_heads(name, queries, keys, shown, masks)
    for block, (layer, array, mask) in enumerate(zip(weights, shown, masks, strict=True)):
        page.draw(
            "{layer}",
            pictures.plot_attention(array, queries, keys, mask=mask),
            layer=layer.removesuffix(".weights").replace(".", "-"),
            block=block,
            part="" if name == "attention" else f", {name}",
            hatched="" if mask is None else " Hatched cells are masked.",
        )


def draw_alignment(
    page: Page,
    weights: Iterable[Float[Array, "H T S"]],
    targets: Sequence[str],
    sources: Sequence[str],
) -> None:
    """Draw the mean cross-attention over the heads of each decoder block."""
    rows, columns = targets[1:MAX_ATTENTION_TOKENS], sources[:MAX_ATTENTION_TOKENS]
    means = np.stack([np.asarray(layer).mean(0) for layer in weights])
    means = means[:, : len(rows), : len(columns)]
    page.draw("alignment", pictures.plot_attention(means, rows, columns, each="decoder block"))


def draw_vocabulary(
    page: Page,
    table,
    tokenizer,
    tokens: Iterable[int | np.integer] = (),
    name: str = "embedding",
    title: str = "The embeddings of tokens",
    matrix: Float[Array, "D N"] | None = None,
) -> None:
    """Draw rows of a table (V, D), times a matrix, in two dimensions; t-SNE of all is slow."""
    chosen = chosen_tokens(tokenizer, tokens, MAX_EMBEDDING_TOKENS)
    rows, labels = table[jnp.asarray(chosen)], token_labels(tokenizer, chosen)
    rows = np.asarray(rows if matrix is None else rows @ matrix)
    methods = {"pca": "by the two principal components (PCA)"}
    if importlib.util.find_spec("sklearn"):  # of the extra `text`
        methods["tsne"] = "by t-SNE, which preserves neighbours, not distances"
    for method, by in methods.items() if len(rows) > 3 else ():
        axes = pictures.plot_embedding(rows, labels, method)
        page.draw("{name}-{method}", axes, name=name, method=method, title=title, by=by)


def draw_predictions(
    page: Page, model, inputs: Sequence[Int[Array, "_"]], tokenizer, which: str = "the next"
) -> None:
    """Draw the most probable tokens, and the logit lens, for the first tokens of a text.

    Args:
        inputs: the last of them is the text.
        which: token predicted at each position, "the next" or "this".
    """
    is_next = which == "the next"
    labels = token_labels(tokenizer, np.asarray(inputs[-1])[:MAX_PREDICTIONS])
    xlabel = "text up to this token" if is_next else "input text"
    num_ranks = min(MAX_RANKS, model.config.vocabulary_size)
    top = logit_lens_top_k(model, *inputs, k=num_ranks)
    best, tokens = (np.asarray(array)[:, : len(labels)] for array in top)  # (depth, T, rank)
    ranked = [token_labels(tokenizer, row) for row in tokens[-1].T]
    axes = pictures.plot_top_tokens(best[-1].T, ranked, labels, xlabel, f"rank of {which} token")
    page.draw("next-token" if is_next else "tokens", axes)
    by_depth = [token_labels(tokenizer, row) for row in tokens[..., 0]]
    axes = pictures.plot_top_of_lens(best[..., 0], by_depth, labels, xlabel)
    page.draw("logit-lens", axes, which=which)


def draw_attention_patterns(page: Page, model, by_step: Iterable[tuple[int, Any]] = ()) -> None:
    """Draw the pattern scores of heads on repeated random tokens, also of models by step."""
    size = model.config.vocabulary_size
    half = min(model.config.context // 2, MAX_REPEATED_TOKENS)
    tokens = inspection.repeated_tokens(jax.random.key(0), half, size, NUM_REPEATED_SEQUENCES)
    score = jax.jit(inspection.score_attention_patterns)
    scores = jax.device_get(score(model, tokens))
    history = {step: jax.device_get(score(earlier, tokens)) for step, earlier in by_step}
    for kind, keys in HEAD_PATTERNS.items():
        axes = pictures.plot_heads(scores[kind], f"{kind} score")
        page.draw("head-{kind}", axes, kind=kind, keys=keys)
        if len(history) > 1:
            table = np.stack([at_step[kind] for at_step in history.values()])
            axes = pictures.plot_scores_by_step([*history], table, f"{kind} score")
            page.draw("{kind}-by-step", axes, kind=kind)


def draw_ablation(
    page: Page,
    model,
    inputs: tuple,
    loss: Callable,
    of: str = "the text",
    layer: str = "blocks.*.attention",
) -> None:
    """Draw the increase of the loss without each head of a layer."""

    @jax.jit
    def ablate(model, *inputs):
        baseline = loss(model(*inputs))
        ablated = inspection.ablate_heads(model, *inputs, metric=loss, layer=layer)
        return baseline, ablated - baseline

    baseline, change = jax.device_get(ablate(model, *inputs))
    axes = pictures.plot_heads(change, "loss added (nats)", change=True)
    stack, _, name = layer.rpartition(".blocks.*.")
    head = f"{name.replace('_', '-')} head of the {stack}" if stack else "head"
    suffix = f"-{stack}-{name}" if stack else ""
    page.draw("ablation{suffix}", axes, suffix=suffix, of=of, loss=float(baseline), head=head)


def draw_patching(page: Page, model, tokens: Int[Array, "T"], tokenizer) -> None:
    """Draw where the clean residual stream restores a prediction that a changed token spoils."""
    middle = len(tokens) // 2
    corrupted = tokens.at[middle].set((tokens[middle] + 1) % model.config.vocabulary_size)

    @jax.jit
    def patch(model, clean, corrupted):
        def metric(logits):  # log-probability of the token two after the changed one
            return jax.nn.log_softmax(logits[middle + 1])[clean[middle + 2]]

        patched = inspection.patch_residual(model, clean, corrupted, metric)
        return metric(model(clean)), metric(model(corrupted)), patched

    before, after, table = jax.device_get(patch(model, tokens, corrupted))
    axes = pictures.heat_map(
        table,
        rows=[f"block {layer}" for layer in range(len(table))],
        columns=[*map(symbols, token_labels(tokenizer, np.asarray(corrupted)))],
        xlabel="restored position",
        ylabel="after",
        label="log-probability (nats)",
    )
    page.draw("patching", axes, middle=middle, before=before, after=after)


def draw_data(
    page: Page, text: str, lengths: Mapping[str, Iterable[int]], unit: str = "character"
) -> None:
    """Draw the frequencies of characters and words, and lengths by kind of passage."""
    for kind, tokens in (("character", text), ("word", re.findall(r"\w+", text))):
        axes = pictures.plot_frequencies(Counter(tokens), kind)
        page.draw("frequencies-{kind}", axes, kind=kind)
    for kind, values in lengths.items():
        page.draw("lengths-{kind}", pictures.plot_lengths([*values], kind, unit), kind=kind)
