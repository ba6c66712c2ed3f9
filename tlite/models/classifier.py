"""Classifiers, which give a text a score for each class: the encoder, and a linear baseline."""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

from tlite import functional as F
from tlite.models.config import TransformerConfig
from tlite.models.parameters import as_params, set_params
from tlite.models.parts import PositionsPart, Projection, Sinusoidal, check, component, linear
from tlite.models.stack import Encoder

WIDE_SCALE = 3.0  # its weights have to grow large in as many steps as the transformer's


@dataclass(frozen=True)
class LogisticConfig:
    """The sizes of a logistic regression."""

    vocabulary_size: int = 0
    """Number of tokens V; 0 takes it from the tokenizer."""
    num_classes: int = 0
    """Number of classes C; 0 takes it from the data."""
    context: int = 400
    """Tokens T that a text is cut to."""
    bigrams: int = 0
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
        tap: F.Tap = F.no_tap,
    ) -> Float[Array, "*batch C"]:
        """Logits of the classes; there is no dropout, so the key changes nothing."""
        if self.config.bigrams:
            tokens = F.with_bigrams(tokens, self.config.vocabulary_size, self.config.bigrams)
        weights = tap("weights", self.weights[...])
        return tap("logits", F.bag_of_words(weights, self.bias[...], tokens))


@dataclass(frozen=True)
class Pool:
    """From the vectors of words to one of the text."""

    method: Literal["dense", "mean", "attention", "first"] = "dense"
    """A number for each word, the mean vector, a weighted mean, or the first token's vector."""
    projection: Projection | None = None
    """A layer of the text's vector before the head."""

    def __post_init__(self):
        check(self)
        if self.projection and self.method == "dense":
            raise ValueError("a projection needs a vector: not the dense pool")

    def init(self, pool_key: Key[Array, ""], projection_key: Key[Array, ""], config) -> dict:
        """The linear layer `pool` of a dense pool or of attention, and those of the projection."""
        has_layer = self.method in ("dense", "attention")
        layers = {"pool": linear(pool_key, config.width, 1, bias=config.bias)} if has_layer else {}
        if self.projection:
            layers |= self.projection.init(projection_key, config)
        return layers

    def __call__(
        self, model, x: Float[Array, "*batch T D"], mask: Bool[Array, "*batch T"]
    ) -> Float[Array, "*batch N"]:
        if self.method == "first":
            vector = x[..., 0, :]
        elif self.method == "mean":
            vector = F.mean_pool(x, mask)
        elif self.method == "attention":
            vector = F.attention_pool(model.pool, x, mask)
        else:
            vector = F.dense_pool(model.pool, x, mask)
            missing = model.config.context - vector.shape[-1]
            vector = jnp.pad(vector, [(0, 0)] * (vector.ndim - 1) + [(0, missing)])
        return self.projection(model, vector) if self.projection else vector


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
        set_params(self, config.pool.init(pool_key, projection_key, config))
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
        pooled = tap("pooled", config.pool(self, x, mask))
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
