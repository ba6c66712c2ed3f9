"""Draw facts and pictures of a model on one text: a function for each kind of model."""

import fnmatch
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

import tlite.functional as F
from tlite import inspection, pictures
from tlite.decoding import generate
from tlite.models import BlockInputs, Learned, Sinusoidal, Transformer, count_parameters
from tlite.models.config import PRESETS, positions_name
from tlite.models.inputs import causal_inputs, position_table, window_inputs
from tlite.pictures.labels import select_tokens, show_whitespace, token_labels
from tlite.report.page import Page, preformatted, render_bars, render_losses

Tokens, Source = Int[np.ndarray, "T"], Int[np.ndarray, "S"]
MAX_ATTENTION_TOKENS = 40
MAX_EMBEDDING_TOKENS = 120
MAX_POSITIONS = 128
MAX_PREDICTIONS = 24  # positions of a text
MAX_PATCHED_TOKENS = 20
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
logit_lens_top_k = jax.jit(inspection.logit_lens_top_k, static_argnames="k")


@jax.jit
def run_with_attention(model, *inputs: Array) -> tuple[Array, dict[str, Array]]:
    """Return the logits, and the attention weights by name; layers of a user's may have none."""
    return inspection.run(model, *inputs, capture=find_taps("*attention.weights", model, *inputs))


def find_taps(pattern: str, model, *inputs: Array) -> list[str]:
    """Return the names of a model's values that match a pattern, in order of computation."""
    return fnmatch.filter(inspection.tap_names(model, *inputs), pattern)


def block_indices(names: Iterable[str]) -> list[int]:
    """Return the number of the block of each name, such as 3 for blocks.3.attention.weights."""
    return [int(re.findall(r"blocks\.(\d+)", name)[0]) for name in names]


def add_size(page: Page, model) -> None:
    """Add the number of parameters and the sizes of a model."""
    config, blocks = model.config, f"{model.config.num_blocks} blocks"
    if hasattr(model, "decoder"):
        blocks = f"{config.num_blocks} encoder and {config.num_decoder_blocks} decoder blocks"
    page.add_fact(
        "Size",
        f"{count_parameters(model):,} parameters",
        f"{blocks} of {config.num_heads} heads",
        f"width {config.width:,}",
        f"a context of {config.context:,} tokens",
        f"a vocabulary of {config.vocabulary_size:,}",
    )


def add_losses(page: Page, labels: Sequence[str], losses: Float[np.ndarray, "N"], text: str):
    """Add a text whose tokens are coloured by their loss; `text` names it in the caption."""
    caption = f"{text}: the redder the background, the larger the loss; hover to see it in bits."
    page.add_figure("Predictions", render_losses(labels, losses), caption)


def add_sample(page: Page, model, tokenizer, prompt: Tokens, **settings) -> None:
    """Add a prompt with the text generated after it, up to a stop token."""
    text = tokenizer.decode(np.r_[prompt, generate(model, prompt, **settings)])
    page.add_html_fact("Sample", preformatted(text))


def draw_stack(page: Page, model, tokenizer, tokens: Tokens, labels: Sequence[str]) -> Array:
    """Draw attention, positions and embedding of a single stack of blocks; return its logits.

    Args:
        labels: labels of the first tokens; the others are padding or features.
    """
    logits, weights = run_with_attention(model, jnp.asarray(tokens))
    draw_attention(page, "attention", weights, model, [*labels], [*labels])
    draw_positions(page, model)
    draw_embedding(page, model.embedding.table, tokenizer, tokens[: len(labels)])
    return logits


def draw_generator(page: Page, model, tokenizer, tokens: Tokens) -> Float[np.ndarray, "_"]:
    """Draw a causal language model; return the losses (T - 1,) of the tokens after the first."""
    text = jnp.asarray(tokens)
    logits = draw_stack(page, model, tokenizer, tokens, token_labels(tokenizer, tokens))
    draw_predictions(page, model, (text,), tokenizer)
    draw_attention_patterns(page, model)
    if len(tokens) > 1:  # a single token has no next token
        draw_ablation(page, model, (text,), next_token_loss(text))
    if len(tokens) > 5:
        draw_patching(page, model, text[:MAX_PATCHED_TOKENS], tokenizer)
    return np.asarray(F.token_cross_entropy(logits[:-1], text[1:]))


