"""Configs of models: sizes and components, which words, functions or objects may name."""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import tlite.functional as F
from tlite.config import Config, check_size
from tlite.models.components import (
    ALiBi,
    Attention,
    Block,
    Embedding,
    FeedForward,
    FeedForwardFunction,
    Learned,
    LMHead,
    Loop,
    NoPositions,
    Norm,
    NormFunction,
    Positions,
    PositionsFunction,
    Projection,
    Relative,
    Rotary,
    Sinusoidal,
)
from tlite.user_code import is_user_code, name_of

MAX_BLOCKS = 10_000  # each is compiled by itself, unless they are scanned
ATTENTION_FUNCTIONS: dict[str, Callable] = {
    "exact": F.scaled_dot_product_attention,
    "mixed": F.mixed_attention,
    "fused": F.fused_attention,
    "auto": F.scaled_dot_product_attention,  # until a run has chosen
}

if TYPE_CHECKING:
    Component = TypeVar("Component")

    class ComponentField(Generic[Component]):
        """A field that is set to a component, a word or a function, and read as the component."""

        def __get__(self, instance: Any, owner: Any) -> Component: ...
        def __set__(self, instance: Any, value: Component | str | Callable) -> None: ...

    NormField = ComponentField[Norm | NormFunction]
    AttentionField = ComponentField[Any]
    FeedForwardField = ComponentField[Any]
    PositionsField = ComponentField[Positions]
    BlockField = ComponentField[Any]
else:
    NormField = Norm | NormFunction | str | Callable
    AttentionField = Attention | str | Callable
    FeedForwardField = FeedForward | FeedForwardFunction | str | Callable
    PositionsField = (
        Learned | Sinusoidal | Rotary | Relative | ALiBi | NoPositions | PositionsFunction
    ) | (Positions | str | Callable)
    BlockField = Block | str | tuple[Block | str, ...]


def component(name: str, default: Any) -> Any:
    """Return a field of a config that holds a component, which `override` may set by a word."""
    metadata: dict[str, Any] = {"parse": partial(resolve, name), "words": tuple(PRESETS[name])}
    if name == "attention":  # a word keeps the component's other fields
        metadata["word_field"] = "function"
    return dataclasses.field(default=default, metadata=metadata)


PRESETS: dict[str, dict[str, Any]] = {
    "norm": {"layer": Norm(), "rms": Norm("rms"), "zero_centred_rms": Norm("rms", offset=1.0)},
    "attention": {name: Attention(name) for name in ("auto", "exact", "mixed", "fused")},
    "feed_forward": {"default": FeedForward()},
    "positions": {
        "learned": Learned(),
        "sinusoidal": Sinusoidal(),
        "split_sinusoidal": Sinusoidal(split=True),
        "rotary": Rotary(),
        "relative": Relative(),
        "alibi": ALiBi(),
        "none": NoPositions(),
    },
    "block": {"post_norm": Block(), "pre_norm": Block(pre_norm=True)},
}
"""Components by field and word."""
FUNCTION_ADAPTERS: dict[str, Callable] = {
    "norm": NormFunction,
    "attention": Attention,
    "feed_forward": FeedForwardFunction,
    "positions": PositionsFunction,
}
LAYERS = {
    "norm": (Norm, NormFunction),
    "attention": Attention,
    "feed_forward": (FeedForward, FeedForwardFunction),
}


def resolve(field: str, value: Any) -> Any:
    """Return the component for the value of a field: a preset's name, a function, or a component.

    Raises:
        ValueError: there is no such preset, or the value is not a component of this field.
    """
    if field == "block" and isinstance(value, tuple) and value:
        return tuple(resolve(field, each) for each in value)
    if isinstance(value, str):
        if value not in PRESETS[field]:
            raise ValueError(f"{field} must be one of {', '.join(PRESETS[field])}, not {value!r}")
        return PRESETS[field][value]
    is_call = callable(value) and not isinstance(value, type)
    if field in FUNCTION_ADAPTERS and is_call and not hasattr(value, "init"):
        if isinstance(value, Attention | FeedForward) and not hasattr(value, "init_params"):
            raise ValueError(f"{field}: {type(value).__name__} needs init(rng, config)")
        return FUNCTION_ADAPTERS[field](value)
    base = {"positions": Positions, "block": Block}.get(field)
    if base and not isinstance(value, base):
        name = "Block, or a tuple of them" if field == "block" else base.__name__
        raise ValueError(f"{field} must be a word or a tlite.models.{name}: {value!r}")
    if is_user_code(value) and isinstance(value, Learned | Sinusoidal | Rotary | Relative | ALiBi):
        raise ValueError(f"{field}: derive {type(value).__name__} from tlite.models.Positions")
    if isinstance(value, Block) and value.attention is not None:
        return dataclasses.replace(value, attention=resolve("attention", value.attention))
    is_layer = is_call or isinstance(value, LAYERS.get(field, ()))
    if not base and not (dataclasses.is_dataclass(value) and is_layer):
        expected = "a word, a function, or a dataclass with init and a call"
        raise ValueError(f"{field} must be {expected}: {value!r}")
    return value


