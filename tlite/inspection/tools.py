"""Analyses of a model, for use under `jit` and `vmap`.

Repeated forward passes run sequentially (`jax.lax.map`): they need no more memory than one.
"""

from collections.abc import Callable, Mapping
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from tlite.inspection.capture import match_names, run, tap_names
from tlite.models import Seq2Seq
from tlite.models.transformer import final_norm


def logit_lens(model, *inputs: Int[Array, "_"]) -> Float[Array, "L1 T V"]:
    """Return softmax(head(norm(x_l))) of the residual streams x_l (nostalgebraist 2020).

    x_0 is the embedding and x_l the output of block l, in an encoder-decoder the decoder's.

    Raises:
        TypeError: the model has no logits at every position, as a classifier.
    """
    return _map_over_depth(model, inputs, lambda logits: jax.nn.softmax(logits, axis=-1))


def logit_lens_top_k(
    model, *inputs: Int[Array, "_"], k: int = 1
) -> tuple[Float[Array, "L1 T K"], Int[Array, "L1 T K"]]:
    """Return the `k` largest probabilities of `logit_lens`, and their tokens.

    Memory is that of one row (T, V).
    """

    def top_k(logits):
        values, tokens = jax.lax.top_k(logits, k)
        return jnp.exp(values - jax.nn.logsumexp(logits, axis=-1, keepdims=True)), tokens

    return _map_over_depth(model, inputs, top_k)


def _map_over_depth(model, inputs, function: Callable):
    """Apply the function to the logits (T, V) read out at each depth, sequentially."""
    if not hasattr(model, "logits"):
        raise TypeError(f"a {type(model).__name__} has no logits at every position")
    prefix, stack = ("decoder.", model.decoder) if isinstance(model, Seq2Seq) else ("", model)
    names = f"{prefix}embedding", f"{prefix}blocks.*.residual"
    streams = jnp.stack(list(run(model, *inputs, capture=names)[1].values()))
    return jax.lax.map(lambda x: function(model.logits(final_norm(stack, x))), streams)


def pseudo_log_likelihoods(
    model,
    tokens: Int[Array | np.ndarray, "T"],
    mask_id: int | Int[Array, ""],
    positions: Int[Array, "N"] | None = None,
) -> Float[Array, "N V"]:
    """Return a masked model's log p(x_t | all other tokens) for each position t, or those passed.

    The values at the tokens sum up to the text's pseudo-log-likelihood (Salazar et al. 2020).

    Raises:
        ValueError: `tokens` is not one text; use `jax.vmap` for several.
    """
    if (tokens := jnp.asarray(tokens)).ndim != 1:
        raise ValueError(f"tokens must be of one text, (T,), not of shape {tokens.shape}")

    def log_probabilities(position):
        return jax.nn.log_softmax(model(tokens.at[position].set(mask_id))[position])

    positions = jnp.arange(len(tokens)) if positions is None else positions
    return jax.lax.map(log_probabilities, positions)


def repeated_tokens(
    rng: Key[Array, ""], length: int, vocabulary_size: int, batch: int = 1
) -> Int[Array, "B two_length"]:
    """Return random sequences followed by themselves: the second half can only be copied."""
    half = jax.random.randint(rng, (batch, length), 0, vocabulary_size)
    return jnp.concatenate([half, half], axis=1)


