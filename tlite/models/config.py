"""What the models have in common: sizes and parts; and what version 0.2.0 called them."""

import dataclasses
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from tlite.config import check_size, is_own, name_of, to_dict
from tlite.models.parts import (
    Attention,
    AttentionPart,
    Block,
    Embedding,
    FeedForward,
    FeedForwardPart,
    Learned,
    Norm,
    NormPart,
    PositionsPart,
    check,
    part,
)

MOST_BLOCKS = 10_000  # each is compiled by itself, unless they are scanned
MIXED_FROM_LENGTH = 128  # below, casting costs more than bfloat16 products save (LOG, 2026-11-21)
ROWS_FROM_LENGTH, ROWS = 512, 64  # of causal attention (LOG, 2026-11-24)


def earlier(parts: dict[str, str]) -> dict[str, str]:
    """Fields of version 0.2.0 and their places today, from the `now=then` of each part."""
    table: dict[str, str] = {}
    for slot, fields in parts.items():
        for field in fields.split():
            now, _, then = field.partition("=")
            table[then or now] = f"{table.get(then or now, '')} {slot}.{now}".strip()
    return table


PARTS = {
    "block": "pre_norm=norm_first output_norms first_norm",
    "norm": "epsilon=norm_epsilon bias=norm_bias",
    "feed_forward": "hidden_width activation gated bias=feed_forward_bias dropout=hidden_dropout "
    "zero_output",
    "attention": "head_width key_heads input_bias=qkv_bias query_key_norm windows softcap "
    "scale=attention_scale zero_output",
    "embedding": "deviation=embedding_deviation scale=scale_embedding norm=embedding_norm segments",
    "positions": "offset=position_offset base=rotary_base local_base=local_rotary_base "
    "scaling=rotary_scaling buckets=relative_buckets distance=relative_distance",
    "loop": "scan remat",
}
GONE = {"convolution": 0, "value_residual": False}


@dataclass(frozen=True)
class Loop:
    """How blocks follow each other."""

    scan: bool = False
    """Compile one block for all of them (`jax.lax.scan`): deep models compile faster."""
    remat: bool = False
    """Compute blocks again in the backward pass instead of keeping what is inside them."""


@dataclass(frozen=True)
class BlocksConfig:
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
    positions: PositionsPart = Learned()
    """How positions enter: added to the embedding, rotating queries and keys, or as a bias of
    scores by the distance."""
    attention: AttentionPart = Attention()
    """The attention layer."""
    feed_forward: FeedForwardPart = FeedForward()
    """The feed-forward layer."""
    norm: NormPart = Norm()
    """The norms of layers."""
    block: Block | str = Block()
    """How layers, residuals and norms make a block."""
    loop: Loop = Loop()
    """How blocks follow each other."""

    EARLIER: ClassVar[dict[str, str]] = earlier(PARTS)

    def __post_init__(self):
        for slot in ("positions", "attention", "feed_forward", "norm", "block"):
            object.__setattr__(self, slot, part(slot, getattr(self, slot)))
        check(self, sizes="context width num_heads", counts="vocabulary_size", rates="dropout")
        check_size("num_blocks", self.num_blocks, MOST_BLOCKS)
        self.attention.check(self)
        if self.loop.scan and not (len({*self.windows}) == 1 and self.block.first_norm):
            raise ValueError("scan needs blocks that are alike: no different windows or norms")
        hash(self)  # a list in a part can't be compared: told here

    @classmethod
    def read_earlier(cls, values: dict[str, Any]) -> dict[str, Any]:
        """What version 0.2.0 wrote of a config, as it would be written now; today's as it is.

        Raises:
            ValueError: it says what is gone.
        """
        if not cls.EARLIER.keys() & values.keys():
            return values
        values, parts = dict(values), defaultdict(dict)
        for name, nothing in GONE.items():
            if values.pop(name, nothing) != nothing:
                said = f"{name} is no part of a model any more: tlite 0.2.0 opens this run"
                raise ValueError(said)
        for name in [name for name in values if name in cls.EARLIER]:
            value = values.pop(name)
            for path in cls.EARLIER[name].split():
                slot, field = path.rsplit(".", 1)
                parts[slot][field] = value
        for slot, field in (("attention", "function"), ("projection", "activation")):
            if slot in values:
                parts[slot][field] = values.pop(slot)
        for slot in ("positions", "feed_forward", "norm"):
            if slot in values:
                parts[slot] = _placed(slot, values.pop(slot), parts[slot])
        projection = parts.pop("pool.projection", {})
        if "pool" in parts and (activation := parts["pool"].get("projection")) is not None:
            parts["pool"]["projection"] = {"kind": "Projection", "activation": activation}
            parts["pool"]["projection"] |= projection
        if "embedding" in parts and parts["embedding"].get("deviation", ...) is None:
            parts["embedding"]["deviation"] = cls.earlier_deviation(values.get("width", 32))
        kinds = {slot: type(getattr(cls, slot, None)).__name__ for slot in parts}
        return values | {slot: {"kind": kinds[slot]} | part for slot, part in parts.items()}

    @staticmethod
    def earlier_deviation(width: Any) -> float | None:
        """The deviation of embeddings for which version 0.2.0 wrote null."""

    @property
    def width_of_heads(self) -> int:
        """Width K of a head."""
        return self.attention.width_of_heads(self)

    @property
    def windows(self) -> list[int]:
        """How far each block sees; 0: everything."""
        return [self.attention.window(block) for block in range(self.num_blocks)]


def _placed(slot: str, value: Any, numbers: dict[str, Any]) -> dict[str, Any]:
    """What a field said by a word, or by a function of a user's own; with the numbers it has."""
    if isinstance(value, str):
        if slot == "feed_forward":
            return numbers
        named = part(slot, value)
        has = {field.name for field in dataclasses.fields(named)}
        return to_dict(named) | {name: n for name, n in numbers.items() if name in has}
    kinds = {"positions": "PositionsFunction", "feed_forward": "FeedForwardFunction"}
    return {"kind": kinds.get(slot, "NormFunction"), "function": value}


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
            rows = f" by {value.rows} rows" if value.rows else ""
            yield name, name_of(value.function) + rows
        else:
            for inner, told in named_parts(value):
                yield name if inner == "function" else inner, told
