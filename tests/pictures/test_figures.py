"""What all pictures have in common: labels, Axes of the caller's, texts that are no formulas."""

import warnings
from collections import Counter

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest

from tlite import pictures as P
from tlite.pictures.marks import visible

DRAW = np.random.default_rng(0)
WORDS = ["$x_{$", "$$", r"\$a$", "\n", "a\\", r"\frac$"]
NUMBERS, SHARES = DRAW.normal(size=(6, 6)), DRAW.dirichlet(np.ones(6), size=6)
PIECES = [WORDS] * 6
LINES = [
    {"step": step, "split": split, "loss": 1 / step, "accuracy": 0.1 * step}
    for step in (1, 2, 3)
    for split in ("training", "validation")
]
PLOTS = {
    "confusion": lambda: P.plot_confusion(np.eye(6, dtype=int), WORDS),
    "curves": lambda: P.plot_curves(LINES, "loss"),
    "embedding": lambda: P.plot_embedding(NUMBERS, WORDS),
    "frequencies": lambda: P.plot_frequencies(Counter(WORDS), "word"),
    "heads": lambda: P.plot_heads(NUMBERS, "score"),
    "lengths": lambda: P.plot_lengths([3, 4, 9], "line", "character"),
    "lens": lambda: P.plot_top_of_lens(SHARES, PIECES, WORDS),
    "lines": lambda: P.plot_lines({"a": NUMBERS[0]}, "position", "value"),
    "position": lambda: P.plot_loss_by_position(SHARES),
    "predictions": lambda: P.plot_predictions_by_value(np.arange(6), WORDS, WORDS),
    "probability": lambda: P.plot_probability_by_value(SHARES[0], WORDS, WORDS[0]),
    "schedule": lambda: P.plot_schedule({"peak 1": SHARES[0]}),
    "score by length": lambda: P.plot_score_by_length([1, 2], lambda rows: 1.0, "BLEU"),
    "top tokens": lambda: P.plot_top_tokens(SHARES, PIECES, WORDS),
}
PANELS = {
    "attention": lambda: P.plot_attention(SHARES[None], WORDS),
    "learning curves": lambda: P.plot_learning_curves(dict.fromkeys(WORDS, LINES)),
    "saliency": lambda: P.plot_saliency(WORDS, {WORDS[0]: SHARES[0], "b": SHARES[1]}),
    "scores by step": lambda: P.plot_scores_by_step([1, 2], SHARES.reshape(2, 3, 6), "score"),
}
NAMED = ["confusion", "embedding", "frequencies", "lens", "predictions", "probability"]
NAMED += ["top tokens", "attention", "learning curves", "saliency"]


@pytest.mark.parametrize("plot", PLOTS | PANELS)
def test_every_plot_is_drawn_with_labels_and_gives_its_first_axes(plot, tmp_path):
    axes = (PLOTS | PANELS)[plot]()
    assert axes.figure.axes[0] is axes
    assert plot in PANELS or (axes.get_xlabel() and axes.get_ylabel())
    axes.figure.savefig(tmp_path / "plot.png")


@pytest.mark.parametrize(
    "plot",
    [
        lambda axes: P.plot_curves(LINES, "loss", axes),
        lambda axes: P.plot_lines({"a": SHARES[0]}, "x", "y", axes=axes),
        lambda axes: P.heat_map(SHARES, axes),
    ],
)
def test_what_draws_curves_and_tables_can_draw_them_where_wanted(plot):
    mine = plt.figure(layout="constrained").add_subplot()
    assert plot(mine) is mine
    assert [*mine.lines, *mine.images]


@pytest.mark.parametrize("plot", NAMED)
def test_names_are_no_formulas(plot):
    axes = (PLOTS | PANELS)[plot]()
    axes.figure.draw_without_rendering()
    texts = [text.get_text() for text in axes.figure.findobj(matplotlib.text.Text)]
    assert not any(map(matplotlib.cbook.is_math_text, texts))
    shown = {text.replace(r"\$", "$").partition("\n")[0] for text in texts}
    assert shown & {*WORDS, "↵"}


