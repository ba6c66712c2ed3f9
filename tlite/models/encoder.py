"""Bidirectional models: the encoder, and the masked language model on top of it."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from tlite import functional as F
from tlite.models.block import apply_norm
from tlite.models.components import Projection
from tlite.models.config import MaskedConfig, TransformerConfig
from tlite.models.custom import bind_params
from tlite.models.init import init_projection
from tlite.models.inputs import bidirectional_inputs
from tlite.models.parameters import as_params, set_params
from tlite.models.transformer import Transformer, embed, run_blocks


def encode(
    model: Transformer, tokens: Int[Array, "*batch T"], *, rng=None, tap: F.Tap = F.no_tap
) -> Float[Array, "*batch T D"]:
    """Vectors of the last block, after the final norm, of tokens that attend to each other.

    Args:
        tokens: those below 0 are padding, which no token attends to.
        rng: dropout key, or one per example; None: evaluation.

    Raises:
        ValueError: more tokens than the model's context.
    """
    inputs = bidirectional_inputs(tokens >= 0)
    return run_blocks(model, embed(model, jnp.maximum(tokens, 0)), inputs, rng=rng, tap=tap)[0]


class Encoder(Transformer):
    """Encoder: tokens (..., T) to vectors (..., T, D)."""

    def __init__(self, config: TransformerConfig, *, rng: Key[Array, ""]):
        super().__init__(config, rng=rng)

    def __call__(self, tokens: Int[Array, "*batch T"], **kwargs) -> Float[Array, "*batch T D"]:
        """`encode` with this model."""
        return encode(self, tokens, **kwargs)


class MaskedLM(Transformer):
    """Masked language model ("BERT", Devlin et al. 2019, section 3.1).

    Tokens (..., T), those below 0 padding, to logits (..., T, V) of the token at each position. The
    caller decides which tokens are masked, and by which token.
    """

    config: MaskedConfig
    head_bias: Any

    def __init__(self, config: MaskedConfig, *, rng: Key[Array, ""]):
        super().__init__(config, rng=rng)

    def init_head(self, rng: Key[Array, ""], config: MaskedConfig) -> None:
        set_params(self, init_projection(config.projection, rng, config))
        if config.head_bias:
            self.head_bias = as_params(jnp.zeros(config.vocabulary_size))

    def __call__(
        self, tokens: Int[Array, "*batch T"], *, rng=None, tap: F.Tap = F.no_tap
    ) -> Float[Array, "*batch T V"]:
        """Logits at every position; arguments and errors are those of `encode`."""
        logits = self.logits(encode(self, tokens, rng=rng, tap=tap))
        return F.scoped(tap, "")("logits", logits)

    def logits(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch V"]:
        """A layer with its norm, then products with the embedding."""
        bias = self.head_bias[...] if self.config.head_bias else None
        x = project(self.config.projection, self, x)
        return F.unembed(self.embedding.table[...], x, bias)


def project(projection: Projection, model, x: Float[Array, "*batch D"]) -> Float[Array, "*batch D"]:
    """norm(activation(x W + b)), the layer before a head; `model` has its parameters."""
    activation = bind_params(projection.activation, model.projection.custom)
    x = activation(F.linear(model.projection, x))
    return apply_norm(model.config.norm, model.projection_norm, x) if projection.norm else x
