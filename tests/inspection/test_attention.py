"""Pictures of attention: a map for each head, with the tokens along its edges."""

import matplotlib

matplotlib.use("Agg")

import numpy as np
import pytest

from tlite.inspection import plot_attention
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
    axes = plot_attention(given, QUERIES, KEYS, "block 0")
    assert maps(axes)[0] is axes
    assert [panel.get_title() for panel in maps(axes)] == [f"head {h}" for h in range(heads)]
    for panel, table in zip(maps(axes), given, strict=True):
        np.testing.assert_allclose(panel.images[0].get_array(), table)
        assert panel.images[0].get_clim() == (0, 1)
    axes.figure.savefig(tmp_path / "plot.png")


def test_panels_without_a_head_are_empty():
    axes = plot_attention(weights(5), QUERIES, KEYS)
    empty = [p for p in axes.figure.axes if not p.axison]
    assert len(empty) == 3
    assert not any(panel.images for panel in empty)


def test_tokens_stand_along_the_edges_as_visible_marks():
    for panel in maps(plot_attention(weights(2), QUERIES, KEYS)):
        assert ticks(panel.yaxis) == ["The", r"␣\$5\$", "↵"]
        assert ticks(panel.xaxis) == ["a", "<b>", "␣", r"\$"]


@pytest.mark.parametrize("heads", [7, 8, 12])
def test_of_many_heads_the_outer_ones_alone_have_tokens(heads):
    panels = maps(plot_attention(weights(heads), QUERIES, KEYS))
    for head, panel in enumerate(panels):
        assert bool(ticks(panel.yaxis)) == (head % 4 == 0)
        assert bool(ticks(panel.xaxis)) == (head + 4 >= heads)
    assert ticks(panels[-1].xaxis) == ["a", "<b>", "␣", r"\$"]
    assert ticks(panels[0].yaxis) == ["The", r"␣\$5\$", "↵"]


def test_without_keys_queries_look_at_themselves():
    axes = plot_attention(weights(1, QUERIES, QUERIES), QUERIES)
    assert ticks(axes.xaxis) == ticks(axes.yaxis) == [visible(query) for query in QUERIES]


def test_the_figure_says_what_is_shown():
    figure = plot_attention(weights(2), QUERIES, KEYS, "block 0").figure
    assert "key" in figure.get_supxlabel()
    assert "query" in figure.get_supylabel()
    assert figure.get_suptitle() == "block 0"
    assert any("attention weight" in panel.get_ylabel() for panel in figure.axes)
