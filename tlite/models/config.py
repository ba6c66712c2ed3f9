"""Configs of models and of their components: frozen dataclasses of numbers and words.

A component may be given by a word (`positions="rotary"`), by one of these dataclasses
(`positions=Rotary(base=500_000.0)`), or by a user's own function or object (models/custom.py). The
equations that read these numbers are in block.py, transformer.py and `tlite.functional`, initial
parameters in init.py.
"""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from tlite import functional as F
from tlite.config import check_size, validate_fields
from tlite.user_code import is_own, name_of

MAX_BLOCKS = 10_000  # each is compiled by itself, unless they are scanned
Activation = (
    Literal["relu", "gelu", "gelu_exact", "silu", "squared_relu", "tanh"] | Callable
)  # functional.ACTIVATIONS


# Norms


@dataclass(frozen=True)
class Norm:
    """Layer norm (Ba et al. 2016) or RMS norm (Zhang and Sennrich 2019).

    A function of your own gets (params, x (..., D)) and returns x. Its `params` are those of layer
    norm, `scale` and `bias` (D,), or what its `init_params(rng, config)` gives. To norm queries and
    keys, `init_params` accepts their number of columns K as the keyword `width`.

    >>> def unit_length(params, x):
    ...     return params.scale * x / jnp.linalg.norm(x, axis=-1, keepdims=True)
    >>> config = GeneratorConfig(norm=unit_length)
    """

    method: Literal["layer", "rms"] = "layer"
    """Divide x by its standard deviation ("layer") or its root mean square ("rms")."""
    epsilon: float = 1e-5
    """Added to the variance."""
    bias: bool | None = None
    """Bias of layer norm; None: the model's `bias`."""
    offset: float = 0.0
    """RMS norm: added to the scale, so that weight decay pulls the scale to it (Gemma: 1)."""

    def __post_init__(self):
        validate_fields(self, positive="epsilon")
        if self.offset and self.method == "layer":
            raise ValueError("the scale of layer norm has no offset")


@dataclass(frozen=True)
class NormFunction:
    """A user's `norm(params, x)`."""

    function: Callable


# Attention and feed-forward layers


@dataclass(frozen=True)
class Attention:
    """Multi-head attention ("Attention is all you need", section 3.2.2).

    A function of your own gets (query (..., H, T, K), key and value (..., H, S, K), mask), the mask
    None or broadcastable to (..., H, T, S), and returns its output (..., H, T, K) and its weights
    (..., H, T, S). Of the keyword arguments `relative_positions` (..., 1, T, S) (key position minus
    query position), `is_causal`, `window`, `rng` and `tap` it gets those in its signature. It must
    accept `bias`, `scale` and `softcap` where a model has them. If it has an attribute
    `init_params(rng, config)`, a dictionary of arrays, these come first.

    >>> def near(query, key, value, mask=None, *, relative_positions):
    ...     scores = query @ key.swapaxes(-1, -2) / query.shape[-1] ** 0.5
    ...     weights = jax.nn.softmax(scores - jnp.abs(relative_positions), where=mask)
    ...     return weights @ value, weights
    >>> config = GeneratorConfig(attention=Attention(near, num_kv_heads=2))

    A layer of your own is an object with `init(rng, config)` and a call: see models/custom.py.
    """

    function: Literal["exact", "mixed", "fused", "auto"] | Callable = "auto"
    """Implementation: exact (reference), mixed (bfloat16 products), fused (one GPU kernel), or
    auto: mixed or fused under mixed precision if the context is at least 128, else exact."""
    query_chunk_size: int = 0
    """Queries per chunk of causal attention, each with only the keys that it may see: less time
    and memory in long contexts. 0: no chunks; "auto" sets 64 for contexts of at least 512."""
    num_kv_heads: int | None = None
    """Heads of keys and values (grouped-query attention); None: `num_heads`."""
    head_dim: int | None = None
    """Width K of a head; None: width / num_heads."""
    qkv_bias: bool = False
    """Biases in the query, key and value layers."""
    bias: bool | None = None
    """Bias of the output layer; None: the model's `bias`."""
    query_key_norm: bool = False
    """Norm each head's queries and keys."""
    windows: tuple[int, ...] = ()
    """Sliding windows: block i attends to positions nearer than windows[i % len]; 0: no limit."""
    softcap: float | None = None
    """Bound scores by c tanh(score / c)."""
    scale: float | None = None
    """Factor of the scores; None: 1 / sqrt(K)."""
    dropout: float = 0.0
    """Dropout rate of the weights."""
    zero_output: bool = False
    """Initialize the output layer to 0, so that the layer adds nothing at first."""

    def __post_init__(self):
        sizes, counts = "num_kv_heads head_dim", "query_chunk_size"
        validate_fields(self, sizes=sizes, counts=counts, positive="softcap scale", rates="dropout")
        if self.query_chunk_size and self.function not in ("exact", "mixed", "auto"):
            raise ValueError("query_chunk_size needs attention 'exact' or 'mixed'")
        if self.dropout and self.function not in ("exact", "auto") and not callable(self.function):
            raise ValueError(f"attention {self.function!r} has no dropout of weights: use 'exact'")
        if self.dropout and self.query_chunk_size:
            raise ValueError("attention in chunks of queries has no dropout of weights")
        for window in self.windows:
            check_size("a window", max(window, 1) if window >= 0 else window)


