"""The decoder-only generator: predicts each next token from those before it."""

from dataclasses import dataclass
from typing import ClassVar

import jax
from jaxtyping import Array, Float, Int, Key

from tlite import functional as F
from tlite.models import earlier
from tlite.models.config import BlocksConfig
from tlite.models.parameters import hold
from tlite.models.parts import OutputLayer, check
from tlite.models.stack import Encoder, Rows


@dataclass(frozen=True)
class Head(OutputLayer):
    """From vectors to logits of tokens."""

    tied: bool = False
    """Use the embedding as the output layer."""
    softcap: float | None = None
    """Bound logits by c tanh(logit / c)."""

    def __post_init__(self):
        check(self, positive="softcap")


@dataclass(frozen=True)
class GeneratorConfig(BlocksConfig):
    """The sizes and parts of a generator."""

    head: Head = Head()
    """The output layer."""

    EARLIER: ClassVar = earlier.GENERATOR


class TransformerGenerator(Encoder):
    """Embedding, positions, dropout, causal blocks, head: tokens (..., T) to logits (..., T, V)."""

    causal = True

    def __init__(self, config: GeneratorConfig, *, rng: Key[Array, ""]):
        super().__init__(config, rng=rng)
        hold(self, config.head.init(jax.random.split(rng, 4)[2], config))

    def __call__(
        self,
        tokens: Int[Array, "*batch T"],
        *,
        documents: Int[Array, "*#batch T"] | None = None,
        rng: Key[Array, "..."] | None = None,
        observe: F.Observe = F.unobserved,
    ) -> Float[Array, "*batch T V"]:
        """Logits of the next token at every position. A key, or one a sample, turns dropout on.

        Args:
            documents: the number of each token's document; it sees no token of another. Positions
                are those in the whole sequence.

        Raises:
            ValueError: more tokens than the model's context.
        """
        mask = None if documents is None else F.document_mask(documents)
        x, _ = self.run_blocks(self.embed(tokens), mask, rng=rng, observe=observe)
        return self.logits(x)

    def extend(
        self,
        tokens: Int[Array, "*batch T"],
        caches: list[Rows],
        start: Int[Array, "*#batch"],
        *,
        observe: F.Observe = F.unobserved,
    ) -> tuple[Float[Array, "*batch T V"], list[Rows]]:
        """Logits after T more tokens of a sequence whose first `start` tokens are in the caches.

        The same as the rows of a call on the whole sequence, for the price of the new tokens.
        start + T must not exceed the model's context.
        """
        x = self.embed(tokens, F.positions_from(start, tokens.shape[-1]))
        x, caches = self.run_blocks(x, caches=caches, start=start, observe=observe)
        return self.logits(x), caches

    def logits(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch V"]:
        """The head: a linear layer, or the products with the embedding."""
        head = self.config.head
        logits = head.logits(self, self.embedding, x)
        return logits if head.softcap is None else F.soft_cap(logits, head.softcap)
