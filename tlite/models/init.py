"""Initial parameters of components: dictionaries and tuples of arrays by name.

A word for initial values stands for a distribution of all matrices; a function is a jax initializer
(key, shape, dtype) -> array.
"""

import itertools
import math
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

import tlite.functional as F
from tlite.config import resolve_word
from tlite.errors import UserError
from tlite.models.block import BlockParameters
from tlite.models.components import (
    Attention,
    FeedForward,
    FeedForwardFunction,
    Learned,
    Norm,
    Positions,
    PositionsFunction,
    Projection,
    Relative,
)
from tlite.models.parameters import IN_BLOCK, is_matrix, is_stacked, shape_in_block


def init_linear(
    rng: Key[Array, ""], inputs: int, outputs: int, *, bias: bool = True, zeros: bool = False
) -> F.LinearParameters:
    """Return a kernel (inputs, outputs), Glorot uniform or zeros, and a bias of zeros or None."""
    if not (inputs and outputs):
        raise UserError(
            f"a linear layer can't have {inputs} inputs and {outputs} outputs: set the model's "
            "vocabulary_size and num_classes"
        )
    init = jax.nn.initializers.zeros if zeros else jax.nn.initializers.glorot_uniform()
    return F.LinearParameters(init(rng, (inputs, outputs)), jnp.zeros(outputs) if bias else None)


def init_table(
    rng: Key[Array, ""], size: int, width: int, init_std: float = 0.02
) -> dict[str, Array]:
    """Return a `table` (size, width) drawn from N(0, init_std^2)."""
    if not size:
        raise UserError("the model's vocabulary_size is 0: set it")
    return {"table": init_std * jax.random.normal(rng, (size, width))}


def init_custom_params(
    function: Callable | str, rng: Key[Array, ""], config
) -> dict[str, Array] | None:
    """Return `function.init_params(rng, config)`; None if a function has no such attribute."""
    init = getattr(function, "init_params", None)
    return None if init is None else init(rng, config)


def init_norm(rng: Key[Array, ""], config, width: int | None = None) -> Any:
    """Return the parameters of the config's norm of `width` columns, or the model's width."""
    norm, columns = config.norm, width or config.width
    function = getattr(norm, "function", None)
    if init := getattr(norm, "init", None) or getattr(function, "init_params", None):
        required = {"width": None if columns == config.width else columns}
        params = F.bind_supported_kwargs(init, required, width=columns)(rng, config)
        return {} if params is None else params  # None: there is no norm
    norm = norm if isinstance(norm, Norm) else Norm()
    bias = norm.method == "layer" and (config.bias if norm.bias is None else norm.bias)
    scale = jnp.full(columns, 1.0 - norm.offset)
    return F.NormParameters(scale, jnp.zeros(columns) if bias else None)


def init_attention(attention: Attention, rng: Key[Array, ""], config) -> F.AttentionParameters:
    """Return the query, key, value and output layers, with norms of queries and keys if any."""
    width, head_dim = config.width, attention.head_dim or config.width // config.num_heads
    query_dim = config.num_heads * head_dim
    kv_dim = (attention.num_kv_heads or config.num_heads) * head_dim
    bias = config.bias if attention.bias is None else attention.bias
    keys, has_norms = jax.random.split(rng, 7), attention.query_key_norm
    return F.AttentionParameters(
        init_linear(keys[0], width, query_dim, bias=attention.qkv_bias),
        init_linear(keys[1], width, kv_dim, bias=attention.qkv_bias),
        init_linear(keys[2], width, kv_dim, bias=attention.qkv_bias),
        init_linear(keys[3], query_dim, width, bias=bias, zeros=attention.zero_output),
        init_norm(keys[5], config, head_dim) if has_norms else None,
        init_norm(keys[6], config, head_dim) if has_norms else None,
        init_custom_params(attention.function, keys[4], config),
    )