@dataclass(frozen=True)
class FeedForward:
    """Two linear layers with an activation between ("Attention is all you need", eq. 2).

    An activation of your own gets x (..., T, F) and returns the same shape. A function in place of
    the layer gets (params, x (..., T, D)) and returns y (..., T, D); of the keyword arguments `rng`
    (dropout key, None in evaluation) and `tap` it gets those in its signature. Its `params` are
    this layer's, `hidden` and `output`, or what its `init_params(rng, config)` gives.

    >>> def linear_layer(params, x):
    ...     return x @ params.matrix
    >>> linear_layer.init_params = lambda rng, config: {"matrix": jnp.eye(config.width)}
    >>> config = GeneratorConfig(feed_forward=linear_layer)
    >>> config = GeneratorConfig(feed_forward=FeedForward(activation=jnp.cos))
    """

    mlp_dim: int | None = None
    """Width F of the hidden layer; None: 4 width."""
    activation: Activation = "relu"
    """Activation of the hidden units."""
    gated: bool = False
    """A third layer gates the hidden units: SwiGLU with silu, GeGLU with gelu."""
    bias: bool | None = None
    """Biases of its layers; None: the model's `bias`."""
    dropout: float = 0.0
    """Dropout rate of the hidden units."""
    zero_output: bool = False
    """Initialize the output layer to 0, so that the layer adds nothing at first."""

    def __post_init__(self):
        validate_fields(self, sizes="mlp_dim", rates="dropout")


@dataclass(frozen=True)
class FeedForwardFunction:
    """A user's `feed_forward(params, x)`."""

    function: Callable


# Position encodings


class Positions:
    """Position encoding: added to the embeddings, or changing the scores of attention.

    A function of your own gets (positions (..., T), D) and returns what is added to the embeddings,
    (..., T, D); parameters of its `init_params(rng, config)` come first.

    >>> def slope(positions, width):
    ...     return positions[..., None] / 100 * jnp.ones(width)
    >>> config = GeneratorConfig(positions=slope)

    A class of your own derives from this one and overrides what it needs.
    """

    def init(self, rng, config) -> Any:
        """Return the parameters, a dictionary of arrays, or None."""

    def add(self, params, x, positions, config):
        """Return the embeddings x (..., T, D) with the encoding of `positions` (..., T)."""
        return x

    def attention_inputs(self, params, inputs, config, *, is_causal: bool) -> dict[str, Any]:
        """Return fields of `BlockInputs` that depend on its positions, key_positions and window.

        `angles` (..., T, K / 2) rotate queries and keys, which `attention_factor` multiplies;
        `bias` (..., H, T, S) is added to the scores, and the attention function must accept it.
        `is_causal`: tokens of the model never attend to later ones.
        """
        return {}


@dataclass(frozen=True)
class NoPositions(Positions):
    """No position encoding (NoPE)."""


