"""Ensemble: one model that averages the probabilities of several."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from tlite.models.inputs import LayerCache


@partial(jax.tree_util.register_dataclass, data_fields=["models"], meta_fields=[])
@dataclass(frozen=True)
class Ensemble:
    """A model with logits log(1/M sum_m softmax(logits of model m)).

    It replaces a generator, classifier or translator; in decoding, one search is shared by all
    models, and caches and memories have a leading axis (M, ...).
    """

    models: Any
    """A model whose arrays have a leading axis (M, ...)."""

    @property
    def config(self):
        return self.models.config

    def __len__(self) -> int:
        return jax.tree.leaves(self.models)[0].shape[0]

    def mean(self, logits: Callable[[Any], Float[Array, "..."]]) -> Float[Array, "..."]:
        """Return log(1/M sum_m softmax(logits(model m))), one model at a time.

        With one model, its logits as they are.
        """
        first = jax.tree.map(lambda a: a[0], self.models)
        if len(self) == 1:
            return logits(first)

        def add(total, model):
            return jnp.logaddexp(total, jax.nn.log_softmax(logits(model))), None

        shape = jax.eval_shape(logits, first)
        total, _ = jax.lax.scan(add, jnp.full(shape.shape, -jnp.inf, shape.dtype), self.models)
        return total - jnp.log(len(self))

    def __call__(self, *inputs: Int[Array, "..."], **kwargs) -> Float[Array, "*batch V"]:
        """Return the averaged logits; arguments are those of a model."""
        return self.mean(lambda model: model(*inputs, **kwargs))

    # Decoding

    def memories(self, source: Int[Array, "*batch S"]) -> Any:
        """Return `Seq2Seq.memories` of all models."""
        return jax.vmap(lambda model: model.memories(source))(self.models)

    def empty_caches(self, *batch: int, capacity: int | None = None) -> list[LayerCache]:
        """Return the empty caches of all models."""
        return jax.vmap(lambda m: m.empty_caches(*batch, capacity=capacity))(self.models)

    def extend(
        self, tokens: Int[Array, "*batch T"], caches: list[LayerCache], *args, **kwargs
    ) -> tuple[Float[Array, "*batch T V"], list[LayerCache]]:
        """Return the averaged logits of T more tokens, and the caches.

        Args:
            args, kwargs: those of a model's `extend`.
        """
        bound = inspect.signature(self.models.extend).bind(tokens, caches, *args, **kwargs)
        by_model = {n: bound.arguments[n] for n in ("caches", "memories") if n in bound.arguments}

        def extend(model, by_model):
            bound.arguments |= by_model
            return model.extend(*bound.args, **bound.kwargs)

        logits, caches = jax.vmap(extend)(self.models, by_model)
        if len(self) == 1:
            return logits[0], caches
        total = jax.nn.logsumexp(jax.nn.log_softmax(logits), axis=0)
        return total - jnp.log(len(self)), caches