def test_a_heat_map_shows_its_table_with_names_and_texts_that_can_be_read():
    names, texts = ["it", "$"], [["a", "b", "c"], ["d", "e", "f"]]
    table = np.array([[0, 0.4, 1], [0.7, 0.1, 0.5]])
    labels = {"xlabel": "across", "title": "a table"}
    axes = P.heat_map(
        table, rows=names, columns=["1", "$2", "3"], texts=texts, scale=(0, 2), label="%", **labels
    )
    (image,) = axes.images
    np.testing.assert_array_equal(image.get_array(), table)
    assert image.get_clim() == (0, 2)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["it", r"\$"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", r"\$2", "3"]
    assert (axes.get_xlabel(), axes.get_title()) == ("across", "a table")
    assert [panel.get_ylabel() for panel in axes.figure.axes] == ["", "%"]
    assert {text.get_position(): text.get_text() for text in axes.texts} == {
        (column, row): texts[row][column] for row, column in np.ndindex(2, 3)
    }


@pytest.mark.parametrize("signed", [False, True])
def test_texts_are_light_on_dark_cells_and_dark_on_light_ones(signed):
    table = np.linspace(-1, 1, 21)[None]
    axes = P.heat_map(table, texts=[["0"] * 21], signed=signed)
    light = [text.get_color() == "white" for text in axes.texts]
    grounds = axes.images[0].cmap(axes.images[0].norm(table))[0, :, :3].mean(-1)
    assert grounds[light].max() < 0.55
    assert grounds[~np.array(light)].min() > 0.45


@pytest.mark.parametrize("table", [np.array([[0.5, -2.0, 0.0]]), np.zeros((1, 3))])
def test_of_numbers_with_a_sign_0_is_white_more_red_less_blue(table):
    image = P.heat_map(table, signed=True).images[0]
    assert image.get_clim() == (-(abs(table).max() or 1), abs(table).max() or 1)
    red, _, blue = image.cmap(image.norm(table))[0, :, :3].T
    np.testing.assert_array_equal(np.sign((red - blue).round(2)), np.sign(table[0]))


@pytest.mark.parametrize(("names", "turn"), [(["ab", "c"], 0), (["abc", "d"], 90)])
def test_words_stand_upright_below_their_columns(names, turn):
    labels = P.heat_map(np.eye(2), columns=names).get_xticklabels()
    assert {label.get_rotation() for label in labels} == {turn}


def drawing():
    axes = plt.subplots()[1]
    plt.figure()  # a second one, which it forgets
    return axes.figure


def test_the_callers_figures_and_backend_stay(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("the backend was switched")

    mine, backend = plt.figure(), matplotlib.get_backend()
    plt.ion()
    monkeypatch.setattr(matplotlib, "use", refuse)
    monkeypatch.setattr(plt, "switch_backend", refuse)
    try:
        with P.own_figures():
            drawing()
            assert not plt.isinteractive()
        assert plt.isinteractive()
    finally:
        plt.ioff()
    assert plt.get_fignums() == [mine.number]
    assert (plt.gcf(), matplotlib.get_backend()) == (mine, backend)


def test_what_fails_leaves_no_figure():
    with pytest.raises(RuntimeError, match="no picture"), P.own_figures():
        raise RuntimeError(f"no picture, of {drawing()}")
    assert plt.get_fignums() == []


def test_the_font_of_pictures_has_a_glyph_for_each_mark_of_a_control_character(tmp_path):
    every = [visible(chr(code)) for code in [*range(0x20), 0x7F]]
    assert len(set(every)) == len(every)
    axes = plt.figure().add_subplot()
    axes.set_title("".join(every))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        axes.figure.savefig(tmp_path / "plot.png")