@dataclass(frozen=True)
class Learned(Positions):
    """A learned vector for each position, added to the embedding."""

    offset: int = 0
    """Row of the table for the first token."""

    def __post_init__(self):
        validate_fields(self, counts="offset")


@dataclass(frozen=True)
class Sinusoidal(Positions):
    """Sines and cosines, added to the embedding ("Attention is all you need", section 3.5)."""

    split: bool = False
    """All sines before all cosines."""


@dataclass(frozen=True)
class RotaryScaling:
    """Scaling of rotary frequencies for contexts longer than the one trained on."""

    method: Literal["linear", "llama3", "yarn"] = "linear"
    """Divide all frequencies by the factor (linear), or low ones only (Llama 3, YaRN)."""
    factor: float = 1.0
    """Longest context / original context."""
    original_context: int = 8192
    """Context of training; not used by linear scaling."""
    low_frequency_factor: float = 1.0
    """Llama 3 `low_freq_factor`: frequencies below this many periods per context are divided."""
    high_frequency_factor: float = 4.0
    """Llama 3 `high_freq_factor`: frequencies above this many periods per context stay."""
    beta_fast: float = 32.0
    """YaRN: frequencies above this many periods per context stay."""
    beta_slow: float = 1.0
    """YaRN: frequencies below this many periods per context are divided."""
    attention_factor: float | None = None
    """YaRN: factor of queries and keys; None: 0.1 ln(factor) + 1."""

    def __post_init__(self):
        periods = "low_frequency_factor high_frequency_factor beta_fast beta_slow"
        positive = f"factor {periods} attention_factor"
        validate_fields(self, sizes="original_context", positive=positive)


@dataclass(frozen=True)
class Rotary(Positions):
    """Rotary position embedding of queries and keys (Su et al. 2021)."""

    base: float = 10_000.0
    """Rotary base θ."""
    local_base: float | None = None
    """Base in blocks with a window, which are not scaled; None: `base`."""
    scaling: RotaryScaling | None = None
    """Scaling for longer contexts."""

    def __post_init__(self):
        validate_fields(self, positive="base local_base")


@dataclass(frozen=True)
class Relative(Positions):
    """Learned bias of scores by relative position (T5; Raffel et al. 2020, section 2.1)."""

    num_buckets: int = 32
    """Buckets of relative positions, each with one number per head."""
    max_distance: int = 128
    """Largest distance with its own bucket; larger ones share the last."""

    def __post_init__(self):
        validate_fields(self, sizes="num_buckets max_distance")
        if not 4 <= self.num_buckets < 2 * self.max_distance:
            raise ValueError(
                f"num_buckets ({self.num_buckets}) must be at least 4 and below 2 * max_distance"
            )


@dataclass(frozen=True)
class ALiBi(Positions):
    """Bias of scores proportional to distance (Press et al. 2022)."""


@dataclass(frozen=True)
class PositionsFunction(Positions):
    """A user's `positions(positions, width)`: vectors (..., T, D) added to the embedding."""

    function: Callable


# Embeddings, layers after the last block, blocks


@dataclass(frozen=True)
class Embedding:
    """A table of vectors, one for each token."""

    init_std: float | None = None
    """Standard deviation of the initial vectors; None: 0.02, or 1 / sqrt(D) with `scale`."""
    scale: bool = False
    """Multiply by sqrt(D) before positions are added ("Attention is all you need", section 3.4)."""
    norm: bool = False
    """Norm embeddings with their positions."""
    type_vocab_size: int = 0
    """Rows of a table of token types (BERT), the first of which is added to every embedding."""
    word_dropout: float = 0.0
    """Probability that a classifier hides a word in training."""

    def __post_init__(self):
        validate_fields(self, counts="type_vocab_size", positive="init_std", rates="word_dropout")


@dataclass(frozen=True, kw_only=True)
class OutputLayer:
    """Logits of tokens: a linear layer, or products with the embedding (Press and Wolf 2017)."""

    bias: bool | None = None
    """Bias of the output layer; None: the model's `bias`, or none if the embedding is tied."""
    product: Literal["exact", "mixed", "auto"] = "auto"
    """Products with a tied embedding: exact (float32), mixed (bfloat16 operands), or auto: as the
    precision of the run."""


