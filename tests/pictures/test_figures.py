"""Pictures show the numbers and texts that they are called with."""

from collections import Counter
from contextlib import nullcontext

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from tlite import pictures as P
from tlite.pictures.labels import matplotlib_label
from tlite.training.metrics import summarize_seeds

matplotlib.use("Agg")
DRAW = np.random.default_rng(0)
WORDS = ["$x_{$", "$$", r"\$a$", "\n", "a\\", r"\frac$"]
NUMBERS, SHARES = DRAW.normal(size=(6, 6)), DRAW.dirichlet(np.ones(6), size=6)
PLOTS = {
    "confusion": lambda: P.plot_confusion(np.eye(6, dtype=int), WORDS),
    "embedding": lambda: P.plot_embedding(NUMBERS, WORDS),
    "frequencies": lambda: P.plot_frequencies(Counter(WORDS), "word"),
    "predictions": lambda: P.plot_predictions_by_value(np.arange(6), WORDS, WORDS),
    "probability": lambda: P.plot_probability_by_value(SHARES[0], WORDS, WORDS[0]),
    "top tokens": lambda: P.plot_top_tokens(SHARES, [WORDS] * 6, WORDS),
}
PANELS = {
    "attention": lambda: P.plot_attention(SHARES[None], WORDS),
    "saliency": lambda: P.plot_saliency(WORDS, {WORDS[0]: SHARES[0], "b": SHARES[1]}),
}


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


@pytest.mark.parametrize("fails", [False, True])
def test_isolated_figures_are_closed_and_earlier_ones_stay(fails):
    mine = plt.figure()
    plt.ion()
    expected = pytest.raises(ValueError, match="no picture") if fails else nullcontext()
    with expected, P.isolate_figures():
        plt.subplots()
        shown = plt.isinteractive()
        if fails:
            raise ValueError("no picture")
    states = shown, plt.isinteractive()
    plt.ioff()
    assert states == (False, True)
    assert plt.get_fignums() == [mine.number]


QUERIES, KEYS = ["The", " $5$", "\n"], ["a", "<b>", " ", "$"]
BESIDE, BELOW = ["The", r"␣\$5\$", "↵"], ["a", "<b>", "␣", r"\$"]
WEIGHTS = DRAW.dirichlet(np.ones(4), size=(12, 3))
TABLE = DRAW.normal(size=(3, 4))
LARGEST = np.abs(TABLE).max()
COUNTS = np.array([[7, 2, 1], [0, 0, 0], [1, 0, 199]])
TOP_TOKENS = [["a", "$", " ", "\n"], ["b", "c", "d", "e"], ["f", "g", "h", "i"]]
CELLS = [[matplotlib_label(token) for token in row] for row in TOP_TOKENS]
TOKENS = ["a", r"\$", "␣", "↵"]
NUMBERED = [[f"{number:.2f}" for number in row] for row in TABLE]
MAPS = {  # plot, matrix, limits of the colour scale, labels of rows and columns, texts of cells
    "confusion": (lambda: P.plot_confusion(COUNTS, ["p", "f", "$"]), COUNTS / [[10], [1], [200]],
        (0, 1), ["p", "f", r"\$"], ["p", "f", r"\$"],
        [["70%\n7", "20%\n2", "10%\n1"], ["0%\n0"] * 3, ["0%\n1", "0%\n0", "100%\n199"]]),
    "change": (lambda: P.plot_heads(TABLE, "loss added", change=True), TABLE, (-LARGEST, LARGEST),
        ["0", "1", "2"], ["0", "1", "2", "3"], NUMBERED),
    "lens": (lambda: P.plot_top_of_lens(WEIGHTS[0], TOP_TOKENS, TOP_TOKENS[0]), WEIGHTS[0], (0, 1),
        ["embedding", "block 0", "block 1"], TOKENS, CELLS),
}  # fmt: skip


