"""Bars and boxes: what is counted and grouped is what was given."""

from collections import Counter

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tlite.pictures import (
    plot_frequencies,
    plot_lengths,
    plot_predictions_by_value,
    plot_probability_by_value,
    plot_saliency,
    plot_score_by_length,
)

CLASSES = ["poor", "fair", "good"]
VALUES = [*"5113532515"]  # labels that are no class are among them
PROBABILITIES = np.linspace(0.05, 0.95, len(VALUES))
PREDICTED = np.array([2, 0, 0, 1, 2, 1, 0, 2, 1, 2])
COUNTS = Counter({"a": 5, " ": 3, "$": 2})
LENGTHS = [3, 4, 4, 5, 9]


def ticks(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


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
    assert [text.get_text() for text in axes.get_legend().get_texts()] == CLASSES[::-1]
    assert [bars.get_label() for bars in axes.containers] == CLASSES


def test_frequencies_are_shares_in_falling_order():
    axes = plot_frequencies(COUNTS, "character")
    assert [bar.get_height() for bar in axes.patches] == [50, 30, 20]
    assert ticks(axes.xaxis) == ["a", "␣", r"\$"]
    assert "characters" in axes.get_ylabel()
    many = Counter(f"word{i}" for i in range(99))
    assert len(plot_frequencies(many, "word").patches) == 40


def test_lengths_are_counted_with_their_median():
    axes = plot_lengths(LENGTHS, "line", "character")
    bars = {bar.get_x() + bar.get_width() / 2: bar.get_height() for bar in axes.patches}
    assert {int(x): n for x, n in bars.items() if n} == Counter(LENGTHS[:-1])
    assert axes.get_legend().get_texts()[0].get_text() == "median 4"
    assert axes.lines[0].get_xdata()[0] == 4


@given(st.lists(st.integers(0, 500), min_size=1, max_size=30))
def test_all_lengths_but_the_longest_hundredth_are_counted(lengths):
    axes = plot_lengths(lengths, "text", "word")
    kept = sum(n <= max(int(np.quantile(lengths, 0.99)), 1) for n in lengths)
    counted = sum(bar.get_height() for bar in axes.patches)
    plt.close("all")
    assert counted == kept


@given(st.lists(st.integers(1, 40), min_size=1, max_size=20))
def test_every_sentence_is_in_one_group_of_its_length(lengths):
    axes = plot_score_by_length(lengths, lambda rows: float(sum(rows)), "BLEU (13a)")
    names, sizes = ticks(axes.xaxis), [int(label.get_text()) for label in axes.texts]
    heights = [bar.get_height() for bar in axes.patches]
    plt.close("all")
    bounds = [tuple(map(int, (name.split("-") * 2)[:2])) for name in names]
    assert bounds == sorted(bounds)
    assert sum(sizes) == len(lengths)
    for (shortest, longest), size, height in zip(bounds, sizes, heights, strict=True):
        rows = [row for row, length in enumerate(lengths) if shortest <= length <= longest]
        assert (size, height) == (len(rows), sum(rows))


def test_saliency_has_a_bar_for_each_word_in_each_column():
    columns = {"model": np.array([0.5, -1.0, 0.0]), "baseline": np.array([1.0, 2.0, -3.0])}
    axes = plot_saliency(["good", "$", "a b"], columns)
    panels = axes.figure.axes
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
    axes = plot_saliency([f"word{i}" for i in range(29)], {"model": np.arange(29.0)})
    assert [bar.get_width() for bar in axes.patches] == [*range(24)]
    assert ticks(axes.yaxis) == [f"word{i}" for i in range(24)]
