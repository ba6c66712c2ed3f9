"""What models are made of: small frozen dataclasses that hold numbers and call `functional`.

A part draws its parameters, `init(rng, config)` for a model's config, and its call reads as its
equation. One of a user's own is the same: a dataclass with the two methods, or a plain function
where there is nothing to hold.

    part                      gets                                  returns
    attention, feed_forward   params, x (..., T, D), look           y (..., T, D), and rows to
                                                                    cache (..., T, N), or None
    norm                      params, x (..., D)                    x (..., D)
    positions                 see `Positions`
    block                     params, x (..., T, D), look, config   x (..., T, D), rows by layer

`look` is a `functional.Look`: masks, positions, cache, noise. What a function in place of a part
gets and returns is in the part's `help`, with an example. Its `params` are those of the library's
part: `FeedForwardParameters`, `NormParameters`. A function with an attribute `parameters`, which
maps (config, rng) to a dictionary of arrays, gets these instead, as its first argument's fields.

Arrays of a block with two or more axes are matrices (`parameters.is_matrix`) unless they are
called bias, scale, taps or table: bfloat16 in mixed precision, updated by Muon, and decayed, as
kernels are. `tlite plan --parameters` lists what holds for each.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from tlite import functional as F
from tlite.config import check_size, check_words
from tlite.errors import UserError
from tlite.models.parameters import as_params

ACTIVATIONS = {
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,
    "gelu_exact": partial(jax.nn.gelu, approximate=False),
    "silu": jax.nn.silu,
    "squared_relu": F.squared_relu,
    "tanh": jnp.tanh,
}
ATTENTIONS: dict[Literal["exact", "mixed", "fused", "auto"], Callable] = {
    "exact": F.scaled_dot_product_attention,
    "mixed": F.mixed_attention,
    "fused": F.fused_attention,
}
ATTENTIONS["auto"] = ATTENTIONS["exact"]  # until a run has decided

Activation = Literal["relu", "gelu", "gelu_exact", "silu", "squared_relu", "tanh"] | Callable


def check(part, *, sizes: str = "", counts: str = "", positive: str = "", rates: str = "") -> None:
    """Raises a ValueError if a word of a part, or one of these fields, named in a line, is wrong.

    Args:
        sizes: at least 1, if given.
        counts: at least 0.
        positive: numbers above 0, if given.
        rates: of dropout, in [0, 1).
    """
    check_words(part)
    value = partial(getattr, part)
    for name in sizes.split():
        if value(name) is not None:
            check_size(name, value(name))
    for name in counts.split():
        if value(name) < 0:
            raise ValueError(f"{name} must not be negative, not {value(name)}")
        check_size(name, max(value(name), 1))
    for name in positive.split():
        if value(name) is not None and not 0 < value(name) < math.inf:
            raise ValueError(f"{name} must be positive, not {value(name)}")
    for name in rates.split():
        if not 0 <= value(name) < 1:
            named = "dropout rate" if name == "dropout" else name.replace("_", " ")
            raise ValueError(f"the {named} must be in [0, 1), not {value(name)}")


def has_bias(part, config) -> bool:
    """Whether a part's layers have biases: as the model's unless it says so."""
    return config.bias if part.bias is None else part.bias


def linear(
    rng: Key[Array, ""], inputs: int, outputs: int, *, bias: bool = True, zeros: bool = False
) -> F.LinearParameters:
    """A kernel drawn by Glorot and Bengio's uniform scheme, or of zeros; the bias is 0.

    Raises:
        UserError: it has no inputs or no outputs.
    """
    if not (inputs and outputs):
        what = "say the model's vocabulary_size and num_classes, where no data decides them"
        raise UserError(f"a linear layer can't have {inputs} inputs and {outputs} outputs: {what}")
    draw = jax.nn.initializers.zeros if zeros else jax.nn.initializers.glorot_uniform()
    return F.LinearParameters(draw(rng, (inputs, outputs)), jnp.zeros(outputs) if bias else None)


def table(rng: Key[Array, ""], size: int, width: int, deviation: float = 0.02) -> dict[str, Array]:
    """`size` vectors of `width` numbers, drawn from N(0, deviation^2).

    Raises:
        UserError: there are none.
    """
    if not size:
        raise UserError("set the model's vocabulary_size, where no data decides it: it is 0")
    return {"table": deviation * jax.random.normal(rng, (size, width))}


def init_custom_params(
    function: Callable | str, rng: Key[Array, ""], config
) -> dict[str, Array] | None:
    """The parameters of a user's function, `parameters(config, rng)`; None if it has none."""
    make = getattr(function, "parameters", None)
    return None if make is None else make(config, rng)


