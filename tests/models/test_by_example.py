"""Where examples lie on a mesh of devices: `by_example` says so, and changes no number."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from tlite.models.stack import by_example

MESH = Mesh(np.array(jax.local_devices()[:4]).reshape(1, 2, 2), ("member", "data", "model"))


def test_without_a_mesh_it_is_the_identity():
    x = jnp.arange(6.0).reshape(2, 3)
    assert by_example(x) is x


def test_on_a_mesh_each_device_has_other_examples_and_the_numbers_stay():
    x = jnp.arange(24.0).reshape(8, 3)
    with jax.set_mesh(MESH):
        found = jax.jit(by_example)(x)
    np.testing.assert_array_equal(found, x)
    assert {shard.data.shape for shard in found.addressable_shards} == {(2, 3)}


def test_where_each_device_has_its_own_part_already_it_is_the_identity():
    spec = PartitionSpec(("data", "model"))
    x = jnp.arange(24.0).reshape(8, 3)
    inside = jax.shard_map(by_example, mesh=MESH, in_specs=spec, out_specs=spec)
    with jax.set_mesh(MESH):
        np.testing.assert_array_equal(jax.jit(inside)(x), x)
