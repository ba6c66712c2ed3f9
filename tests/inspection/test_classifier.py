"""Pictures of a classifier: the numbers shown are those that were given, with labelled axes."""

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest

from tlite.inspection import (
    plot_confusion,
    plot_learning_curves,
    plot_predictions_by_value,
    plot_probability_by_value,
)

CLASSES = ["poor", "fair", "good"]
COUNTS = np.array([[7, 2, 1], [0, 0, 0], [1, 0, 199]])
VALUES = [*"5113532515"]
PROBABILITIES = np.linspace(0.05, 0.95, len(VALUES))
PREDICTED = np.array([2, 0, 0, 1, 2, 1, 0, 2, 1, 2])


def lines(accuracy):
    return [
        {"step": step, "split": split, "loss": 1 / step, "accuracy": accuracy * step}
        for step in (1, 2, 3)
        for split in ("training", "validation")
    ]


PLOTS = {
    "confusion": lambda axes=None: plot_confusion(COUNTS, CLASSES, axes),
    "probability": lambda axes=None: plot_probability_by_value(PROBABILITIES, VALUES, "good", axes),
    "predictions": lambda axes=None: plot_predictions_by_value(PREDICTED, VALUES, CLASSES, axes),
}


@pytest.mark.parametrize("plot", PLOTS)
def test_every_plot_labels_its_axes_and_can_be_drawn_where_wanted(plot, check_plot):
    check_plot(PLOTS[plot])


def ticks(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def test_confusions_show_each_number_and_its_share_of_the_row():
    axes = plot_confusion(COUNTS, CLASSES)
    shown = {text.get_position(): text.get_text().split("\n") for text in axes.texts}
    assert shown.keys() == {(column, row) for row in range(3) for column in range(3)}
    for (column, row), (share, number) in shown.items():
        assert number == str(COUNTS[row, column])
        assert share == f"{COUNTS[row, column] / max(COUNTS[row].sum(), 1):.0%}"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("predicted class", "true class")
    assert ticks(axes.xaxis) == ticks(axes.yaxis) == CLASSES
    np.testing.assert_allclose(axes.images[0].get_array().sum(1), [1, 0, 1])


def test_numbers_can_be_read_on_dark_and_light_cells():
    axes = plot_confusion(COUNTS, CLASSES)
    assert {t.get_position(): t.get_color() for t in axes.texts}[0, 0] == "white"
    assert {t.get_position(): t.get_color() for t in axes.texts}[1, 0] == "black"


def test_probabilities_are_grouped_by_the_true_label_with_their_number():
    axes = plot_probability_by_value(PROBABILITIES, VALUES, "good")
    groups = {v: PROBABILITIES[np.array(VALUES) == v] for v in sorted(set(VALUES))}
    assert ticks(axes.xaxis) == [f"{v}\n({len(rows)} texts)" for v, rows in groups.items()]
    medians = [line.get_ydata()[0] for line in axes.lines if line.get_color() == "C1"]
    np.testing.assert_allclose(medians, [np.median(rows) for rows in groups.values()])
    assert axes.get_ylabel() == "probability of good"
    low, high = axes.get_ylim()
    assert low < 0
    assert high > 1


def test_predictions_are_stacked_shares_of_each_true_label():
    axes = plot_predictions_by_value(PREDICTED, VALUES, CLASSES)
    groups = sorted(set(VALUES))
    assert ticks(axes.xaxis) == groups
    bars = np.array([[bar.get_height() for bar in bars] for bars in axes.containers])
    for column, group in zip(bars.T, groups, strict=True):
        chosen = PREDICTED[np.array(VALUES) == group]
        np.testing.assert_allclose(column, [(chosen == c).mean() for c in range(3)])
    tops = [bar.get_y() + bar.get_height() for bar in axes.containers[-1]]
    np.testing.assert_allclose(tops, 1)


def test_the_legend_has_the_classes_in_the_order_of_the_stack():
    axes = plot_predictions_by_value(PREDICTED, VALUES, CLASSES)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == CLASSES[::-1]
    assert [bars.get_label() for bars in axes.containers] == CLASSES


@pytest.mark.parametrize("plot", ["probability", "predictions"])
def test_labels_that_are_no_class_are_drawn_too(plot):
    """3 stars, where the model knows only negative and positive."""
    assert [label[0] for label in ticks(PLOTS[plot]().xaxis)] == ["1", "2", "3", "5"]


def test_learning_curves_stand_beside_each_other_under_their_titles():
    axes = plot_learning_curves({"without": lines(0.1), "with dropout": lines(0.2)})
    left, right = axes.figure.axes
    assert axes is left
    assert [panel.get_title() for panel in (left, right)] == ["without", "with dropout"]
    assert left.get_ylim() == right.get_ylim()
    for panel, accuracy in ((left, 0.1), (right, 0.2)):
        assert panel.get_xlabel() == "step"
        assert "accuracy" in panel.get_ylabel()
        for line in panel.lines:
            np.testing.assert_allclose(line.get_ydata(), accuracy * np.arange(1, 4))


def test_learning_curves_of_the_loss_can_be_drawn_where_wanted():
    mine = plt.figure().subplots(1, 2)
    axes = plot_learning_curves({"a": lines(0.1), "b": lines(0.2)}, "loss", mine)
    assert axes is mine[0]
    np.testing.assert_allclose(mine[1].lines[0].get_ydata(), [1, 1 / 2, 1 / 3])


FORMULAS = ["$x_{$", "$$", r"\$a$", "$", "a\\", r"\frac$"]


@pytest.mark.parametrize(
    "plot",
    [
        lambda: plot_confusion(np.eye(6, dtype=int), FORMULAS),
        lambda: plot_probability_by_value(np.linspace(0, 1, 6), FORMULAS, FORMULAS[0]),
        lambda: plot_predictions_by_value(np.arange(6), FORMULAS, FORMULAS),
        lambda: plot_learning_curves({name: lines(0.1) for name in FORMULAS}),
    ],
    ids=["confusion", "probability", "predictions", "curves"],
)
def test_names_are_no_formulas(plot):
    axes = plot()
    axes.figure.draw_without_rendering()
    texts = [text.get_text() for text in axes.figure.findobj(matplotlib.text.Text)]
    assert not any(map(matplotlib.cbook.is_math_text, texts))
    shown = {text.replace(r"\$", "$").partition("\n")[0] for text in texts}
    assert shown >= set(FORMULAS)