def bind_params(function: Callable | str, params) -> Callable:
    """A function, or an activation by its name, with its parameters as first argument."""
    function = ACTIVATIONS[function] if isinstance(function, str) else function
    return function if params is None else partial(function, params)


@dataclass(frozen=True)
class FunctionPart:
    """A user's function in the place of a part, whose parameters it gets but for its own."""

    part: ClassVar[Any]
    function: Callable

    def init(self, rng: Key[Array, ""], config):
        learned = init_custom_params(self.function, rng, config)
        return self.part.init(rng, config) if learned is None else learned


# Norms


@dataclass(frozen=True)
class Norm:
    """Layer norm (Ba et al. 2016), or RMS norm (Zhang and Sennrich 2019).

    A function of your own gets (params, x (..., D)) and returns x. Its `params` are those of layer
    norm, `scale` and `bias` (D,), or what its `parameters(config, rng)` gives. To norm queries and
    keys, `parameters` takes their number of columns K as the keyword `width`.

    >>> def unit_length(params, x):
    ...     return params.scale * x / jnp.linalg.norm(x, axis=-1, keepdims=True)
    >>> config = GeneratorConfig(norm=unit_length)
    """

    method: Literal["layer", "rms"] = "layer"
    """What x is divided by: its standard deviation, or its root mean square."""
    epsilon: float = 1e-5
    """What is added to the variance."""
    bias: bool | None = None
    """A bias of layer norm; as the model's unless given."""
    offset: float = 0.0
    """RMS norm: what is added to the scale, so that weight decay pulls to it (Gemma: 1)."""

    def __post_init__(self):
        check(self, positive="epsilon")
        if self.offset and self.method == "layer":
            raise ValueError("the scale of layer norm has no offset")

    def init(self, rng: Key[Array, ""], config, width: int | None = None) -> F.NormParameters:
        width = width or config.width
        bias = jnp.zeros(width) if self.method == "layer" and has_bias(self, config) else None
        return F.NormParameters(jnp.full(width, 1 - self.offset), bias)

    def __call__(self, params, x: Float[Array, "*batch D"]) -> Float[Array, "*batch D"]:
        if self.method == "layer":
            return F.layer_norm(params, x, self.epsilon)
        return F.rms_norm(params, x, self.epsilon, self.offset)


@dataclass(frozen=True)
class NormFunction(FunctionPart):
    """A user's `norm(params, x)`."""

    part = Norm()

    def init(self, rng: Key[Array, ""], config, width: int | None = None):
        make = getattr(self.function, "parameters", None)
        if make is None:
            return self.part.init(rng, config, width)
        width = width or config.width
        required = {"width": None if width == config.width else width}
        return F.bind_supported_kwargs(make, required, width=width)(config, rng)

    def __call__(self, params, x: Float[Array, "*batch D"]) -> Float[Array, "*batch D"]:
        return self.function(params, x)


# Attention


class Layer:
    """A layer in the place of attention or of the feed-forward layer.

    Here is what a model asks of an attention beside `init` and call; of the other it asks nothing.
    """

    if TYPE_CHECKING:

        def init(self, rng: Key[Array, ""], config) -> Any: ...
        def __call__(self, params, x: Float[Array, "*batch T D"], look: F.Look) -> Any: ...

    def check(self, config) -> None:
        """Raises a ValueError where it does not go with a model's other parts."""

    def window(self, block: int) -> int:
        """How far a block sees; 0: everything."""
        return 0

    def width_of_heads(self, config) -> int:
        """Width K of a head."""
        return config.width // config.num_heads

    def key_values(self, params, memory: Float[Array, "*batch S D"], look: F.Look):
        """Return what cross-attention reads of an encoder's output; the call gets it as
        `look.memory`, and returns no rows then.

        Raises:
            UserError: the layer has no such method.
        """
        name = type(self).__name__
        raise UserError(f"cross-attention by {name} needs {name}.key_values(params, memory, look)")


