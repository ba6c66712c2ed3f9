"""Text classifier: encoder, pool and linear head."""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from tlite import functional as F
from tlite.baselines.logistic import LogisticConfig, LogisticRegression
from tlite.config import validate_fields
from tlite.functional.layers import widen
from tlite.models.components import Projection, Sinusoidal
from tlite.models.config import PositionsField, TransformerConfig, component
from tlite.models.encoder import project
from tlite.models.init import init_linear, init_projection
from tlite.models.inputs import bidirectional_inputs
from tlite.models.parameters import as_params, set_params
from tlite.models.transformer import Transformer, embed, run_blocks

WIDE_SCALE = 3.0  # its weights have to grow large in as many steps as the transformer's


@dataclass(frozen=True)
class Pool:
    """How the vectors of a text's tokens become one vector; see `pool`."""

    method: Literal["dense", "mean", "attention", "first"] = "dense"
    """One number per token (dense), their mean, a weighted mean, or the first token's vector."""
    projection: Projection | None = None
    """Layer between the pool and the head."""

    def __post_init__(self):
        validate_fields(self)
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


def init_pool(
    pool_key: Key[Array, ""], projection_key: Key[Array, ""], config: "ClassifierConfig"
) -> dict:
    """Return the initial parameters of `pool`: its linear layer (D, 1) and its projection."""
    params = {}
    if config.pool.method in ("dense", "attention"):
        params["pool"] = init_linear(pool_key, config.width, 1, bias=config.bias)
    if config.pool.projection:
        params |= init_projection(config.pool.projection, projection_key, config)
    return params


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
class Wide:
    """Linear models of the text's words beside the transformer."""

    bigrams: int = 0
    """Above 0: add a logistic regression over the words and this many hashed bigrams of adjacent
    words to the logits ("Wide & deep learning", Cheng et al. 2016)."""
    word_rows: int = 0
    """N-grams of words of a linear model of the text; set from the data."""
    character_rows: int = 0
    """N-grams of characters of that model; set from the data."""

    def __post_init__(self):
        validate_fields(self, counts="bigrams word_rows character_rows")

    @property
    def has_ngrams(self) -> bool:
        return self.word_rows > 0 or self.character_rows > 0


@dataclass(frozen=True)
class ClassifierConfig(TransformerConfig):
    """Sizes and components of a classifier (`SequenceClassifier`)."""

    num_classes: int = 0
    """Number of classes C; 0: that of the data."""
    context: int = 50
    """Tokens T that a text is cut to."""
    num_blocks: int = 1
    """Transformer blocks."""
    positions: PositionsField = component(Sinusoidal())
    """Position encoding: added to the embedding, rotating queries and keys, or a bias of scores."""
    pool: Pool = Pool()
    """From the tokens' vectors to the text's."""
    head_bias: bool | None = None
    """Bias of the head; None: the model's `bias`."""
    wide: Wide = Wide()
    """Linear models beside the transformer."""

    def __post_init__(self):
        super().__post_init__()
        validate_fields(self, counts="num_classes")


class SequenceClassifier(Transformer):
    """Text classifier: tokens (..., T) to logits (..., C).

    Tokens below 0 are padding: no token attends to them, and the pool leaves them out. With
    n-grams, the columns after the context are features (`text.NgramTokenizer`) of the linear model.
    """

    config: ClassifierConfig

    def __init__(self, config: ClassifierConfig, *, rng: Key[Array, ""]):
        super().__init__(config, rng=rng)

    def init_head(self, rng: Key[Array, ""], config: ClassifierConfig) -> None:
        pool_key, head_key, projection_key = jax.random.split(rng, 3)
        set_params(self, init_pool(pool_key, projection_key, config))
        inputs = config.context if config.pool.method == "dense" else config.width
        bias = config.bias if config.head_bias is None else config.head_bias
        self.head = as_params(init_linear(head_key, inputs, config.num_classes, bias=bias))
        wide, words = config.wide, config.vocabulary_size

        def bag(rows: int, bigrams: int = 0) -> LogisticRegression:
            return LogisticRegression(LogisticConfig(rows, config.num_classes, bigrams=bigrams))

        if wide.bigrams:
            self.wide = bag(words, wide.bigrams)
        if wide.has_ngrams:
            self.word_ngrams = bag(words + wide.word_rows)
        if wide.character_rows:
            self.character_ngrams = bag(wide.character_rows)

    def __call__(self, tokens: Int[Array, "*batch T"], **kwargs) -> Float[Array, "*batch C"]:
        """Logits of the classes: those of `transformer_logits`, whose arguments these are, plus
        those of n-grams.

        Raises:
            ValueError: more tokens than the model's context, or no features of n-grams.
        """
        context = self.config.context
        if not self.config.wide.has_ngrams:
            return self.transformer_logits(tokens, **kwargs)
        if tokens.shape[-1] <= context:
            raise ValueError(
                f"tokens has {tokens.shape[-1]} columns; with n-grams it must have context + "
                "features: use encode_texts(texts, model.config.context)"
            )
        logits = self.transformer_logits(tokens[..., :context], **kwargs)
        return logits + self.feature_logits(tokens[..., context:])

    def transformer_logits(
        self,
        tokens: Int[Array, "*batch T"],
        *,
        rng: Key[Array, "..."] | None = None,
        tap: F.Tap = F.no_tap,
    ) -> Float[Array, "*batch C"]:
        """Logits without those of n-grams, whose linear model was fitted to the training texts and
        would leave the transformer nothing to learn.

        Args:
            rng: dropout key, or one per example; None: evaluation.
        """
        config, mask = self.config, tokens >= 0
        key = F.fold_in(rng, config.num_blocks + 1)
        if key is not None and config.embedding.word_dropout:
            mask &= F.dropout_mask(key, tokens.shape, config.embedding.word_dropout)
        x, inputs = embed(self, jnp.maximum(tokens, 0)), bidirectional_inputs(mask)
        x, _, _ = run_blocks(self, x, inputs, rng=rng, tap=tap)
        pooled = tap("pooled", pool(self, x, mask))
        if rng is not None:
            pooled = F.dropout(F.fold_in(rng, config.num_blocks + 2), pooled, config.dropout)
        logits = F.linear(self.head, pooled)
        if config.wide.bigrams:
            logits = logits + WIDE_SCALE * self.wide(tokens)
        return tap("logits", logits)

    def feature_logits(self, features: Int[Array, "*batch G"]) -> Float[Array, "*batch C"]:
        """Logits of the linear model of n-grams of words and of characters.

        Each of the two bags has length 1, regardless of the number of features of either kind.
        """
        first = self.config.vocabulary_size + self.config.wide.word_rows
        logits = self.word_ngrams(jnp.where(features < first, features, -1))
        if self.config.wide.character_rows:
            logits += self.character_ngrams(jnp.where(features < first, -1, features - first))
        return logits
