"""Pictures of what the tools find: the numbers drawn are those that were given."""

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest

from tlite.inspection import (
    plot_heads,
    plot_logit_lens,
    plot_patches,
    plot_saliency,
    plot_scores_by_step,
    plot_top_of_lens,
)
from tlite.inspection.plots import visible

VOCABULARY = ["a", "$", " ", "\n", "<b>"]
TOKENS = ["a", "$", " ", "\n"]
DRAW = np.random.default_rng(0)
LENS = DRAW.dirichlet(np.full(len(VOCABULARY), 0.3), size=(3, len(TOKENS)))
TABLE = DRAW.random((2, 3))
PATCHES = DRAW.normal(size=(2, len(TOKENS)))
SCORES = DRAW.random((4, 2, 3))
PLOTS = {
    "lens": lambda axes=None: plot_logit_lens(LENS, TOKENS, VOCABULARY, axes),
    "heads": lambda axes=None: plot_heads(TABLE, "score", axes=axes),
    "steps": lambda axes=None: plot_scores_by_step([1, 2, 5, 9], SCORES, "score", axes),
    "patches": lambda axes=None: plot_patches(PATCHES, TOKENS, "log-probability", axes),
}


def ticks(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def texts(axes):
    return {text.get_position(): text for text in axes.texts}


@pytest.mark.parametrize("plot", PLOTS)
def test_every_plot_labels_its_axes_and_can_be_drawn_where_wanted(plot, check_plot):
    check_plot(PLOTS[plot])


def test_the_lens_shows_the_most_probable_token_on_its_probability():
    axes = PLOTS["lens"]()
    np.testing.assert_allclose(axes.images[0].get_array(), LENS.max(-1))
    shown = {place: text.get_text() for place, text in texts(axes).items()}
    assert shown == {
        (position, depth): visible(VOCABULARY[LENS[depth, position].argmax()])
        for depth, position in np.ndindex(3, len(TOKENS))
    }
    assert ticks(axes.xaxis) == ["a", r"\$", "␣", "↵"]
    assert ticks(axes.yaxis) == ["embedding", "block 0", "block 1"]


def test_the_top_of_a_lens_is_drawn_as_the_lens_is():
    top = LENS.argmax(-1)
    pieces = [[VOCABULARY[index] for index in row] for row in top]
    axes, whole = plot_top_of_lens(LENS.max(-1), pieces, TOKENS, "read"), PLOTS["lens"]()
    np.testing.assert_array_equal(axes.images[0].get_array(), whole.images[0].get_array())
    assert {p: t.get_text() for p, t in texts(axes).items()} == {
        p: t.get_text() for p, t in texts(whole).items()
    }
    assert axes.get_xlabel() == "read"


def test_a_table_of_heads_has_each_number_where_it_can_be_read():
    axes = plot_heads(TABLE, "induction score")
    np.testing.assert_array_equal(axes.images[0].get_array(), TABLE)
    assert axes.images[0].get_clim() == (0, TABLE.max())
    for (head, layer), text in texts(axes).items():
        assert text.get_text() == f"{TABLE[layer, head]:.2f}"
        dark = TABLE[layer, head] > 0.6 * TABLE.max()
        assert text.get_color() == ("white" if dark else "black")
    assert len(axes.texts) == TABLE.size
    assert (ticks(axes.xaxis), ticks(axes.yaxis)) == (["0", "1", "2"], ["0", "1"])
    assert any("induction score" in panel.get_ylabel() for panel in axes.figure.axes)


@pytest.mark.parametrize("table", [5 * PATCHES, np.zeros((1, 1))])
def test_a_change_has_zero_in_the_middle_of_its_scale(table, tmp_path):
    axes = plot_heads(table, "loss added", low=None)
    axes.figure.savefig(tmp_path / "plot.png")
    low, high = axes.images[0].get_clim()
    assert low == -high
    assert low <= table.min() <= table.max() <= high


def test_small_scores_are_told_apart():
    axes = plot_heads(np.array([[0.012, 0.004], [-0.0001, 0.0]]), "score")
    assert [text.get_text() for text in axes.texts] == ["0.012", "0.004", "0.000", "0.000"]
    assert axes.images[0].get_clim() == (0, 0.012)


def look(line):
    return line.get_color(), line.get_linestyle()


def test_every_head_has_a_curve_of_its_score_in_the_panel_of_its_block():
    scores = DRAW.random((4, 5, 12)) / 50
    panels = plot_scores_by_step([1, 2, 5, 9], scores, "score").figure.axes
    for layer, panel in enumerate(panels[:5]):
        assert panel.get_title() == f"block {layer}"
        curves = {line.get_label(): line for line in panel.lines}
        assert list(curves) == [f"head {head}" for head in range(12)]
        for head, line in enumerate(panel.lines):
            np.testing.assert_array_equal(line.get_xdata(), [1, 2, 5, 9])
            np.testing.assert_array_equal(line.get_ydata(), scores[:, layer, head])
        assert len({look(line) for line in panel.lines}) == 12
        assert scores.max() < panel.get_ylim()[1] < 2 * scores.max()
    assert not any(panel.lines for panel in panels[5:])


def test_on_given_axes_every_head_has_a_look_of_its_own():
    mine = plt.figure().add_subplot()
    plot_scores_by_step([1, 2, 5, 9], SCORES, "score", mine)
    assert [line.get_label() for line in mine.lines] == [
        f"{layer}.{head}" for layer, head in np.ndindex(2, 3)
    ]
    assert len({look(line) for line in mine.lines}) == 6


def test_patches_stand_at_their_block_and_token():
    axes = PLOTS["patches"]()
    np.testing.assert_array_equal(axes.images[0].get_array(), PATCHES)
    assert ticks(axes.xaxis) == ["a", r"\$", "␣", "↵"]
    assert ticks(axes.yaxis) == ["block 0", "block 1"]
    assert any("log-probability" in panel.get_ylabel() for panel in axes.figure.axes)


def test_saliency_has_a_bar_for_each_word_in_each_column():
    columns = {"model": np.array([0.5, -1.0, 0.0]), "baseline": np.array([1.0, 2.0, -3.0])}
    axes = plot_saliency(["good", "$", "a b"], columns)
    panels = axes.figure.axes
    assert panels[0] is axes
    assert ticks(axes.yaxis) == ["good", r"\$", "a␣b"]
    for panel, (title, values) in zip(panels, columns.items(), strict=True):
        assert panel.get_title() == title
        np.testing.assert_array_equal([bar.get_width() for bar in panel.patches], values)
        colours = ["tab:green" if value > 0 else "tab:red" for value in values]
        expected = [matplotlib.colors.to_rgba(colour) for colour in colours]
        assert [bar.get_facecolor() for bar in panel.patches] == expected
    low, high = axes.get_ylim()
    assert low > high


def test_only_the_first_words_of_a_long_text_are_drawn():
    values = np.arange(9.0)
    axes = plot_saliency([f"word{i}" for i in range(9)], {"model": values}, most=4)
    assert [bar.get_width() for bar in axes.patches] == [0, 1, 2, 3]
    assert ticks(axes.yaxis) == ["word0", "word1", "word2", "word3"]