@dataclass(frozen=True)
class Attention(Layer):
    """Multi-head attention ("Attention is all you need", section 3.2.2).

    A function of your own gets (query (..., H, T, K), key and value (..., H, S, K), mask), the mask
    None or broadcastable to (..., H, T, S), and returns its output (..., H, T, K) and its weights
    (..., H, T, S). It gets those of the keyword arguments `distances` (..., T, S), how far each key
    is ahead of each query, `causal`, `window` and `tap` that it accepts. It must accept `bias`,
    `scale` and `softcap` where a model has them. What its `parameters(config, rng)` gives comes
    first.

    >>> def near(query, key, value, mask=None, *, distances):
    ...     scores = query @ key.swapaxes(-1, -2) / query.shape[-1] ** 0.5 - jnp.abs(distances)
    ...     weights = jax.nn.softmax(scores, where=mask)
    ...     return weights @ value, weights
    >>> config = GeneratorConfig(attention=Attention(near, num_kv_heads=2))

    A layer of your own is a `Layer` with `init` and a call.
    """

    function: Literal["exact", "mixed", "fused", "auto"] | Callable = "auto"
    """What computes it: the definition, bfloat16 products ("mixed"), or one kernel of a GPU
    ("fused"); "auto" takes these two in mixed precision and contexts of 128 or more, and in
    causal models of 512 or more tokens. Before a run has decided, it is the definition."""
    query_chunk_size: int = 0
    """Queries that causal attention computes at a time, each with only the keys that it may see:
    faster and in less memory where a context is long; 0: all together."""
    num_kv_heads: int | None = None
    """Heads of keys and values, each for several queries (grouped queries); H unless given."""
    head_dim: int | None = None
    """Width K of a head; D / H unless given."""
    qkv_bias: bool = False
    """Biases in the query, key and value layers."""
    bias: bool | None = None
    """A bias of the output layer; as the model's unless given."""
    query_key_norm: bool = False
    """Norm each head's queries and keys."""
    windows: tuple[int, ...] = ()
    """Block i sees what is nearer than windows[i mod their number]; 0: everything."""
    softcap: float | None = None
    """Bound scores by c tanh(score / c)."""
    scale: float | None = None
    """What scores are multiplied by; 1 / sqrt(K) unless given."""
    zero_output: bool = False
    """The output layer begins at 0: the layer adds nothing yet."""

    def __post_init__(self):
        check(
            self, sizes="num_kv_heads head_dim", counts="query_chunk_size", positive="softcap scale"
        )
        if self.query_chunk_size and self.function not in ("exact", "mixed", "auto"):
            raise ValueError("query_chunk_size is for exact and mixed attention, not for another")
        for window in self.windows:
            check_size("a window", max(window, 1) if window >= 0 else window)

    def check(self, config) -> None:
        width = self.width_of_heads(config)
        if self.head_dim is None and config.width % config.num_heads:
            raise ValueError(
                f"a width of {config.width} is not divisible by {config.num_heads} heads"
            )
        if config.num_heads % (self.num_kv_heads or config.num_heads):
            raise ValueError(
                f"{config.num_heads} heads can't share {self.num_kv_heads} heads of keys"
            )
        if isinstance(config.positions, Rotary) and width % 2:
            raise ValueError("rotary positions pair the columns: the head width must be even")
        function = self.function if callable(self.function) else ATTENTIONS[self.function]
        if missing := self.unsupported(function, config):
            name = getattr(self.function, "__name__", self.function)
            raise ValueError(f"attention {name!r} does not support {missing[0]}: use 'exact'")

    def unsupported(self, function: Callable, config) -> list[str]:
        """Names of the keyword arguments that a model needs and `function` does not accept."""
        names = [name for name in ("scale", "softcap") if getattr(self, name) is not None]
        missing = F.unsupported_kwargs(function, [*names, "bias"])
        lacks_bias = "bias" in missing and adds_bias(config)
        return missing if lacks_bias else [name for name in missing if name != "bias"]

    def width_of_heads(self, config) -> int:
        return self.head_dim or config.width // config.num_heads

    def window(self, block: int) -> int:
        return self.windows[block % len(self.windows)] if self.windows else 0

    def key_values(self, params, memory: Float[Array, "*batch S D"], look: F.Look):
        return F.key_values(params, memory, look)

    def init(self, rng: Key[Array, ""], config) -> F.AttentionParameters:
        width, heads = self.width_of_heads(config), config.num_heads
        inner, of_keys = heads * width, (self.num_kv_heads or heads) * width
        *in_keys, out_key, custom_key, query_key, key_key = jax.random.split(rng, 7)
        norm_keys = (query_key, key_key) if self.query_key_norm else ()
        norms = [config.norm.init(k, config, width) for k in norm_keys] or (None, None)
        query_norm, key_norm = norms
        query, key, value = (
            linear(k, config.width, size, bias=self.qkv_bias)
            for k, size in zip(in_keys, (inner, of_keys, of_keys), strict=True)
        )
        settings = {"bias": has_bias(self, config), "zeros": self.zero_output}
        output = linear(out_key, inner, config.width, **settings)
        custom = init_custom_params(self.function, custom_key, config)
        return F.AttentionParameters(query, key, value, output, query_norm, key_norm, custom)

    def __call__(self, params, x: Float[Array, "*batch T D"], look: F.Look):
        if callable(self.function):
            function = F.with_repeated_kv(bind_params(self.function, params.own))
        else:
            function = ATTENTIONS[self.function]
        if self.query_chunk_size:
            operands = jnp.bfloat16 if self.function == "mixed" else None
            function = F.chunked_causal_attention(function, self.query_chunk_size, operands)
        settings = {"attention": function, "scale": self.scale, "softcap": self.softcap}
        return F.attention_layer(params, x, look, **settings)


