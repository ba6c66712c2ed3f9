"""What the tests of pictures share."""

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import pytest


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


@pytest.fixture
def check_plot(tmp_path):
    """Of a function that draws, on Axes of its own or the given: labels, and a file."""

    def check(draw):
        axes = draw()
        assert axes.get_xlabel()
        assert axes.get_ylabel()
        axes.figure.savefig(tmp_path / "plot.png")
        mine = plt.figure().add_subplot()
        assert draw(mine) is mine

    return check
