"""Tests of the README's picture of a head and of the pictures of a scaling law."""

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest

from experiments.tools.pictures import attention_arcs
from experiments.tools.scaling import Fit, plot_losses
from tlite.comparison.scaling import Law, Runs
from tlite.pictures.labels import matplotlib_label

TOKENS = ["The", " $5$", "\n"]
LAW = Law(E=1.2, A=30.0, B=800.0, alpha=0.4, beta=0.5)


@pytest.fixture
def axes():
    yield plt.subplots()[1]
    plt.close("all")


def test_arcs_link_queries_to_keys_with_width_by_weight(tmp_path):
    weights = np.array([[1.0, 0.0, 0.0], [0.6, 0.4, 0.0], [0.05, 0.7, 0.25]])
    figure = attention_arcs(weights, TOKENS, threshold=0.1)
    figure.savefig(tmp_path / "plot.png")
    plt.close(figure)
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.texts] == [matplotlib_label(token) for token in TOKENS]
    at = [text.get_position()[0] for text in axes.texts]
    pairs = np.argwhere(weights >= 0.1)
    widths = [patch.get_linewidth() for patch in axes.patches]
    np.testing.assert_array_equal(np.argsort(widths), np.argsort(weights[weights >= 0.1]))
    for (query, key), patch in zip(pairs, axes.patches, strict=True):
        start, end = patch.get_path().vertices[[0, -1], 0]
        if query == key:  # a bar above the token
            assert start < at[query] < end
        else:
            np.testing.assert_allclose((start, end), (at[query], at[key]))


def runs(sizes, seeds=2):
    parameters, tokens = (a.ravel() for a in np.meshgrid(sizes, [5e5, 1e6, 4e6]))
    noise = 0.01 * np.arange(seeds)
    return Runs(parameters, tokens, LAW.loss(parameters, tokens)[:, None] + noise)


def test_losses_of_each_size_are_drawn_with_its_curve(axes):
    sizes = {7344.0: "7.34k", 2e5: "200k", 4e5: "400k, left out of the fit"}
    fitted, largest = runs([7344.0, 2e5]), runs([4e5])
    band = np.stack([largest.losses.min(1) - 0.05, largest.losses.max(1) + 0.05])
    plot_losses(axes, runs([*sizes]), Fit(LAW, LAW, fitted, largest, band))
    points = {c.get_label(): c.lines[0].get_data() for c in axes.containers}
    for size, label in sizes.items():
        tokens, losses = points[label]
        np.testing.assert_allclose(tokens, [5e5, 1e6, 4e6])
        np.testing.assert_allclose(losses, LAW.loss(size, tokens) + 0.005)
    curves = [line for line in axes.lines if len(line.get_xdata()) > 3]
    np.testing.assert_allclose(curves[2].get_ydata(), LAW.loss(4e5, curves[2].get_xdata()))
    (polygon,) = (c for c in axes.collections if c.get_label() == "its prediction")
    ends = polygon.get_datalim(axes.transData)
    np.testing.assert_allclose([ends.y0, ends.y1], [band.min(), band.max()])
