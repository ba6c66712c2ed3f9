"""Tables, rotations and biases of positions equal their formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers import reference
from tests.helpers.arrays import assert_close, assert_same, exact, integers, normal, over_batch
from tests.helpers.reference import BUCKETS, DISTANCES, LLAMA3, YARN, each_dim
from tlite import functional as F

BATCHES = [(), (2, 3)]


@pytest.mark.parametrize("kwargs", [{}, {"split": True}])
@pytest.mark.parametrize("base", [10_000.0, 100.0])
@pytest.mark.parametrize(("length", "dim"), [(1, 1), (2, 2), (7, 6), (7, 5), (50, 8)])
def test_sinusoidal_positions_are_their_formula(length, dim, base, kwargs):
    split = bool(kwargs)
    table = np.asarray(F.sinusoidal_positions(length, dim, base, **kwargs))
    assert_close(table, reference.sinusoidal_positions(length, dim, base, split))
    assert_same(table[0], np.arange(dim) >= -(-dim // 2) if split else np.arange(dim) % 2)


@pytest.mark.parametrize(
    "use", [lambda x: F.add_positions(normal(5, 4), x), lambda x: F.rotate(x, normal(5, 2))]
)
def test_a_sequence_longer_than_the_table_is_an_error(use):
    assert use(normal(5, 4)).shape == (5, 4)
    with pytest.raises(ValueError, match=r"length 6 .* length 5"):
        use(normal(6, 4))


@pytest.mark.parametrize("length", [1, 3, 5, 13])
def test_interpolated_positions_equal_their_formula(length):
    table = normal(5, 3)
    expected = reference.interpolate_positions(exact(table), length)
    assert_close(F.interpolate_positions(table, length), expected)


@pytest.mark.parametrize(("dim", "base", "scale"), [(2, 1e4, 1.0), (6, 1e4, 0.5), (4, 100.0, 2.0)])
def test_rotary_angles_are_their_formula(dim, base, scale):
    expected = reference.rotary_angles(9, dim, base, scale)
    assert_close(F.rotary_angles(9, dim, base, scale=scale), expected)


def test_rotary_frequencies_have_base_10_000_by_default():
    assert_close(1 / F.rotary_frequencies(64), 1e4 ** (np.arange(32) / 32))


@pytest.mark.parametrize("factor", [None, 0.7])
@pytest.mark.parametrize("batch", BATCHES)
def test_rotation_is_multiplication_of_complex_numbers(batch, factor):
    x, angles = normal(*batch, 3, 6), normal(5, 3, seed=1)
    expected = over_batch(batch, lambda x: reference.rotate(x, exact(angles)) * (factor or 1), x)
    assert_close(jax.jit(F.rotate)(x, angles, factor), expected)


def test_an_odd_rotary_width_is_named():
    with pytest.raises(ValueError, match="width 5 must be even"):
        F.rotary_angles(4, 5)


SCALED = [("llama3", *settings) for settings in LLAMA3] + [("yarn", *settings) for settings in YARN]


@pytest.mark.parametrize(("kind", "factor", "context", "first", "second", "base"), SCALED)
@each_dim
def test_scaled_frequencies_are_their_formula(dim, kind, factor, context, first, second, base):
    settings = factor, context, first, second, *((base,) if kind == "yarn" else ())
    plain = F.rotary_frequencies(dim, base)
    expected = getattr(reference, f"{kind}_frequencies")(exact(plain), *settings)
    scaled = getattr(F, f"{kind}_frequencies")(plain, *settings)
    assert_close(scaled / plain, expected / exact(plain))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("buckets", "longest"), BUCKETS)
def test_relative_buckets_are_their_formula(buckets, longest, causal):
    distances = jnp.asarray(DISTANCES)
    actual = F.relative_position_buckets(distances, buckets, longest, causal=causal)
    expected = [reference.relative_bucket(int(d), buckets, longest, causal) for d in DISTANCES]
    assert_same(actual, np.array(expected))
    assert set(np.unique(actual)) <= set(range(buckets))


@pytest.mark.parametrize("num_heads", [1, 2, 8, 3])
@pytest.mark.parametrize("batch", BATCHES)
def test_alibi_is_its_formula(batch, num_heads):
    positions = integers(9, *batch, 3)
    bias = F.alibi(positions, jnp.arange(5), num_heads)
    assert bias.shape == (*batch, num_heads, 3, 5)
    expected = over_batch(batch, lambda p: reference.alibi(p, range(5), num_heads), positions)
    assert_close(bias, expected)