def init_feed_forward(mlp: FeedForward, rng: Key[Array, ""], config) -> F.FeedForwardParameters:
    """Return the hidden and output layers, the gate if any, and parameters of the activation."""
    bias = config.bias if mlp.bias is None else mlp.bias
    width, mlp_dim = config.width, mlp.mlp_dim or 4 * config.width
    hidden_key, output_key, gate_key, custom_key = jax.random.split(rng, 4)
    return F.FeedForwardParameters(
        init_linear(hidden_key, width, mlp_dim, bias=bias),
        init_linear(output_key, mlp_dim, width, bias=bias, zeros=mlp.zero_output),
        init_linear(gate_key, width, mlp_dim, bias=bias) if mlp.gated else None,
        init_custom_params(mlp.activation, custom_key, config),
    )


def init_layer(component, rng: Key[Array, ""], config) -> Any:
    """Return the parameters of an attention or feed-forward layer, the library's or a user's."""
    if isinstance(component, FeedForwardFunction):
        custom = init_custom_params(component.function, rng, config)
        return init_feed_forward(FeedForward(), rng, config) if custom is None else custom
    if hasattr(component, "init"):
        params = component.init(rng, config)
        return {} if params is None else params  # None: there is no layer
    if isinstance(component, Attention):
        return init_attention(component, rng, config)
    return init_feed_forward(component, rng, config)


def init_positions(positions: Positions, rng: Key[Array, ""], config) -> Any:
    """Return the table of learned or relative positions, a user's parameters, or None."""
    if isinstance(positions, Learned):
        return init_table(rng, config.context + positions.offset, config.width)
    if isinstance(positions, Relative):
        return init_table(rng, positions.num_buckets, config.num_heads)
    if isinstance(positions, PositionsFunction):
        return init_custom_params(positions.function, rng, config)
    return positions.init(rng, config)


def init_embedding(rng: Key[Array, ""], config) -> dict[str, Array]:
    """Return the `table` (V, D) of the embedding."""
    embedding = config.embedding
    init_std = embedding.init_std or (config.width**-0.5 if embedding.scale else 0.02)
    return init_table(rng, config.vocabulary_size, config.width, init_std)


def init_output_layer(rng: Key[Array, ""], config, *, tied: bool) -> dict[str, Any]:
    """Return the linear layer `head`, or the `head_bias` of a tied embedding if it has one."""
    if tied:
        return {"head_bias": jnp.zeros(config.vocabulary_size)} if config.head.bias else {}
    bias = config.bias if config.head.bias is None else config.head.bias
    return {"head": init_linear(rng, config.width, config.vocabulary_size, bias=bias)}


def init_projection(projection: Projection, rng: Key[Array, ""], config) -> dict[str, Any]:
    """Return the layer `projection` and its norm `projection_norm`."""
    key, custom_key, norm_key = jax.random.split(rng, 3)
    bias = config.bias if projection.bias is None else projection.bias
    layer = init_linear(key, config.width, config.width, bias=bias)._asdict()
    layer["custom"] = init_custom_params(projection.activation, custom_key, config)
    norm = {"projection_norm": init_norm(norm_key, config)} if projection.norm else {}
    return {"projection": layer} | norm


def init_block(
    rng: Key[Array, ""], config, *, is_first: bool = False, cross_attention: bool = False
) -> Any:
    """Return the layers and norms of a block.

    Args:
        config: that of this block (`config.blocks[i]`).
        is_first: the first block; its attention has no norm without `block.first_norm`.
        cross_attention: the block attends to an encoder's output too.
    """
    block: Any = config.block
    if hasattr(block, "init"):
        return block.init(rng, config)
    attention_key, feed_forward_key, norm_key = jax.random.split(rng, 3)
    params = {}
    if cross_attention:
        params["cross_attention"] = init_layer(config.attention, feed_forward_key, config)
        attention_key, feed_forward_key = jax.random.split(attention_key)
    params["attention"] = init_layer(config.attention, attention_key, config)
    params["feed_forward"] = init_layer(config.feed_forward, feed_forward_key, config)
    suffixes = ("_norm", "_output_norm") if block.output_norms else ("_norm",)
    names = [name + suffix for suffix, name in itertools.product(suffixes, params)]
    for name, key in zip(names, jax.random.split(norm_key, len(names)), strict=True):
        params[name] = init_norm(key, config)
    if is_first and not block.first_norm:
        params["attention_norm"] = None
    return BlockParameters(**params)


