"""The encoder that fills in hidden tokens: a masked language model."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, Key

from tlite import functional as F
from tlite.models.config import Activation, BlocksConfig, activation
from tlite.models.encoder import Encoder
from tlite.modules import Linear
from tlite.modules.layers import make_norm, make_own


@dataclass(frozen=True)
class MaskedConfig(BlocksConfig):
    """The switches of a masked language model. The defaults are BERT's."""

    projection: Activation = "gelu_exact"
    """The activation of the layer before the head."""
    projection_bias: bool | None = None
    """A bias of this layer; as `bias` unless given."""
    projection_norm: bool = True
    """A norm after it."""
    head_bias: bool = True
    """A bias of the output layer, which is the embedding."""


class TransformerMasked(Encoder):
    """Tokens (..., T), those below 0 padding, to logits (..., T, V) of the token at each place.

    ("BERT", Devlin et al. 2019, section 3.1.) Which tokens are hidden, and by what, is the
    caller's to say.
    """

    def __init__(self, config: MaskedConfig, *, key: Key[Array, ""]):
        super().__init__(config, key=key)
        add_projection(self, config, jax.random.split(key, 4)[2])
        if config.head_bias:
            self.head_bias = nnx.Param(jnp.zeros(config.vocabulary_size))

    def __call__(
        self,
        tokens: Int[Array, "*batch T"],
        *,
        key: Key[Array, "..."] | None = None,
        observe: F.Observe = F.unobserved,
    ) -> Float[Array, "*batch T V"]:
        """Logits at every position. A key, or one a sample, turns dropout on.

        Raises:
            ValueError: more tokens than the model's context.
        """
        return self.logits(super().__call__(tokens, key=key, observe=observe))

    def logits(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch V"]:
        """A layer with its norm, then the products with the embedding."""
        bias = self.head_bias[...] if self.config.head_bias else None
        return F.unembed(self.embedding.table[...], project(self, x), bias)


def add_projection(model, config, key) -> None:
    """Give a model the layer that its config calls `projection`, and its norm."""
    bias = config.bias if config.projection_bias is None else config.projection_bias
    model.projection = Linear(config.width, config.width, bias=bias, key=key)
    if own := make_own(config.projection, config, key):
        model.projection.own = own
    if config.projection_norm:
        model.projection_norm = make_norm(config)


def project(model, x: Float[Array, "*batch D"]) -> Float[Array, "*batch D"]:
    """norm(activation(x W + b)), the norm where there is one."""
    x = F.bind(activation(model.config.projection), model.projection)(model.projection(x))
    norm = model.config.functions()["norm"]
    return norm(model.projection_norm, x) if model.config.projection_norm else x