# Feed-forward layers


@dataclass(frozen=True)
class FeedForward:
    """Two linear layers with an activation between ("Attention is all you need", eq. 2).

    An activation of your own gets x (..., T, F) and returns the same shape. A function in place of
    the layer gets (params, x (..., T, D)) and returns y (..., T, D). The keyword arguments `rng`,
    the key of dropout (None in evaluation), and `tap` are passed if it accepts them. Its
    `params` are this layer's, `hidden` and `output`, or what its `parameters(config, rng)` gives.

    >>> def linear_layer(params, x):
    ...     return x @ params.matrix
    >>> linear_layer.parameters = lambda config, rng: {"matrix": jnp.eye(config.width)}
    >>> config = GeneratorConfig(feed_forward=linear_layer)
    >>> config = GeneratorConfig(feed_forward=FeedForward(activation=jnp.cos))
    """

    mlp_dim: int | None = None
    """Width F between the two; 4 D unless given."""
    activation: Activation = "relu"
    """Activation of the hidden units."""
    gated: bool = False
    """A third layer gates the hidden units: SwiGLU with silu, GeGLU with gelu."""
    bias: bool | None = None
    """Biases of its layers; as the model's unless given."""
    dropout: float = 0.0
    """Dropout rate of the hidden units."""
    zero_output: bool = False
    """The last layer begins at 0: the layer adds nothing yet."""

    def __post_init__(self):
        check(self, sizes="mlp_dim", rates="dropout")

    def init(self, rng: Key[Array, ""], config) -> F.FeedForwardParameters:
        bias = has_bias(self, config)
        width, hidden = config.width, self.mlp_dim or 4 * config.width
        hidden_key, output_key, gate_key, custom_key = jax.random.split(rng, 4)
        return F.FeedForwardParameters(
            linear(hidden_key, width, hidden, bias=bias),
            linear(output_key, hidden, width, bias=bias, zeros=self.zero_output),
            linear(gate_key, width, hidden, bias=bias) if self.gated else None,
            init_custom_params(self.activation, custom_key, config),
        )

    def __call__(self, params, x: Float[Array, "*batch T D"], look: F.Look):
        function = bind_params(self.activation, params.own)
        return F.feed_forward_layer(params, x, look, activation=function, dropout_rate=self.dropout)