def draw_masked(page: Page, model, tokenizer, tokens: Tokens) -> None:
    """Draw the predictions of a masked model at each position when its token alone is masked."""
    special = {tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id}
    special |= {tokenizer.bos_id, tokenizer.eos_id}
    positions = np.flatnonzero([token not in special for token in tokens])
    if tokenizer.mask_id is None or not len(positions):
        return

    @jax.jit
    def predict(model, text, positions):
        log_probs = inspection.pseudo_log_likelihoods(model, text, tokenizer.mask_id, positions)
        losses = -jnp.take_along_axis(log_probs, text[positions][:, None], axis=-1)[:, 0]
        num_ranks = min(MAX_RANKS, model.config.vocabulary_size)
        return losses, *jax.lax.top_k(jnp.exp(log_probs), num_ranks)

    results = predict(model, jnp.asarray(tokens), jnp.asarray(positions))
    losses, probabilities, best = jax.device_get(results)
    targets = token_labels(tokenizer, tokens[positions])
    predicted = [token_labels(tokenizer, row) for row in best.T]  # by rank
    axes = pictures.plot_top_tokens(
        probabilities.T[:, :MAX_PREDICTIONS],
        [row[:MAX_PREDICTIONS] for row in predicted],
        targets[:MAX_PREDICTIONS],
        "masked token",
        "rank",
    )
    page.draw("masked-tokens", axes)
    add_losses(page, targets, losses, "Each token when it alone is masked")
    correct = int((best[:, 0] == tokens[positions]).sum())
    page.add_fact("Score", f"{correct} of {len(targets)} tokens right, each masked alone")


def draw_classifier(
    page: Page,
    model,
    tokenizer,
    tokens: Tokens,
    labels: Sequence[str],
    text: str,
    classes: Sequence[str],
) -> None:
    """Draw class probabilities, the saliency of tokens, and the ablation of heads.

    Args:
        labels: of the first tokens; the others are padding or features.
    """
    logits = draw_stack(page, model, tokenizer, tokens, labels)
    predicted, inputs = int(logits.argmax()), jnp.asarray(tokens)
    shares = dict(zip(classes, map(float, np.asarray(jax.nn.softmax(logits))), strict=True))
    page.add_html_fact("Sample", preformatted(text) + render_bars(shares))
    name = classes[predicted]
    saliency = np.asarray(jax.jit(inspection.gradient_times_input)(model, inputs, predicted))
    columns = {f"gradient x input\nfor {name!r}": saliency[: len(labels)]}
    page.draw("saliency", pictures.plot_saliency(labels, columns), name=name, share=shares[name])

    def loss(logits):
        return -jax.nn.log_softmax(logits)[predicted]

    draw_ablation(page, model, (inputs,), loss, f"the class {name!r}")


def draw_seq2seq(
    page: Page, model, tokenizers: tuple, source: Source, target: Tokens, sample: str
) -> None:
    """Draw an encoder-decoder on a source and the target it has written.

    Args:
        tokenizers: of the source and of the target.
        target: begins with the start token.
        sample: source and target as text.
    """
    page.add_html_fact("Sample", preformatted(sample))
    inputs = jnp.asarray(source), jnp.asarray(target)
    sources, targets = map(token_labels, tokenizers, (source, target))
    encoder, decoder = model.encoder, model.decoder
    _, weights = run_with_attention(model, *inputs)
    for name, pattern, stack, queries, keys in (
        ("cross-attention", "decoder.*.cross_attention.weights", None, targets, sources),
        ("encoder", "encoder.*.attention.weights", encoder, sources, sources),
        ("decoder", "decoder.*.attention.weights", decoder, targets, targets),
    ):
        names = fnmatch.filter(weights, pattern)
        draw_attention(page, name, {n: weights[n] for n in names}, stack, queries, keys)
    draw_positions(page, encoder)
    if getattr(decoder, positions_name(decoder.config)) is not None:
        draw_positions(page, decoder, "-decoder")
    is_separate = model.config.head.embeddings == "separate"
    tokens = source if is_separate else np.r_[source, target]
    draw_embedding(page, encoder.embedding.table, tokenizers[0], tokens)
    if is_separate:
        draw_embedding(page, decoder.embedding.table, tokenizers[1], target, "target")
    if len(targets) > 1:
        draw_predictions(page, model, inputs, tokenizers[1])
        for layer in SEQ2SEQ_ATTENTION:
            draw_ablation(page, model, inputs, next_token_loss(inputs[1]), layer=layer)