# Initial values by word or initializer, in place of those that the layers draw

Initializer = Callable[[Key[Array, ""], tuple[int, ...], Any], Array]


def by_matrix(initializer: Initializer) -> Initializer:
    """Return an initializer that draws each matrix of an array (..., I, O), as of experts, alone.

    Initializers of JAX count the other axes as inputs.
    """

    def draw(key: Key[Array, ""], shape: tuple[int, ...], dtype: Any) -> Array:
        if len(shape) < 3:
            return initializer(key, shape, dtype)
        keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(math.prod(shape[:-2])))
        return jax.vmap(lambda key: initializer(key, shape[-2:], dtype))(keys).reshape(shape)

    return draw


INITIALIZERS: dict[str, Initializer] = {
    "glorot": by_matrix(jax.nn.initializers.glorot_uniform()),
    "normal": jax.nn.initializers.normal(0.02),
    "gpt2": jax.nn.initializers.normal(0.02),
    "orthogonal": by_matrix(jax.nn.initializers.orthogonal()),
}
"""gpt2: outputs of layers in blocks are also divided by the square root of their number."""
TABLE_INITIALIZERS = "normal", "gpt2"
"""Words that stand for the values of embeddings and positions, too."""
INIT_WORDS = ("default", *INITIALIZERS)

resolve_init = partial(
    resolve_word, "init", dict(zip(INIT_WORDS, INIT_WORDS, strict=True)), "(key, shape, dtype)"
)
"""Return a word or a function of (key, shape, dtype) as it is."""


def has_initializer(init: Any, name: str, array: Any, *, is_group: bool = False) -> bool:
    """True if `init` draws an array: a word draws matrices, some words tables too.

    Args:
        is_group: the array is of a group with this `init`, of which an initializer draws all.
    """
    if isinstance(init, str):
        is_table = init in TABLE_INITIALIZERS and name.endswith("table")
        return init != "default" and (is_table or is_matrix(name, array))
    return is_group or is_matrix(name, array)


def draw_initial_values(
    arrays: Mapping[str, Array], key: Key[Array, ""], inits: Mapping[str, Any]
) -> dict[str, Array]:
    """Return the arrays by name, those of `inits` with new values.

    Args:
        arrays: the values that the layers have drawn.
        key: folded with a hash of each name, so that a value does not depend on other names.
        inits: word of `INITIALIZERS`, or initializer, by the name of an array.
    """
    drawn = dict(arrays)
    for name, init in inits.items():
        initializer = INITIALIZERS[init] if isinstance(init, str) else init
        drawn[name] = draw_by_name(initializer, name, arrays[name], key)
        match = IN_BLOCK.fullmatch(name)
        if match and isinstance(init, str) and init == "gpt2" and name.endswith("output.kernel"):
            drawn[name] /= num_outputs(match[1], arrays) ** 0.5
    return drawn


def draw_by_name(initializer: Initializer, name: str, array: Any, key: Key[Array, ""]) -> Array:
    """Return new values of an array, by a key that is folded with a hash of its name.

    The blocks of a list get the values that they would have in one stacked array.

    Args:
        array: an array or its shape and type.
    """
    match, shape = IN_BLOCK.fullmatch(name), shape_in_block(name, array)
    generic = match[1] + match[3] if match else name
    key = jax.random.fold_in(key, zlib.crc32(generic.encode()) % 2**31)

    def draw(key: Key[Array, ""]) -> Array:
        values = initializer(key, shape, array.dtype)
        if jnp.shape(values) != shape:
            raise ValueError(f"init of {name} has the shape {jnp.shape(values)}, not {shape}")
        return values

    if is_stacked(name):
        return jax.vmap(lambda i: draw(jax.random.fold_in(key, i)))(jnp.arange(array.shape[0]))
    return draw(jax.random.fold_in(key, int(match[2])) if match else key)


def num_outputs(prefix: str, arrays: Mapping[str, Array]) -> int:
    """Return the number of layers whose outputs are added up in a stack of blocks: 2 L."""
    return sum(
        a.shape[0] if is_stacked(name) else 1
        for name, a in arrays.items()
        if name.startswith(prefix) and name.endswith("output.kernel")
    )
