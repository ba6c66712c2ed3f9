"""Curves: what is drawn is what was given, with a band for several members."""

import numpy as np
import pytest

from tlite.pictures import (
    plot_curves,
    plot_learning_curves,
    plot_lines,
    plot_loss_by_position,
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


def test_learning_curves_stand_beside_each_other_under_their_titles():
    axes = plot_learning_curves({"without": metrics(1), "with dropout": metrics(1, 5)})
    left, right = axes.figure.axes
    assert [panel.get_title() for panel in (left, right)] == ["without", "with dropout"]
    assert left.get_ylim() == right.get_ylim()
    for panel, number in ((left, 3), (right, 5)):
        assert panel.get_xlabel() == "step"
        assert "accuracy" in panel.get_ylabel()
        for line in panel.lines:
            np.testing.assert_allclose(line.get_ydata(), 1 / np.arange(1, number + 1))


def test_learning_rates_are_those_of_the_updates_from_the_first_on():
    axes = plot_schedule({"peak 0.1": np.linspace(0.1, 0, 40)})
    np.testing.assert_array_equal(axes.lines[0].get_xdata(), np.arange(1, 41))
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), np.linspace(0.1, 0, 40))
    assert axes.get_ylim()[0] == 0


@pytest.mark.parametrize("num_members", [1, 3])
def test_loss_by_position_is_the_mean_over_members(num_members):
    losses = np.random.default_rng(0).random((num_members, 5))
    axes = plot_loss_by_position(losses)
    np.testing.assert_array_equal(axes.lines[0].get_xdata(), np.arange(1, 6))
    np.testing.assert_allclose(axes.lines[0].get_ydata(), losses.mean(0))
    assert len(axes.collections) == (num_members > 1)


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
