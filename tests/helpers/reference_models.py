"""Reference models of one text in NumPy and float64, with every component of a config."""

import functools
import math
from types import SimpleNamespace

import jax
import numpy as np
from flax import nnx

from tests.helpers import reference
from tlite.models import ALiBi, Learned, Relative, Rotary, Sinusoidal

ACTIVATIONS = {
    "relu": reference.relu,
    "gelu": reference.gelu,
    "gelu_exact": reference.gelu_exact,
    "silu": reference.silu,
    "squared_relu": reference.squared_relu,
    "tanh": np.tanh,
}


def plain(node):
    """Return a module as a tree of namespaces with NumPy arrays of float64."""
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
    norm = config.norm
    if norm.method == "rms":
        return functools.partial(reference.rms_norm, eps=norm.epsilon, offset=norm.offset)
    return functools.partial(reference.layer_norm, eps=norm.epsilon)


def embed(config, stack, table, tokens):
    x = np.stack([table[token] for token in tokens])
    if config.embedding.scale:
        x = math.sqrt(config.width) * x
    if isinstance(config.positions, Sinusoidal):
        split = config.positions.split
        x = x + reference.sinusoidal_positions(len(x), config.width, split=split)
    elif isinstance(config.positions, Learned):
        x = x + stack.positions.table[config.positions.offset :][: len(x)]
    if config.embedding.type_vocab_size:
        x = x + stack.token_types.table[0]
    return norm_of(config)(stack.embedding_norm, x) if config.embedding.norm else x


def rotation(config, length, window):
    """Return rotary angles (T, K/2), and the factor of rotated queries and keys."""
    positions = config.positions
    is_local = window and positions.local_base is not None
    base = positions.local_base if is_local else positions.base
    head_dim = config.attention.head_dim or config.width // config.num_heads
    frequencies = reference.rotary_angles(2, head_dim, base)[1]
    magnitude, scaling = 1.0, None if is_local else positions.scaling
    if scaling is not None:
        sizes = scaling.factor, scaling.original_context
        if scaling.method == "linear":
            frequencies = frequencies / scaling.factor
        elif scaling.method == "llama3":
            limits = scaling.low_frequency_factor, scaling.high_frequency_factor
            frequencies = reference.llama3_frequencies(frequencies, *sizes, *limits)
        else:
            limits = scaling.beta_fast, scaling.beta_slow
            frequencies = reference.yarn_frequencies(frequencies, *sizes, *limits, base)
            magnitude = scaling.attention_factor
            magnitude = 0.1 * math.log(scaling.factor) + 1 if magnitude is None else magnitude
    return np.outer(np.arange(length), frequencies), magnitude


def relative_bias(config, table, length, causal):
    sizes = config.positions.num_buckets, config.positions.max_distance
    bias = np.zeros((config.num_heads, length, length))
    for h, t, s in np.ndindex(*bias.shape):
        bias[h, t, s] = table[reference.relative_bucket(s - t, *sizes, causal), h]
    return bias


def run(config, stack, x, mask, memory=None, memory_mask=None, *, causal):
    """Apply the blocks and the final norm, with masks (T, T) and of the memory (S,)."""
    length, heads, norm = len(x), config.num_heads, norm_of(config)
    windows, pre_norm = config.attention.windows, config.block.pre_norm
    for index, params in enumerate(stack.blocks):
        window = windows[index % len(windows)] if windows else 0
        distance = np.abs(np.subtract.outer(np.arange(length), np.arange(length)))
        window_mask = mask & (distance < window) if window else mask
        settings = {
            "num_heads": heads,
            "pre_norm": pre_norm,
            "activation": ACTIVATIONS[config.feed_forward.activation],
            "norm": norm,
            "softcap": config.attention.softcap,
            "scale": config.attention.scale,
        }
        if isinstance(config.positions, Rotary):
            settings["angles"], settings["magnitude"] = rotation(config, length, window)
        if isinstance(config.positions, ALiBi):
            settings["bias"] = reference.alibi(range(length), range(length), heads)
        if isinstance(config.positions, Relative):
            settings["bias"] = relative_bias(config, stack.relative.table, length, causal)
        masks = [np.stack([window_mask] * heads)]
        if memory is not None:
            masks.append(np.broadcast_to(memory_mask, (heads, length, len(memory))))
        x = reference.decoder_block(params, x, memory, *masks, **settings)
    return norm(stack.norm, x) if pre_norm else x


def generator(model, tokens):
    config = model.config
    x = embed(config, model, model.embedding.table, tokens)
    x = run(config, model, x, np.tri(len(x), dtype=bool), causal=True)
    if config.head.tied:
        logits = reference.unembed(model.embedding.table, x, getattr(model, "head_bias", None))
    else:
        logits = reference.linear(model.head, x)
    cap = config.head.softcap
    return logits if cap is None else reference.soft_cap(logits, cap)


def encoder(model, tokens):
    """Return the vectors of tokens; tokens below 0 are padding."""
    x = embed(model.config, model, model.embedding.table, np.maximum(tokens, 0))
    mask = np.broadcast_to(tokens >= 0, (len(x), len(x)))
    return run(model.config, model, x, mask, causal=False)


def project(projection, model, x):
    x = ACTIVATIONS[projection.activation](reference.linear(model.projection, x))
    return norm_of(model.config)(model.projection_norm, x) if projection.norm else x


def masked(model, tokens):
    x = project(model.config.projection, model, encoder(model, tokens))
    return reference.unembed(model.embedding.table, x, getattr(model, "head_bias", None))


def classifier(model, tokens):
    config, x, valid = model.config, encoder(model, tokens), tokens >= 0
    if config.pool.method == "first":
        pooled = x[0]
    elif config.pool.method == "mean":
        pooled = reference.mean_pool(x, valid)
    elif config.pool.method == "attention":
        pooled = reference.attention_pool(model.pool, x, valid)
    else:
        pooled = np.zeros(config.context)
        pooled[: len(x)] = reference.dense_pool(model.pool, x, valid)
    projection, pooled = config.pool.projection, pooled[None]
    pooled = project(projection, model, pooled) if projection else pooled
    return reference.linear(model.head, pooled)[0]


def seq2seq(model, source, target):
    config, table = model.config, model.encoder.embedding.table
    valid = source != config.special_tokens.pad_id
    x = embed(config, model.encoder, table, source)
    mask = np.broadcast_to(valid, (len(x), len(x)))
    memory = run(config, model.encoder, x, mask, causal=False)
    is_separate = config.head.embeddings == "separate"
    x = embed(
        config, model.decoder, model.decoder.embedding.table if is_separate else table, target
    )
    causal_mask = np.tri(len(x), dtype=bool)
    x = config.head.scale * run(config, model.decoder, x, causal_mask, memory, valid, causal=True)
    if config.head.embeddings == "tied":
        return reference.unembed(table, x, getattr(model, "head_bias", None))
    return reference.linear(model.head, x)