@dataclass(frozen=True)
class FeedForwardFunction(FunctionPart):
    """A user's `feed_forward(params, x)`, which may also accept `rng` and `tap`."""

    part = FeedForward()

    def __call__(self, params, x: Float[Array, "*batch T D"], look: F.Look):
        noise = F.fold_in(look.rng, F.HIDDEN)
        call = F.bind_supported_kwargs(self.function, rng=noise, tap=look.tap)
        return call(params, x), None


# Positions


def positions_of(look: F.Look) -> tuple[Int[Array, "..."], Int[Array, "..."]]:
    """Return the positions of the queries and those of the keys.

    Raises:
        ValueError: the look has none.
    """
    if look.positions is None or look.key_positions is None:
        raise ValueError("these positions need a look with positions and key_positions")
    return look.positions, look.key_positions


class Positions:
    """How the place of a token enters: each kind does `add` or `attention_inputs`.

    A function of your own gets (positions (..., T), D) and returns what is added to the embeddings,
    (..., T, D). What its `parameters(config, rng)` gives comes first.

    >>> def slope(positions, width):
    ...     return positions[..., None] / 100 * jnp.ones(width)
    >>> config = GeneratorConfig(positions=slope)
    """

    name: ClassVar[str] = "positions"
    """The field of the model that holds what is learned."""

    def init(self, rng: Key[Array, ""], config):
        """What is learned of positions, or None."""

    def add(
        self,
        params,
        x: Float[Array, "*batch T D"],
        positions: Int[Array, "*#batch T"] | None,
        config,
    ) -> Float[Array, "*batch T D"]:
        """Embeddings with their positions, 0, 1, ... unless given.

        Raises:
            ValueError: more tokens than the model's context.
        """
        F.check_length(x.shape[-2], config.context, "the model's context")
        return x

    def attention_inputs(self, params, look: F.Look, config, *, causal: bool) -> dict[str, Any]:
        """Fields of the `look` of attention, from its positions, key positions and window.

        `angles` (..., T, K / 2) and a `magnitude`, by which queries and keys are turned and
        multiplied; or a `bias` of scores (..., H, T, S), of a model that is `causal` or not, which
        the attention function must accept.
        """
        return {}


def adds_bias(config) -> bool:
    """True if the positions of a model give a bias of attention scores in one of its blocks."""
    if type(config.positions).attention_inputs is Positions.attention_inputs:
        return False

    def scores(window: int):
        at = jnp.arange(1)
        look = F.Look(config.num_heads, positions=at, key_positions=at, window=window)
        params = as_params(config.positions.init(jax.random.key(0), config))
        return config.positions.attention_inputs(params, look, config, causal=True)

    found = (jax.eval_shape(partial(scores, window)) for window in {*config.windows})
    return any(score.get("bias") is not None for score in found)


@dataclass(frozen=True)
class NoPositions(Positions):
    """Tokens are told apart by nothing but what is masked."""


@dataclass(frozen=True)
class Learned(Positions):
    """A learned vector for each position, added to the embedding."""

    offset: int = 0
    """The row of the table that is the first token's."""

    def __post_init__(self):
        check(self, counts="offset")

    def init(self, rng: Key[Array, ""], config):
        return table(rng, config.context + self.offset, config.width)

    def table(self, params, config) -> Float[Array, "L D"]:
        """What is added at each position."""
        return jnp.asarray(params.table)[self.offset :]

    def add(self, params, x, positions, config):
        rows = self.table(params, config)
        return F.add_positions(rows, x) if positions is None else x + rows[positions]


@dataclass(frozen=True)
class Sinusoidal(Learned):
    """Sines and cosines, added to the embedding ("Attention is all you need", section 3.5)."""

    offset: ClassVar[int] = 0
    split: bool = False
    """All sines before all cosines."""

    def init(self, rng: Key[Array, ""], config):
        return None

    def table(self, params, config) -> Float[Array, "L D"]:
        # Not at every step of a search; and what is computed now lies on no mesh.
        nowhere = jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ()))
        with nowhere, jax.ensure_compile_time_eval():
            return F.sinusoidal_positions(config.context, config.width, split=self.split)


