import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tlite.planning.hlo import exchanged

TPU = """
HloModule jit_step

%cond (p: (s32[], f32[8])) -> pred[] {
  %p = (s32[]{:T(128)}, f32[8]{0:T(8)}) parameter(0)
  %c = s32[]{:T(128)} constant(12)
  ROOT %less = pred[]{:T(512)} compare(%i, %c), direction=LT
}

%inner (x: f32[8]) -> f32[8] {
  %s = (bf16[4,96]{1,0:T(8,128)(2,1)}, bf16[8,96]{1,0}) all-gather-start(%x), dims={0}
  ROOT %d = bf16[8,96]{1,0:T(8,128)(2,1)} all-gather-done(%s)
}

%body (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  %r = f32[8]{0:T(8)} fusion(%p), kind=kLoop, calls=%inner
  ROOT %t = (s32[]{:T(128)}, f32[8]{0:T(8)}) tuple(%i, %r)
}

ENTRY %main (a: f32[8]) -> f32[8] {
  %w = (s32[]{:T(128)}, /*index=1*/f32[8]{0:T(8)}) while(%a), condition=%cond, body=%body
  ROOT %sum = f32[8]{0:T(8)} all-reduce(%w), to_apply=%add
}
"""


def test_loops_count_as_often_as_they_run_and_starts_once():
    gathered = 12 * 8 * 96 * 2
    assert exchanged(TPU) == {"all-reduce": (1, 32), "all-gather": (12, gathered)}


def test_a_loop_of_unknown_length_counts_once():
    program = TPU.replace("constant(12)", "get-tuple-element(%p), index=1")
    assert exchanged(program)["all-gather"][0] == 1


def test_what_a_program_exchanges_by_hand():
    mesh = Mesh(np.array(jax.local_devices()), ("data",))
    rows = NamedSharding(mesh, PartitionSpec("data"))
    everywhere = NamedSharding(mesh, PartitionSpec())

    def step(x, matrix):
        def body(carry, _):
            x, matrix = carry
            # Each of the five times the whole matrix is gathered, and the change is summed.
            whole = jax.lax.with_sharding_constraint(matrix, everywhere)
            x = jax.lax.with_sharding_constraint(x @ whole, rows)
            return (x, jax.lax.with_sharding_constraint(matrix + x.T @ x, rows)), None

        return jax.lax.scan(body, (x, matrix), None, 5)[0]

    arrays = [jax.ShapeDtypeStruct((8, 64), jnp.float32, sharding=rows)]
    arrays.append(jax.ShapeDtypeStruct((64, 64), jnp.float32, sharding=rows))
    found = exchanged(jax.jit(step).lower(*arrays).compile().as_text())
    assert found["all-gather"] == (5, 5 * 64 * 64 * 4)
    assert found["all-reduce"] == (5, 5 * 64 * 64 * 4)


def test_one_device_exchanges_nothing():
    assert exchanged(jax.jit(jnp.sin).lower(1.0).compile().as_text()) == {}
