"""Parameters of the layers, as Flax modules with the fields that `tlite.functional` reads.

A `flax.nnx.Module` is a pytree: `jax.jit`, `jax.grad` and `jax.vmap` take it as it is.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from tlite import functional as F


class Linear(nnx.Module):
    """x W + b, W (D_in, D_out) drawn by Glorot and Bengio's uniform scheme unless told."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True, initializer=None, key):
        initializer = initializer or jax.nn.initializers.glorot_uniform()
        self.kernel = nnx.Param(initializer(key, (inputs, outputs)))
        self.bias = nnx.Param(jnp.zeros(outputs)) if bias else None

    def __call__(self, x: Float[Array, "*batch D_in"]) -> Float[Array, "*batch D_out"]:
        return F.linear(self, x)


class Embedding(nnx.Module):
    """A table of `size` vectors of `width` numbers, drawn from N(0, deviation^2)."""

    def __init__(self, size: int, width: int, *, deviation: float = 0.02, key):
        self.table = nnx.Param(deviation * jax.random.normal(key, (size, width)))

    def __call__(self, tokens: Int[Array, "*batch"]) -> Float[Array, "*batch D"]:
        return F.embed(self.table[...], tokens)


class LayerNorm(nnx.Module):
    def __init__(self, width: int, *, bias: bool = True):
        self.scale = nnx.Param(jnp.ones(width))
        self.bias = nnx.Param(jnp.zeros(width)) if bias else None

    def __call__(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch D"]:
        return F.layer_norm(self, x)


class RMSNorm(nnx.Module):
    def __init__(self, width: int):
        self.scale = nnx.Param(jnp.ones(width))

    def __call__(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch D"]:
        return F.rms_norm(self, x)


class ZeroCentredRMSNorm(nnx.Module):
    def __init__(self, width: int):
        self.scale = nnx.Param(jnp.zeros(width))

    def __call__(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch D"]:
        return F.zero_centred_rms_norm(self, x)


class Own(nnx.Module):
    """What a user's function made as its parameters: `function.parameters(config, key)`."""

    def __init__(self, arrays: Mapping[str, Array]):
        for name, array in arrays.items():
            setattr(self, name, nnx.Param(jnp.asarray(array)))


def make_own(function, config, key) -> Own | None:
    """The parameters of a user's function, which it gets as first argument; None if it has none."""
    make = getattr(function, "parameters", None)
    return None if make is None else Own(make(config, jax.random.fold_in(key, 1)))


class MultiHeadAttention(nnx.Module):
    """Four linear layers; the head width is D / H unless given.

    Args:
        key_heads: heads of keys and values, each for H / key_heads queries.
        zero_output: the last of the four layers begins at 0.

    Raises:
        ValueError: no head width is given and D is not divisible by H.
    """

    def __init__(
        self,
        width: int,
        num_heads: int,
        *,
        head_width: int | None = None,
        key_heads: int | None = None,
        qkv_bias: bool = False,
        bias: bool = True,
        zero_output: bool = False,
        key,
    ):
        if head_width is None and width % num_heads:
            raise ValueError(f"a width of {width} is not divisible by {num_heads} heads")
        head_width = head_width or width // num_heads
        inner, of_keys = num_heads * head_width, (key_heads or num_heads) * head_width
        keys = jax.random.split(key, 4)
        self.query, self.key, self.value = (
            Linear(width, size, bias=qkv_bias, key=k)
            for size, k in zip((inner, of_keys, of_keys), keys[:3], strict=True)
        )
        first = jax.nn.initializers.zeros if zero_output else None
        self.output = Linear(inner, width, bias=bias, initializer=first, key=keys[3])
        self.num_heads = num_heads

    def __call__(
        self,
        query: Float[Array, "*batch T D"],
        key: Float[Array, "*batch S D"],
        value: Float[Array, "*batch S D"],
        mask: Bool[Array, "..."] | None = None,
    ) -> tuple[Float[Array, "*batch T D"], Float[Array, "*batch H T S"]]:
        return F.multi_head_attention(self, query, key, value, mask, num_heads=self.num_heads)


class FeedForward(nnx.Module):
    """Two linear layers; three if it is `gated`. With `zero_output` the last begins at 0."""

    def __init__(
        self,
        width: int,
        hidden: int,
        *,
        gated: bool = False,
        bias: bool = True,
        zero_output: bool = False,
        key,
    ):
        keys = jax.random.split(key)
        self.hidden = Linear(width, hidden, bias=bias, key=keys[0])
        first = jax.nn.initializers.zeros if zero_output else None
        self.output = Linear(hidden, width, bias=bias, initializer=first, key=keys[1])
        if gated:
            gate_key = jax.random.fold_in(key, 2)
            self.gate = Linear(width, hidden, bias=bias, key=gate_key)

    def __call__(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch D"]:
        return F.feed_forward(self, x)


class EncoderBlock(nnx.Module):
    """The parameters of `functional.encoder_block`: those of attention, feed-forward, norms.

    Built from a model's config (its fields `width`, `num_heads`, `norm`, `bias`, ...).
    """

    def __init__(self, config, *, key):
        attention_key, feed_forward_key = jax.random.split(key)
        self.attention = make_attention(config, attention_key)
        self.attention_norm = make_norm(config)
        self.feed_forward = make_feed_forward(config, feed_forward_key)
        self.feed_forward_norm = make_norm(config)
        if config.output_norms:
            self.attention_output_norm = make_norm(config)
            self.feed_forward_output_norm = make_norm(config)


class GeneratorBlock(EncoderBlock):
    """The same, with the taps of its convolutions if the config has them."""

    def __init__(self, config, *, key):
        super().__init__(config, key=key)
        if config.convolution:
            shape = config.convolution, config.width
            self.attention_convolution = nnx.Param(jnp.zeros(shape))
            self.feed_forward_convolution = nnx.Param(jnp.zeros(shape))


class DecoderBlock(EncoderBlock):
    """The parameters of `functional.decoder_block`: attention on the encoder's output comes in."""

    def __init__(self, config, *, key):
        block_key, cross_key = jax.random.split(key)
        super().__init__(config, key=block_key)
        self.cross_attention = make_attention(config, cross_key)
        self.cross_attention_norm = make_norm(config)


def make_attention(config, key) -> MultiHeadAttention:
    """The attention layer that a model's config describes."""
    layer = MultiHeadAttention(
        config.width,
        config.num_heads,
        head_width=config.head_width,
        key_heads=config.key_heads,
        qkv_bias=config.qkv_bias,
        bias=config.bias,
        zero_output=config.zero_output,
        key=key,
    )
    if config.query_key_norm:
        layer.query_norm, layer.key_norm = (make_norm(config, config.width_of_heads) for _ in "qk")
    if own := make_own(config.attention, config, key):
        layer.own = own
    return layer


def make_feed_forward(config, key) -> FeedForward | Own:
    """The feed-forward layer that a model's config describes."""
    if own := make_own(config.feed_forward, config, key):
        return own
    bias = config.bias if config.feed_forward_bias is None else config.feed_forward_bias
    hidden = config.hidden_width or 4 * config.width
    switches = {"gated": config.gated, "bias": bias, "zero_output": config.zero_output}
    layer = FeedForward(config.width, hidden, **switches, key=key)
    if own := make_own(config.activation, config, key):
        layer.own = own
    return layer


def make_norm(config, width: int | None = None) -> nnx.Module:
    """The norm that a model's config names."""
    width = width or config.width
    if own := make_own(config.norm, config, jax.random.key(0)):
        return own
    if config.norm == "rms":
        return RMSNorm(width)
    if config.norm == "zero_centred_rms":
        return ZeroCentredRMSNorm(width)
    bias = config.bias if config.norm_bias is None else config.norm_bias
    return LayerNorm(width, bias=bias)
