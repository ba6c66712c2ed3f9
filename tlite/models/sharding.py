"""Sharding of activations over the devices of a mesh."""

import jax
from jax.sharding import AxisType, PartitionSpec
from jaxtyping import Array, Float

BATCH_AXES = "data", "model"  # of a mesh of devices


def constrain_batch_sharding(x: Float[Array, "B *rest"]) -> Float[Array, "B *rest"]:
    """Constrain the batch axis to be sharded, so that XLA gathers parameters and not activations.

    Only on a mesh (`jax.set_mesh`) with these axes; the numbers are those of x.
    """
    mesh = jax.sharding.get_abstract_mesh()
    axes = [a for a in BATCH_AXES if mesh.shape.get(a, 1) > 1]
    if not axes or any(mesh.axis_types[mesh.axis_names.index(a)] != AxisType.Auto for a in axes):
        return x
    spec = PartitionSpec(tuple(axes), *[None] * (x.ndim - 1))
    return jax.lax.with_sharding_constraint(x, spec)
