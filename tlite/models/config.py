"""Sizes and parts that all models have in common."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from tlite.config import check_size
from tlite.models.parts import (
    Attention,
    AttentionPart,
    Block,
    BlockPart,
    Embedding,
    FeedForward,
    FeedForwardPart,
    Learned,
    Norm,
    NormPart,
    PositionsPart,
    check,
    component,
    part,
)
from tlite.user_code import is_own, name_of

MAX_BLOCKS = 10_000  # each is compiled by itself, unless they are scanned
MIXED_FROM_LENGTH = 128  # below, casting costs more than bfloat16 products save (LOG, 2026-11-21)
ROWS_FROM_LENGTH, ROWS = 512, 64  # of causal attention (LOG, 2026-11-24)


@dataclass(frozen=True)
class Loop:
    """How blocks follow each other."""

    scan: bool = False
    """Compile one block for all of them (`jax.lax.scan`): deep models compile faster."""
    remat: bool = False
    """Compute blocks again in the backward pass instead of keeping what is inside them."""


@dataclass(frozen=True)
class TransformerConfig:
    """The sizes and parts of a stack of blocks. The defaults are the post-norm model of 2017.

    A part may be given by a word, for one with its defaults (`positions="rotary"`), or a function
    of one's own.
    """

    vocabulary_size: int = 0
    """Number of tokens V; 0 takes it from the tokenizer."""
    context: int = 64
    """Longest sequence T the model attends over."""
    width: int = 32
    """Model width D."""
    num_heads: int = 4
    """Attention heads H."""
    num_blocks: int = 3
    """Transformer blocks."""
    dropout: float = 0.1
    """Dropout rate after the embedding, the attention and the feed-forward layer."""
    bias: bool = True
    """Biases of linear layers and layer norms, where their parts don't say otherwise."""
    embedding: Embedding = Embedding()
    """From tokens to vectors."""
    positions: PositionsPart = component(Learned())
    """How positions enter: added to the embedding, rotating queries and keys, or as a bias of
    scores by the distance."""
    attention: AttentionPart = component(Attention())
    """The attention layer."""
    feed_forward: FeedForwardPart = component(FeedForward())
    """The feed-forward layer."""
    norm: NormPart = component(Norm())
    """The norms of layers."""
    block: BlockPart = component(Block())
    """How layers, residuals and norms make a block."""
    loop: Loop = Loop()
    """How blocks follow each other."""

    def __post_init__(self):
        for slot in ("positions", "attention", "feed_forward", "norm", "block"):
            object.__setattr__(self, slot, part(slot, getattr(self, slot)))
        check(self, sizes="context width num_heads", counts="vocabulary_size", rates="dropout")
        check_size("num_blocks", self.num_blocks, MAX_BLOCKS)
        self.attention.check(self)
        if self.loop.scan and not (len({*self.windows}) == 1 and self.block.first_norm):
            raise ValueError("scan needs blocks that are alike: no different windows or norms")
        hash(self)  # a list in a part can't be compared: told here

    @property
    def head_dim(self) -> int:
        """Width K of a head."""
        return self.attention.width_of_heads(self)

    @property
    def windows(self) -> list[int]:
        """How far each block sees; 0: everything."""
        return [self.attention.window(block) for block in range(self.num_blocks)]


def named_parts(config) -> Iterator[tuple[str, str]]:
    """Name and what is told: of attention always, of the user's functions and parts if any."""
    for field in dataclasses.fields(config):
        value, name = getattr(config, field.name), field.name
        if not dataclasses.is_dataclass(value):
            if callable(value):
                yield name, name_of(value)
        elif is_own(value):
            yield name, name_of(type(value))
        elif isinstance(value, Attention):
            rows = f" by {value.query_chunk_size} rows" if value.query_chunk_size else ""
            yield name, name_of(value.function) + rows
        else:
            for inner, told in named_parts(value):
                yield name if inner == "function" else inner, told