@dataclass(frozen=True)
class LMHead(OutputLayer):
    """Output layer of a language model."""

    tied: bool = False
    """Use the embedding as the output layer."""
    softcap: float | None = None
    """Bound logits by c tanh(logit / c)."""

    def __post_init__(self):
        validate_fields(self, positive="softcap")


@dataclass(frozen=True)
class Projection:
    """A layer before the head: norm(activation(x W + b)). The defaults are BERT's."""

    activation: Activation = "gelu_exact"
    """Activation of the layer."""
    bias: bool | None = None
    """Bias of the layer; None: the model's `bias`."""
    norm: bool = True
    """Norm after the activation."""

    def __post_init__(self):
        validate_fields(self)


@dataclass(frozen=True)
class Block:
    """Attention and feed-forward layer, each with a residual connection and a norm (block.py).

    A block of your own derives from this class. Its call gets (params, x (..., T, D), inputs), and
    of the keyword arguments `config`, `cache`, `rng` and `tap` those in its signature; it returns
    (x, cache, aux), or x alone. `apply_layer` calls the layers of the config.

    >>> @dataclass(frozen=True)
    ... class AttentionOnly(Block):
    ...     def __call__(self, params, x, inputs, *, config, cache=None, rng=None):
    ...         layer, cache = config.attention, cache and cache["attention"]
    ...         y, cache, aux = apply_layer(
    ...             layer, params.attention, x, inputs, config=config, cache=cache, rng=rng
    ...         )
    ...         return x + y, {"attention": cache, "feed_forward": None}, aux
    >>> config = GeneratorConfig(block=AttentionOnly())
    """

    pre_norm: bool = False
    """Norm before each layer, and after the last block, instead of after each layer."""
    output_norms: bool = False
    """Norm each layer's output too, before it is added (Gemma 2)."""
    first_norm: bool = True
    """The first block's attention has a norm."""
    attention: Attention | str | Callable | None = dataclasses.field(
        default=None, metadata={"option": False}
    )
    """Attention layer of this block, for patterns of different blocks; None: the model's."""

    def __post_init__(self):
        if self.attention is not None:
            object.__setattr__(self, "attention", resolve("attention", self.attention))


@dataclass(frozen=True)
class Loop:
    """Loop over the blocks."""

    scan: bool = False
    """Compile one block for all of them (`jax.lax.scan`): deep models compile faster."""
    remat: bool = False
    """Recompute blocks in the backward pass instead of storing their intermediate values."""


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
    ) | (str | Callable)
    BlockField = Block | str | tuple[Block | str, ...]


def component(default: Any) -> Any:
    """Return the default of a field of a config that holds a component."""
    return default


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


def resolve(field: str, value: Any) -> Any:
    """Return the component that a word names or that calls a user's function.

    Raises:
        ValueError: there is no such word, or the value is no component of this field.
    """
    if field == "block" and isinstance(value, tuple) and value:
        return tuple(resolve(field, each) for each in value)
    if isinstance(value, str):
        if value not in PRESETS[field]:
            raise ValueError(f"{field} must be one of {', '.join(PRESETS[field])}, not {value!r}")
        return PRESETS[field][value]
    if field in FUNCTION_ADAPTERS and callable(value) and not hasattr(value, "init"):
        return FUNCTION_ADAPTERS[field](value)
    base = {"positions": Positions, "block": Block}.get(field)
    if base and not isinstance(value, base):
        raise ValueError(f"{field} must be a word or a tlite.models.{base.__name__}: {value!r}")
    if not base and not dataclasses.is_dataclass(value):
        raise ValueError(f"{field} must be a word, a function or a dataclass: {value!r}")
    return value


# Models


