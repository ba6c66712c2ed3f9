"""Positions: tables equal to their formulas, rotations that know distances only."""

import jax.numpy as jnp
import numpy as np
import pytest

from tests.functional import reference
from tests.functional.helpers import (
    assert_close,
    assert_gradients_are_differences,
    assert_same,
    exact,
    normal,
    over_batch,
)
from tlite import functional as F

LENGTHS = [1, 3, 13]
BATCHES = [(), (2,), (2, 3)]


# Sinusoidal and learned


@pytest.mark.parametrize("base", [10_000.0, 100.0])
@pytest.mark.parametrize(("length", "dim"), [(1, 1), (2, 2), (7, 6), (7, 5), (50, 8)])
def test_sinusoidal_positions_are_their_formula(length, dim, base):
    table = F.sinusoidal_positions(length, dim, base)
    assert_close(table, reference.sinusoidal_positions(length, dim, base))


@pytest.mark.parametrize("dim", [1, 4, 5])
def test_sinusoidal_positions_start_with_sines_of_0_and_cosines_of_0(dim):
    assert_same(F.sinusoidal_positions(3, dim)[0], np.arange(dim) % 2.0)


@pytest.mark.parametrize("batch", BATCHES)
def test_positions_are_added_row_by_row(batch):
    table, x = normal(5, 4), normal(*batch, 3, 4, seed=1)
    expected = over_batch(batch, reference.add_positions, x, params=table)
    assert_close(F.add_positions(table, x), expected)


@pytest.mark.parametrize(
    "use", [lambda x: F.add_positions(normal(5, 4), x), lambda x: F.rotate(x, normal(5, 2))]
)
def test_a_sequence_longer_than_the_table_is_refused_with_both_lengths(use):
    assert use(normal(5, 4)).shape == (5, 4)
    with pytest.raises(ValueError, match=r"length 6 .* length 5"):
        use(normal(6, 4))


# Interpolation


@pytest.mark.parametrize("length", LENGTHS)
def test_interpolated_positions_are_rows_at_fractions_of_the_table(length):
    table = normal(5, 3)
    expected = reference.interpolate_positions(exact(table), length)
    assert_close(F.interpolate_positions(table, length), expected)


def test_interpolation_to_the_same_length_is_the_identity():
    table = normal(7, 3)
    assert_same(F.interpolate_positions(table, 7), table)


@pytest.mark.parametrize("length", LENGTHS)
def test_interpolation_keeps_the_order_of_rows(length):
    column = F.interpolate_positions(jnp.arange(5.0)[:, None] ** 2, length)[:, 0]
    assert column[0] == 0
    assert (jnp.diff(column) >= 0).all()


# Rotary


@pytest.mark.parametrize(("dim", "base", "scale"), [(2, 1e4, 1.0), (6, 1e4, 0.5), (4, 100.0, 2.0)])
def test_rotary_angles_are_their_formula(dim, base, scale):
    expected = reference.rotary_angles(9, dim, base, scale)
    assert_close(F.rotary_angles(9, dim, base, scale), expected)


@pytest.mark.parametrize("batch", BATCHES)
def test_rotation_is_multiplication_of_complex_numbers(batch):
    x, angles = normal(*batch, 3, 6), normal(5, 3, seed=1)
    expected = over_batch(batch, lambda x: reference.rotate(x, exact(angles)), x)
    assert_close(F.rotate(x, angles), expected)


def test_gradients_of_rotation_are_its_differences():
    inputs = normal(3, 4), normal(3, 2, seed=1)
    assert_gradients_are_differences(F.rotate, reference.rotate, *inputs)


def test_rotation_keeps_norms_and_leaves_position_0():
    x = normal(9, 6)
    rotated = F.rotate(x, F.rotary_angles(9, 6))
    assert_close(jnp.linalg.norm(rotated, axis=-1), np.linalg.norm(x, axis=-1))
    assert_same(rotated[0], x[0])


def test_scores_of_rotated_queries_and_keys_depend_on_distance_alone():
    angles = F.rotary_angles(12, 6)
    query, key = (F.rotate(jnp.tile(normal(6, seed=seed), (12, 1)), angles) for seed in (1, 2))
    scores = np.asarray(query @ key.T)
    for distance in range(-11, 12):
        assert np.ptp(np.diagonal(scores, distance)) < 1e-4
    assert abs(scores[0, 0] - scores[0, 1]) > 1e-2


def test_a_scale_interpolates_rotary_positions():
    stretched = F.rotary_angles(12, 6, scale=0.5)
    assert_close(stretched[::2], F.rotary_angles(6, 6))
    assert_close(stretched, F.interpolate_positions(F.rotary_angles(7, 6), 14)[:12])


def test_an_odd_rotary_width_is_named():
    with pytest.raises(ValueError, match="width 5 must be even"):
        F.rotary_angles(4, 5)
