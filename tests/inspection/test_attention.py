"""Pictures of attention: a map for each head, with the tokens along its edges."""

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest

from tlite.inspection import plot_attention, plot_head_lines
from tlite.inspection.plots import visible

QUERIES, KEYS = ["The", " $5$", "\n"], ["a", "<b>", " ", "$"]


def weights(heads, queries=QUERIES, keys=KEYS):
    return np.random.default_rng(0).dirichlet(np.ones(len(keys)), size=(heads, len(queries)))


def ticks(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def maps(axes):
    return [panel for panel in axes.figure.axes if panel.get_title().startswith("head")]


@pytest.mark.parametrize("heads", [1, 2, 3, 5])
def test_each_head_has_a_map_of_its_weights(heads, tmp_path):
    given = weights(heads)
    axes = plot_attention(given, QUERIES, KEYS)
    assert maps(axes)[0] is axes
    assert [panel.get_title() for panel in maps(axes)] == [f"head {h}" for h in range(heads)]
    for panel, table in zip(maps(axes), given, strict=True):
        np.testing.assert_allclose(panel.images[0].get_array(), table)
        assert panel.images[0].get_clim() == (0, given.max())
    axes.figure.savefig(tmp_path / "plot.png")


def test_panels_without_a_head_are_empty():
    axes = plot_attention(weights(5), QUERIES, KEYS)
    empty = [p for p in axes.figure.axes if not p.axison]
    assert len(empty) == 3
    assert not any(panel.images for panel in empty)


@pytest.mark.parametrize("heads", [1, 2, 7, 12])
def test_tokens_stand_along_the_outer_edges_as_visible_marks(heads):
    panels = maps(plot_attention(weights(heads), QUERIES, KEYS))
    columns = min(heads, 4 if heads > 4 else 2)
    for head, panel in enumerate(panels):
        beside = ["The", r"␣\$5\$", "↵"] if head % columns == 0 else []
        below = ["a", "<b>", "␣", r"\$"] if head + columns >= heads else []
        assert (ticks(panel.yaxis), ticks(panel.xaxis)) == (beside, below)


def test_what_is_masked_is_hatched_and_no_weight_of_zero():
    mask = np.tril(np.ones((3, 4), bool))
    given = np.where(mask, weights(2), 0.0)
    given[:, 2, 0] = 0.0
    for panel in maps(plot_attention(given, QUERIES, KEYS, mask=mask)):
        shown = np.ma.getmaskarray(panel.images[0].get_array())
        np.testing.assert_array_equal(shown, ~mask)
        assert panel.patch.get_hatch()


def drawn_lines(axes):
    return [(patch.get_path().vertices, patch.get_linewidth()) for patch in axes.patches]


@pytest.mark.parametrize("keys", [None, KEYS])
def test_every_weight_that_counts_is_a_line_the_wider_the_larger(keys):
    given = weights(1, QUERIES, keys or QUERIES)[0]
    axes = plot_head_lines(given, QUERIES, keys, least=0.1)
    widths = [width for _, width in drawn_lines(axes)]
    assert len(widths) == (given >= 0.1).sum()
    np.testing.assert_array_equal(np.argsort(widths), np.argsort(given[given >= 0.1]))
    texts = [text.get_text() for text in axes.texts]
    assert texts == [visible(token) for token in [*QUERIES, *(keys or [])]]
    low, high = axes.get_xlim()
    assert all(low < text.get_position()[0] < high for text in axes.texts)


def test_a_line_leads_from_the_query_to_its_key(tmp_path):
    axes = plot_head_lines(np.eye(3)[[0, 0, 1]], ["a", "b", "c"])
    at = [text.get_position()[0] for text in axes.texts]
    ends = [(path[0, 0], path[-1, 0]) for path, _ in drawn_lines(axes)]
    assert ends[1:] == [(at[1], at[0]), (at[2], at[1])]
    assert ends[0][0] < at[0] < ends[0][1]  # a bar above what looks at itself
    axes.figure.savefig(tmp_path / "plot.png")


def test_a_head_is_drawn_where_wanted():
    mine = plt.figure().add_subplot()
    assert plot_head_lines(np.eye(2), ["a", "b"], axes=mine) is mine


def test_without_keys_queries_look_at_themselves():
    axes = plot_attention(weights(1, QUERIES, QUERIES), QUERIES)
    assert ticks(axes.xaxis) == ticks(axes.yaxis) == [visible(query) for query in QUERIES]


def test_the_figure_says_what_is_shown():
    figure = plot_attention(weights(2), QUERIES, KEYS, "block 0").figure
    assert "key" in figure.get_supxlabel()
    assert "query" in figure.get_supylabel()
    assert figure.get_suptitle() == "block 0"
    assert any("attention weight" in panel.get_ylabel() for panel in figure.axes)


def test_the_title_of_one_head_stands_alone():
    axes = plot_attention(weights(1), QUERIES, KEYS, "block 1, head 3")
    assert (axes.get_title(), axes.figure.get_suptitle()) == ("", "block 1, head 3")
