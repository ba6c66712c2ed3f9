"""Text classifier: encoder, pool and linear head."""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

import tlite.functional as F
from tlite.config import Config
from tlite.functional.layers import widen
from tlite.models.block import Aux
from tlite.models.components import Projection, Sinusoidal
from tlite.models.config import PositionsField, TransformerConfig, component
from tlite.models.encoder import project
from tlite.models.init import init_linear, init_projection
from tlite.models.inputs import bidirectional_inputs
from tlite.models.logistic import LogisticConfig, LogisticRegression
from tlite.models.parameters import as_params, set_params
from tlite.models.transformer import Transformer, embed, run_blocks

WIDE_SCALE = 3.0  # lets large weights of the linear model develop in as few training steps


@dataclass(frozen=True)
class Pool(Config):
    """Pooling of the vectors of a text's tokens into one vector; see `pool`."""

    method: Literal["dense", "mean", "attention", "first"] = "dense"
    """One number per token (dense), their mean, a weighted mean, or the first token's vector."""
    projection: Projection | None = None
    """Layer between the pool and the head."""

    def __post_init__(self):
        super().__post_init__()
        if self.projection and self.method == "dense":
            raise ValueError("pool.projection needs a pool.method other than 'dense'")


def dense_pool(
    params, x: Float[Array, "*batch T D"], mask: Bool[Array, "*batch T"]
) -> Float[Array, "*batch T"]:
    """x_t w + b for each token, 0 for padding; `params` is a linear layer (D, 1)."""
    return jnp.where(mask, F.linear(params, x)[..., 0], 0)


def mean_pool(
    x: Float[Array, "*batch T D"], mask: Bool[Array, "*batch T"]
) -> Float[Array, "*batch D"]:
    """Mean of the vectors of the tokens where `mask` is True, summed in float32; 0 if none is."""
    count = jnp.maximum(mask.sum(-1, keepdims=True), 1)
    return (jnp.where(mask[..., None], widen(x), 0).sum(-2) / count).astype(x.dtype)


def attention_pool(
    params, x: Float[Array, "*batch T D"], mask: Bool[Array, "*batch T"]
) -> Float[Array, "*batch D"]:
    """sum_t softmax(x w + b)_t x_t (Yang et al. 2016, eq. 5-7, without the hidden layer).

    `params` is a linear layer (D, 1). Padding has weight 0; 0 if `mask` is False everywhere.
    """
    weights = jax.nn.softmax(widen(F.linear(params, x)[..., 0]), axis=-1, where=mask)
    return jnp.einsum("...t,...td->...d", weights, x).astype(x.dtype)


def pool(
    model, x: Float[Array, "*batch T D"], mask: Bool[Array, "*batch T"]
) -> Float[Array, "*batch N"]:
    """Pool a classifier's token vectors (..., T, D) to (..., D); "dense" to (..., context)."""
    config = model.config
    if config.pool.method == "dense":
        y = dense_pool(model.pool, x, mask)
        return jnp.pad(y, [(0, 0)] * (y.ndim - 1) + [(0, config.context - y.shape[-1])])
    if config.pool.method == "first":
        y = x[..., 0, :]
    elif config.pool.method == "mean":
        y = mean_pool(x, mask)
    else:
        y = attention_pool(model.pool, x, mask)
    return project(config.pool.projection, model, y) if config.pool.projection else y


@dataclass(frozen=True)
class Wide(Config, counts="bigrams num_word_ngrams num_character_ngrams"):
    """Linear models of words and n-grams, whose logits are added to the transformer's.

    "Wide & deep learning" (Cheng et al. 2016).
    """

    bigrams: int = 0
    """Number of hashed bigrams in a logistic regression on words and bigrams, trained with the
    transformer; 0: no such model."""
    num_word_ngrams: int = 0
    """Word n-grams of a linear model fitted to the training texts; set from the data."""
    num_character_ngrams: int = 0
    """Character n-grams of that model; set from the data."""

    @property
    def has_ngrams(self) -> bool:
        return self.num_word_ngrams > 0 or self.num_character_ngrams > 0


@dataclass(frozen=True)
class ClassifierConfig(TransformerConfig, counts="num_classes"):
    """Sizes and components of a classifier (`SequenceClassifier`)."""

    num_classes: int = 0
    """Number of classes C; 0: that of the data."""
    context: int = 50
    """Number of tokens T to which a text is truncated."""
    num_blocks: int = 1
    """Transformer blocks."""
    positions: PositionsField = component("positions", Sinusoidal())
    """Position encoding: added to the embedding, rotating queries and keys, or a bias of scores."""
    pool: Pool = Pool()
    """Pooling of the vectors of a text's tokens into one vector."""
    head_bias: bool | None = None
    """Bias of the head; None: the model's `bias`."""
    wide: Wide = Wide()
    """Linear models beside the transformer."""


