"""Language models: one predicts each next token, one fills in tokens that are hidden."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from tlite import functional as F
from tlite.models.config import TransformerConfig
from tlite.models.parameters import as_params, set_params
from tlite.models.parts import OutputLayer, Projection, check
from tlite.models.stack import Encoder, Rows


@dataclass(frozen=True)
class LMHead(OutputLayer):
    """From vectors to logits of tokens."""

    tied: bool = False
    """Use the embedding as the output layer."""
    softcap: float | None = None
    """Bound logits by c tanh(logit / c)."""

    def __post_init__(self):
        check(self, positive="softcap")


@dataclass(frozen=True)
class GeneratorConfig(TransformerConfig):
    """The sizes and parts of a generator."""

    head: LMHead = LMHead()
    """The output layer."""


class CausalLM(Encoder):
    """Embedding, positions, dropout, causal blocks, head: tokens (..., T) to logits (..., T, V)."""

    config: GeneratorConfig
    causal = True

    def init_head(self, rng: Key[Array, ""], config: GeneratorConfig) -> None:
        set_params(self, config.head.init(rng, config))

    def __call__(
        self,
        tokens: Int[Array, "*batch T"],
        *,
        segment_ids: Int[Array, "*#batch T"] | None = None,
        rng: Key[Array, "..."] | None = None,
        tap: F.Tap = F.no_tap,
    ) -> Float[Array, "*batch T V"]:
        """Logits of the next token at every position.

        Args:
            rng: the key of dropout, or one a sample. None evaluates the model: every dropout rate
                counts as 0.
            segment_ids: the number of each token's document; it sees no token of another. Positions
                are those in the whole sequence.

        Raises:
            ValueError: more tokens than the model's context.
        """
        mask = None if segment_ids is None else F.segment_mask(segment_ids)
        x, _ = self.run_blocks(self.embed(tokens), mask, rng=rng, tap=tap)
        return self.logits(x)

    def extend(
        self,
        tokens: Int[Array, "*batch T"],
        caches: list[Rows],
        start: Int[Array, "*#batch"],
        **look,
    ) -> tuple[Float[Array, "*batch T V"], list[Rows]]:
        """Logits after T more tokens of a sequence whose first `start` tokens are in the caches.

        The same as the rows of a call on the whole sequence, for the price of the new tokens.
        start + T must not exceed the model's context. `tap` is a field of the look.
        """
        x = self.embed(tokens, F.positions_from(start, tokens.shape[-1]))
        x, caches = self.run_blocks(x, caches=caches, start=start, **look)
        return self.logits(x), caches

    def logits(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch V"]:
        """The head: a linear layer, or the products with the embedding."""
        head = self.config.head
        logits = head.logits(self, self.embedding, x)
        return logits if head.softcap is None else F.soft_cap(logits, head.softcap)


@dataclass(frozen=True)
class MaskedConfig(TransformerConfig):
    """The sizes and parts of a masked language model. The defaults are BERT's."""

    projection: Projection = Projection()
    """The layer before the head."""
    head_bias: bool = True
    """A bias of the output layer, which is the embedding."""


class MaskedLM(Encoder):
    """Tokens (..., T), those below 0 padding, to logits (..., T, V) of the token at each place.

    ("BERT", Devlin et al. 2019, section 3.1.) Which tokens are hidden, and by what, is the
    caller's to say.
    """

    config: MaskedConfig
    head_bias: Any

    def init_head(self, rng: Key[Array, ""], config: MaskedConfig) -> None:
        set_params(self, config.projection.init(rng, config))
        if config.head_bias:
            self.head_bias = as_params(jnp.zeros(config.vocabulary_size))

    def __call__(self, tokens: Int[Array, "*batch T"], **settings) -> Float[Array, "*batch T V"]:
        """Logits at every position; settings and errors are those of `Encoder`'s call."""
        return self.logits(super().__call__(tokens, **settings))

    def logits(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch V"]:
        """A layer with its norm, then the products with the embedding."""
        bias = self.head_bias[...] if self.config.head_bias else None
        return F.unembed(self.embedding.table[...], self.config.projection(self, x), bias)
