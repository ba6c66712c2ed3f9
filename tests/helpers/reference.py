"""Formulas of `tlite.functional` for one sample in float64 NumPy, and settings of positions."""

import math
from collections.abc import Callable

import numpy as np
import pytest

# Scaling of rotary positions: factor, original context, two limits, base.
LLAMA3 = [(8.0, 8192, 1.0, 4.0, 500_000.0), (32.0, 64, 1.0, 4.0, 1e4), (4.0, 100, 2.0, 3.0, 50.0)]
YARN = [(4.0, 4096, 32.0, 1.0, 1e4), (40.0, 128, 16.0, 2.0, 1e6), (8.0, 8192, 32.0, 1.0, 150.0)]
each_dim = pytest.mark.parametrize("dim", [2, 16, 128])
DISTANCES = np.concatenate([np.arange(-700, 701), [-(10**6), 10**6]])
BUCKETS = [(32, 128), (8, 20), (16, 100), (64, 256), (4, 3)]  # number, longest distance


def attention(query, key, value, mask=None, *, scale=None, softcap=None, bias=None):
    weights = np.zeros((len(query), len(key)))
    scale = 1 / math.sqrt(query.shape[1]) if scale is None else scale
    for t, q in enumerate(query):
        visible = np.arange(len(key)) if mask is None else np.flatnonzero(mask[t])
        scores = key[visible] @ q * scale
        scores = scores if softcap is None else soft_cap(scores, softcap)
        odds = np.exp(scores if bias is None else scores + bias[t, visible])
        weights[t, visible] = odds / odds.sum()
    return weights @ value, weights


def rms_norm(params, x, eps=1e-5, offset=0.0):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * (offset + params.scale)


def multi_head_attention(
    params, query, key, value, mask=None, *, num_heads, norm=rms_norm, bias=None, **settings
):
    angles, magnitude = settings.pop("angles", None), settings.pop("magnitude", 1.0)
    query, key, value = (
        linear(params.query, query),
        linear(params.key, key),
        linear(params.value, value),
    )
    head_dim = query.shape[1] // num_heads
    group_size = num_heads // (key.shape[1] // head_dim)
    outputs, weights = [], []
    for head in range(num_heads):
        start, kv_start = head * head_dim, head // group_size * head_dim
        kv_columns = slice(kv_start, kv_start + head_dim)
        q, k, v = query[:, start : start + head_dim], key[:, kv_columns], value[:, kv_columns]
        if getattr(params, "query_norm", None) is not None:
            q, k = norm(params.query_norm, q), norm(params.key_norm, k)
        if angles is not None:
            q, k = magnitude * rotate(q, angles), magnitude * rotate(k, angles)
        head_mask, head_bias = (None if x is None else x[head] for x in (mask, bias))
        output, weight = attention(q, k, v, head_mask, bias=head_bias, **settings)
        outputs.append(output)
        weights.append(weight)
    return linear(params.output, np.concatenate(outputs, axis=1)), np.stack(weights)


def linear(params, x):
    y = x @ params.kernel
    return y if params.bias is None else y + params.bias


def relu(x):
    return np.where(x > 0, x, 0.0)


def squared_relu(x):
    return relu(x) ** 2


def gelu(x):
    """The tanh approximation (Hendrycks and Gimpel 2016)."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gelu_exact(x):
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


def silu(x):
    return x / (1 + np.exp(-x))


def feed_forward(params, x, activation: Callable = relu):
    hidden = linear(params.hidden, x)
    if getattr(params, "gate", None) is None:
        return linear(params.output, activation(hidden))
    return linear(params.output, activation(linear(params.gate, x)) * hidden)


def unembed(table, x, bias=None):
    return x @ table.T + (0.0 if bias is None else bias)


def soft_cap(x, cap):
    return cap * np.tanh(x / cap)


def layer_norm(params, x, eps=1e-5):
    y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps) * params.scale
    return y if params.bias is None else y + params.bias


def decoder_block(
    params, x, memory, mask=None, memory_mask=None, *, pre_norm=False, activation=relu, **scores
):
    norm = scores.setdefault("norm", layer_norm)
    cross = {n: v for n, v in scores.items() if n not in ("angles", "bias", "magnitude")}
    layers = {"attention": lambda p, x: multi_head_attention(p, x, x, x, mask, **scores)[0]}
    if memory is not None:
        layers["cross_attention"] = lambda p, x: multi_head_attention(
            p, x, memory, memory, memory_mask, **cross
        )[0]
    layers["feed_forward"] = lambda p, x: feed_forward(p, x, activation)

    def apply_norm(name, x):
        parameters = getattr(params, name, None)
        return x if parameters is None else norm(parameters, x)

    for name, layer in layers.items():
        inner, outer, layer_params = f"{name}_norm", f"{name}_output_norm", getattr(params, name)
        if pre_norm:
            x = x + apply_norm(outer, layer(layer_params, apply_norm(inner, x)))
        else:
            x = apply_norm(inner, x + apply_norm(outer, layer(layer_params, x)))
    return x


def sinusoidal_positions(length, dim, base=10_000.0, split=False):
    columns = np.array([*range(0, dim, 2), *range(1, dim, 2)] if split else range(dim))
    angles = np.arange(length)[:, None] / base ** (2 * (columns // 2) / dim)
    return np.where(columns % 2, np.cos(angles), np.sin(angles))


def llama3_frequencies(frequencies, factor, original_context, low=1.0, high=4.0):
    """Scale frequencies by wavelength, as Llama 3.1's code does."""
    scaled = []
    for frequency in frequencies:
        wavelength = 2 * math.pi / frequency
        if wavelength < original_context / high:
            scaled.append(frequency)
        elif wavelength > original_context / low:
            scaled.append(frequency / factor)
        else:
            smooth = (original_context / wavelength - low) / (high - low)
            scaled.append((1 - smooth) * frequency / factor + smooth * frequency)
    return np.array(scaled)