@dataclass(frozen=True)
class RotaryScaling:
    """How rotary positions go beyond the context that they were trained for."""

    method: Literal["linear", "llama3", "yarn"] = "linear"
    """Every frequency is divided by the factor; or the slow ones only, as Llama 3 or YaRN say."""
    factor: float = 1.0
    """How much longer the texts may be."""
    original_context: int = 8192
    """The context of training; not used by linear scaling."""
    low_frequency_factor: float = 1.0
    """Llama 3: turns in that context up to which a frequency is slow."""
    high_frequency_factor: float = 4.0
    """Llama 3: turns from which it stays as it is."""
    beta_fast: float = 32.0
    """YaRN: turns from which a frequency stays as it is."""
    beta_slow: float = 1.0
    """YaRN: turns up to which it is slow."""
    attention_factor: float | None = None
    """YaRN: queries and keys are multiplied by it; 0.1 ln(factor) + 1 unless given."""

    def __post_init__(self):
        turns = "low_frequency_factor high_frequency_factor beta_fast beta_slow"
        check(self, sizes="original_context", positive=f"factor {turns} attention_factor")

    def frequencies(self, plain: Float[Array, "N"], base: float) -> Float[Array, "N"]:
        """The scaled frequencies."""
        if self.method == "linear":
            return plain / self.factor
        settings = plain, self.factor, self.original_context
        if self.method == "llama3":
            turns = self.low_frequency_factor, self.high_frequency_factor
            return F.llama3_frequencies(*settings, *turns)
        return F.yarn_frequencies(*settings, self.beta_fast, self.beta_slow, base)

    @property
    def magnitude(self) -> float:
        """What queries and keys are multiplied by."""
        if self.method != "yarn":
            return 1.0
        return self.attention_factor or 0.1 * math.log(max(self.factor, 1)) + 1


@dataclass(frozen=True)
class Rotary(Positions):
    """Queries and keys are turned by their positions (Su et al. 2021)."""

    base: float = 10_000.0
    """The slowest pair of columns turns some base times slower than the first."""
    local_base: float | None = None
    """The base in blocks with a window, where nothing is scaled; `base` unless given."""
    scaling: RotaryScaling | None = None
    """How they are stretched."""

    def __post_init__(self):
        check(self, positive="base local_base")

    def attention_inputs(self, params, look, config, *, causal):
        local = self.local_base if look.window > 0 else None
        frequencies = F.rotary_frequencies(config.head_dim, local or self.base)
        scaling, magnitude = None if local else self.scaling, 1.0
        if scaling:
            frequencies = scaling.frequencies(frequencies, self.base)
            magnitude = scaling.magnitude
        positions, _ = positions_of(look)
        angles = positions[..., None] * frequencies
        angles = angles[..., None, :, :] if positions.ndim > 1 else angles
        return {"angles": angles, "magnitude": magnitude}


@dataclass(frozen=True)
class Relative(Positions):
    """A learned bias of scores by the distance (Raffel et al. 2020, section 2.1)."""

    name: ClassVar[str] = "relative"
    num_buckets: int = 32
    """Numbers for each head, one a bucket of distances."""
    max_distance: int = 128
    """From which distance on all share a bucket."""

    def __post_init__(self):
        check(self, sizes="num_buckets max_distance")
        if not 4 <= self.num_buckets < 2 * self.max_distance:
            raise ValueError("num_buckets must be at least 4, max_distance above half of them")

    def init(self, rng: Key[Array, ""], config):
        return table(rng, self.num_buckets, config.num_heads)

    def attention_inputs(self, params, look, config, *, causal):
        positions, key_positions = positions_of(look)
        distances = key_positions[..., None, :] - positions[..., :, None]
        buckets = F.relative_position_buckets(
            distances, self.num_buckets, self.max_distance, causal=causal
        )
        return {"bias": jnp.moveaxis(F.embed(jnp.asarray(params.table), buckets), -1, -3)}


@dataclass(frozen=True)
class ALiBi(Positions):
    """A bias of scores in proportion to the distance (Press et al. 2022)."""

    def attention_inputs(self, params, look, config, *, causal):
        return {"bias": F.alibi(*positions_of(look), config.num_heads)}


