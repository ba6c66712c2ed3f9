"""The pictures: lines where the numbers are, bands of one deviation, looks that differ."""

import dataclasses
import io
import warnings

import matplotlib.image
import numpy as np
import pytest

from tests.helpers.fake_runs import CLASSIFIER, GENERATOR, fake_run, varied
from tlite.comparison.curves import draw, look_of, plot_curves, plot_differences, spent
from tlite.comparison.entries import find_entries
from tlite.comparison.results import find_results
from tlite.models import LogisticConfig

FINAL = np.array([1.5, 1.6, 1.55])


def results(folder, *runs):
    folders = [
        fake_run(folder / name, experiment, final, until=until)
        for name, experiment, final, until in runs
    ]
    return find_results(find_entries(folders))


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    runs = ("a", GENERATOR, FINAL, None), ("$b$ 日本 <i>", GENERATOR, FINAL - 0.1, 30)
    return results(tmp_path_factory.mktemp("curves"), *runs)


def test_lines_and_bands_are_at_the_validations(two):
    figure = plot_curves(two, "steps")
    (axes,) = figure.axes
    curves = [line for line in axes.lines if len(line.get_xdata()) > 1]
    assert [line.get_xdata().tolist() for line in curves] == [[10, 20, 30, 40], [10, 20, 30]]
    np.testing.assert_allclose(curves[0].get_ydata()[-1], FINAL.mean())
    (low, high) = axes.collections[0].get_datalim(axes.transData).intervaly
    spread = FINAL.std(ddof=1)
    assert low == pytest.approx(FINAL.mean() - spread)
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
    for caption, content in found.values():
        assert caption
        assert matplotlib.image.imread(io.BytesIO(content)).std() > 0.01


def test_tokens_flops_and_minutes_rise_with_the_steps(two):
    row = two.rows[0]
    of_steps = np.array([1, 2, 3, 4]) / 4
    whole = {"tokens": 1280, "flops": row.flops, "minutes": row.minutes[-1]}
    for what, number in whole.items():
        np.testing.assert_allclose(spent(row, what), number * of_steps)


def test_what_is_not_known_is_not_drawn(tmp_path):
    logistic = dataclasses.replace(CLASSIFIER, model=LogisticConfig(11, 2))
    one = varied(logistic, seeds=1)
    found = draw(results(tmp_path / "a", ("a", one, [0.5], None)))
    assert list(found) == ["curves-steps.png", "curves-tokens.png", "curves-minutes.png"]
    assert draw(results(tmp_path / "b", ("b", GENERATOR, FINAL, 5))) == {}


def test_forty_looks_differ():
    looks = {tuple(sorted(look_of(i, 40).items())[:2]) for i in range(40)}
    assert len(looks) == 40
    assert len({look_of(i, 10)["color"] for i in range(10)}) == 10


def test_differences_are_drawn_with_their_intervals(two):
    (axes,) = plot_differences(two).axes
    found = two.rows[1].difference
    (point,) = (line for line in axes.lines if line.get_marker() == "o")
    assert point.get_xdata()[0] == pytest.approx(found.mean)
    assert "to the left: better" in axes.get_xlabel()


def test_thirty_runs_are_drawn(tmp_path):
    one = varied(GENERATOR, seeds=2, steps=10)
    runs = [(f"run {i}", one, [1 + 0.01 * i, 1.1 + 0.01 * i], None) for i in range(30)]
    found = results(tmp_path, *runs)
    figure = plot_curves(found, "steps")
    (legend,) = figure.legends
    assert len(legend.get_texts()) == 30
    figure.canvas.draw()
    box, whole = legend.get_window_extent(), figure.bbox
    assert whole.x0 <= box.x0 < box.x1 <= whole.x1
    assert whole.y0 <= box.y0 < box.y1 <= whole.y1