class SequenceClassifier(Transformer):
    """Text classifier: tokens (..., T) to logits (..., C).

    Negative tokens are padding: no token attends to them, and pools leave them out. With n-grams,
    columns after the context are features (`text.NgramTokenizer`) of the linear model alone.
    """

    config: ClassifierConfig

    def init_head(self, rng: Key[Array, ""], config: ClassifierConfig) -> None:
        pool_key, head_key, projection_key = jax.random.split(rng, 3)
        if config.pool.method in ("dense", "attention"):
            self.pool = as_params(init_linear(pool_key, config.width, 1, bias=config.bias))
        if config.pool.projection:
            set_params(self, init_projection(config.pool.projection, projection_key, config))
        inputs = config.context if config.pool.method == "dense" else config.width
        bias = config.bias if config.head_bias is None else config.head_bias
        self.head = as_params(init_linear(head_key, inputs, config.num_classes, bias=bias))
        wide, num_words = config.wide, config.vocabulary_size

        def linear_model(size: int, bigrams: int = 0) -> LogisticRegression:
            return LogisticRegression(LogisticConfig(size, config.num_classes, bigrams=bigrams))

        if wide.bigrams:
            self.wide = linear_model(num_words, wide.bigrams)
        if wide.has_ngrams:
            self.word_ngrams = linear_model(num_words + wide.num_word_ngrams)
        if wide.num_character_ngrams:
            self.character_ngrams = linear_model(wide.num_character_ngrams)

    def __call__(
        self,
        tokens: Int[Array, "*batch T"],
        *,
        rng: Key[Array, "..."] | None = None,
        tap: F.Tap = F.no_tap,
    ) -> Float[Array, "*batch C"]:
        """Return the logits of the classes.

        Args:
            rng: dropout key, or one per example; None: evaluation.

        Raises:
            ValueError: more tokens than the model's context, or no n-gram features.
        """
        context, tap = self.config.context, F.scoped(tap, "")
        if not self.config.wide.has_ngrams:
            return tap("logits", self.logits_and_aux(tokens, rng=rng, tap=tap)[0])
        if tokens.shape[-1] <= context:
            raise ValueError(
                f"tokens has {tokens.shape[-1]} columns; with n-grams it must have context + "
                "features: use tokenizer.encode_texts(texts, model.config.context)"
            )
        logits, _ = self.logits_and_aux(tokens[..., :context], rng=rng, tap=tap)
        return tap("logits", logits + self.ngram_logits(tokens[..., context:]))

    def logits_and_aux(
        self,
        tokens: Int[Array, "*batch T"],
        *,
        rng: Key[Array, "..."] | None = None,
        tap: F.Tap = F.no_tap,
    ) -> tuple[Float[Array, "*batch C"], Aux]:
        """Return the logits without `ngram_logits`, and the layers' scalars, as in training.

        The linear model of n-grams fits the training texts already: with it the transformer would
        have nothing to learn.
        """
        config, mask = self.config, tokens >= 0
        word_key = F.fold_in(rng, config.num_blocks + 1)
        if word_key is not None and config.embedding.word_dropout:
            mask &= F.dropout_mask(word_key, tokens.shape, config.embedding.word_dropout)
        x, inputs = embed(self, jnp.maximum(tokens, 0)), bidirectional_inputs(mask)
        x, _, aux = run_blocks(self, x, inputs, rng=rng, tap=tap)
        pooled = tap("pooled", pool(self, x, mask))
        if rng is not None:
            pooled = F.dropout(F.fold_in(rng, config.num_blocks + 2), pooled, config.dropout)
        logits = F.linear(self.head, pooled)
        return logits + WIDE_SCALE * self.wide(tokens) if config.wide.bigrams else logits, aux

    def ngram_logits(self, features: Int[Array, "*batch G"]) -> Float[Array, "*batch C"]:
        """Return the logits of the linear models of words and their n-grams, and of characters.

        Ids of character n-grams follow those of words. Each of the two bags has length 1.
        """
        first = self.config.vocabulary_size + self.config.wide.num_word_ngrams
        logits = self.word_ngrams(jnp.where(features < first, features, -1))
        if self.config.wide.num_character_ngrams:
            logits += self.character_ngrams(jnp.where(features < first, -1, features - first))
        return logits