# Pictures


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
        suffix: end of the pictures' names, to distinguish two stacks of a model.
    """
    config, label = stack.config, positions_label(stack.config.positions)
    length, name = min(config.context, MAX_POSITIONS), label + suffix
    inputs = window_inputs(stack, positional_inputs(stack, length), min(config.windows))
    if isinstance(config.positions, Learned | Sinusoidal):
        table = position_table(config.positions, stack.positions, config)[:length]
        axes = {"label": "value", "xlabel": "column of the encoding", "ylabel": "position"}
        table = np.asarray(table)
        page.draw("positions-{name}", pictures.heat_map(table, signed=True, **axes), name=name)
        draw_similarity(page, table, name)
    elif inputs.angles is not None:
        axes = {"label": "cosine of the angle", "xlabel": "pair of columns", "ylabel": "position"}
        cosines = np.cos(inputs.angles)
        page.draw("angles-{name}", pictures.heat_map(cosines, signed=True, **axes), name=name)
        ones = jnp.ones((length, 2 * inputs.angles.shape[-1]))
        draw_similarity(page, np.asarray(F.rotate(ones, inputs.angles)), name)
    if inputs.bias is not None:
        bias, middle = np.asarray(inputs.bias), length // 2
        lines = {f"head {head}": row for head, row in enumerate(bias[:, middle])}
        distances = np.arange(length) - middle
        axes = pictures.plot_lines(lines, "key position - query position", "bias", distances)
        page.draw("bias-{name}", axes, name=name)


def positional_inputs(stack: Transformer, length: int) -> BlockInputs:
    """Return the positions of a sequence, with the causal mask for a decoder."""
    if stack.is_causal:
        return causal_inputs(length)
    return BlockInputs(positions=jnp.arange(length), key_positions=jnp.arange(length))


def draw_similarity(page: Page, rows: Float[np.ndarray, "T D"], name: str) -> None:
    """Draw the cosine similarity of the vectors of two positions."""
    labels = {"label": "cosine similarity", "xlabel": "position", "ylabel": "position"}
    table = pictures.cosine_similarity(rows)
    axes = pictures.heat_map(table, signed=True, aspect="equal", **labels)
    page.draw("similarity-{name}", axes, name=name)


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
        stack: the stack whose mask is drawn; None for cross-attention.
    """
    if not weights:
        return
    queries, keys = queries[:MAX_ATTENTION_TOKENS], keys[:MAX_ATTENTION_TOKENS]
    # `jit` has sorted the names as text, 10 before 2.
    blocks, names = zip(*sorted(zip(block_indices(weights), weights, strict=True)), strict=True)
    layers = [np.asarray(weights[n])[:, : len(queries), : len(keys)] for n in names]
    masks = [None] * len(names)
    if stack:
        inputs, windows = positional_inputs(stack, len(keys)), stack.config.windows
        masks = [window_inputs(stack, inputs, windows[i]).mask for i in blocks]
        masks = [None if m is None else np.asarray(m).reshape(m.shape[-2:]) for m in masks]
    page.add_heads(name, queries, keys, layers, masks, blocks)
    for layer, array, mask in zip(names, layers, masks, strict=True):
        axes = pictures.plot_attention(array, queries, keys, mask=mask)
        page.draw("{layer}", axes, layer=layer.removesuffix(".weights").replace(".", "-"))


def draw_embedding(
    page: Page, table, tokenizer, tokens: Iterable[int | np.integer], prefix: str = ""
) -> None:
    """Draw the rows of a table (V, D) for a text's tokens and frequent ones in the plane."""
    tokens = select_tokens(tokenizer, tokens, MAX_EMBEDDING_TOKENS)
    rows = np.asarray(table[jnp.asarray(tokens)])
    if len(rows) > 3:
        axes = pictures.plot_embedding(rows, token_labels(tokenizer, tokens))
        page.draw("{prefix}embedding", axes, prefix=f"{prefix}-" if prefix else "")


