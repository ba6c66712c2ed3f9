"""Several models as one: the mean of their probabilities."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from tlite.models.inputs import LayerCache


@partial(jax.tree_util.register_dataclass, data_fields=["members"], meta_fields=[])
@dataclass(frozen=True)
class Ensemble:
    """A model whose logits are log (1/M sum over m of softmax(logits of member m)).

    It stands where a generator, a classifier or a translator does: what a decoder carries, its
    caches and an encoder's output, has a first axis of members, and one search is shared by all.
    """

    members: Any
    """A model each of whose arrays has a first axis (M, ...)."""

    @property
    def config(self):
        return self.members.config

    def __len__(self) -> int:
        return jax.tree.leaves(self.members)[0].shape[0]

    def mean(self, logits: Callable[[Any], Float[Array, "..."]]) -> Float[Array, "..."]:
        """Log of the members' mean of softmax(`logits` of a member), one member after the other.

        Of one member its logits, as they are.
        """
        first = jax.tree.map(lambda a: a[0], self.members)
        if len(self) == 1:
            return logits(first)

        def add(total, member):
            return jnp.logaddexp(total, jax.nn.log_softmax(logits(member))), None

        shape = jax.eval_shape(logits, first)
        total, _ = jax.lax.scan(add, jnp.full(shape.shape, -jnp.inf, shape.dtype), self.members)
        return total - jnp.log(len(self))

    def __call__(self, *inputs: Int[Array, "..."], **settings) -> Float[Array, "*batch V"]:
        """Logits as the members' call has them."""
        return self.mean(lambda member: member(*inputs, **settings))

    # Decoding

    def memories(
        self, source: Int[Array, "*batch S"]
    ) -> tuple[list[Any], Bool[Array, "*batch 1 1 S"]]:
        """For each decoder block the keys and values of the encoders' outputs, (M, ...) each; and
        the mask of what is no padding."""
        memories, masks = self._each(lambda member: member.memories(source))
        return memories, masks[0]

    def empty_caches(self, *batch: int, capacity: int | None = None) -> list[LayerCache]:
        """For each block a cache of zeros, (M, ...) each."""
        return self._each(lambda member: member.empty_caches(*batch, capacity=capacity))

    def extend(
        self,
        tokens: Int[Array, "*batch T"],
        caches: list[LayerCache],
        *others,
        **settings,
    ) -> tuple[Float[Array, "*batch T V"], list[LayerCache]]:
        """Logits after T more tokens, and the caches.

        Args:
            others: the arguments of a member's `extend`; its `memories` have an axis of members,
                as the caches.
        """
        bound = inspect.signature(self.members.extend).bind(tokens, caches, *others, **settings)
        names = {"caches", "memories"} & bound.arguments.keys()

        def extend(member, of_member):
            bound.arguments |= of_member
            return member.extend(*bound.args, **bound.kwargs)

        logits, caches = self._each(extend, {name: bound.arguments[name] for name in names})
        if len(self) == 1:
            return logits[0], caches
        total = jax.nn.logsumexp(jax.nn.log_softmax(logits), axis=0)
        return total - jnp.log(len(self)), caches

    def _each(self, function: Callable, *of_members):
        """`function` of each member and of what belongs to it; results have an axis of members."""
        return jax.vmap(function)(self.members, *of_members)