def ticks(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


@pytest.mark.parametrize("name", MAPS)
def test_heat_maps_show_their_numbers_and_labels(name):
    draw, table, scale, rows, columns, texts = MAPS[name]
    axes = draw()
    np.testing.assert_allclose(axes.images[0].get_array(), table)
    assert axes.images[0].get_clim() == pytest.approx(scale)
    assert (ticks(axes.yaxis), ticks(axes.xaxis)) == (rows, columns)
    shown = {text.get_position(): text.get_text() for text in axes.texts}
    cells = {(c, r): text for r, line in enumerate(texts) for c, text in enumerate(line)}
    assert shown == cells
    assert axes.figure.axes[-1].get_ylabel()  # the label of the colour bar


@pytest.mark.parametrize("heads", [1, 3, 5, 12])
def test_each_head_has_a_map_with_tokens_at_the_outer_edges(heads):
    """Masked cells are hatched."""
    axes = P.plot_attention(WEIGHTS[:heads], QUERIES, KEYS)
    panels, columns = axes.figure.axes[:heads], min(heads, 4 if heads > 4 else 2)
    assert axes.figure.axes[-1].get_ylabel()  # the label of the colour bar
    assert [panel.get_title() for panel in panels] == [f"head {h}" for h in range(heads)]
    for head, panel in enumerate(panels):
        np.testing.assert_allclose(panel.images[0].get_array(), WEIGHTS[head])
        assert panel.images[0].get_clim() == (0, WEIGHTS[:heads].max())
        beside = BESIDE if head % columns == 0 else []
        below = BELOW if head + columns >= heads else []
        assert (ticks(panel.yaxis), ticks(panel.xaxis)) == (beside, below)
    empty = [panel for panel in axes.figure.axes if not panel.axison]
    assert len(empty) == -heads % columns
    assert not any(panel.images for panel in empty)

    mask = np.tri(3, 4, dtype=bool)
    weights = WEIGHTS[:2] * mask * (np.arange(4) != 1)  # a weight of 0 is not masked
    for panel in P.plot_attention(weights, QUERIES, KEYS, mask=mask).figure.axes[:2]:
        shown = np.ma.getmaskarray(panel.images[0].get_array())
        np.testing.assert_array_equal(shown, ~mask)
        assert panel.patch.get_hatch()


def test_cosine_similarity_is_of_directions_alone():
    table = DRAW.normal(size=(4, 3)) * [[1], [100], [1], [0]]
    expected = np.zeros((4, 4))  # a row of zeros has no direction
    expected[:3, :3] = 1 - cdist(table[:3], table[:3], "cosine")
    np.testing.assert_allclose(P.cosine_similarity(table), expected, atol=1e-12)


def metrics(num_replicas, num_steps=3):
    """Return lines of metrics.jsonl; replica m's loss after step s is s + m."""
    losses = {s: {"loss": s + np.arange(float(num_replicas))} for s in range(1, num_steps + 1)}
    return [
        {"step": step, "split": split} | summarize_seeds(loss)
        for step, loss in losses.items()
        for split in ("training", "validation")
    ]


RATES, LOSSES = np.linspace(0.1, 0, 40), DRAW.random((3, 5))
LINES_OF_HEADS = {f"head {head}": row for head, row in enumerate(DRAW.normal(size=(28, 5)))}
CURVES = {  # plot, x, the curves by label, the number of bands
    "schedule": (lambda: P.plot_schedule({"peak": RATES}), range(1, 41), {"peak": RATES}, 0),
    "lines": (lambda: P.plot_lines(LINES_OF_HEADS, "x", "y", np.arange(5) - 2), range(-2, 3),
        LINES_OF_HEADS, 0),
    "band": (lambda: P.plot_loss_by_position(LOSSES), range(1, 6), {"": LOSSES.mean(0)}, 1),
    "replicas": (lambda: P.plot_curves(metrics(3)), range(1, 4),
        {"training": [2, 3, 4], "validation": [2, 3, 4]}, 2),
}  # fmt: skip


@pytest.mark.parametrize("name", CURVES)
def test_curves_show_their_numbers_in_different_styles(name):
    draw, x, curves, bands = CURVES[name]
    axes = draw()
    for line, (label, y) in zip(axes.lines, curves.items(), strict=True):
        assert line.get_label() == label or not label
        np.testing.assert_array_equal(line.get_xdata(), x)
        np.testing.assert_allclose(line.get_ydata(), y)
    assert len({(line.get_color(), line.get_linestyle()) for line in axes.lines}) == len(curves)
    assert len(axes.collections) == bands
    if axes.get_legend():
        assert [text.get_text() for text in axes.get_legend().get_texts()] == [*curves]


UNNAMED = {name: draw for name, (draw, *_) in CURVES.items()} | {"heads": MAPS["change"][0]}
UNNAMED |= {"lengths": lambda: P.plot_lengths([3, 4, 9], "line", "character")}


@pytest.mark.parametrize("plot", PLOTS | PANELS | UNNAMED)
def test_plots_have_labels_and_draw_dollar_signs_literally(plot):
    axes = (PLOTS | PANELS | UNNAMED)[plot]()
    assert axes.figure.axes[0] is axes
    assert plot in PANELS or (axes.get_xlabel() and axes.get_ylabel())
    axes.figure.draw_without_rendering()
    texts = [text.get_text() for text in axes.figure.findobj(matplotlib.text.Text)]
    assert not any(map(matplotlib.cbook.is_math_text, texts))
    shown = {text.replace(r"\$", "$").partition("\n")[0] for text in texts}
    assert plot in UNNAMED or shown & {*WORDS, "↵"}


def test_trials_are_drawn_by_value_with_the_best_encircled():
    losses = {1e-3: {10: [3.0, 5.0], 20: [2.0, 3.0]}, 1e-1: {10: None}, 1e-2: {10: [2.0, 4.0]}}
    trials = [
        {"change": {"rate": rate}, "step": step, "loss": loss}
        for rate, by_step in losses.items()
        for step, loss in by_step.items()
    ]
    axes = P.plot_trials(trials, {"rate": True})
    (first, *_), (second, *_) = axes.containers
    np.testing.assert_allclose(first.get_xydata(), [(1e-3, 4), (1e-2, 3)])  # one has diverged
    np.testing.assert_allclose(second.get_xydata(), [(1e-3, 2.5)])
    np.testing.assert_allclose(axes.lines[-1].get_xydata(), [(1e-3, 2.5)])
    assert (axes.get_xscale(), axes.get_xlabel()) == ("log", "rate")
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["step 10", "step 20"]


CLASSES, NAMES = ["poor", "fair", "good"], ["2", "5", "9", "10"]
VALUES = ["10", "2", "2", "9", "10", "9", "5", "10", "2", "10"]  # drawn by size; "5" is no class
GROUPS = [np.equal(VALUES, value) for value in NAMES]
PROBABILITIES = np.linspace(0.05, 0.95, len(VALUES))
PREDICTED = np.array([2, 0, 0, 1, 2, 1, 0, 2, 1, 2])


def test_predictions_are_grouped_by_the_true_label():
    axes = P.plot_probability_by_value(PROBABILITIES, VALUES, "good")
    numbered = zip(NAMES, GROUPS, strict=True)
    assert ticks(axes.xaxis) == [f"{name}\n({rows.sum()} texts)" for name, rows in numbered]
    medians = [line.get_ydata()[0] for line in axes.lines if line.get_color() == "C1"]
    np.testing.assert_allclose(medians, [np.median(PROBABILITIES[rows]) for rows in GROUPS])
    axes = P.plot_predictions_by_value(PREDICTED, VALUES, CLASSES)
    assert ticks(axes.xaxis) == NAMES
    shares = [[(PREDICTED[rows] == c).mean() for rows in GROUPS] for c in range(3)]
    tops = np.cumsum(shares, axis=0)
    for bars, share, top in zip(axes.containers, shares, tops, strict=True):
        np.testing.assert_allclose([bar.get_height() for bar in bars], share)
        np.testing.assert_allclose([bar.get_y() + bar.get_height() for bar in bars], top)
    assert [bars.get_label() for bars in axes.containers] == CLASSES


def test_frequencies_are_shares_in_falling_order():
    axes = P.plot_frequencies(Counter({"a": 5, " ": 3, "$": 2}), "character")
    assert [bar.get_height() for bar in axes.patches] == [50, 30, 20]
    assert ticks(axes.xaxis) == ["a", "␣", r"\$"]
    assert len(P.plot_frequencies(Counter(map(str, range(99))), "word").patches) == 40


@given(st.lists(st.integers(0, 500), min_size=1, max_size=30))
@example([*range(1, 1001)])
def test_lengths_below_the_99th_percentile_are_counted(lengths):
    axes = P.plot_lengths(lengths, "text", "word")
    bars = {bar.get_x() + bar.get_width() / 2: bar.get_height() for bar in axes.patches}
    (median,) = {*axes.lines[0].get_xdata()}
    plt.close("all")
    longest = max(int(np.quantile(lengths, 0.99)), 1)
    counted = Counter(n for n in lengths if n <= longest)
    assert sum(bars.values()) == counted.total()
    assert 0 <= len(lengths) - sum(bars.values()) <= 0.01 * len(lengths) + 1
    assert longest > 60 or {int(x): n for x, n in bars.items() if n} == counted
    assert median == np.median(lengths)


def test_saliency_has_a_bar_for_each_word_and_column():
    words = ["good", "$", "a b", *(f"word{i}" for i in range(26))]
    columns = {"model": 13 - np.arange(29.0), "baseline": np.arange(29.0) - 3}
    axes = P.plot_saliency(words, columns)
    assert ticks(axes.yaxis)[:4] == ["good", r"\$", "a␣b", "word0"]
    for panel, (title, values) in zip(axes.figure.axes, columns.items(), strict=True):
        assert panel.get_title() == title
        np.testing.assert_array_equal([bar.get_width() for bar in panel.patches], values[:24])
        green = [bar.get_facecolor()[1] > bar.get_facecolor()[0] for bar in panel.patches]
        assert green == [value > 0 for value in values[:24]]
    assert np.diff(axes.get_ylim()) < 0  # the first word is on top


LETTERS = ["a", "B", "3", "$", " ", "\n", "it", "The"]
ROWS = np.random.default_rng(0).normal(size=(len(LETTERS), 5)).astype(np.float32)


def test_tokens_are_drawn_at_their_principal_components():
    axes, centred = P.plot_embedding(ROWS, LETTERS), ROWS - ROWS.mean(0)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    expected = np.abs(centred @ directions[:2].T)
    np.testing.assert_allclose(np.abs(axes.collections[0].get_offsets()), expected, atol=1e-5)
    assert [text.get_text() for text in axes.texts] == [*map(matplotlib_label, LETTERS)]
    colours = ["green", "blue", "red", "gray", "gray", "gray", "green", "blue"]
    assert [text.get_color() for text in axes.texts] == [f"tab:{colour}" for colour in colours]
    points = np.array([text.get_position() for text in axes.texts])
    for values, limits in zip(points.T, (axes.get_xlim(), axes.get_ylim()), strict=True):
        assert limits[0] < values.min() <= values.max() < limits[1]


@given(st.integers(1, 40), st.integers(0, 99))
def test_boxes_are_spread_out_until_none_overlap(number, seed):
    random = np.random.default_rng(seed)
    sizes = random.uniform(5, 40, size=(number, 2))
    centres = random.uniform(0, 300, size=(number, 2))
    centres[: number // 4] = centres[0]  # some at the same point
    free = P.spread_out(centres, sizes)
    overlap = (np.abs(free[:, None] - free) < (sizes[:, None] + sizes) / 2).all(-1)
    assert overlap.sum() == number  # each with itself
    np.testing.assert_array_equal(P.spread_out(free, sizes), free)  # no overlap: none moves