# Models


@dataclass(frozen=True)
class TransformerConfig(
    Config, sizes="context width num_heads", counts="vocabulary_size", rates="dropout"
):
    """Sizes and components of a stack of blocks. The defaults are the post-norm model of 2017."""

    vocabulary_size: int = 0
    """Size V of the vocabulary; 0: the tokenizer's."""
    context: int = 64
    """Longest sequence T."""
    width: int = 32
    """Model width D."""
    num_heads: int = 4
    """Attention heads H."""
    num_blocks: int = 3
    """Transformer blocks."""
    dropout: float = 0.1
    """Dropout rate after the embedding, the attention and the feed-forward layer."""
    bias: bool = True
    """Biases of linear layers and layer norms, unless their components say otherwise."""
    embedding: Embedding = Embedding()
    """Token embedding."""
    positions: PositionsField = component("positions", Learned())
    """Position encoding: added to the embedding, rotating queries and keys, or a bias of scores."""
    attention: AttentionField = component("attention", Attention())
    """Attention layer; a word sets its `function`."""
    feed_forward: FeedForwardField = component("feed_forward", FeedForward())
    """Feed-forward layer; its fields are options, too: --feed-forward.activation gelu."""
    norm: NormField = component("norm", Norm())
    """Layer norm, RMS norm, or zero-centred RMS norm, whose scale is 1 + s (Gemma)."""
    block: BlockField = component("block", Block())
    """Arrangement of layers, residuals and norms; a tuple repeats as a pattern over the blocks."""
    loop: Loop = Loop()
    """Loop over the blocks."""

    def __post_init__(self):
        for field in ("positions", "attention", "feed_forward", "norm", "block"):
            object.__setattr__(self, field, resolve(field, getattr(self, field)))
        super().__post_init__()
        check_size("num_blocks", self.num_blocks, MAX_BLOCKS)
        hash(self)  # a list in a component can't be compared: raise here
        validate_components(self)

    @property
    def head_dim(self) -> int:
        """Width K of a head."""
        return getattr(self.attention, "head_dim", None) or self.width // self.num_heads

    @cached_property
    def blocks(self) -> "tuple[TransformerConfig, ...]":
        """Config of each block, with its own `block` and `attention` of a pattern."""
        pattern, configs = self.block if isinstance(self.block, tuple) else (self.block,), []
        for block in pattern:
            alone = dataclasses.replace(block, attention=None)
            attention = self.attention if block.attention is None else block.attention
            if (alone, attention) == (self.block, self.attention):
                configs.append(self)
            else:
                configs.append(dataclasses.replace(self, block=alone, attention=attention))
        return tuple(configs[index % len(configs)] for index in range(self.num_blocks))

    @property
    def windows(self) -> list[int]:
        """Sliding window of each block; 0: no limit."""
        windows = [getattr(block.attention, "windows", ()) for block in self.blocks]
        return [w[index % len(w)] if w else 0 for index, w in enumerate(windows)]

    @property
    def pre_norm(self) -> bool:
        """True if the blocks norm their inputs, so that a norm follows the last block."""
        return (self.block if isinstance(self.block, Block) else self.block[-1]).pre_norm


@dataclass(frozen=True)
class GeneratorConfig(TransformerConfig):
    """Sizes and components of a generator (`CausalLM`)."""

    head: LMHead = LMHead()
    """Output layer."""


@dataclass(frozen=True)
class MaskedConfig(TransformerConfig):
    """Sizes and components of a masked language model (`MaskedLM`). The defaults are BERT's."""

    projection: Projection = Projection()
    """Layer before the head."""
    head_bias: bool = True
    """Bias of the output layer, which is the embedding."""