@dataclass(frozen=True)
class PositionsFunction(FunctionPart, Positions):
    """A user's `positions(at, width)`: vectors (..., T, D) that are added to the embedding."""

    name, part = "own", NoPositions()

    def add(self, params, x, positions, config):
        x = super().add(params, x, positions, config)
        at = jnp.arange(x.shape[-2]) if positions is None else positions
        return x + bind_params(self.function, params)(at, config.width)


# Embeddings, what follows the last block, and blocks


@dataclass(frozen=True)
class Embedding:
    """A table of vectors, one for each token."""

    init_std: float | None = None
    """Their standard deviation before training; 0.02, or 1 / sqrt(D) if they are scaled."""
    scale: bool = False
    """Multiply them by sqrt(D) before positions are added ("Attention is all you need", section
    3.4)."""
    norm: bool = False
    """Norm them with their positions."""
    type_vocab_size: int = 0
    """Rows of a table of segments, whose first is added to every embedding."""
    word_dropout: float = 0.0
    """Chance that a word is hidden from a classifier in training."""

    def __post_init__(self):
        check(self, counts="type_vocab_size", positive="init_std", rates="word_dropout")

    def factor(self, config) -> float:
        """What embeddings are multiplied by."""
        return math.sqrt(config.width) if self.scale else 1.0

    def init(self, rng: Key[Array, ""], config) -> dict[str, Array]:
        deviation = 1 / math.sqrt(config.width) if self.scale else 0.02
        return table(rng, config.vocabulary_size, config.width, self.init_std or deviation)


@dataclass(frozen=True, kw_only=True)
class OutputLayer:
    """From vectors to logits of tokens: a linear layer, or the products with the embedding.

    (Press and Wolf 2017.) With many tokens these products are the largest of all.
    """

    tied: ClassVar[bool] = False
    bias: bool | None = None
    """A bias of the output layer; as the model's unless given, and none if it is the embedding."""
    product: Literal["exact", "mixed", "auto"] = "auto"
    """With the embedding: operands in bfloat16 ("mixed"), as layers in mixed precision have them,
    or "exact"; "auto" is what the run's precision says."""

    def init(self, rng: Key[Array, ""], config) -> dict:
        """The layer, `head`; with the embedding its bias, `head_bias`, if any."""
        if self.tied:
            return {"head_bias": jnp.zeros(config.vocabulary_size)} if self.bias else {}
        bias = has_bias(self, config)
        return {"head": linear(rng, config.width, config.vocabulary_size, bias=bias)}

    def logits(self, model, embedding, x: Float[Array, "*batch D"]) -> Float[Array, "*batch V"]:
        """Those of a model, which holds the layer, with this embedding."""
        if not self.tied:
            return F.linear(model.head, x)
        table, bias = embedding.table[...], model.head_bias[...] if self.bias else None
        return F.unembed(table.astype(jnp.bfloat16) if self.product == "mixed" else table, x, bias)


@dataclass(frozen=True)
class Projection:
    """A layer before the head: norm(activation(x W + b)). The defaults are BERT's."""

    activation: Activation = "gelu_exact"
    """Its activation."""
    bias: bool | None = None
    """A bias of it; as the model's unless given."""
    norm: bool = True
    """A norm after it."""

    def __post_init__(self):
        check(self)

    def init(self, rng: Key[Array, ""], config) -> dict:
        """The layer, `projection`, and its norm, `projection_norm`."""
        key, custom_key, norm_key = jax.random.split(rng, 3)
        layer = linear(key, config.width, config.width, bias=has_bias(self, config))._asdict()
        layer["own"] = init_custom_params(self.activation, custom_key, config)
        norm = {"projection_norm": config.norm.init(norm_key, config)} if self.norm else {}
        return {"projection": layer} | norm

    def __call__(self, model, x: Float[Array, "*batch D"]) -> Float[Array, "*batch D"]:
        function = bind_params(self.activation, model.projection.own)
        x = function(F.linear(model.projection, x))
        return model.config.norm(model.projection_norm, x) if self.norm else x


