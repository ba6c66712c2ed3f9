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
    part = config.norm
    if part.method == "rms":
        return functools.partial(reference.rms_norm, eps=part.epsilon, offset=part.offset)
    return functools.partial(reference.layer_norm, eps=part.epsilon)


def head_dim(config):
    return config.attention.head_dim or config.width // config.num_heads


def embed(config, stack, table, tokens):
    x = np.stack([table[token] for token in tokens])
    part = config.embedding
    if part.scale:
        x = math.sqrt(config.width) * x
    if isinstance(config.positions, Sinusoidal):
        split = config.positions.split
        x = x + reference.sinusoidal_positions(len(x), config.width, split=split)
    elif isinstance(config.positions, Learned):
        x = x + stack.positions.table[config.positions.offset :][: len(x)]
    if part.type_vocab_size:
        x = x + stack.token_types.table[0]
    return norm_of(config)(stack.embedding_norm, x) if part.norm else x


def rotation(config, length, window):
    """Return rotary angles (T, K/2), and the factor of rotated queries and keys."""
    part = config.positions
    local = window and part.local_base is not None
    base = part.local_base if local else part.base
    frequencies = reference.rotary_angles(2, head_dim(config), base)[1]
    magnitude, scaling = 1.0, None if local else part.scaling
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


def run(config, stack, x, sees, memory=None, memory_seen=None, *, causal):
    """Apply the blocks and the final norm; masks `sees` (T, T) and `memory_seen` (S,)."""
    length, heads, norm = len(x), config.num_heads, norm_of(config)
    windows, pre_norm = config.attention.windows, config.block.pre_norm
    for index, params in enumerate(stack.blocks):
        window = windows[index % len(windows)] if windows else 0
        near = np.abs(np.subtract.outer(np.arange(length), np.arange(length)))
        mask = sees & (near < window) if window else sees
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
        masks = [np.stack([mask] * heads)]
        if memory is not None:
            masks.append(np.broadcast_to(memory_seen, (heads, length, len(memory))))
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
    """Return the vectors of tokens, of which those below 0 are padding."""
    x = embed(model.config, model, model.embedding.table, np.maximum(tokens, 0))
    sees = np.broadcast_to(tokens >= 0, (len(x), len(x)))
    return run(model.config, model, x, sees, causal=False)


def project(part, model, x):
    x = ACTIVATIONS[part.activation](reference.linear(model.projection, x))
    return norm_of(model.config)(model.projection_norm, x) if part.norm else x


def masked(model, tokens):
    x = project(model.config.projection, model, encoder(model, tokens))
    return reference.unembed(model.embedding.table, x, getattr(model, "head_bias", None))


def classifier(model, tokens):
    config, x, real = model.config, encoder(model, tokens), tokens >= 0
    if config.pool.method == "first":
        pooled = x[0]
    elif config.pool.method == "mean":
        pooled = reference.mean_pool(x, real)
    elif config.pool.method == "attention":
        pooled = reference.attention_pool(model.pool, x, real)
    else:
        pooled = np.zeros(config.context)
        pooled[: len(x)] = reference.dense_pool(model.pool, x, real)
    part, pooled = config.pool.projection, pooled[None]
    return reference.linear(model.head, project(part, model, pooled) if part else pooled)[0]


def seq2seq(model, source, target):
    config, table = model.config, model.encoder.embedding.table
    real = source != config.special_tokens.pad_id
    x = embed(config, model.encoder, table, source)
    sees = np.broadcast_to(real, (len(x), len(x)))
    memory = run(config, model.encoder, x, sees, causal=False)
    own = model.decoder.embedding.table if config.head.embeddings == "separate" else table
    x = embed(config, model.decoder, own, target)
    causal = np.tri(len(x), dtype=bool)
    x = run(config, model.decoder, x, causal, memory, real, causal=True)
    x = config.head.scale * x
    if config.head.embeddings == "tied":
        return reference.unembed(table, x, getattr(model, "head_bias", None))
    return reference.linear(model.head, x)
