"""Heat maps: what is drawn is what was given, on a scale that fits it, with the tokens around."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tlite import functional as F
from tlite.pictures import (
    cosine_similarity,
    plot_attention,
    plot_confusion,
    plot_heads,
    plot_top_of_lens,
    plot_top_tokens,
)
from tlite.pictures.marks import visible

QUERIES, KEYS = ["The", " $5$", "\n"], ["a", "<b>", " ", "$"]
DRAW = np.random.default_rng(0)
WEIGHTS = DRAW.dirichlet(np.ones(4), size=(12, 3))
TABLE = DRAW.normal(size=(3, 4))
MOST = np.abs(TABLE).max()
COUNTS = np.array([[7, 2, 1], [0, 0, 0], [1, 0, 199]])
SHARES = COUNTS / [[10], [1], [200]]
PIECES = [["a", "$", " ", "\n"], ["b", "c", "d", "e"], ["f", "g", "h", "i"]]
CELLS = [[visible(piece) for piece in row] for row in PIECES]
TOKENS = ["a", r"\$", "␣", "↵"]
NUMBERS = [[f"{number:.2f}" for number in row] for row in TABLE]
MAPS = {  # what draws, what it shows, the ends of its scale, names of rows and columns, texts
    "attention": (lambda: plot_attention(WEIGHTS[:1], QUERIES, KEYS), WEIGHTS[0],
        (0, WEIGHTS[0].max()), ["The", r"␣\$5\$", "↵"], ["a", "<b>", "␣", r"\$"], None),
    "confusion": (lambda: plot_confusion(COUNTS, ["p", "f", "g"]), SHARES, (0, 1),
        ["p", "f", "g"], ["p", "f", "g"],
        [["70%\n7", "20%\n2", "10%\n1"], ["0%\n0"] * 3, ["0%\n1", "0%\n0", "100%\n199"]]),
    "heads": (lambda: plot_heads(abs(TABLE), "score"), abs(TABLE), (0, MOST),
        ["0", "1", "2"], ["0", "1", "2", "3"], [[n.strip("-") for n in row] for row in NUMBERS]),
    "change": (lambda: plot_heads(TABLE, "loss added", change=True), TABLE, (-MOST, MOST),
        ["0", "1", "2"], ["0", "1", "2", "3"], NUMBERS),
    "lens": (lambda: plot_top_of_lens(WEIGHTS[0], PIECES, PIECES[0]), WEIGHTS[0], (0, 1),
        ["embedding", "block 0", "block 1"], TOKENS, CELLS),
    "top tokens": (lambda: plot_top_tokens(WEIGHTS[0], PIECES, PIECES[0]),
        WEIGHTS[0], (0, 1), ["1", "2", "3"], TOKENS, CELLS),
}  # fmt: skip


def ticks(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


@pytest.mark.parametrize("name", MAPS)
def test_a_map_shows_what_was_given_at_its_names(name):
    draw, table, scale, rows, columns, texts = MAPS[name]
    axes = draw()
    np.testing.assert_allclose(axes.images[0].get_array(), table)
    assert axes.images[0].get_clim() == pytest.approx(scale)
    assert (ticks(axes.yaxis), ticks(axes.xaxis)) == (rows, columns)
    shown = {text.get_position(): text.get_text() for text in axes.texts}
    assert shown == {
        (column, row): text
        for row, line in enumerate(texts or ())
        for column, text in enumerate(line)
    }
    assert axes.figure.axes[-1].get_ylabel()  # what the colours stand for


def test_small_scores_are_told_apart():
    axes = plot_heads(np.array([[0.012, 0.004], [-0.0001, 0.0]]), "score")
    assert [text.get_text() for text in axes.texts] == ["0.012", "0.004", "0.000", "0.000"]
    assert axes.images[0].get_clim() == (0, 0.012)


# Attention, in panels


def maps(axes):
    return [panel for panel in axes.figure.axes if panel.get_title().startswith("head")]


@pytest.mark.parametrize("heads", [1, 2, 3, 5, 12])
def test_each_head_has_a_map_of_its_weights_and_tokens_stand_at_the_outer_edges(heads):
    axes = plot_attention(WEIGHTS[:heads], QUERIES, KEYS)
    panels, columns = maps(axes), min(heads, 4 if heads > 4 else 2)
    assert [panel.get_title() for panel in panels] == [f"head {h}" for h in range(heads)]
    for head, panel in enumerate(panels):
        np.testing.assert_allclose(panel.images[0].get_array(), WEIGHTS[head])
        assert panel.images[0].get_clim() == (0, WEIGHTS[:heads].max())
        beside = ["The", r"␣\$5\$", "↵"] if head % columns == 0 else []
        below = ["a", "<b>", "␣", r"\$"] if head + columns >= heads else []
        assert (ticks(panel.yaxis), ticks(panel.xaxis)) == (beside, below)
    empty = [panel for panel in axes.figure.axes if not panel.axison]
    assert len(empty) == -heads % columns
    assert not any(panel.images for panel in empty)


def test_what_is_masked_is_hatched_and_no_weight_of_zero():
    mask = np.tril(np.ones((3, 4), bool))
    weights = np.where(mask, WEIGHTS[:2], 0.0)
    weights[:, 2, 0] = 0.0
    for panel in maps(plot_attention(weights, QUERIES, KEYS, mask=mask)):
        shown = np.ma.getmaskarray(panel.images[0].get_array())
        np.testing.assert_array_equal(shown, ~mask)
        assert panel.patch.get_hatch()


def test_the_figure_says_what_is_shown():
    figure = plot_attention(WEIGHTS[:2], QUERIES, KEYS, "block 0").figure
    assert "key" in figure.get_supxlabel()
    assert "query" in figure.get_supylabel()
    assert figure.get_suptitle() == "block 0"
    axes = plot_attention(WEIGHTS[:2], QUERIES, KEYS, each="decoder block")
    assert axes.get_title() == "decoder block 0"
    axes = plot_attention(WEIGHTS[:1, :, :3], QUERIES, title="head 3")  # which looks at itself
    assert ticks(axes.xaxis) == ticks(axes.yaxis) == [visible(query) for query in QUERIES]
    assert (axes.get_title(), axes.figure.get_suptitle()) == ("", "head 3")


# How alike positions are


TABLES = arrays(np.float32, (4, 3), elements=st.floats(-10, 10, width=32))
SINUSOIDAL = np.asarray(F.sinusoidal_positions(10, 6))
ROTATED = np.asarray(F.rotate(jnp.ones((10, 6)), F.rotary_angles(10, 6)))


@given(TABLES, st.floats(0.1, 10))
def test_cosine_similarity_is_of_directions_alone(table, scale):
    assume((np.linalg.norm(table, axis=1) > 0.1).all())
    similarity = cosine_similarity(table)
    np.testing.assert_allclose(np.diag(similarity), 1, atol=1e-5)
    np.testing.assert_allclose(similarity, similarity.T, atol=1e-6)
    assert np.abs(similarity).max() <= 1 + 1e-5
    np.testing.assert_allclose(cosine_similarity(np.float32(scale) * table), similarity, atol=1e-5)
    turned = cosine_similarity(table * np.float32([[-1], [1], [1], [1]]))
    np.testing.assert_allclose(turned[0, 1:], -similarity[0, 1:], atol=1e-5)


def test_perpendicular_rows_and_rows_of_zeros_are_like_nothing():
    rows = np.array([[0.0, 0.0], [3.0, 4.0], [-8.0, 6.0]])
    np.testing.assert_allclose(cosine_similarity(rows), np.diag([0, 1, 1]), atol=1e-7)


@pytest.mark.parametrize("table", [ROTATED, SINUSOIDAL], ids=["rotary", "sinusoidal"])
def test_rotary_and_sinusoidal_similarities_depend_on_the_distance_alone(table):
    similarity = cosine_similarity(table)
    for distance in range(10):
        diagonal = np.diag(similarity, distance)
        np.testing.assert_allclose(diagonal, diagonal[0], atol=1e-5)
    assert similarity[0, 0] == pytest.approx(1)
    assert (similarity[0, 1:] < 1).all()
