"""Logistic regression on a bag of words: the baseline that a classifier has to beat."""

from dataclasses import dataclass, field

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, Key

from tlite import functional as F
from tlite.models.parameters import summary
from tlite.models.parts import check


@dataclass(frozen=True)
class LogisticConfig:
    """The sizes of a logistic regression."""

    vocabulary_size: int = 0
    """Number of tokens V; 0 takes it from the tokenizer."""
    num_classes: int = 0
    """Number of classes C; 0 takes it from the data."""
    context: int = 400
    """Tokens T that a text is cut to."""
    bigrams: int = field(default=0, metadata={"was": "pairs"})
    """Rows of weights for bigrams (two neighbouring words), which share them by a hash; 0: none."""

    def __post_init__(self):
        check(self, sizes="context", counts="vocabulary_size num_classes bigrams")


class LogisticRegression(nnx.Module):
    """`functional.bag_of_words` with its parameters: tokens (..., T) to logits (..., C)."""

    def __init__(self, config: LogisticConfig, *, rng: Key[Array, ""] | None = None):
        """The loss is convex: the weights start at 0 and the key is not needed."""
        rows = config.vocabulary_size + config.bigrams
        self.weights = nnx.Param(jnp.zeros((rows, config.num_classes)))
        self.bias = nnx.Param(jnp.zeros(config.num_classes))
        self.config = config

    def __call__(
        self,
        tokens: Int[Array, "*batch T"],
        *,
        rng: Key[Array, "..."] | None = None,
        observe: F.Observe = F.unobserved,
    ) -> Float[Array, "*batch C"]:
        """Logits of the classes; there is no dropout, so the key changes nothing."""
        if self.config.bigrams:
            tokens = F.with_bigrams(tokens, self.config.vocabulary_size, self.config.bigrams)
        weights = observe("weights", self.weights[...])
        return observe("logits", F.bag_of_words(weights, self.bias[...], tokens))

    def __str__(self) -> str:
        return summary(self)
