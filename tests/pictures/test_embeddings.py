"""Pictures of embeddings: where the marks stand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.text import Text

from tlite.pictures import plot_embedding
from tlite.pictures.embeddings import colour_of, spread_out
from tlite.pictures.marks import visible

TOKENS = ["a", "B", "3", "$", " ", "\n", "it", "The"]
TABLE = np.random.default_rng(0).normal(size=(len(TOKENS), 5)).astype(np.float32)


def places_in(axes):
    return np.asarray(axes.collections[0].get_offsets())


def test_pca_places_tokens_by_the_directions_of_the_largest_variance():
    axes = plot_embedding(TABLE, TOKENS)
    assert axes.get_xlabel() == "principal component 1"
    assert axes.get_ylabel() == "principal component 2"
    centred = TABLE - TABLE.mean(0)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    np.testing.assert_allclose(
        np.abs(places_in(axes)), np.abs(centred @ directions[:2].T), atol=1e-5
    )


@pytest.mark.parametrize("method", ["pca", "tsne"])
def test_every_token_is_placed_as_a_mark_of_its_colour_within_the_limits(method, tmp_path):
    pytest.importorskip("sklearn")
    axes = plot_embedding(TABLE, TOKENS, method)
    assert [text.get_text() for text in axes.texts] == [visible(token) for token in TOKENS]
    assert [text.get_color() for text in axes.texts] == [colour_of(token) for token in TOKENS]
    places = np.array([text.get_position() for text in axes.texts])
    for values, limits in zip(places.T, (axes.get_xlim(), axes.get_ylim()), strict=True):
        assert limits[0] < values.min() <= values.max() < limits[1]
    again = plot_embedding(TABLE, TOKENS, method)
    np.testing.assert_array_equal([text.get_position() for text in again.texts], places)
    axes.figure.savefig(tmp_path / "plot.png")


def test_tokens_are_coloured_by_their_first_letter():
    pieces = {"The": "blue", "▁The": "blue", "the": "green", "##ing": "green", "3rd": "red"}
    pieces |= {"$": "gray", " ": "gray", "\n": "gray", "Ä": "blue", "▁": "gray"}
    assert {piece: colour_of(piece) for piece in pieces} == {
        piece: f"tab:{colour}" for piece, colour in pieces.items()
    }


def overlaps(centres, sizes):
    apart = np.abs(centres[:, None] - centres)
    return ((apart < (sizes[:, None] + sizes) / 2).all(-1) & ~np.eye(len(sizes), dtype=bool)).sum()


@given(st.integers(1, 40), st.integers(0, 99))
def test_boxes_are_spread_out_until_none_overlap(number, seed):
    random = np.random.default_rng(seed)
    sizes = random.uniform(5, 40, size=(number, 2))
    centres = random.uniform(0, 300, size=(number, 2))
    centres[: number // 4] = centres[0]  # some at one place
    assert overlaps(spread_out(centres, sizes), sizes) == 0


def test_boxes_that_do_not_overlap_stay():
    centres = np.array([[0.0, 0.0], [11.0, 0.0], [0.0, 11.0]])
    np.testing.assert_array_equal(spread_out(centres, np.full((3, 2), 10.0)), centres)


def test_marks_of_near_rows_do_not_overlap_and_have_a_line_to_their_place():
    pytest.importorskip("sklearn")
    tokens = ["word", "other", "third", "far", "up"]
    table = np.array([[0.0, 0.0], [0.01, 0.0], [0.0, 0.01], [9.0, 0.0], [0.0, 7.0]], np.float32)
    axes = plot_embedding(table, tokens)
    axes.figure.canvas.draw()
    boxes = [Text.get_window_extent(mark).extents for mark in axes.texts]
    centres = np.array([[(a + c) / 2, (b + d) / 2] for a, b, c, d in boxes])
    sizes = np.array([[c - a, d - b] for a, b, c, d in boxes])
    assert overlaps(centres, sizes - 1) == 0
    moved = [np.abs(np.subtract(mark.get_position(), mark.xy)).max() > 1e-6 for mark in axes.texts]
    assert sum(moved) >= 2
    np.testing.assert_allclose([mark.xy for mark in axes.texts], places_in(axes))
    assert all(mark.arrow_patch for mark in axes.texts)  # a line from where it stands to its place
