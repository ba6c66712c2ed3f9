"""The encoder-decoder: reads one sequence, writes another."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

from tlite import functional as F
from tlite.config import check_size
from tlite.models.config import MOST_BLOCKS, BlocksConfig, Positions, not_negative, positive
from tlite.models.encoder import Decoder, Encoder
from tlite.modules import Linear, summary


@dataclass(frozen=True)
class Seq2SeqConfig(BlocksConfig):
    """The switches of an encoder-decoder; `num_blocks` is for the encoder.

    `vocabulary_size` is the target's. The defaults are the base model's of 2017 in small: the
    embedding starts with deviation 1/sqrt(D) and is scaled by sqrt(D).
    """

    source_vocabulary_size: int = 0
    """Number of source tokens; 0 takes it from the tokenizer."""
    decoder_blocks: int | None = None
    """Blocks of the decoder; as many as of the encoder unless given."""
    embeddings: Literal["separate", "shared", "tied"] = "tied"
    """Source and target have their own tables, or share one, or the output layer shares it too."""
    positions: Positions = "sinusoidal"
    """How positions enter: added to the embedding, rotating queries and keys, or as a bias of
    scores by the distance."""
    hidden_dropout: float = 0.1
    """Dropout rate between the two layers of the feed-forward."""
    embedding_deviation: float | None = None
    """Standard deviation of the embedding before training; 1/sqrt(D) unless given."""
    pad_id: int = 0
    """The token that fills up short sequences: nothing attends to it."""
    start_id: int | None = None
    """What a target starts with; the tokenizer's own start symbol unless given."""
    end_id: int | None = None
    """What it ends with; the tokenizer's own end symbol unless given."""
    first_id: int | None = None
    """The token that every translation begins with; the most probable ones unless given."""
    scale_embedding: bool = True
    """Multiply embeddings by sqrt(D) before positions are added."""
    head_bias: bool | None = None
    """A bias of the output layer; as `bias` unless given, and none if it is the embedding."""
    head_scale: float = 1.0
    """What vectors are multiplied by before the output layer."""

    def __post_init__(self):
        super().__post_init__()
        if self.decoder_blocks is not None:
            check_size("decoder_blocks", self.decoder_blocks, MOST_BLOCKS)
        not_negative(self, "source_vocabulary_size", "pad_id")
        positive(self, "head_scale")
        if self.rotary_scaling is not None and self.rotary_scaling.method == "yarn":
            raise ValueError("yarn scales all attention, and that on the source has no rotation")
        sizes = self.vocabulary_size, self.source_vocabulary_size
        if self.embeddings != "separate" and sizes[0] != sizes[1]:
            raise ValueError(f"a shared embedding needs one vocabulary, not sizes {sizes}")

    @property
    def initial_deviation(self) -> float:
        given = self.embedding_deviation
        return 1 / math.sqrt(self.width) if given is None else given