def validate_components(config: TransformerConfig) -> None:
    """Raise a ValueError if components of the config are incompatible."""
    pattern = config.block if isinstance(config.block, tuple) else (config.block,)
    if len({block.pre_norm for block in pattern}) > 1:
        raise ValueError("the blocks of a pattern must have the same pre_norm")
    if any(block.attention is not None for block in pattern):
        blocks = [block for block in config.blocks if isinstance(block.attention, Attention)]
        head_dims = {config.head_dim, *(block.head_dim for block in blocks)}
        if len(head_dims) > 1 and isinstance(config.positions, Rotary):
            raise ValueError(f"rotary positions need one head_dim in all blocks, not {head_dims}")
    if config.loop.scan:
        is_uniform = len({*config.blocks}) == 1 == len({*config.windows})
        if not (is_uniform and config.blocks[0].block.first_norm):
            raise ValueError("loop.scan needs identical blocks: one window, block.first_norm=True")
    if hasattr(config.attention, "validate"):
        config.attention.validate(config)
    if isinstance(config.attention, Attention):
        validate_attention(config.attention, config)


def validate_attention(attention: Attention, config: TransformerConfig) -> None:
    """Raise a ValueError if attention is incompatible with the sizes or positions of the config."""
    heads, kv_heads = config.num_heads, attention.num_kv_heads or config.num_heads
    if attention.head_dim is None and config.width % heads:
        raise ValueError(f"width ({config.width}) must be a multiple of num_heads ({heads})")
    if heads % kv_heads:
        raise ValueError(f"num_heads ({heads}) must be a multiple of num_kv_heads ({kv_heads})")
    if isinstance(config.positions, Rotary) and config.head_dim % 2:
        raise ValueError(f"rotary positions need an even head_dim, not {config.head_dim}")
    function = attention.function
    function = function if callable(function) else ATTENTION_FUNCTIONS[function]
    if missing := unsupported_attention_kwargs(function, attention, config):
        name = getattr(attention.function, "__name__", attention.function)
        raise ValueError(f"attention {name!r} does not support {missing[0]}: use 'exact'")


def unsupported_attention_kwargs(
    function: Callable, attention: Attention, config: TransformerConfig
) -> list[str]:
    """Return the keyword arguments that a model needs and an attention function lacks."""
    required = [name for name in ("scale", "softcap") if getattr(attention, name) is not None]
    if config.positions.adds_bias:
        required.append("bias")
    if attention.dropout:
        required += ["dropout_rate", "rng"]
    return F.unsupported_kwargs(function, required) if required else []


def positions_name(config: TransformerConfig) -> str:
    """Return the name of the parameters of the position encoding."""
    return "relative" if isinstance(config.positions, Relative) else "positions"


def describe_components(config: Any) -> Iterator[tuple[str, str]]:
    """Yield (field, name) of the attention layer and of each user function or component."""
    for field in dataclasses.fields(config):
        value, name = getattr(config, field.name), field.name
        if isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0]):
            yield name, " ".join(describe_block(block) for block in value)
        elif not dataclasses.is_dataclass(value):
            if callable(value):
                yield name, name_of(value)
        elif is_user_code(value):
            yield name, name_of(type(value))
        elif isinstance(value, Attention):
            chunks = f" in chunks of {value.query_chunk_size}" if value.query_chunk_size else ""
            yield name, name_of(value.function) + chunks
        else:
            for inner, described in describe_components(value):
                yield name if inner == "function" else inner, described


def describe_block(block: Block) -> str:
    """Return the name of a user's block, or of the attention layer of a block in a pattern."""
    if is_user_code(block):
        return name_of(type(block))
    layer = block.attention
    if isinstance(layer, Attention):
        return name_of(layer.function)
    return "attention" if layer is None else name_of(type(layer))


def user_components(config) -> dict[str, object]:
    """Return the user's functions and components by field: `norm`, `block[1].attention`, ..."""
    components = {}
    for field in ("attention", "feed_forward", "norm", "positions"):
        component = getattr(config, field, None)  # a logistic regression has none
        functions = {field: getattr(component, "function", None)}
        functions["activation"] = getattr(component, "activation", None)
        candidates = {field: component} if is_user_code(component) else functions
        components |= {name: value for name, value in candidates.items() if is_user_code(value)}
    for name, block in block_pattern(config).items():
        layers = block.attention, getattr(block.attention, "function", None)
        candidates = {name: block} if is_user_code(block) else {}
        candidates |= {f"{name}.attention": layer for layer in layers if is_user_code(layer)}
        components |= candidates
    return components


def block_pattern(config) -> dict[str, Any]:
    """Return the blocks of a config's pattern by name: `block`, or `block[0]`, `block[1]`, ..."""
    if isinstance(blocks := getattr(config, "block", ()), tuple):
        return {f"block[{index}]": block for index, block in enumerate(blocks)}
    return {"block": blocks}
