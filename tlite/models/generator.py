"""The decoder-only generator: predicts each next token from those before it."""

from dataclasses import dataclass

import jax
from jaxtyping import Array, Float, Int, Key

from tlite import functional as F
from tlite.models.config import BlocksConfig
from tlite.models.encoder import Encoder
from tlite.modules import Linear


@dataclass(frozen=True)
class GeneratorConfig(BlocksConfig):
    """The switches of a generator."""

    tied_head: bool = False
    """Use the embedding as the output layer."""


class TransformerGenerator(Encoder):
    """Embedding, positions, dropout, causal blocks, head: tokens (..., T) to logits (..., T, V)."""

    def __init__(self, config: GeneratorConfig, *, key: Key[Array, ""]):
        super().__init__(config, key=key)
        if not config.tied_head:
            head_key = jax.random.split(key, 4)[2]
            self.head = Linear(config.width, config.vocabulary_size, bias=config.bias, key=head_key)

    def __call__(
        self,
        tokens: Int[Array, "*batch T"],
        *,
        key: Key[Array, "..."] | None = None,
        observe: F.Observe = F.unobserved,
    ) -> Float[Array, "*batch T V"]:
        """Logits of the next token at every position. A key, or one a sample, turns dropout on.

        Raises:
            ValueError: more tokens than the model's context.
        """
        mask = F.causal_mask(tokens.shape[-1])
        return self.logits(self.encode(tokens, mask, key=key, observe=observe))

    def extend(
        self,
        tokens: Int[Array, "*batch T"],
        caches: list[F.KeyValues],
        start: Int[Array, "*#batch"],
        *,
        observe: F.Observe = F.unobserved,
    ) -> tuple[Float[Array, "*batch T V"], list[F.KeyValues]]:
        """Logits after T more tokens of a sequence whose first `start` tokens are in the caches.

        The same as the rows of a call on the whole sequence, for the price of the new tokens.
        start + T must not exceed the model's context.
        """
        x, angles = self.embed(tokens, F.positions_from(start, tokens.shape[-1]))
        x, caches = self.extend_blocks(x, caches, start, angles=angles, observe=observe)
        return self.logits(x), caches

    def logits(self, x: Float[Array, "*batch T D"]) -> Float[Array, "*batch T V"]:
        """The head: a linear layer, or the products with the embedding."""
        return x @ self.embedding.table[...].T if self.config.tied_head else self.head(x)
