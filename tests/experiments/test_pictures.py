"""The README's picture of a head, and the scaling law's: what is drawn is what was measured."""

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest

from experiments.pictures import plot_head_lines
from experiments.scaling_pictures import plot_compute, plot_losses
from tlite.comparison.scaling import Law, Runs
from tlite.pictures.marks import visible

TOKENS = ["The", " $5$", "\n"]
LAW = Law(E=1.2, A=30.0, B=800.0, alpha=0.4, beta=0.5)


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def test_every_weight_that_counts_is_an_arc_to_its_key_the_wider_the_larger(tmp_path):
    weights = np.array([[1.0, 0.0, 0.0], [0.6, 0.4, 0.0], [0.05, 0.7, 0.25]])
    figure = plot_head_lines(weights, TOKENS, least=0.1)
    figure.savefig(tmp_path / "plot.png")
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.texts] == [visible(token) for token in TOKENS]
    at = [text.get_position()[0] for text in axes.texts]
    pairs = np.argwhere(weights >= 0.1)
    widths = [patch.get_linewidth() for patch in axes.patches]
    np.testing.assert_array_equal(np.argsort(widths), np.argsort(weights[weights >= 0.1]))
    for (query, key), patch in zip(pairs, axes.patches, strict=True):
        start, end = patch.get_path().vertices[[0, -1], 0]
        if query == key:  # a bar above what looks at itself
            assert start < at[query] < end
        else:
            np.testing.assert_allclose((start, end), (at[query], at[key]))


def runs(sizes, seeds=2):
    parameters, tokens = (a.ravel() for a in np.meshgrid(sizes, [5e5, 1e6, 4e6]))
    apart = 0.01 * np.arange(seeds)
    return Runs(parameters, tokens, LAW.loss(parameters, tokens)[:, None] + apart)


def test_losses_stand_at_their_tokens_and_on_the_curve_of_their_size():
    fitted, held_out = runs([7344.0, 2e5]), runs([4e5])
    predicted = np.stack([held_out.losses.min(1) - 0.05, held_out.losses.max(1) + 0.05])
    axes = plot_losses(fitted, LAW, held_out, predicted, unit="character")
    points = {c.get_label(): c.lines[0].get_data() for c in axes.containers}
    for size, label in ((7344, "7.34k"), (2e5, "200k"), (4e5, "400k, left out of the fit")):
        tokens, losses = points[label]
        np.testing.assert_allclose(tokens, [5e5, 1e6, 4e6])
        np.testing.assert_allclose(losses, LAW.loss(size, tokens) + 0.005)
    curves = [line for line in axes.lines if len(line.get_xdata()) > 3]
    np.testing.assert_allclose(curves[2].get_ydata(), LAW.loss(4e5, curves[2].get_xdata()))
    (band,) = (c for c in axes.collections if c.get_label() == "its prediction")
    ends = band.get_datalim(axes.transData)
    np.testing.assert_allclose([ends.y0, ends.y1], [predicted.min(), predicted.max()])
    axes = plot_losses(runs([7e3, 2e5], seeds=1), LAW)
    assert "its prediction" not in [c.get_label() for c in axes.collections]


def test_no_run_lies_below_the_compute_optimal_line():
    measured = runs([7e3, 2e4, 2e5], seeds=1)
    axes = plot_compute(measured, LAW)
    (line,) = (one for one in axes.lines if one.get_linestyle() == ":")
    flops = np.log(6 * measured.parameters * measured.tokens)
    best = np.interp(flops, np.log(line.get_xdata()), line.get_ydata())
    assert (measured.losses[:, 0] > best - 1e-3).all()
    assert "C^0.56" in line.get_label()
