"""The decoder-only generator: predicts each next token from those before it."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, Key

from tlite import functional as F
from tlite.config import check_size
from tlite.models.config import BlocksConfig, not_negative, positive
from tlite.models.encoder import Encoder
from tlite.modules import GeneratorBlock, Linear


@dataclass(frozen=True)
class GeneratorConfig(BlocksConfig):
    """The switches of a generator."""

    tied_head: bool = False
    """Use the embedding as the output layer."""
    head_bias: bool | None = None
    """A bias of the output layer; as `bias` unless given, and none if it is the embedding."""
    head_softcap: float | None = None
    """Bound logits by c tanh(logit / c)."""
    convolution: int = 0
    """Tokens over which a convolution of each channel, before attention and before the
    feed-forward layer, reaches: the token itself and those before it; 0: none."""
    value_residual: bool = False
    """Blocks mix the first block's values into theirs, in a proportion that is learned."""

    def __post_init__(self):
        super().__post_init__()
        positive(self, "head_softcap")
        check_size("convolution", max(self.convolution, 1), self.context)
        not_negative(self, "convolution")
        if self.value_residual and self.scan:
            raise ValueError("scan needs blocks that are alike: no value_residual")


class TransformerGenerator(Encoder):
    """Embedding, positions, dropout, causal blocks, head: tokens (..., T) to logits (..., T, V)."""

    block = GeneratorBlock
    causal = True

    def __init__(self, config: GeneratorConfig, *, key: Key[Array, ""]):
        super().__init__(config, key=key)
        if config.value_residual:
            for block in self.blocks[1:]:
                block.value_mix = nnx.Param(jnp.full(2, 0.5))
        if not config.tied_head:
            head_key = jax.random.split(key, 4)[2]
            bias = config.bias if config.head_bias is None else config.head_bias
            self.head = Linear(config.width, config.vocabulary_size, bias=bias, key=head_key)
        elif config.head_bias:
            self.head_bias = nnx.Param(jnp.zeros(config.vocabulary_size))

    def __call__(
        self,
        tokens: Int[Array, "*batch T"],
        *,
        documents: Int[Array, "*#batch T"] | None = None,
        key: Key[Array, "..."] | None = None,
        observe: F.Observe = F.unobserved,
    ) -> Float[Array, "*batch T V"]:
        """Logits of the next token at every position. A key, or one a sample, turns dropout on.

        Args:
            documents: the number of each token's document; it sees no token of another. Positions
                are those in the whole sequence.

        Raises:
            ValueError: more tokens than the model's context; or documents, and convolutions, which
                can't tell them apart.
        """
        if documents is not None and self.config.convolution:
            raise ValueError("a convolution looks from one document into the one before it")
        mask = F.causal_mask(tokens.shape[-1]) if documents is None else F.document_mask(documents)
        return self.logits(self.encode(tokens, mask, key=key, observe=observe))

    def extend(
        self,
        tokens: Int[Array, "*batch T"],
        caches: list[F.Cache],
        start: Int[Array, "*#batch"],
        *,
        at: Int[Array, "*#batch"] | None = None,
        observe: F.Observe = F.unobserved,
    ) -> tuple[Float[Array, "*batch V"] | Float[Array, "*batch T V"], list[F.Cache]]:
        """Logits after T more tokens of a sequence whose first `start` tokens are in the caches.

        The same as the rows of a call on the whole sequence, for the price of the new tokens.
        start + T must not exceed the model's context. With `at` logits (..., V) after that one of
        the T alone: the head is not computed for the others.
        """
        x = self.embed(tokens, F.positions_from(start, tokens.shape[-1]))
        x, caches = self.run_blocks(x, None, caches=caches, start=start, observe=observe)
        if at is not None:
            x = jnp.take_along_axis(x, at[..., None, None], axis=-2)[..., 0, :]
        return self.logits(x), caches

    def logits(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch V"]:
        """The head: a linear layer, or the products with the embedding."""
        if self.config.tied_head:
            bias = self.head_bias[...] if self.config.head_bias else None
            logits = F.unembed(self.embedding.table[...], x, bias)
        else:
            logits = self.head(x)
        cap = self.config.head_softcap
        return logits if cap is None else F.soft_cap(logits, cap)
