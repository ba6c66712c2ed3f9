"""Whole models once more, of one text: NumPy in float64, with every switch of their configs."""

import math
from types import SimpleNamespace

import jax
import numpy as np
from flax import nnx

from tests.helpers import reference

NORMS = {
    "layer": reference.layer_norm,
    "rms": reference.rms_norm,
    "zero_centred_rms": reference.zero_centred_rms_norm,
}
ACTIVATIONS = {
    "relu": reference.relu,
    "gelu": reference.gelu,
    "gelu_exact": reference.gelu_exact,
    "silu": reference.silu,
    "squared_relu": reference.squared_relu,
    "tanh": np.tanh,
}


def plain(node):
    """A module as a tree of names with NumPy arrays of float64."""
    if isinstance(node, nnx.Variable):
        return np.asarray(node[...], np.float64)
    if isinstance(node, jax.Array | np.ndarray):
        return np.asarray(node, np.float64)
    if isinstance(node, nnx.List):
        return [plain(child) for child in node]
    if isinstance(node, nnx.Module):
        return SimpleNamespace(**{name: plain(child) for name, child in vars(node).items()})
    return node


def norm_of(config):
    return lambda params, x: NORMS[config.norm](params, x, config.norm_epsilon)


def head_width(config):
    return config.head_width or config.width // config.num_heads


def embed(config, stack, table, tokens):
    x = np.stack([table[token] for token in tokens])
    if config.scale_embedding:
        x = math.sqrt(config.width) * x
    if config.positions == "learned":
        x = x + stack.positions.table[config.position_offset :][: len(x)]
    if config.positions in ("sinusoidal", "split_sinusoidal"):
        split = config.positions == "split_sinusoidal"
        x = x + reference.sinusoidal_positions(len(x), config.width, split=split)
    if config.segments:
        x = x + stack.segments.table[0]
    return norm_of(config)(stack.embedding_norm, x) if config.embedding_norm else x


def rotation(config, length, window):
    """Angles (T, K/2), and what turned queries and keys are multiplied by."""
    local = window and config.local_rotary_base is not None
    base = config.local_rotary_base if local else config.rotary_base
    frequencies = reference.rotary_angles(2, head_width(config), base)[1]
    magnitude, scaling = 1.0, None if local else config.rotary_scaling
    if scaling is not None:
        given = scaling.factor, scaling.original_context
        if scaling.method == "linear":
            frequencies = frequencies / scaling.factor
        elif scaling.method == "llama3":
            between = scaling.low_frequency_factor, scaling.high_frequency_factor
            frequencies = reference.llama3_frequencies(frequencies, *given, *between)
        else:
            turns = scaling.beta_fast, scaling.beta_slow
            frequencies = reference.yarn_frequencies(frequencies, *given, *turns, base)
            magnitude = scaling.attention_factor
            magnitude = 0.1 * math.log(scaling.factor) + 1 if magnitude is None else magnitude
    return np.outer(np.arange(length), frequencies), magnitude


def relative_bias(config, table, length, causal):
    sizes = config.relative_buckets, config.relative_distance
    bias = np.zeros((config.num_heads, length, length))
    for h, t, s in np.ndindex(*bias.shape):
        bias[h, t, s] = table[reference.relative_bucket(s - t, *sizes, causal), h]
    return bias


def run(config, stack, x, sees, memory=None, memory_seen=None, *, causal):
    """The blocks and the final norm; `sees` (T, T), `memory_seen` (S,)."""
    length, heads, norm = len(x), config.num_heads, norm_of(config)
    first = []  # the first block's values
    for index, params in enumerate(stack.blocks):
        window = config.windows[index % len(config.windows)] if config.windows else 0
        near = np.abs(np.subtract.outer(np.arange(length), np.arange(length)))
        mask = sees & (near < window) if window else sees
        settings = {
            "num_heads": heads,
            "pre_norm": config.norm_first,
            "activation": ACTIVATIONS[config.activation],
            "norm": norm,
            "softcap": config.softcap,
            "scale": config.attention_scale,
            "first": first,
        }
        if config.positions == "rotary":
            settings["angles"], settings["magnitude"] = rotation(config, length, window)
        if config.positions == "alibi":
            settings["bias"] = reference.alibi(range(length), range(length), heads)
        if config.positions == "relative":
            settings["bias"] = relative_bias(config, stack.relative.table, length, causal)
        masks = [np.stack([mask] * heads)]
        if memory is not None:
            masks.append(np.broadcast_to(memory_seen, (heads, length, len(memory))))
        x = reference.decoder_block(params, x, memory, *masks, **settings)
    return norm(stack.norm, x) if config.norm_first else x


def generator(model, tokens):
    config = model.config
    x = embed(config, model, model.embedding.table, tokens)
    x = run(config, model, x, np.tri(len(x), dtype=bool), causal=True)
    if config.tied_head:
        logits = reference.unembed(model.embedding.table, x, getattr(model, "head_bias", None))
    else:
        logits = reference.linear(model.head, x)
    cap = config.head_softcap
    return logits if cap is None else reference.soft_cap(logits, cap)


def encoder(model, tokens):
    """Vectors of tokens, those below 0 being padding."""
    x = embed(model.config, model, model.embedding.table, np.maximum(tokens, 0))
    sees = np.broadcast_to(tokens >= 0, (len(x), len(x)))
    return run(model.config, model, x, sees, causal=False)


def project(model, x):
    x = ACTIVATIONS[model.config.projection](reference.linear(model.projection, x))
    return norm_of(model.config)(model.projection_norm, x) if model.config.projection_norm else x


def masked(model, tokens):
    x = project(model, encoder(model, tokens))
    return reference.unembed(model.embedding.table, x, getattr(model, "head_bias", None))


def classifier(model, tokens):
    config, x, real = model.config, encoder(model, tokens), tokens >= 0
    if config.aggregation == "first":
        pooled = x[0]
    elif config.aggregation == "mean":
        pooled = reference.mean_pool(x, real)
    elif config.aggregation == "attention":
        pooled = reference.attention_pool(model.pool, x, real)
    else:
        pooled = np.zeros(config.context)
        pooled[: len(x)] = reference.dense_pool(model.pool, x, real)
    pooled = project(model, pooled[None]) if config.projection else pooled[None]
    return reference.linear(model.head, pooled)[0]


def seq2seq(model, source, target):
    config, table = model.config, model.encoder.embedding.table
    real = source != config.pad_id
    x = embed(config, model.encoder, table, source)
    sees = np.broadcast_to(real, (len(x), len(x)))
    memory = run(config, model.encoder, x, sees, causal=False)
    own = model.decoder.embedding.table if config.embeddings == "separate" else table
    x = embed(config, model.decoder, own, target)
    causal = np.tri(len(x), dtype=bool)
    x = run(config, model.decoder, x, causal, memory, real, causal=True)
    x = config.head_scale * x
    if config.embeddings == "tied":
        return reference.unembed(table, x, getattr(model, "head_bias", None))
    return reference.linear(model.head, x)
