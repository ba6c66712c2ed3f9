"""The encoder-decoder: reads one sequence, writes another."""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

import jax
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

from tlite import functional as F
from tlite.config import check_size
from tlite.models.config import MAX_BLOCKS, TransformerConfig
from tlite.models.parameters import set_params
from tlite.models.parts import (
    Embedding,
    FeedForward,
    FeedForwardPart,
    OutputLayer,
    PositionsPart,
    Sinusoidal,
    check,
    component,
)
from tlite.models.stack import Decoder, Encoder, Rows

START_ID, END_ID = 2, 3  # of `text.PairTokenizer`


@dataclass(frozen=True)
class SpecialTokens:
    """The tokens that are no text."""

    pad_id: int = 0
    """What fills up short sequences: nothing attends to it."""
    bos_id: int | None = None
    """What a target starts with; the tokenizer's own start symbol unless given."""
    eos_id: int | None = None
    """What it ends with; the tokenizer's own end symbol unless given."""
    forced_bos_id: int | None = None
    """The token that every translation begins with; the most probable ones unless given."""

    def __post_init__(self):
        check(self, counts="pad_id")
        if self.pad_id == (END_ID if self.eos_id is None else self.eos_id):
            raise ValueError(f"pad_id and eos_id can't both be {self.pad_id}: no target would end")


@dataclass(frozen=True)
class TranslatorHead(OutputLayer):
    """From vectors to logits of target tokens."""

    embeddings: Literal["separate", "shared", "tied"] = "tied"
    """Source and target have their own tables, or share one, or the output layer shares it too."""
    scale: float = 1.0
    """What vectors are multiplied by before the output layer."""

    def __post_init__(self):
        check(self, positive="scale")

    @property
    def tied(self) -> bool:
        return self.embeddings == "tied"


@dataclass(frozen=True)
class Seq2SeqConfig(TransformerConfig):
    """The sizes and parts of an encoder-decoder; `num_blocks` is for the encoder.

    `vocabulary_size` is the target's. The defaults are the base model's of 2017 in small.
    """

    source_vocabulary_size: int = 0
    """Number of source tokens; 0 takes it from the tokenizer."""
    decoder_blocks: int | None = None
    """Blocks of the decoder; as many as of the encoder unless given."""
    embedding: Embedding = Embedding(scale=True)
    """From tokens to vectors."""
    positions: PositionsPart = component(Sinusoidal())
    """How positions enter: added to the embedding, rotating queries and keys, or as a bias of
    scores by the distance."""
    feed_forward: FeedForwardPart = component(FeedForward(dropout=0.1))
    """The feed-forward layer."""
    head: TranslatorHead = TranslatorHead()
    """The output layer."""
    special_tokens: SpecialTokens = SpecialTokens()
    """The tokens that are no text."""

    def __post_init__(self):
        super().__post_init__()
        check(self, counts="source_vocabulary_size")
        check_size("decoder_blocks", self.blocks_of_decoder, MAX_BLOCKS)
        sizes = self.vocabulary_size, self.source_vocabulary_size
        if self.head.embeddings != "separate" and sizes[0] != sizes[1]:
            raise ValueError(f"a shared embedding needs one vocabulary, not sizes {sizes}")

    @property
    def blocks_of_decoder(self) -> int:
        return self.num_blocks if self.decoder_blocks is None else self.decoder_blocks