def yarn_frequencies(frequencies, factor, original_context, fast=32.0, slow=1.0, base=10_000.0):
    """Scale frequencies by number of turns (Peng et al. 2023, eq. 23, rounded as in their code)."""
    dim = 2 * len(frequencies)

    def dimension(turns):  # i of the frequency base^(-2i/dim) with this number of turns
        return dim / 2 * math.log(original_context / (2 * math.pi * turns), base)

    first, last = max(math.floor(dimension(fast)), 0), min(math.ceil(dimension(slow)), dim - 1)
    scaled = []
    for i, frequency in enumerate(frequencies):
        ramp = min(max((i - first) / (last - first), 0.0), 1.0)
        scaled.append((1 - ramp) * frequency + ramp * frequency / factor)
    return np.array(scaled)


def relative_bucket(distance, buckets, longest, causal):
    """Return T5's bucket of one distance s - t."""
    if not causal:
        buckets //= 2
        if distance > 0:
            return buckets + relative_bucket(-distance, buckets, longest, causal=True)
    far = max(-distance, 0)
    exact = buckets // 2
    if far < exact:
        return far
    steps = math.log(far / exact) / math.log(longest / exact) * (buckets - exact)
    return min(exact + math.floor(steps + 1e-9), buckets - 1)


def alibi(positions, key_positions, num_heads):
    slopes = 2 ** (-8 * np.arange(1, num_heads + 1) / num_heads)
    return -np.multiply.outer(slopes, np.abs(np.subtract.outer(positions, key_positions)))


def rotary_angles(length, dim, base=10_000.0, scale=1.0):
    return np.outer(scale * np.arange(length), base ** (-2 * np.arange(dim // 2) / dim))


def rotate(x, angles):
    rotated = (x[:, 0::2] + 1j * x[:, 1::2]) * np.exp(1j * angles[: len(x)])
    return np.stack([rotated.real, rotated.imag], axis=-1).reshape(x.shape)


def interpolate_positions(table, length):
    at = np.minimum(np.arange(length) * len(table) / length, len(table) - 1)
    return np.stack([np.interp(at, np.arange(len(table)), column) for column in table.T], axis=1)


def cross_entropy(logits, targets, weights=None, smoothing=0.0):
    weights = np.ones(len(logits)) if weights is None else weights
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    smoothed = (1 - smoothing) * np.eye(logits.shape[1])[targets] + smoothing / logits.shape[1]
    return -(weights * (smoothed * log_p).sum(-1)).sum(), weights.sum()


def dense_pool(params, x, mask):
    return np.where(mask, linear(params, x)[:, 0], 0.0)


def mean_pool(x, mask):
    return x[mask].sum(0) / max(mask.sum(), 1)


def attention_pool(params, x, mask):
    odds = np.exp(linear(params, x[mask])[:, 0])
    return odds @ x[mask] / (odds.sum() or 1.0)


def parabolic_average(probabilities, mask):
    weights = (probabilities[mask] - 0.5) ** 2
    return weights @ probabilities[mask] / weights.sum() if weights.sum() else 0.5


def binary_cross_entropy(probabilities, targets):
    return -np.log(np.where(targets, probabilities, 1 - probabilities)).mean()


def bag_of_words(weights, bias, tokens):
    unique = sorted({int(token) for token in tokens if token >= 0})
    return weights[unique].sum(0) / math.sqrt(len(unique) or 1) + bias


def top_p(logits, p):
    """Return the smallest set of the most probable tokens that reaches p; of equals the first."""
    odds = [math.exp(value - max(logits)) for value in logits]
    indices, total = set(), 0.0
    for index in sorted(range(len(odds)), key=lambda i: -odds[i]):
        if total >= p and indices and p < 1:
            break
        indices.add(index)
        total += odds[index] / sum(odds)
    return indices
