"""Curves and bars: what is drawn, counted and grouped is what was given."""

from collections import Counter

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlite.pictures import (
    plot_curves,
    plot_frequencies,
    plot_lengths,
    plot_lines,
    plot_loss_by_position,
    plot_predictions_by_value,
    plot_probability_by_value,
    plot_saliency,
    plot_schedule,
    plot_scores_by_step,
)
from tlite.training.metrics import mean_line, summarise


def metrics(num_members, num_steps=3):
    """Lines of metrics.jsonl; member m's loss after step s is s + m, its accuracy 1 / s."""
    members = np.arange(float(num_members))
    losses = {
        s: {"loss": s + members, "accuracy": 1 / s + 0 * members} for s in range(1, num_steps + 1)
    }
    return [
        {"step": step, "split": split} | summarise(loss)
        for step, loss in losses.items()
        for split in ("training", "validation")
    ]


def test_a_long_run_that_a_variant_has_left_can_be_drawn(tmp_path):
    lines = [line for line in metrics(2, num_steps=4) if line["split"] == "training"]
    out = {"loss_spread": None, "loss_members": [1.0, None]}
    lines[2:] = [line | out for line in lines[2:]]
    axes = plot_curves([mean_line(lines[:2]), mean_line(lines[2:])])
    axes.figure.savefig(tmp_path / "plot.png")
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [2.0, 4.0])


@pytest.mark.parametrize("members", [1, 3])
def test_curves_are_the_means_with_a_band_for_several_members(members):
    losses = np.random.default_rng(0).random((members, 5))
    curves, by_position = plot_curves(metrics(members)), plot_loss_by_position(losses)
    assert [line.get_label() for line in curves.lines] == ["training", "validation"]
    for line in curves.lines:
        np.testing.assert_array_equal(line.get_xdata(), [1, 2, 3])
        np.testing.assert_allclose(line.get_ydata(), np.arange(1, 4) + (members - 1) / 2)
    np.testing.assert_array_equal(by_position.lines[0].get_xdata(), np.arange(1, 6))
    np.testing.assert_allclose(by_position.lines[0].get_ydata(), losses.mean(0))
    bands = len(curves.collections), len(by_position.collections)
    assert bands == ((2, 1) if members > 1 else (0, 0))


def test_only_long_training_curves_are_smoothed():
    training, validation = plot_curves(metrics(1, num_steps=1000)).lines
    assert (len(training.get_xdata()), len(validation.get_xdata())) == (200, 1000)
    assert training.get_ydata().mean() == pytest.approx(validation.get_ydata().mean())


def test_a_loss_that_was_not_finite_is_left_out():
    lines = metrics(1)
    lines[1]["loss"] = None
    assert plot_curves(lines).lines[1].get_xdata().tolist() == [2, 3]


def test_learning_rates_are_those_of_the_updates_from_the_first_on():
    axes, rates = plot_schedule({"peak 0.1": np.linspace(0.1, 0, 40)}), np.linspace(0.1, 0, 40)
    np.testing.assert_array_equal(axes.lines[0].get_data(), [np.arange(1, 41), rates])
    assert axes.get_ylim()[0] == 0


def test_every_curve_has_its_name_and_a_look_of_its_own():
    table = np.random.default_rng(0).normal(size=(28, 5))
    axes = plot_lines({f"head {i}": row for i, row in enumerate(table)}, "x", "y", np.arange(5) - 2)
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert [line.get_label() for line in axes.lines] == names == [f"head {i}" for i in range(28)]
    for line, row in zip(axes.lines, table, strict=True):
        np.testing.assert_array_equal(line.get_xdata(), np.arange(-2, 3))
        np.testing.assert_array_equal(line.get_ydata(), row)
    assert len({(line.get_color(), line.get_linestyle()) for line in axes.lines}) == 28


def test_every_head_has_a_curve_of_its_score_in_the_panel_of_its_block():
    scores = np.random.default_rng(0).random((4, 5, 12)) / 50
    panels = plot_scores_by_step([1, 2, 5, 9], scores, "score").figure.axes
    for layer, panel in enumerate(panels[:5]):
        assert panel.get_title() == f"block {layer}"
        for head, line in enumerate(panel.lines):
            np.testing.assert_array_equal(line.get_xdata(), [1, 2, 5, 9])
            np.testing.assert_array_equal(line.get_ydata(), scores[:, layer, head])
        assert scores.max() < panel.get_ylim()[1] < 2 * scores.max()
    figure = panels[0].figure
    assert (figure.get_supxlabel(), figure.get_supylabel()) == ("step", "score")
    assert len(figure.legends[0].get_texts()) == 12
    assert not any(panel.lines for panel in panels[5:])


# Bars


CLASSES = ["poor", "fair", "good"]
VALUES = [*"5113532515"]  # labels that are no class are among them
PROBABILITIES = np.linspace(0.05, 0.95, len(VALUES))
PREDICTED = np.array([2, 0, 0, 1, 2, 1, 0, 2, 1, 2])
COUNTS = Counter({"a": 5, " ": 3, "$": 2})


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


@given(st.lists(st.integers(0, 500), min_size=1, max_size=30))
def test_all_lengths_but_the_longest_hundredth_are_counted_with_their_median(lengths):
    axes = plot_lengths(lengths, "text", "word")
    bars = {bar.get_x() + bar.get_width() / 2: bar.get_height() for bar in axes.patches}
    (median,) = {*axes.lines[0].get_xdata()}
    label = axes.get_legend().get_texts()[0].get_text()
    plt.close("all")
    longest = max(int(np.quantile(lengths, 0.99)), 1)
    kept = Counter(n for n in lengths if n <= longest)
    assert sum(bars.values()) == kept.total()
    assert longest > 60 or {int(x): n for x, n in bars.items() if n} == kept
    assert (median, label) == (np.median(lengths), f"median {median:g}")


def test_saliency_has_a_bar_for_each_of_the_first_words_in_each_column():
    words = ["good", "$", "a b", *(f"word{i}" for i in range(26))]
    columns = {"model": 13 - np.arange(29.0), "baseline": np.arange(29.0) - 3}
    axes = plot_saliency(words, columns)
    assert ticks(axes.yaxis)[:4] == ["good", r"\$", "a␣b", "word0"]
    for panel, (title, values) in zip(axes.figure.axes, columns.items(), strict=True):
        assert panel.get_title() == title
        np.testing.assert_array_equal([bar.get_width() for bar in panel.patches], values[:24])
        colours = ["tab:green" if value > 0 else "tab:red" for value in values[:24]]
        expected = [matplotlib.colors.to_rgba(colour) for colour in colours]
        assert [bar.get_facecolor() for bar in panel.patches] == expected
    low, high = axes.get_ylim()
    assert low > high
