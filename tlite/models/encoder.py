"""Bidirectional models: the encoder, and the masked language model on top of it."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

import tlite.functional as F
from tlite.models.block import Aux, apply_norm
from tlite.models.components import Projection
from tlite.models.config import MaskedConfig
from tlite.models.custom import bind_params
from tlite.models.init import init_projection
from tlite.models.inputs import bidirectional_inputs
from tlite.models.parameters import as_params, set_params
from tlite.models.transformer import Transformer, embed, run_blocks


def encode(
    model: Transformer, tokens: Int[Array, "*batch T"], *, rng=None, tap: F.Tap = F.no_tap
) -> tuple[Float[Array, "*batch T D"], Aux]:
    """Return the final vectors of tokens that all attend to each other, and the layers' scalars.

    Args:
        tokens: negative ones are padding, to which no token attends.
        rng: dropout key, or one per example; None: evaluation.

    Raises:
        ValueError: more tokens than the model's context.
    """
    inputs = bidirectional_inputs(tokens >= 0)
    x = embed(model, jnp.maximum(tokens, 0))
    x, _, aux = run_blocks(model, x, inputs, rng=rng, tap=tap)
    return x, aux


class Encoder(Transformer):
    """Encoder: tokens (..., T) to vectors (..., T, D)."""

    def __call__(
        self, tokens: Int[Array, "*batch T"], *, rng=None, tap: F.Tap = F.no_tap
    ) -> Float[Array, "*batch T D"]:
        """Return the vectors of `encode(model, tokens)`."""
        return encode(self, tokens, rng=rng, tap=tap)[0]


class MaskedLM(Transformer):
    """Masked language model ("BERT", Devlin et al. 2019, section 3.1).

    Tokens (..., T), some of them masked and negative ones padding, to logits (..., T, V).
    """

    config: MaskedConfig
    head_bias: Any

    def init_head(self, rng: Key[Array, ""], config: MaskedConfig) -> None:
        set_params(self, init_projection(config.projection, rng, config))
        if config.head_bias:
            self.head_bias = as_params(jnp.zeros(config.vocabulary_size))

    def __call__(
        self, tokens: Int[Array, "*batch T"], *, rng=None, tap: F.Tap = F.no_tap
    ) -> Float[Array, "*batch T V"]:
        """Logits at every position; arguments and errors are those of `encode`."""
        return self.logits_and_aux(tokens, rng=rng, tap=tap)[0]

    def logits_and_aux(
        self, tokens: Int[Array, "*batch T"], *, rng=None, tap: F.Tap = F.no_tap
    ) -> tuple[Float[Array, "*batch T V"], Aux]:
        """Logits, and the sums over blocks of the scalars that layers add for the loss."""
        x, aux = encode(self, tokens, rng=rng, tap=tap)
        return F.scoped(tap, "")("logits", self.logits(x)), aux

    def logits(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch V"]:
        """Return the logits of final vectors: `project`, then products with the embedding."""
        bias = self.head_bias[...] if self.config.head_bias else None
        x = project(self.config.projection, self, x)
        return F.unembed(self.embedding.table[...], x, bias)


def project(projection: Projection, model, x: Float[Array, "*batch D"]) -> Float[Array, "*batch D"]:
    """norm(activation(x W + b)), with the parameters of `model`."""
    activation = bind_params(projection.activation, model.projection.custom)
    x = activation(F.linear(model.projection, x))
    return apply_norm(model.config.norm, model.projection_norm, x) if projection.norm else x
