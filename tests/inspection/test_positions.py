"""Pictures of positions, and how alike those of two places are."""

import jax.numpy as jnp
import matplotlib

matplotlib.use("Agg")

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tlite import functional as F
from tlite.inspection import (
    cosine_similarity,
    plot_bias,
    plot_position_curves,
    plot_positions,
    plot_similarity,
    rotary_similarity,
)

TABLE = np.asarray(F.sinusoidal_positions(10, 6))
ANGLES = np.asarray(F.rotary_angles(10, 6))
PLOTS = {
    "table": lambda axes=None: plot_positions(TABLE, axes),
    "curves": lambda axes=None: plot_position_curves(TABLE, axes=axes),
    "similarity": lambda axes=None: plot_similarity(cosine_similarity(TABLE), axes=axes),
}
BIAS = np.asarray(F.alibi(jnp.arange(10), jnp.arange(10), 3))
PLOTS["bias"] = lambda axes=None: plot_bias(BIAS, axes)
TABLES = arrays(np.float32, (4, 3), elements=st.floats(-10, 10, width=32))


@pytest.mark.parametrize("plot", PLOTS)
def test_every_plot_labels_its_axes_and_can_be_drawn_where_wanted(plot, check_plot):
    check_plot(PLOTS[plot])


def test_the_table_is_drawn_with_white_for_0():
    image = plot_positions(TABLE).images[0]
    np.testing.assert_array_equal(image.get_array(), TABLE)
    low, high = image.get_clim()
    assert -low == high == np.abs(TABLE).max()


def test_curves_are_the_columns_that_there_are():
    axes = plot_position_curves(TABLE, (0, 5, 6, 60))
    assert [line.get_label() for line in axes.lines] == ["column 0", "column 5"]
    for line, column in zip(axes.lines, (0, 5), strict=True):
        np.testing.assert_array_equal(line.get_ydata(), TABLE[:, column])
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names == ["column 0", "column 5"]


def test_similarities_are_drawn_from_minus_1_to_1_under_their_title():
    similarity = cosine_similarity(TABLE)
    axes = plot_similarity(similarity, "sinusoidal")
    np.testing.assert_array_equal(axes.images[0].get_array(), similarity)
    assert axes.images[0].get_clim() == (-1, 1)
    assert axes.get_title() == "sinusoidal"


@given(TABLES, st.floats(0.1, 10))
def test_cosine_similarity_is_of_directions_alone(table, scale):
    assume((np.linalg.norm(table, axis=1) > 0.1).all())
    similarity = cosine_similarity(table)
    np.testing.assert_allclose(np.diag(similarity), 1, atol=1e-5)
    np.testing.assert_allclose(similarity, similarity.T, atol=1e-6)
    assert np.abs(similarity).max() <= 1 + 1e-5
    np.testing.assert_allclose(cosine_similarity(np.float32(scale) * table), similarity, atol=1e-5)
    np.testing.assert_allclose(
        cosine_similarity(table * np.float32([[-1], [1], [1], [1]]))[0, 1:],
        -similarity[0, 1:],
        atol=1e-5,
    )


def test_a_row_of_zeros_is_like_nothing():
    similarity = cosine_similarity(np.array([[0.0, 0.0], [3.0, 4.0]]))
    np.testing.assert_allclose(similarity, [[0, 0], [0, 1]], atol=1e-7)


def test_the_bias_of_each_head_is_drawn_by_the_distance():
    axes = plot_bias(BIAS)
    assert [line.get_label() for line in axes.lines] == ["head 0", "head 1", "head 2"]
    for line, table in zip(axes.lines, BIAS, strict=True):
        np.testing.assert_array_equal(line.get_xdata(), np.arange(-5, 5))
        np.testing.assert_array_equal(line.get_ydata(), table[5])


def test_perpendicular_rows_have_similarity_0():
    np.testing.assert_allclose(cosine_similarity(np.diag([1.0, 2.0, 3.0])), np.eye(3), atol=1e-7)


def test_rotary_similarity_is_that_of_rotated_equal_pairs():
    rotated = np.asarray(F.rotate(jnp.ones((10, 6)), jnp.asarray(ANGLES)))
    np.testing.assert_allclose(rotary_similarity(ANGLES), cosine_similarity(rotated), atol=1e-5)


@pytest.mark.parametrize("similarity", [rotary_similarity(ANGLES), cosine_similarity(TABLE)])
def test_rotary_and_sinusoidal_similarities_depend_on_the_distance_alone(similarity):
    for distance in range(10):
        diagonal = np.diag(similarity, distance)
        np.testing.assert_allclose(diagonal, diagonal[0], atol=1e-5)
    assert similarity[0, 0] == pytest.approx(1)
    assert (similarity[0, 1:] < 1).all()