@dataclass(frozen=True)
class TransformerConfig:
    """Sizes and components of a stack of blocks. The defaults are the post-norm model of 2017."""

    vocabulary_size: int = 0
    """Number of tokens V; 0: the tokenizer's."""
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
    positions: PositionsField = component(Learned())
    """Position encoding: added to the embedding, rotating queries and keys, or a bias of scores."""
    attention: AttentionField = component(Attention())
    """Attention layer."""
    feed_forward: FeedForwardField = component(FeedForward())
    """Feed-forward layer."""
    norm: NormField = component(Norm())
    """Norm of the layers."""
    block: BlockField = component(Block())
    """Arrangement of layers, residuals and norms; a tuple repeats as a pattern over the blocks."""
    loop: Loop = Loop()
    """Loop over the blocks."""

    def __post_init__(self):
        for field in ("positions", "attention", "feed_forward", "norm", "block"):
            object.__setattr__(self, field, resolve(field, getattr(self, field)))
        sizes, counts = "context width num_heads", "vocabulary_size"
        validate_fields(self, sizes=sizes, counts=counts, rates="dropout")
        check_size("num_blocks", self.num_blocks, MAX_BLOCKS)
        hash(self)  # a list in a component can't be compared: raise here
        validate_components(self)

    @property
    def head_dim(self) -> int:
        """Width K of a head."""
        return getattr(self.attention, "head_dim", None) or self.width // self.num_heads

    @property
    def blocks(self) -> "tuple[Any, ...]":
        """For each block a config, with its own `block` and `attention` of a pattern."""
        return block_configs(self)

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


@lru_cache(maxsize=256)
def block_configs(config: TransformerConfig) -> tuple[TransformerConfig, ...]:
    """Return the config of each block, with its own `block` and `attention` of a pattern."""
    pattern, configs = config.block if isinstance(config.block, tuple) else (config.block,), []
    for block in pattern:
        changes = {"block": dataclasses.replace(block, attention=None)}
        if block.attention is not None:
            changes["attention"] = block.attention
        is_same = all(getattr(config, name) == value for name, value in changes.items())
        configs.append(config if is_same else dataclasses.replace(config, **changes))
    return tuple(configs[index % len(configs)] for index in range(config.num_blocks))


ATTENTION_FUNCTIONS: dict[str, Callable] = {
    "exact": F.scaled_dot_product_attention,
    "mixed": F.mixed_attention,
    "fused": F.fused_attention,
    "auto": F.scaled_dot_product_attention,  # until a run has chosen
}


def validate_components(config: TransformerConfig) -> None:
    """Raise a ValueError where the components of a config don't go together."""
    if isinstance(config.block, tuple):
        if len({block.pre_norm for block in config.block}) > 1:
            raise ValueError("the blocks of a pattern must have the same pre_norm")
        block_configs(config)  # validates each block's attention
    if config.loop.scan:
        is_uniform = len({*config.blocks}) == 1 == len({*config.windows})
        if not (is_uniform and config.blocks[0].block.first_norm):
            raise ValueError("loop.scan needs identical blocks: one window, block.first_norm=True")
    if hasattr(config.attention, "validate"):
        config.attention.validate(config)
    if isinstance(config.attention, Attention):
        validate_attention(config.attention, config)


def validate_attention(attention: Attention, config: TransformerConfig) -> None:
    """Raise a ValueError where attention does not fit the sizes and positions of a config."""
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
    if isinstance(config.positions, Relative | ALiBi):
        required.append("bias")
    return F.unsupported_kwargs(function, required)


def describe_components(config: Any) -> Iterator[tuple[str, str]]:
    """Yield field and name: of attention always, of a user's functions and components if any."""
    for field in dataclasses.fields(config):
        value, name = getattr(config, field.name), field.name
        if isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0]):
            yield name, " ".join(describe_block(block) for block in value)
        elif not dataclasses.is_dataclass(value):
            if callable(value):
                yield name, name_of(value)
        elif is_own(value):
            yield name, name_of(type(value))
        elif isinstance(value, Attention):
            chunks = f" in chunks of {value.query_chunk_size}" if value.query_chunk_size else ""
            yield name, name_of(value.function) + chunks
        else:
            for inner, described in describe_components(value):
                yield name if inner == "function" else inner, described


def describe_block(block: Block) -> str:
    """Return the name of a user's block, or of the attention layer of a block in a pattern."""
    if is_own(block):
        return name_of(type(block))
    return "attention" if block.attention is None else name_of(type(block.attention))
