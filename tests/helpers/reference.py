"""The formulas of `tlite.functional` once more: plain loops over one sample, float64 NumPy."""

import math
from collections.abc import Callable

import numpy as np


def attention(query, key, value, mask=None, *, scale=None, softcap=None, bias=None):
    weights = np.zeros((len(query), len(key)))
    output = np.zeros((len(query), value.shape[1]))
    scale = 1 / math.sqrt(query.shape[1]) if scale is None else scale
    for t, q in enumerate(query):
        seen = [s for s in range(len(key)) if mask is None or mask[t, s]]
        scores = {s: sum(q[i] * key[s, i] for i in range(len(q))) * scale for s in seen}
        if softcap is not None:
            scores = {s: softcap * math.tanh(score / softcap) for s, score in scores.items()}
        if bias is not None:
            scores = {s: score + bias[t, s] for s, score in scores.items()}
        total = sum(math.exp(score) for score in scores.values())
        for s in seen:
            weights[t, s] = math.exp(scores[s]) / total
            output[t] += weights[t, s] * value[s]
    return output, weights


def rms_norm(params, x, eps=1e-5, offset=0.0):
    y = np.zeros_like(x)
    for t, row in enumerate(x):
        size = math.sqrt(sum(value**2 for value in row) / len(row) + eps)
        for i, value in enumerate(row):
            y[t, i] = value / size * (offset + params.scale[i])
    return y


