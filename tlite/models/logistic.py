"""Logistic regression on vectors and bags of words, naive Bayes, and averages over sentences."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

import tlite.functional as F
from tlite.config import Config
from tlite.functional.layers import widen
from tlite.functional.random import mix


def logistic_regression(
    params: dict[str, Float[Array, "..."]], x: Float[Array, "*batch D"]
) -> Float[Array, "*batch"]:
    """P(class 1 | x) = sigmoid(x w + b), with params {"weights": (D,), "bias": ()}."""
    return jax.nn.sigmoid(x @ params["weights"] + params["bias"])


def binary_cross_entropy(
    probabilities: Float[Array, "*batch"], targets: Int[Array, "*batch"], eps: float = 1e-7
) -> Float[Array, ""]:
    """Mean of -log p where the target is 1 and of -log(1 - p) where it is 0, in nats.

    Probabilities are clipped to [eps, 1 - eps].
    """
    p = jnp.clip(probabilities, eps, 1 - eps)
    return -jnp.where(targets == 1, jnp.log(p), jnp.log1p(-p)).mean()


def gradient_descent(
    loss: Callable[[PyTree], Float[Array, ""]], params: PyTree, learning_rate: float, steps: int
) -> tuple[PyTree, Float[Array, "N"]]:
    """Repeat params <- params - learning_rate * gradient; return params and each step's loss."""

    def update(params, _):
        value, gradient = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - learning_rate * g, params, gradient), value

    return jax.lax.scan(update, params, length=steps)


def bag_of_words(
    weights: Float[Array, "V C"], bias: Float[Array, "C"], tokens: Int[Array, "*batch T"]
) -> Float[Array, "*batch C"]:
    """bias + (sum of weights[token] over the distinct tokens of a text) / sqrt(their number).

    A linear model of the binary bag-of-words vector (V,), scaled to length 1. Negative tokens are
    padding.

    Raises:
        ValueError: a token is V or more; see `functional.check_tokens`.
    """
    F.check_tokens(tokens, len(weights), padding=True)
    ordered = jnp.sort(tokens, axis=-1)
    previous = jnp.concatenate([jnp.full_like(ordered[..., :1], -1), ordered[..., :-1]], axis=-1)
    is_first = (ordered >= 0) & (ordered != previous)
    total = jnp.where(is_first[..., None], weights[jnp.maximum(ordered, 0)], 0).sum(-2)
    return bias + total / jnp.sqrt(jnp.maximum(is_first.sum(-1, keepdims=True), 1))


def with_bigrams(
    tokens: Int[Array, "*batch T"], vocabulary_size: int, num_bigrams: int
) -> Int[Array, "*batch _"]:
    """Append the hashed id of each bigram, in [V, V + num_bigrams), to the tokens.

    Bigrams with the same hash share a weight (Weinberger et al. 2009). A bigram that contains
    padding (a negative token) is padding.

    Raises:
        ValueError: a token is V or more; see `functional.check_tokens`.
    """
    F.check_tokens(tokens, vocabulary_size, padding=True)
    left, right = tokens[..., :-1], tokens[..., 1:]
    hashed = mix(mix(left.astype(jnp.uint32)) + right.astype(jnp.uint32)) % jnp.uint32(num_bigrams)
    is_bigram = (left >= 0) & (right >= 0)
    bigrams = jnp.where(is_bigram, vocabulary_size + hashed.astype(tokens.dtype), -1)
    return jnp.concatenate([tokens, bigrams], axis=-1)


def log_count_ratios(counts: Float[Array, "V C"], smoothing: float = 1.0) -> Float[Array, "V C"]:
    """log((p / |p|) / (q / |q|)) of each feature and class (Wang and Manning 2012, eq. for r).

    Args:
        counts: number of texts of each class that contain the feature. p are the counts of the
            class, q those of all other classes; |p| is the sum over features.
        smoothing: added to every p and q.
    """
    p, q = counts + smoothing, counts.sum(-1, keepdims=True) - counts + smoothing
    return jnp.log(p / p.sum(0)) - jnp.log(q / q.sum(0))


def parabolic_average(
    probabilities: Float[Array, "*batch S"], mask: Bool[Array, "*batch S"]
) -> Float[Array, "*batch"]:
    """Return sum_s w_s p_s / sum_s w_s with w = (p - 1/2)^2: confident sentences weigh most.

    It is 1/2 if every weight is 0 or there is no sentence. 16-bit values are summed in float32.
    """
    centred = widen(probabilities) - 0.5
    weights = jnp.where(mask, jnp.square(centred), 0)
    total = weights.sum(-1)
    mean = (weights * centred).sum(-1) / jnp.where(total > 0, total, 1)
    return (0.5 + mean).astype(probabilities.dtype)


@dataclass(frozen=True)
class LogisticConfig(Config, sizes="context", counts="vocabulary_size num_classes bigrams"):
    """Sizes of a logistic regression on bags of words."""

    vocabulary_size: int = 0
    """Number of tokens V; 0: taken from the tokenizer."""
    num_classes: int = 0
    """Number of classes C; 0: taken from the data."""
    context: int = 400
    """Number of tokens T to which a text is truncated."""
    bigrams: int = 0
    """Number of weights for hashed bigrams of words; 0: no bigrams."""


class LogisticRegression(nnx.Module):
    """`bag_of_words` with its parameters: tokens (..., T) to logits (..., C)."""

    def __init__(self, config: LogisticConfig, *, rng: Key[Array, ""] | None = None):
        """Start at zero, since the loss is convex; `rng` is not used."""
        features = config.vocabulary_size + config.bigrams
        self.weights = nnx.Param(jnp.zeros((features, config.num_classes)))
        self.bias = nnx.Param(jnp.zeros(config.num_classes))
        self.config = config

    def __call__(
        self,
        tokens: Int[Array, "*batch T"],
        *,
        rng: Key[Array, "..."] | None = None,
        tap: F.Tap = F.no_tap,
    ) -> Float[Array, "*batch C"]:
        """Return the logits of the classes; without dropout, `rng` is not used."""
        if self.config.bigrams:
            tokens = with_bigrams(tokens, self.config.vocabulary_size, self.config.bigrams)
        weights = tap("weights", self.weights[...])
        return tap("logits", bag_of_words(weights, self.bias[...], tokens))
