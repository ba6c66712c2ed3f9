"""The encoder classifier: reads a text, gives a score for each class."""

from dataclasses import dataclass, field
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from tlite import functional as F
from tlite.models.config import Activation, BlocksConfig, Positions, not_negative
from tlite.models.encoder import Encoder
from tlite.models.logistic import LogisticConfig, LogisticRegression
from tlite.models.masked import add_projection, project
from tlite.modules import Linear

NGRAM_ROWS = "word_ngram_rows", "character_ngram_rows"
WIDE_SCALE = 3.0  # its weights have to grow large in as many steps as the transformer's


@dataclass(frozen=True)
class ClassifierConfig(BlocksConfig):
    """The switches of a classifier."""

    num_classes: int = 0
    """Number of classes C; 0 takes it from the data."""
    context: int = 50
    """Tokens T that a text is cut to."""
    num_blocks: int = 1
    """Transformer blocks."""
    positions: Positions = "sinusoidal"
    """How positions enter: added to the embedding, rotating queries and keys, or as a bias of
    scores by the distance."""
    aggregation: Literal["dense", "mean", "attention", "first"] = "dense"
    """From words to a text: a number for each word, the mean vector, a weighted mean, or the first
    token's vector."""
    projection: Activation | None = None
    """With an activation, a layer of the text's vector before the head."""
    projection_bias: bool | None = None
    """A bias of this layer; as `bias` unless given."""
    projection_norm: bool = False
    """A norm after it."""
    head_bias: bool | None = None
    """A bias of the head; as `bias` unless given."""
    bigrams: int = field(default=0, metadata={"was": "pairs"})
    """With more than 0, a logistic regression over the words and this many hashed bigrams of
    neighbouring words is added to the logits ("Wide & deep learning", Cheng et al. 2016)."""
    word_ngram_rows: int = 0
    """N-grams of words that a linear model of the text knows; the data decides, as for classes."""
    character_ngram_rows: int = 0
    """N-grams of characters that it knows; the data decides."""
    word_dropout: float = 0.0
    """Chance that a word is hidden from the model in training."""

    def __post_init__(self):
        super().__post_init__()
        if not 0 <= self.word_dropout < 1:
            raise ValueError(f"the word dropout must be in [0, 1), not {self.word_dropout}")
        not_negative(self, "num_classes", "bigrams", *NGRAM_ROWS)
        if self.projection and self.aggregation == "dense":
            raise ValueError("a projection needs a vector: not the dense aggregation")

    @property
    def has_ngrams(self) -> bool:
        return self.word_ngram_rows > 0 or self.character_ngram_rows > 0


class TransformerClassifier(Encoder):
    """Embedding, positions, dropout, blocks, aggregation, head: tokens (..., T) to logits (..., C).

    A token below 0 is padding: nothing attends to it and it does not reach the head. With n-grams
    what comes after the context are features of the text (`text.NgramTokenizer`) for the linear
    model alone, `feature_logits`.
    """

    def __init__(self, config: ClassifierConfig, *, key: Key[Array, ""]):
        super().__init__(config, key=key)
        pool_key, head_key = jax.random.split(jax.random.split(key, 4)[2])
        if config.aggregation in ("dense", "attention"):
            self.pool = Linear(config.width, 1, bias=config.bias, key=pool_key)
        if config.projection:
            add_projection(self, config, jax.random.fold_in(head_key, 1))
        inputs = config.context if config.aggregation == "dense" else config.width
        bias = config.bias if config.head_bias is None else config.head_bias
        self.head = Linear(inputs, config.num_classes, bias=bias, key=head_key)
        if config.bigrams:
            self.wide = LogisticRegression(
                LogisticConfig(config.vocabulary_size, config.num_classes, bigrams=config.bigrams)
            )
        if config.has_ngrams:
            rows = config.vocabulary_size + config.word_ngram_rows
            self.word_ngrams = LogisticRegression(LogisticConfig(rows, config.num_classes))
        if config.character_ngram_rows:
            sizes = LogisticConfig(config.character_ngram_rows, config.num_classes)
            self.character_ngrams = LogisticRegression(sizes)

    def __call__(
        self,
        tokens: Int[Array, "*batch T"],
        *,
        key: Key[Array, "..."] | None = None,
        observe: F.Observe = F.unobserved,
    ) -> Float[Array, "*batch C"]:
        """Logits of the classes. A key, or one a sample, turns dropout on.

        Raises:
            ValueError: more tokens than the model's context, or no features of n-grams.
        """
        config = self.config
        if config.has_ngrams and key is None and tokens.shape[-1] <= config.context:
            raise ValueError("the features are missing: encode_texts(texts, model.config.context)")
        features = tokens[..., config.context :] if config.has_ngrams else tokens[..., :0]
        tokens = tokens[..., : config.context] if config.has_ngrams else tokens
        mask = tokens >= 0
        if key is not None and config.word_dropout:
            bits = F.random_bits(F.fold_in(key, config.num_blocks + 1), tokens.shape[key.ndim :])
            mask &= bits >= jnp.uint32(config.word_dropout * 2**32)
        noise = {"key": key, "observe": observe}
        x = self.encode(jnp.maximum(tokens, 0), mask[..., None, None, :], **noise)
        pooled = self.aggregate(x, mask)
        pooled = observe("pooled", project(self, pooled) if config.projection else pooled)
        if key is not None:
            pooled = F.dropout(F.fold_in(key, config.num_blocks + 2), pooled, config.dropout)
        logits = self.head(pooled)
        logits = logits + WIDE_SCALE * self.wide(tokens) if config.bigrams else logits
        # In training the transformer stands alone: the linear model was fitted to these very texts
        # and would leave it nothing to learn.
        return logits + self.feature_logits(features) if features.size and key is None else logits

    def feature_logits(self, features: Int[Array, "*batch G"]) -> Float[Array, "*batch C"]:
        """Of the linear model: of words and their n-grams, and of those of characters.

        Each of the two bags has length 1, however many features a text has of either kind.
        """
        first = self.config.vocabulary_size + self.config.word_ngram_rows
        logits = self.word_ngrams(jnp.where(features < first, features, -1))
        if self.config.character_ngram_rows:
            logits += self.character_ngrams(jnp.where(features < first, -1, features - first))
        return logits

    def aggregate(
        self, x: Float[Array, "*batch T D"], mask: Bool[Array, "*batch T"]
    ) -> Float[Array, "*batch _"]:
        """One vector for the text."""
        if self.config.aggregation == "first":
            return x[..., 0, :]
        if self.config.aggregation == "mean":
            return F.mean_pool(x, mask)
        if self.config.aggregation == "attention":
            return F.attention_pool(self.pool, x, mask)
        numbers = F.dense_pool(self.pool, x, mask)
        missing = self.config.context - numbers.shape[-1]
        return jnp.pad(numbers, [(0, 0)] * (numbers.ndim - 1) + [(0, missing)])
