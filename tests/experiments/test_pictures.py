"""The README's picture of a head: an arc for each weight that counts, from the query to its key."""

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

from experiments.pictures import plot_head_lines
from tlite.pictures.marks import visible

TOKENS = ["The", " $5$", "\n"]


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
    plt.close(figure)
