"""The pictures: lines where the numbers are, bands of one deviation, nothing of what is unknown."""

import dataclasses
import io
import itertools
import warnings

import matplotlib.image
import numpy as np
import pytest

from tests.helpers.fake_runs import CLASSIFIER, GENERATOR, fake_run, varied
from tlite.comparison.curves import draw, plot_curves, plot_differences, spent
from tlite.comparison.results import find_results
from tlite.models import LogisticConfig

FINAL = np.array([1.5, 1.6, 1.55])


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("curves")
    run = fake_run(folder / "a", GENERATOR, FINAL)
    return find_results([run, fake_run(folder / "$b$ 日本 <i>", GENERATOR, FINAL - 0.1, until=30)])


def test_lines_and_bands_are_at_the_validations(two):
    (axes,) = plot_curves(two, "steps").axes
    curves = [line for line in axes.lines if len(line.get_xdata()) > 1]
    assert [line.get_xdata().tolist() for line in curves] == [[10, 20, 30, 40], [10, 20, 30]]
    np.testing.assert_allclose(curves[0].get_ydata()[-1], FINAL.mean())
    (low, high) = axes.collections[0].get_datalim(axes.transData).intervaly
    assert low == pytest.approx(FINAL.mean() - FINAL.std(ddof=1))
    dots = [line for line in axes.lines if len(line.get_xdata()) == 1]
    assert [dot.get_xdata()[0] for dot in dots] == [40, 30]
    assert axes.get_ylim()[1] < high  # the beginning is not in the picture
    assert axes.get_ylim()[0] < curves[1].get_ydata().min()


def test_every_picture_is_drawn_and_no_name_is_read_as_a_formula(two):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = draw(two)
    assert list(found) == [
        "curves-steps.png", "curves-tokens.png", "curves-flops.png", "curves-minutes.png",
        "differences.png",
    ]  # fmt: skip
    assert len({caption for caption, _ in found.values()}) == len(found)
    pictures = [matplotlib.image.imread(io.BytesIO(content)) for _, content in found.values()]
    assert all(not np.array_equal(one, other) for one, other in itertools.pairwise(pictures))


def test_tokens_flops_and_minutes_rise_with_the_steps(two):
    row, steps = two.rows[0], np.array([10, 20, 30, 40])
    whole = {"tokens": 1280, "flops": 40 * row.flops_per_step, "minutes": row.minutes[-1]}
    for what, number in whole.items():
        np.testing.assert_allclose(spent(row, steps, what), number * steps / 40)


def test_what_is_not_known_is_not_drawn(tmp_path):
    logistic = dataclasses.replace(CLASSIFIER, model=LogisticConfig(11, 2))
    found = draw(find_results([fake_run(tmp_path / "a", varied(logistic, seeds=1), [0.5])]))
    assert list(found) == ["curves-steps.png", "curves-tokens.png", "curves-minutes.png"]
    assert draw(find_results([fake_run(tmp_path / "b", GENERATOR, FINAL, until=5)])) == {}


def test_differences_are_drawn_with_their_intervals(two):
    (axes,) = plot_differences(two).axes
    (point,) = (line for line in axes.lines if line.get_marker() == "o")
    assert point.get_xdata()[0] == pytest.approx(two.differences[1].mean)
    assert "to the left: better" in axes.get_xlabel()


def test_thirty_runs_are_drawn_and_differ(tmp_path):
    one = varied(GENERATOR, seeds=2, steps=10)
    finals = {f"run {i}": [1 + 0.01 * i, 1.1 + 0.01 * i] for i in range(30)}
    found = find_results([fake_run(tmp_path / name, one, final) for name, final in finals.items()])
    figure = plot_curves(found, "steps")
    (legend,) = figure.legends
    looks = {(line.get_color(), line.get_linestyle()) for line in legend.get_lines()}
    assert len(legend.get_texts()) == len(looks) == 30
    figure.canvas.draw()
    box, whole = legend.get_window_extent(), figure.bbox
    assert whole.x0 <= box.x0 < box.x1 <= whole.x1
    assert whole.y0 <= box.y0 < box.y1 <= whole.y1