@dataclass(frozen=True)
class Block:
    """Attention and feed-forward, each with a residual and a norm (`functional.block`).

    One of your own maps (params, x (..., T, D), look, config) to x and to what a cache keeps of
    each layer. `look.at(layer)` is what that layer looks at.

    >>> @dataclass(frozen=True)
    ... class Attending(Block):
    ...     def __call__(self, params, x, look, config):
    ...         y, kept = config.attention(params.attention, x, look.at("attention"))
    ...         return x + y, {"attention": kept, "feed_forward": None}
    >>> config = GeneratorConfig(block=Attending())
    """

    pre_norm: bool = False
    """Norm before each layer, with a norm after the last block, instead of after each layer."""
    output_norms: bool = False
    """Norm each layer's output too, before it is added."""
    first_norm: bool = True
    """Whether the first block's attention has a norm."""

    def init(self, rng: Key[Array, ""], config, index: int, *, across: bool):
        """The parameters of block `index`; `across` with attention on an encoder's output."""
        first_key, second_key, norm_key = jax.random.split(rng, 3)
        layers, keys = {}, (first_key, second_key)
        if across:
            layers["cross_attention"] = config.attention.init(second_key, config)
            keys = jax.random.split(first_key)
        layers["attention"] = config.attention.init(keys[0], config)
        layers["feed_forward"] = config.feed_forward.init(keys[1], config)
        names = [f"{name}_norm" for name in layers]
        if self.output_norms:
            names += [f"{name}_output_norm" for name in layers]
        norm_keys = jax.random.split(norm_key, len(names))
        norms = {n: config.norm.init(k, config) for n, k in zip(names, norm_keys, strict=True)}
        if index == 0 and not self.first_norm:
            norms["attention_norm"] = None
        return F.BlockParameters(**layers, **norms)

    def __call__(self, params, x: Float[Array, "*batch T D"], look: F.Look, config):
        layers = config.attention, config.feed_forward
        return F.block(params, x, look, *layers, self.pre_norm, config.dropout)


if TYPE_CHECKING:
    Component = TypeVar("Component")

    class Slot(Generic[Component]):
        """A field that is set to a component, a word or a function, and read as the component."""

        def __get__(self, instance: Any, owner: Any) -> Component: ...
        def __set__(self, instance: Any, value: Component | str | Callable) -> None: ...

    NormPart = Slot[Norm | NormFunction]
    AttentionPart = Slot[Layer]
    FeedForwardPart = Slot[FeedForward | FeedForwardFunction | Layer]
    PositionsPart = Slot[Positions]
    BlockPart = Slot[Block]
else:
    Given = str | Callable
    NormPart = Norm | NormFunction | Given
    AttentionPart = Attention | Layer | Given
    FeedForwardPart = FeedForward | FeedForwardFunction | Layer | Given
    PositionsPart = (
        Learned | Sinusoidal | Rotary | Relative | ALiBi | NoPositions | PositionsFunction | Given
    )
    BlockPart = Block | str


def component(default: Any) -> Any:
    """Return the default of a field of a config that holds a component."""
    return default


WORDS: dict[str, dict[str, Any]] = {
    "norm": {"layer": Norm(), "rms": Norm("rms"), "zero_centred_rms": Norm("rms", offset=1.0)},
    "attention": {name: Attention(name) for name in ATTENTIONS},
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
OWN = {
    "norm": NormFunction,
    "attention": Attention,
    "feed_forward": FeedForwardFunction,
    "positions": PositionsFunction,
}

BASES = {"attention": Layer, "positions": Positions}
"""Classes whose methods a model calls beside `init` and call."""


def part(slot: str, value):
    """The part that a word names, or that calls a user's function; a part as it is.

    Raises:
        ValueError: there is no such word, or the component has no such base class.
    """
    if isinstance(value, str):
        if value not in WORDS[slot]:
            raise ValueError(f"{slot} must be one of {', '.join(WORDS[slot])}, not {value!r}")
        return WORDS[slot][value]
    if slot in OWN and callable(value) and not hasattr(value, "init"):
        return OWN[slot](value)
    if slot in BASES and not isinstance(value, BASES[slot]):
        name = BASES[slot].__name__
        raise ValueError(f"{slot} must be a word, a function or a tlite.models.{name}: {value!r}")
    return value
