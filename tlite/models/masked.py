"""The encoder that fills in hidden tokens: a masked language model."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from tlite import functional as F
from tlite.models import earlier
from tlite.models.config import BlocksConfig
from tlite.models.parameters import held, hold
from tlite.models.parts import Activation, handed, has_bias, linear, made_by
from tlite.models.stack import Encoder


@dataclass(frozen=True)
class Projection:
    """A layer before the head: norm(activation(x W + b)). The defaults are BERT's."""

    activation: Activation = "gelu_exact"
    """Its activation."""
    bias: bool | None = None
    """A bias of it; as the model's unless given."""
    norm: bool = True
    """A norm after it."""

    def init(self, rng: Key[Array, ""], config) -> dict:
        """The layer, `projection`, and its norm, `projection_norm`."""
        layer = linear(rng, config.width, config.width, bias=has_bias(self, config))._asdict()
        layer["own"] = made_by(self.activation, rng, config)
        norm = {"projection_norm": config.norm.init(rng, config)} if self.norm else {}
        return {"projection": layer} | norm

    def __call__(self, model, x: Float[Array, "*batch D"]) -> Float[Array, "*batch D"]:
        function = handed(self.activation, model.projection.own)
        x = function(F.linear(model.projection, x))
        return model.config.norm(model.projection_norm, x) if self.norm else x


@dataclass(frozen=True)
class MaskedConfig(BlocksConfig):
    """The sizes and parts of a masked language model. The defaults are BERT's."""

    projection: Projection = Projection()
    """The layer before the head."""
    head_bias: bool = True
    """A bias of the output layer, which is the embedding."""

    EARLIER: ClassVar = earlier.MASKED


class TransformerMasked(Encoder):
    """Tokens (..., T), those below 0 padding, to logits (..., T, V) of the token at each place.

    ("BERT", Devlin et al. 2019, section 3.1.) Which tokens are hidden, and by what, is the
    caller's to say.
    """

    def __init__(self, config: MaskedConfig, *, rng: Key[Array, ""]):
        super().__init__(config, rng=rng)
        hold(self, config.projection.init(jax.random.split(rng, 4)[2], config))
        if config.head_bias:
            self.head_bias = held(jnp.zeros(config.vocabulary_size))

    def __call__(self, tokens: Int[Array, "*batch T"], **settings) -> Float[Array, "*batch T V"]:
        """Logits at every position; settings and errors are those of `Encoder`'s call."""
        return self.logits(super().__call__(tokens, **settings))

    def logits(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch V"]:
        """A layer with its norm, then the products with the embedding."""
        bias = self.head_bias[...] if self.config.head_bias else None
        return F.unembed(self.embedding.table[...], self.config.projection(self, x), bias)
