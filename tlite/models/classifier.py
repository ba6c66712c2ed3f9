"""Text classifier: encoder, pool and linear head."""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from tlite import functional as F
from tlite.baselines.logistic import LogisticConfig, LogisticRegression
from tlite.functional.layers import widen
from tlite.models.config import TransformerConfig
from tlite.models.parameters import as_params, set_params
from tlite.models.parts import PositionsPart, Projection, Sinusoidal, check, component, linear
from tlite.models.stack import Encoder

WIDE_SCALE = 3.0  # its weights have to grow large in as many steps as the transformer's


@dataclass(frozen=True)
class Pool:
    """How the vectors of a text's tokens become one vector; see `pool`."""

    method: Literal["dense", "mean", "attention", "first"] = "dense"
    """One number per token (dense), their mean, a weighted mean, or the first token's vector."""
    projection: Projection | None = None
    """Layer between the pool and the head."""

    def __post_init__(self):
        check(self)
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
        params["pool"] = linear(pool_key, config.width, 1, bias=config.bias)
    if config.pool.projection:
        params |= config.pool.projection.init(projection_key, config)
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
    return config.pool.projection(model, y) if config.pool.projection else y


@dataclass(frozen=True)
class Wide:
    """Linear models of the text's words beside the transformer."""

    bigrams: int = 0
    """With more than 0, a logistic regression over the words and this many hashed bigrams of
    neighbouring words is added to the logits ("Wide & deep learning", Cheng et al. 2016)."""
    word_rows: int = 0
    """N-grams of words that a linear model of the text knows; the data decides, as for classes."""
    character_rows: int = 0
    """N-grams of characters that it knows; the data decides."""

    def __post_init__(self):
        check(self, counts="bigrams word_rows character_rows")

    @property
    def has_ngrams(self) -> bool:
        return self.word_rows > 0 or self.character_rows > 0


@dataclass(frozen=True)
class ClassifierConfig(TransformerConfig):
    """The sizes and parts of a classifier."""

    num_classes: int = 0
    """Number of classes C; 0 takes it from the data."""
    context: int = 50
    """Tokens T that a text is cut to."""
    num_blocks: int = 1
    """Transformer blocks."""
    positions: PositionsPart = component(Sinusoidal())
    """How positions enter: added to the embedding, rotating queries and keys, or as a bias of
    scores by the distance."""
    pool: Pool = Pool()
    """From words to a text."""
    head_bias: bool | None = None
    """A bias of the head; as the model's unless given."""
    wide: Wide = Wide()
    """Linear models beside the transformer."""

    def __post_init__(self):
        super().__post_init__()
        check(self, counts="num_classes")


class SequenceClassifier(Encoder):
    """Embedding, positions, dropout, blocks, pool, head: tokens (..., T) to logits (..., C).

    A token below 0 is padding: nothing attends to it and it does not reach the head. With n-grams
    what comes after the context are features of the text (`text.NgramTokenizer`) for the linear
    model alone, `feature_logits`.
    """

    config: ClassifierConfig

    def init_head(self, rng: Key[Array, ""], config: ClassifierConfig) -> None:
        pool_key, head_key, projection_key = jax.random.split(rng, 3)
        set_params(self, init_pool(pool_key, projection_key, config))
        inputs = config.context if config.pool.method == "dense" else config.width
        bias = config.bias if config.head_bias is None else config.head_bias
        self.head = as_params(linear(head_key, inputs, config.num_classes, bias=bias))
        wide, words = config.wide, config.vocabulary_size

        def bag(rows: int, bigrams: int = 0) -> LogisticRegression:
            return LogisticRegression(LogisticConfig(rows, config.num_classes, bigrams=bigrams))

        if wide.bigrams:
            self.wide = bag(words, wide.bigrams)
        if wide.has_ngrams:
            self.word_ngrams = bag(words + wide.word_rows)
        if wide.character_rows:
            self.character_ngrams = bag(wide.character_rows)

    def __call__(self, tokens: Int[Array, "*batch T"], **settings) -> Float[Array, "*batch C"]:
        """Logits of the classes: those of `read`, whose settings these are, and of n-grams.

        Raises:
            ValueError: more tokens than the model's context, or no features of n-grams.
        """
        context = self.config.context
        if not self.config.wide.has_ngrams:
            return self.read(tokens, **settings)
        if tokens.shape[-1] <= context:
            raise ValueError("the features are missing: encode_texts(texts, model.config.context)")
        logits = self.read(tokens[..., :context], **settings)
        return logits + self.feature_logits(tokens[..., context:])

    def read(
        self,
        tokens: Int[Array, "*batch T"],
        *,
        rng: Key[Array, "..."] | None = None,
        tap: F.Tap = F.no_tap,
    ) -> Float[Array, "*batch C"]:
        """Logits without those of n-grams, as in training: the linear model of these was fitted to
        the very texts, and would leave the transformer nothing to learn.

        Args:
            rng: the key of dropout, or one a sample. None evaluates the model: every dropout rate
                counts as 0.
        """
        config = self.config
        mask = tokens >= 0
        noise = F.fold_in(rng, config.num_blocks + 1)
        if noise is not None and config.embedding.word_dropout:
            mask &= F.dropout_mask(noise, tokens.shape, config.embedding.word_dropout)
        x, sees = self.embed(jnp.maximum(tokens, 0)), mask[..., None, None, :]
        x, _ = self.run_blocks(x, sees, rng=rng, tap=tap)
        pooled = tap("pooled", pool(self, x, mask))
        rate = 0.0 if rng is None else config.dropout
        pooled = F.dropout(F.fold_in(rng, config.num_blocks + 2), pooled, rate)
        logits = F.linear(self.head, pooled)
        return logits + WIDE_SCALE * self.wide(tokens) if config.wide.bigrams else logits

    def feature_logits(self, features: Int[Array, "*batch G"]) -> Float[Array, "*batch C"]:
        """Of the linear model: of words and their n-grams, and of those of characters.

        Each of the two bags has length 1, however many features a text has of either kind.
        """
        first = self.config.vocabulary_size + self.config.wide.word_rows
        logits = self.word_ngrams(jnp.where(features < first, features, -1))
        if self.config.wide.character_rows:
            logits += self.character_ngrams(jnp.where(features < first, -1, features - first))
        return logits