class Seq2Seq(nnx.Module):
    """Source (..., S) and target (..., T) to logits (..., T, V) of the target's next tokens."""

    def __init__(self, config: Seq2SeqConfig, *, rng: Key[Array, ""]):
        encoder_key, decoder_key, head_key = jax.random.split(rng, 3)
        separate = dataclasses.replace(config, head=TranslatorHead("separate"))
        of_encoder = dataclasses.replace(separate, vocabulary_size=config.source_vocabulary_size)
        of_decoder = dataclasses.replace(config, num_blocks=config.blocks_of_decoder)
        self.encoder = Encoder(of_encoder, rng=encoder_key)
        own = config.head.embeddings == "separate"
        self.decoder = Decoder(of_decoder, embedding=own, rng=decoder_key)
        set_params(self, config.head.init(head_key, config))
        self.config = config

    def __call__(
        self,
        source: Int[Array, "*batch S"],
        target: Int[Array, "*batch T"],
        *,
        rng: Key[Array, "..."] | None = None,
        tap: F.Tap = F.no_tap,
    ) -> Float[Array, "*batch T V"]:
        """Logits of the token after each of the target's.

        Args:
            rng: the key of dropout, or one a sample. None evaluates the model: every dropout rate
                counts as 0.

        Raises:
            ValueError: more tokens than the model's context.
        """
        of_source = {"rng": F.fold_in(rng, 0), "tap": F.scoped(tap, "encoder")}
        of_target = {"rng": F.fold_in(rng, 1), "tap": F.scoped(tap, "decoder")}
        memory, mask = self.encode(source, **of_source)
        x = self.decoder.embed(target, table=self.target_table())
        memories = self.decoder.key_values(memory, of_target["tap"])
        x, _ = self.decoder.run_blocks(x, memories=memories, memory_mask=mask, **of_target)
        return self.logits(x)

    def encode(
        self, source: Int[Array, "*batch S"], **look
    ) -> tuple[Float[Array, "*batch S D"], Bool[Array, "*batch 1 1 S"]]:
        """What the decoder looks at, and the mask of what is no padding."""
        mask = F.padding_mask(source, self.config.special_tokens.pad_id)
        return self.encoder.run_blocks(self.encoder.embed(source), mask, **look)[0], mask

    def memories(
        self, source: Int[Array, "*batch S"]
    ) -> tuple[list[Any], Bool[Array, "*batch 1 1 S"]]:
        """For each decoder block the keys and values of the encoder's output; and the mask."""
        memory, mask = self.encode(source)
        return self.decoder.key_values(memory), mask

    def extend(
        self,
        tokens: Int[Array, "*batch T"],
        caches: list[Rows],
        memories: list[Any],
        memory_mask: Bool[Array, "..."] | None,
        start: Int[Array, "*#batch"],
        *,
        positions: Int[Array, "*#batch T"] | None = None,
        **look,
    ) -> tuple[Float[Array, "*batch T V"], list[Rows]]:
        """Logits after T more tokens of a target whose first `start` tokens are in the caches.

        The same as the rows of a call on the whole target, for the price of the new tokens.

        The T may also be the next tokens of T targets of one source, which share the caches: then
        `positions` are theirs in their targets, `key_positions` (..., C) those of the caches'
        places, and `mask` (..., T, C) says which places, `start` to `start` + T - 1 for the new
        ones among them, hold each one's target. These and `tap` are fields of the look.
        """
        if positions is None:
            positions = F.positions_from(start, tokens.shape[-1])
        x = self.decoder.embed(tokens, positions, table=self.target_table())
        look |= {"memories": memories, "memory_mask": memory_mask, "caches": caches}
        x, caches = self.decoder.run_blocks(x, positions=positions, start=start, **look)
        return self.logits(x), caches

    def empty_caches(self, *batch: int, capacity: int | None = None) -> list[Rows]:
        """For each decoder block a cache of zeros with room for `capacity` tokens, or a context."""
        return self.decoder.empty_caches(*batch, capacity=capacity)

    def target_table(self) -> Float[Array, "V D"] | None:
        """The embedding of target tokens where it is the source's; None if they have their own."""
        own = self.config.head.embeddings == "separate"
        return None if own else self.encoder.embedding.table[...]

    def logits(self, x: Float[Array, "*batch T D"]) -> Float[Array, "*batch T V"]:
        """The output layer: a linear one, or the products with the embedding."""
        head = self.config.head
        x = x if head.scale == 1 else head.scale * x
        return head.logits(self, self.encoder.embedding, x)
