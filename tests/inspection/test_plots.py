"""Plots: what is drawn is what was given, with labelled axes."""

import warnings

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest

from tlite.inspection import (
    plot_curves,
    plot_loss_by_position,
    plot_next_token_probabilities,
    plot_top_tokens,
)
from tlite.inspection.plots import line_style, readable, symbols, visible
from tlite.training.metrics import mean_line, summarise

VOCABULARY = list("ab \n\t$")


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


def probabilities():
    return np.random.default_rng(0).dirichlet(np.ones(len(VOCABULARY)), size=4)


def draw(plot, num_members, axes=None):
    return {
        "loss": lambda: plot_curves(metrics(num_members), "loss", axes=axes),
        "accuracy": lambda: plot_curves(metrics(num_members), "accuracy", axes=axes),
        "position": lambda: plot_loss_by_position(np.ones((num_members, 5)), axes=axes),
        "next": lambda: plot_next_token_probabilities(
            probabilities(), list("a b$"), VOCABULARY, axes=axes
        ),
    }[plot]()


def test_a_long_run_that_a_variant_has_left_can_be_drawn(tmp_path):
    lines = [line for line in metrics(2, num_steps=4) if line["split"] == "training"]
    out = {"loss_spread": None, "loss_members": [1.0, None]}
    lines[2:] = [line | out for line in lines[2:]]
    axes = plot_curves([mean_line(lines[:2]), mean_line(lines[2:])])
    axes.figure.savefig(tmp_path / "plot.png")
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [2.0, 4.0])


@pytest.mark.parametrize("num_members", [1, 3])
@pytest.mark.parametrize("plot", ["loss", "accuracy", "position", "next"])
def test_every_plot_labels_its_axes_and_can_be_drawn_where_wanted(plot, num_members, tmp_path):
    axes = draw(plot, num_members)
    assert axes.get_xlabel()
    assert axes.get_ylabel()
    axes.figure.savefig(tmp_path / "plot.png")
    mine = plt.figure().add_subplot()
    assert draw(plot, num_members, mine) is mine


@pytest.mark.parametrize("num_members", [1, 3])
def test_curves_are_the_means_with_a_band_for_several_members(num_members):
    axes = plot_curves(metrics(num_members))
    assert [line.get_label() for line in axes.lines] == ["training", "validation"]
    for line in axes.lines:
        np.testing.assert_array_equal(line.get_xdata(), [1, 2, 3])
        np.testing.assert_allclose(line.get_ydata(), np.arange(1, 4) + (num_members - 1) / 2)
    assert len(axes.collections) == (2 if num_members > 1 else 0)


def test_only_long_training_curves_are_smoothed():
    training, validation = plot_curves(metrics(1, num_steps=1000)).lines
    assert len(training.get_xdata()) == 200
    assert len(validation.get_xdata()) == 1000
    assert training.get_ydata().mean() == pytest.approx(validation.get_ydata().mean())


def test_a_loss_that_was_not_finite_is_left_out():
    lines = metrics(1)
    lines[1]["loss"] = None
    assert plot_curves(lines).lines[1].get_xdata().tolist() == [2, 3]


@pytest.mark.parametrize("num_members", [1, 3])
def test_loss_by_position_is_the_mean_over_members(num_members):
    losses = np.random.default_rng(0).random((num_members, 5))
    axes = plot_loss_by_position(losses)
    np.testing.assert_array_equal(axes.lines[0].get_xdata(), np.arange(1, 6))
    np.testing.assert_allclose(axes.lines[0].get_ydata(), losses.mean(0))
    assert len(axes.collections) == (num_members > 1)


def test_next_tokens_stand_in_the_order_of_their_probabilities():
    given = probabilities()
    axes = plot_next_token_probabilities(given, list("a b$"), VOCABULARY, most=3)
    drawn = {text.get_position(): text.get_text() for text in axes.texts}
    assert drawn == {
        (position, rank): visible(VOCABULARY[token])
        for position, row in enumerate(given)
        for rank, token in enumerate(np.argsort(-row)[:3])
    }
    np.testing.assert_allclose(axes.images[0].get_array(), np.sort(given)[:, ::-1][:, :3].T)


def test_words_stand_upright_below_their_columns():
    axes = plot_top_tokens(probabilities()[:, :2], [["a", "$"]] * 4, ["it", "$", " is", "\n"])
    labels = axes.get_xticklabels()
    assert [label.get_text() for label in labels] == ["it", r"\$", "␣is", "↵"]
    assert {label.get_rotation() for label in labels} == {90}
    assert [text.get_text() for text in axes.texts] == ["a", r"\$"] * 4


def test_invisible_characters_get_marks_and_others_stay():
    marks = {c: visible(c) for c in ["\t", "\n", *map(chr, range(32, 127))]}
    assert all(mark.strip() for c, mark in marks.items() if c in " \t\n")
    assert all(mark == c for c, mark in marks.items() if c not in " \t\n$")
    assert len(set(marks.values())) == len(marks)


def test_what_can_not_be_seen_has_a_symbol_and_what_can_stays():
    assert symbols("a b\n\t\f\x00\x7f\u200bé") == "a␣b↵⇥␌␀␡\\u200bé"
    assert readable("a b\n\t\f") == "a b\n␉␌"
    every = "".join(map(chr, range(0x3000)))
    assert symbols(every).isprintable()
    assert readable(every).replace("\n", "").isprintable()


def test_the_font_of_pictures_has_a_glyph_for_each_mark_of_a_control_character(tmp_path):
    every = [visible(chr(code)) for code in [*range(0x20), 0x7F]]
    assert len(set(every)) == len(every)
    axes = plt.figure().add_subplot()
    axes.set_title("".join(every))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        axes.figure.savefig(tmp_path / "plot.png")


def test_the_lines_of_a_plot_are_told_apart_by_colour_and_style():
    looks = [tuple(line_style(index).values()) for index in range(28)]
    assert len(set(looks)) == len(looks)
