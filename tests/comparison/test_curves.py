"""Learning curves have lines at the validations and bands of one deviation."""

import dataclasses
import io
import itertools

import matplotlib.image
import numpy as np
import pytest

from tests.helpers.fake_runs import CLASSIFIER, GENERATOR, fake_run
from tests.helpers.runs import varied
from tlite.comparison.curves import draw, plot_curves, plot_differences, resource_used
from tlite.comparison.results import compare_runs
from tlite.models import LogisticConfig

FINAL = np.array([1.5, 1.6, 1.55])


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("curves")
    run = fake_run(folder / "a", GENERATOR, FINAL)
    return compare_runs([run, fake_run(folder / "$b$ 日本 <i>", GENERATOR, FINAL - 0.1, until=30)])


def test_lines_and_bands_are_at_the_validations(two):
    (axes,) = plot_curves(two, "steps").axes
    curves = [line for line in axes.lines if len(line.get_xdata()) > 1]
    assert [line.get_xdata().tolist() for line in curves] == [[10, 20, 30, 40], [10, 20, 30]]
    np.testing.assert_allclose(curves[0].get_ydata()[-1], FINAL.mean())
    (low, high) = axes.collections[0].get_datalim(axes.transData).intervaly
    assert low == pytest.approx(FINAL.mean() - FINAL.std(ddof=1))
    dots = [line for line in axes.lines if len(line.get_xdata()) == 1]
    assert [dot.get_xdata()[0] for dot in dots] == [40, 30]
    assert axes.get_ylim()[1] < high  # the high losses at the start are cut off
    assert axes.get_ylim()[0] < curves[1].get_ydata().min()
    (axes,) = plot_differences(two).axes
    (point,) = (line for line in axes.lines if line.get_marker() == "o")
    assert point.get_xdata()[0] == pytest.approx(two.differences[1].mean)
    assert "to the left: better" in axes.get_xlabel()


@pytest.mark.filterwarnings("error")
def test_names_of_runs_are_not_drawn_as_formulas(two):
    pictures = draw(two)
    axes = "steps", "tokens", "flops", "minutes"
    assert list(pictures) == [*(f"curves-{axis}.png" for axis in axes), "differences.png"]
    assert len({caption for caption, _ in pictures.values()}) == len(pictures)
    images = [matplotlib.image.imread(io.BytesIO(content)) for _, content in pictures.values()]
    assert all(not np.array_equal(one, other) for one, other in itertools.pairwise(images))


def test_tokens_flops_and_minutes_rise_with_the_steps(two):
    run, steps = two.runs[0], np.array([10, 20, 30, 40])
    totals = {"tokens": 1280, "flops": 40 * run.flops_per_step, "minutes": run.minutes[-1]}
    for axis, total in totals.items():
        np.testing.assert_allclose(resource_used(run, steps, axis), total * steps / 40)


def test_unknown_numbers_are_not_drawn(tmp_path):
    logistic = dataclasses.replace(CLASSIFIER, model=LogisticConfig(11, 2))
    pictures = draw(compare_runs([fake_run(tmp_path / "a", varied(logistic, seeds=1), [0.5])]))
    assert list(pictures) == ["curves-steps.png", "curves-tokens.png", "curves-minutes.png"]
    assert draw(compare_runs([fake_run(tmp_path / "b", GENERATOR, FINAL, until=5)])) == {}