def multi_head_attention(
    params,
    query,
    key,
    value,
    mask=None,
    *,
    num_heads,
    angles=None,
    norm=rms_norm,
    bias=None,
    magnitude=1.0,
    **settings,
):
    query, key, value = (
        linear(layer, x)
        for layer, x in ((params.query, query), (params.key, key), (params.value, value))
    )
    width = query.shape[1] // num_heads
    of_each = num_heads // (key.shape[1] // width)  # queries of a key
    outputs, weights = [], []
    for head in range(num_heads):
        columns = slice(head * width, (head + 1) * width)
        of_keys = slice(head // of_each * width, (head // of_each + 1) * width)
        q, k = query[:, columns], key[:, of_keys]
        if getattr(params, "query_norm", None) is not None:
            q, k = norm(params.query_norm, q), norm(params.key_norm, k)
        if angles is not None:
            q, k = magnitude * rotate(q, angles), magnitude * rotate(k, angles)
        mask_of, bias_of = (None if x is None else x[head] for x in (mask, bias))
        output, weight = attention(q, k, value[:, of_keys], mask_of, bias=bias_of, **settings)
        outputs.append(output)
        weights.append(weight)
    return linear(params.output, np.concatenate(outputs, axis=1)), np.stack(weights)


def linear(params, x):
    y = np.zeros((len(x), params.kernel.shape[1]))
    for t, row in enumerate(x):
        for j in range(y.shape[1]):
            y[t, j] = sum(row[i] * params.kernel[i, j] for i in range(len(row)))
            if params.bias is not None:
                y[t, j] += params.bias[j]
    return y


def relu(x):
    return np.where(x > 0, x, 0.0)


def squared_relu(x):
    return np.array([[value * value if value > 0 else 0.0 for value in row] for row in x])


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
    logits = np.zeros((len(x), len(table)))
    for t, row in enumerate(x):
        for v, of_token in enumerate(table):
            logits[t, v] = sum(a * b for a, b in zip(row, of_token, strict=True))
            logits[t, v] += 0.0 if bias is None else bias[v]
    return logits


def soft_cap(x, cap):
    return np.array([[cap * math.tanh(value / cap) for value in row] for row in x])


def layer_norm(params, x, eps=1e-5):
    y = np.zeros_like(x)
    for t, row in enumerate(x):
        mean = sum(row) / len(row)
        variance = sum((value - mean) ** 2 for value in row) / len(row)
        for i, value in enumerate(row):
            y[t, i] = (value - mean) / math.sqrt(variance + eps) * params.scale[i]
            if params.bias is not None:
                y[t, i] += params.bias[i]
    return y


def encoder_block(params, x, mask=None, **settings):
    return decoder_block(params, x, None, mask, **settings)


def decoder_block(
    params,
    x,
    memory,
    mask=None,
    memory_mask=None,
    *,
    num_heads,
    pre_norm=False,
    activation=relu,
    norm=layer_norm,
    angles=None,
    bias=None,
    magnitude=1.0,
    **scores,
):
    scores |= {"num_heads": num_heads, "norm": norm}

    def attend(x):
        inputs = (params.attention, x, x, x, mask)
        own = {"angles": angles, "bias": bias, "magnitude": magnitude}
        return multi_head_attention(*inputs, **own, **scores)[0]

    def look_across(x):
        inputs = (params.cross_attention, x, memory, memory, memory_mask)
        return multi_head_attention(*inputs, **scores)[0]

    def feed(x):
        return feed_forward(params.feed_forward, x, activation)

    def normed(name, x):
        parameters = getattr(params, name, None)
        return x if parameters is None else norm(parameters, x)

    layers = {"attention": attend, "cross_attention": look_across, "feed_forward": feed}
    if memory is None:
        del layers["cross_attention"]
    for name, layer in layers.items():
        inner, outer = f"{name}_norm", f"{name}_output_norm"
        if pre_norm:
            x = x + normed(outer, layer(normed(inner, x)))
        else:
            x = normed(inner, x + normed(outer, layer(x)))
    return x


def sinusoidal_positions(length, dim, base=10_000.0, split=False):
    table = np.zeros((length, dim))
    order = [*range(0, dim, 2), *range(1, dim, 2)] if split else range(dim)
    for p in range(length):
        for place, column in enumerate(order):
            angle = p / base ** (2 * (column // 2) / dim)
            table[p, place] = math.cos(angle) if column % 2 else math.sin(angle)
    return table


def add_positions(table, x):
    return np.stack([row + table[t] for t, row in enumerate(x)])


def llama3_frequencies(frequencies, factor, original_context, low=1.0, high=4.0):
    """By wavelengths, as Llama 3.1's own code has it."""
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
    """By the place that turns so often (Peng et al. 2023, eq. 23, rounded as their code does)."""
    dim = 2 * len(frequencies)

    def dimension(turns):  # the i of the frequency base^(-2i/dim) that turns so often
        return dim / 2 * math.log(original_context / (2 * math.pi * turns), base)

    first, last = max(math.floor(dimension(fast)), 0), min(math.ceil(dimension(slow)), dim - 1)
    scaled = []
    for i, frequency in enumerate(frequencies):
        slowed = min(max((i - first) / (last - first), 0.0), 1.0)
        scaled.append((1 - slowed) * frequency + slowed * frequency / factor)
    return np.array(scaled)


def relative_bucket(distance, buckets, longest, causal):
    """Of one distance s - t: T5's, of a whole number."""
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
    bias = np.zeros((num_heads, len(positions), len(key_positions)))
    for h, t, s in np.ndindex(*bias.shape):
        bias[h, t, s] = -abs(positions[t] - key_positions[s]) / 2 ** (8 * (h + 1) / num_heads)
    return bias


def rotary_angles(length, dim, base=10_000.0, scale=1.0):
    angles = np.zeros((length, dim // 2))
    for p in range(length):
        for i in range(dim // 2):
            angles[p, i] = scale * p / base ** (2 * i / dim)
    return angles


def rotate(x, angles):
    y = np.zeros_like(x)
    for p, row in enumerate(x):
        for i in range(len(row) // 2):
            turned = complex(row[2 * i], row[2 * i + 1]) * np.exp(1j * angles[p, i])
            y[p, 2 * i], y[p, 2 * i + 1] = turned.real, turned.imag
    return y


def interpolate_positions(table, length):
    rows = []
    for t in range(length):
        at = min(t * len(table) / length, len(table) - 1)
        columns = (np.interp(at, np.arange(len(table)), column) for column in table.T)
        rows.append(np.array(list(columns)))
    return np.stack(rows)


def cross_entropy(logits, targets, weights=None, smoothing=0.0):
    total, count = 0.0, 0.0
    for n, (row, target) in enumerate(zip(logits, targets, strict=True)):
        weight = 1.0 if weights is None else weights[n]
        largest = max(row)
        log_sum = largest + math.log(sum(math.exp(value - largest) for value in row))
        for v, value in enumerate(row):
            wanted = smoothing / len(row) + (1 - smoothing) * (v == target)
            total += weight * wanted * (log_sum - value)
        count += weight
    return total, count


def dense_pool(params, x, mask):
    return np.where(mask, linear(params, x)[:, 0], 0.0)


def mean_pool(x, mask):
    return sum(x[mask], np.zeros(x.shape[1])) / max(mask.sum(), 1)


def attention_pool(params, x, mask):
    odds = [math.exp(score) for score in linear(params, x[mask])[:, 0]]
    weighted = (odd / sum(odds) * row for odd, row in zip(odds, x[mask], strict=True))
    return sum(weighted, np.zeros(x.shape[1]))


def parabolic_average(probabilities, mask):
    weights = [(p - 0.5) ** 2 for p in probabilities[mask]]
    if sum(weights) == 0:
        return 0.5
    return sum(w * p for w, p in zip(weights, probabilities[mask], strict=True)) / sum(weights)


def binary_cross_entropy(probabilities, targets):
    losses = [
        -math.log(p if target else 1 - p) for p, target in zip(probabilities, targets, strict=True)
    ]
    return sum(losses) / len(losses)


def bag_of_words(weights, bias, tokens):
    occurs = np.zeros(len(weights))
    occurs[[token for token in tokens if token >= 0]] = 1
    length = math.sqrt(sum(occurs**2)) or 1.0
    return occurs / length @ weights + bias


def top_p(logits, p):
    """The indices of the fewest most probable tokens that reach p; of equals the first."""
    odds = [math.exp(value - max(logits)) for value in logits]
    kept, reached = [], 0.0
    for index in sorted(range(len(odds)), key=lambda i: -odds[i]):
        if reached >= p and kept and p < 1:
            break
        kept.append(index)
        reached += odds[index] / sum(odds)
    return set(kept)
