"""Where values lie on a mesh of devices; nothing where there is none."""

import jax
from jax.sharding import AxisType, PartitionSpec
from jaxtyping import Array, Float

BATCH_AXES = "data", "model"


def by_example(x: Float[Array, "B *rest"]) -> Float[Array, "B *rest"]:
    """x, of which each device has other examples: so that a sharded model's parameters go to the
    examples, and not these to them.

    Only a hint to the compiler, on a mesh (`jax.set_mesh`) with these axes; the numbers are x's.
    """
    mesh = jax.sharding.get_abstract_mesh()
    axes = [a for a in BATCH_AXES if mesh.shape.get(a, 1) > 1]
    if not axes or any(mesh.axis_types[mesh.axis_names.index(a)] != AxisType.Auto for a in axes):
        return x
    spec = PartitionSpec(tuple(axes), *[None] * (x.ndim - 1))
    return jax.lax.with_sharding_constraint(x, spec)