class TransformerSeq2Seq(nnx.Module):
    """Source (..., S) and target (..., T) to logits (..., T, V) of the target's next tokens."""

    def __init__(self, config: Seq2SeqConfig, *, key: Key[Array, ""]):
        encoder_key, decoder_key, head_key = jax.random.split(key, 3)
        of_encoder = dataclasses.replace(
            config, embeddings="separate", vocabulary_size=config.source_vocabulary_size
        )
        of_decoder = dataclasses.replace(
            config, num_blocks=config.decoder_blocks or config.num_blocks
        )
        self.encoder = Encoder(of_encoder, key=encoder_key)
        own = config.embeddings == "separate"
        self.decoder = Decoder(of_decoder, embedding=own, key=decoder_key)
        if config.embeddings != "tied":
            bias = config.bias if config.head_bias is None else config.head_bias
            self.head = Linear(config.width, config.vocabulary_size, bias=bias, key=head_key)
        elif config.head_bias:
            self.head_bias = nnx.Param(jnp.zeros(config.vocabulary_size))
        self.config = config

    def __call__(
        self,
        source: Int[Array, "*batch S"],
        target: Int[Array, "*batch T"],
        *,
        key: Key[Array, "..."] | None = None,
        observe: F.Observe = F.unobserved,
    ) -> Float[Array, "*batch T V"]:
        """Logits of the token after each of the target's. A key, or one a sample: dropout is on.

        Raises:
            ValueError: more tokens than the model's context.
        """
        keys = (None, None) if key is None else (F.fold_in(key, 0), F.fold_in(key, 1))
        memory, mask = self.encode(source, key=keys[0], observe=F.within(observe, "encoder"))
        x = self.decoder.decode(
            target,
            memory,
            mask,
            table=self.target_table(),
            key=keys[1],
            observe=F.within(observe, "decoder"),
        )
        return self.logits(x)

    def encode(
        self,
        source: Int[Array, "*batch S"],
        *,
        key: Key[Array, "..."] | None = None,
        observe: F.Observe = F.unobserved,
    ) -> tuple[Float[Array, "*batch S D"], Bool[Array, "*batch 1 1 S"]]:
        """What the decoder looks at, and the mask of what is no padding."""
        mask = F.padding_mask(source, self.config.pad_id)
        return self.encoder.encode(source, mask, key=key, observe=observe), mask

    def memory_caches(self, memory: Float[Array, "*batch S D"]) -> list[F.KeyValues]:
        """For each decoder block the keys and values of the encoder's output."""
        return self.decoder.key_values(memory)

    def extend(
        self,
        tokens: Int[Array, "*batch T"],
        caches: list[F.KeyValues],
        memories: list[F.KeyValues],
        memory_mask: Bool[Array, "..."] | None,
        start: Int[Array, "*#batch"],
        *,
        positions: Int[Array, "*#batch T"] | None = None,
        key_positions: Int[Array, "*#batch C"] | None = None,
        mask: Bool[Array, "..."] | None = None,
        observe: F.Observe = F.unobserved,
    ) -> tuple[Float[Array, "*batch T V"], list[F.KeyValues]]:
        """Logits after T more tokens of a target whose first `start` tokens are in the caches.

        The same as the rows of a call on the whole target, for the price of the new tokens.

        The T may also be the next tokens of T targets of one source, which share the caches: then
        `positions` are theirs in their targets, `key_positions` those of the caches' places, and
        `mask` (..., T, C) says which places, `start` to `start` + T - 1 for the new ones among
        them, hold each one's target.
        """
        if positions is None:
            positions = F.positions_from(start, tokens.shape[-1])
        x = self.decoder.embed(tokens, positions, table=self.target_table())
        settings = {"positions": positions, "key_positions": key_positions, "observe": observe}
        inputs = x, mask, memories, memory_mask
        x, caches = self.decoder.run_blocks(*inputs, caches=caches, start=start, **settings)
        return self.logits(x), caches

    def empty_caches(self, *batch: int, capacity: int | None = None) -> list[F.KeyValues]:
        """For each decoder block a cache of zeros with room for `capacity` tokens, or a context."""
        return self.decoder.empty_caches(*batch, capacity=capacity)

    def target_table(self) -> Float[Array, "V D"] | None:
        """The embedding of target tokens where it is the source's; None if they have their own."""
        return None if self.config.embeddings == "separate" else self.encoder.embedding.table[...]

    def logits(self, x: Float[Array, "*batch T D"]) -> Float[Array, "*batch T V"]:
        """The output layer: a linear one, or the products with the embedding."""
        x = x if self.config.head_scale == 1 else self.config.head_scale * x
        if self.config.embeddings != "tied":
            return self.head(x)
        # With thousands of tokens the largest product of all: bfloat16 if the others are.
        dtype = self.decoder.blocks[0].attention.output.kernel.dtype
        table = self.encoder.embedding.table[...].astype(dtype)
        return F.unembed(table, x, self.head_bias[...] if self.config.head_bias else None)

    def __str__(self) -> str:
        return summary(self)