def attention_pattern_scores(
    weights: Float[Array, "*batch H T T"], tokens: Int[Array, "*#batch T"]
) -> dict[str, Float[Array, "H"]]:
    """Return the fraction of a causal head's attention on each pattern's keys.

    A score is the mean over the queries that have such a key:

        previous   the token before the query
        duplicate  earlier tokens equal to the query
        induction  the tokens after those (Olsson et al. 2022)
    """
    length = tokens.shape[-1]
    tokens = jnp.broadcast_to(tokens, (*weights.shape[:-3], length))
    causal = jnp.tril(jnp.ones((length, length), bool))
    equal = (tokens[..., :, None] == tokens[..., None, :]) & jnp.tril(causal, -1)
    after_equal = jnp.concatenate([jnp.zeros_like(equal[..., :1]), equal[..., :-1]], axis=-1)
    patterns = {
        "previous": jnp.broadcast_to(jnp.eye(length, k=-1, dtype=bool), equal.shape),
        "duplicate": equal,
        "induction": after_equal & causal,
    }

    def score(pattern):
        total = jnp.where(pattern[..., None, :, :], weights, 0).sum((-2, -1))  # (..., H)
        num_queries = pattern.any(-1).sum()
        return total.reshape(-1, total.shape[-1]).sum(0) / jnp.maximum(num_queries, 1)

    return {name: score(pattern) for name, pattern in patterns.items()}


def score_attention_patterns(model, tokens: Int[Array, "B T"]) -> dict[str, Float[Array, "L H"]]:
    """Return the `attention_pattern_scores` of every layer and head of a generator."""
    _, captured = run(model, tokens, capture="blocks.*.attention.weights")
    layers = [attention_pattern_scores(weights, tokens) for weights in captured.values()]
    return {name: jnp.stack([layer[name] for layer in layers]) for name in layers[0]}


def ablate_heads(
    model, *inputs: Array, metric: Callable[[Array], Array], layer: str = "blocks.*.attention"
) -> Float[Array, "L H"]:
    """Return metric(logits) with the output of one head set to 0, for each head.

    Args:
        metric: maps the model's logits to a number.
        layer: pattern of the attention layers, for example "decoder.blocks.*.cross_attention".
    """
    zeros = dict.fromkeys(match_names(f"{layer}.heads", tap_names(model, *inputs)), 0)
    return _replace_each(model, inputs, metric, zeros, model.config.num_heads, trailing_axes=2)


def patch_residual(
    model,
    clean: Int[Array, "T"],
    corrupted: Int[Array, "T"],
    metric: Callable[[Array], Array],
    name: str = "blocks.*.residual",
) -> Float[Array, "L T"]:
    """Return metric(logits) of a corrupted text with one vector restored from the clean text.

    Activation patching (Meng et al. 2022): a vector that restores the metric carries what matters.
    """
    _, values = run(model, clean, capture=name)
    return _replace_each(model, (corrupted,), metric, values, clean.shape[-1], trailing_axes=1)


def _replace_each(
    model, inputs, metric: Callable, values: Mapping, size: int, *, trailing_axes: int
) -> Float[Array, "L N"]:
    """Return metric(logits) with one of `size` rows of one value replaced, for each value and row.

    `values` has replacements by name; `trailing_axes` is the number of axes after that of the rows.
    """

    def metric_of_replaced(index: Int[Array, ""]) -> Float[Array, ""]:
        def edit(layer, replacement, x):
            is_replaced = layer * size + jnp.arange(size) == index
            return jnp.where(is_replaced.reshape(-1, *[1] * trailing_axes), replacement, x)

        edits = {n: partial(edit, layer, new) for layer, (n, new) in enumerate(values.items())}
        return metric(run(model, *inputs, edit=edits)[0])

    return jax.lax.map(metric_of_replaced, jnp.arange(len(values) * size)).reshape(-1, size)


def gradient_times_input(
    model, tokens: Int[Array, "T"], index: int | Int[Array, ""]
) -> Float[Array, "T2"]:
    """Return x_t . d logit_index / d x_t for each token's embedding x_t (Shrikumar et al. 2016).

    N-gram features have no embedding: values are those of the tokens alone.
    """
    embedded = run(model, tokens, capture="embedding")[1]["embedding"]

    def logit(x):
        return run(model, tokens, edit={"embedding": lambda _: x})[0][..., index]

    return (jax.grad(logit)(embedded) * embedded).sum(-1)