def draw_predictions(page: Page, model, inputs: Sequence[Int[Array, "_"]], tokenizer) -> None:
    """Draw the most probable next tokens, and the logit lens, for the first tokens of a text.

    Args:
        inputs: the last of them is the text.
    """
    labels = token_labels(tokenizer, np.asarray(inputs[-1])[:MAX_PREDICTIONS])
    top = logit_lens_top_k(model, *inputs, k=min(MAX_RANKS, model.config.vocabulary_size))
    # (depth, T, rank)
    probabilities, tokens = (np.asarray(array)[:, : len(labels)] for array in top)
    by_rank = [token_labels(tokenizer, row) for row in tokens[-1].T]
    page.draw("next-token", pictures.plot_top_tokens(probabilities[-1].T, by_rank, labels))
    by_depth = [token_labels(tokenizer, row) for row in tokens[..., 0]]
    page.draw("logit-lens", pictures.plot_top_of_lens(probabilities[..., 0], by_depth, labels))


def draw_attention_patterns(page: Page, model) -> None:
    """Draw the pattern scores of heads on repeated random tokens."""
    if not (names := find_taps("blocks.*.attention.weights", model)):
        return
    half = min(model.config.context // 2, MAX_REPEATED_TOKENS)
    tokens = inspection.repeated_tokens(
        jax.random.key(0), half, model.config.vocabulary_size, NUM_REPEATED_SEQUENCES
    )
    scores = jax.device_get(jax.jit(inspection.score_attention_patterns)(model, tokens))
    for kind, keys in HEAD_PATTERNS.items():
        axes = pictures.plot_heads(scores[kind], f"{kind} score", blocks=block_indices(names))
        page.draw("head-{kind}", axes, kind=kind, keys=keys)


def draw_ablation(
    page: Page,
    model,
    inputs: tuple,
    loss: Callable,
    target: str = "the text",
    layer: str = "blocks.*.attention",
) -> None:
    """Draw how much the loss increases without each head of a layer.

    Args:
        target: what the loss measures, as in the caption: "the text", or "the class ...".
    """
    if not (names := find_taps(f"{layer}.heads", model, *inputs)):
        return

    @jax.jit
    def ablate(model, *inputs):
        # With a tap, as the ablated passes: another function may compute the same attention.
        baseline = loss(inspection.run(model, *inputs, capture=names)[0])
        ablated = inspection.ablate_heads(model, *inputs, metric=loss, layer=layer)
        return baseline, ablated - baseline

    baseline, change = jax.device_get(ablate(model, *inputs))
    blocks = block_indices(names)
    axes = pictures.plot_heads(change, "loss added (nats)", change=True, blocks=blocks)
    suffix = f"-{layer}".replace(".blocks.*.", "-").removeprefix("-blocks.*.attention")
    head = f"{suffix[1:]} head".strip()
    fields = {"target": target, "loss": float(baseline), "head": head}
    page.draw("ablation{suffix}", axes, suffix=suffix, **fields)


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
        columns=[*map(show_whitespace, token_labels(tokenizer, np.asarray(corrupted)))],
        xlabel="restored position",
        ylabel="after",
        label="log-probability (nats)",
    )
    page.draw("patching", axes, middle=middle, before=before, after=after)


def draw_data(page: Page, texts: Mapping[str, Sequence[str]], unit: str = "word") -> None:
    """Draw the frequencies of characters and words, and the lengths of texts by their kind.

    Args:
        texts: by kind; the first kind's frequencies are drawn.
        unit: of the lengths, "word" or "character".
    """
    first = next(iter(texts.values()))
    for kind, pattern in (("character", r"(?s)."), ("word", r"\w+")):
        counts = Counter(token for text in first for token in re.findall(pattern, text))
        page.draw("frequencies-{kind}", pictures.plot_frequencies(counts, kind), kind=kind)
    for kind, items in texts.items():
        lengths = [len(item.split() if unit == "word" else item) for item in items]
        page.draw("lengths-{kind}", pictures.plot_lengths(lengths, kind, unit), kind=kind)
