"""Logistic regression, the smallest model that learns by gradients; and what counting tells."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from tlite.functional.layers import check_tokens
from tlite.functional.random import mix


def logistic_regression(
    params: dict[str, Float[Array, "..."]], x: Float[Array, "*batch D"]
) -> Float[Array, "*batch"]:
    """P(class 1 | x) = sigmoid(x w + b), with params {"weights": (D,), "bias": ()}."""
    return jax.nn.sigmoid(x @ params["weights"] + params["bias"])


def binary_cross_entropy(
    probabilities: Float[Array, "*batch"], targets: Int[Array, "*batch"], eps: float = 1e-7
) -> Float[Array, ""]:
    """The mean of -log p where the target is 1 and of -log(1 - p) where it is 0, in nats.

    Probabilities are kept `eps` away from 0 and 1.
    """
    p = jnp.clip(probabilities, eps, 1 - eps)
    return -jnp.where(targets == 1, jnp.log(p), jnp.log1p(-p)).mean()


def gradient_descent(
    loss: Callable[[PyTree], Float[Array, ""]], params: PyTree, rate: float, steps: int
) -> tuple[PyTree, Float[Array, "N"]]:
    """params <- params - rate * gradient of loss, `steps` times; also the loss before each."""

    def update(params, _):
        value, gradient = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - rate * g, params, gradient), value

    return jax.lax.scan(update, params, length=steps)


def bag_of_words(
    weights: Float[Array, "V C"], bias: Float[Array, "C"], tokens: Int[Array, "*batch T"]
) -> Float[Array, "*batch C"]:
    """bias + sum of weights[token] over the different words of a text / sqrt(their number).

    That is a linear model of the vector with a 1 for every word of the vocabulary that occurs,
    scaled to length 1; how often it occurs does not matter. Tokens below 0 are padding.

    Raises:
        ValueError: a token is V or more; see `check_tokens`.
    """
    check_tokens(tokens, len(weights), padding=True)
    ordered = jnp.sort(tokens, axis=-1)
    before = jnp.concatenate([jnp.full_like(ordered[..., :1], -1), ordered[..., :-1]], axis=-1)
    first = (ordered >= 0) & (ordered != before)
    total = jnp.where(first[..., None], weights[jnp.maximum(ordered, 0)], 0).sum(-2)
    return bias + total / jnp.sqrt(jnp.maximum(first.sum(-1, keepdims=True), 1))


def with_bigrams(
    tokens: Int[Array, "*batch T"], vocabulary_size: int, num_pairs: int
) -> Int[Array, "*batch _"]:
    """The tokens, then an id from V to V + num_pairs - 1 for each pair of neighbours, by a hash.

    Weinberger et al. 2009: pairs that share an id share a weight. A pair with padding is padding.

    Raises:
        ValueError: a token is V or more; see `check_tokens`.
    """
    check_tokens(tokens, vocabulary_size, padding=True)
    left, right = tokens[..., :-1], tokens[..., 1:]
    hashed = mix(mix(left.astype(jnp.uint32)) + right.astype(jnp.uint32)) % jnp.uint32(num_pairs)
    is_pair = (left >= 0) & (right >= 0)
    pairs = jnp.where(is_pair, vocabulary_size + hashed.astype(tokens.dtype), -1)
    return jnp.concatenate([tokens, pairs], axis=-1)


def log_count_ratios(counts: Float[Array, "V C"], smoothing: float = 1.0) -> Float[Array, "V C"]:
    """log((p / |p|) / (q / |q|)) of each feature and class (Wang and Manning 2012, eq. for r).

    `counts` are the texts of each class that have the feature. p are those of the class and q
    those of all others, both with `smoothing` added; |p| is the sum over the features.
    """
    p, q = counts + smoothing, counts.sum(-1, keepdims=True) - counts + smoothing
    return jnp.log(p / p.sum(0)) - jnp.log(q / q.sum(0))
