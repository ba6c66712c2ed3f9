"""The formulas of `tlite.functional` once more: plain loops over one sample, float64 NumPy."""

import math
from collections.abc import Callable

import numpy as np


def attention(query, key, value, mask=None):
    weights = np.zeros((len(query), len(key)))
    output = np.zeros((len(query), value.shape[1]))
    for t, q in enumerate(query):
        seen = [s for s in range(len(key)) if mask is None or mask[t, s]]
        scores = {s: sum(q[i] * key[s, i] for i in range(len(q))) / math.sqrt(len(q)) for s in seen}
        total = sum(math.exp(score) for score in scores.values())
        for s in seen:
            weights[t, s] = math.exp(scores[s]) / total
            output[t] += weights[t, s] * value[s]
    return output, weights


def multi_head_attention(params, query, key, value, mask=None, *, num_heads, angles=None):
    query, key = linear(params.query, query), linear(params.key, key)
    value = linear(params.value, value)
    width = query.shape[1] // num_heads
    outputs, weights = [], []
    for head in range(num_heads):
        columns = slice(head * width, (head + 1) * width)
        q, k = query[:, columns], key[:, columns]
        if angles is not None:
            q, k = rotate(q, angles), rotate(k, angles)
        output, weight = attention(q, k, value[:, columns], None if mask is None else mask[head])
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


def feed_forward(params, x, activation: Callable = relu):
    return linear(params.output, activation(linear(params.hidden, x)))


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


def rms_norm(params, x, eps=1e-5):
    y = np.zeros_like(x)
    for t, row in enumerate(x):
        size = math.sqrt(sum(value**2 for value in row) / len(row) + eps)
        for i, value in enumerate(row):
            y[t, i] = value / size * params.scale[i]
    return y


def encoder_block(
    params,
    x,
    mask=None,
    *,
    num_heads,
    pre_norm=False,
    activation=relu,
    norm=layer_norm,
    angles=None,
):
    def attend(x):
        inputs = (params.attention, x, x, x, mask)
        return multi_head_attention(*inputs, num_heads=num_heads, angles=angles)[0]

    def feed(x):
        return feed_forward(params.feed_forward, x, activation)

    if pre_norm:
        x = x + attend(norm(params.attention_norm, x))
        return x + feed(norm(params.feed_forward_norm, x))
    x = norm(params.attention_norm, x + attend(x))
    return norm(params.feed_forward_norm, x + feed(x))


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
):
    def attend(x):
        inputs = (params.attention, x, x, x, mask)
        return multi_head_attention(*inputs, num_heads=num_heads, angles=angles)[0]

    def look_across(x):
        inputs = (params.cross_attention, x, memory, memory, memory_mask)
        return multi_head_attention(*inputs, num_heads=num_heads)[0]

    def feed(x):
        return feed_forward(params.feed_forward, x, activation)

    layers = {"attention": attend, "cross_attention": look_across, "feed_forward": feed}
    for name, layer in layers.items():
        normed = getattr(params, f"{name}_norm")
        x = x + layer(norm(normed, x)) if pre_norm else norm(normed, x + layer(x))
    return x


def sinusoidal_positions(length, dim, base=10_000.0):
    table = np.zeros((length, dim))
    for p in range(length):
        for column in range(dim):
            angle = p / base ** (2 * (column // 2) / dim)
            table[p, column] = math.cos(angle) if column % 2 else math.sin(angle)
    return table


def add_positions(table, x):
    return np.stack([row + table[t] for t, row in enumerate(x)])


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
