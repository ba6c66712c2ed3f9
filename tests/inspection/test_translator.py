"""Pictures of a translator: alignment, schedule and BLEU are those that were given."""

import jax.numpy as jnp
import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlite.bleu import bleu
from tlite.inspection import plot_alignment, plot_bleu_by_length, plot_schedule
from tlite.training import TrainingConfig
from tlite.training.optimizer import schedule

SOURCE, TARGET = ["▁a", "$5$", "[END]"], ["▁ein", "$", " ", "[END]"]
WEIGHTS = np.random.default_rng(0).dirichlet(np.ones(3), size=(2, 4))
CONFIG = TrainingConfig(
    steps=40, schedule="inverse_sqrt", warmup_steps=10, learning_rates=(1e-3, 5e-4)
)


def ticks(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def test_each_block_has_a_map_from_written_to_source_pieces(tmp_path):
    axes = plot_alignment(WEIGHTS, SOURCE, TARGET)
    panels = axes.figure.axes[:2]
    assert panels[0] is axes
    for number, (panel, table) in enumerate(zip(panels, WEIGHTS, strict=True)):
        np.testing.assert_array_equal(panel.images[0].get_array(), table)
        assert panel.get_title() == f"decoder block {number}"
        assert panel.get_xlabel() == "source"
        assert ticks(panel.xaxis) == ["▁a", r"\$5\$", "[END]"]
    assert ticks(axes.yaxis) == ["▁ein", r"\$", "␣", "[END]"]
    assert axes.get_ylabel() == "written piece"
    axes.figure.savefig(tmp_path / "plot.png")


@pytest.mark.filterwarnings("error")
def test_every_peak_has_its_curve_of_learning_rates(tmp_path):
    axes = plot_schedule(CONFIG)
    assert [line.get_label() for line in axes.lines] == ["peak 0.001", "peak 0.0005"]
    for line, peak in zip(axes.lines, (1e-3, 5e-4), strict=True):
        np.testing.assert_array_equal(line.get_xdata(), np.arange(1, 41))
        expected = [peak * float(schedule(CONFIG, jnp.asarray(step))) for step in range(40)]
        np.testing.assert_allclose(line.get_ydata(), expected, rtol=1e-5)
        assert max(line.get_ydata()) == pytest.approx(peak, rel=0.1)
    assert axes.get_xlabel() == "step"
    assert axes.get_ylabel() == "learning rate"
    assert axes.get_ylim()[0] == 0
    mine = plt.figure().add_subplot()
    assert plot_schedule(CONFIG, mine) is mine


def test_bleu_of_each_group_is_sacrebleus_with_the_number_of_sentences():
    pytest.importorskip("sacrebleu")
    references = [f"this is sentence number {i} of a text" for i in range(12)]
    hypotheses = [r if i < 6 else "this is another text" for i, r in enumerate(references)]
    lengths = [3] * 6 + [8] * 6
    axes = plot_bleu_by_length(lengths, hypotheses, references)
    heights = [bar.get_height() for bar in axes.patches]
    expected = [bleu(hypotheses[part], references[part])[0] for part in (slice(6), slice(6, 12))]
    np.testing.assert_allclose(heights, expected)
    assert heights[0] == pytest.approx(100)
    assert ticks(axes.xaxis) == ["3", "8"]
    assert [text.get_text() for text in axes.texts] == ["6", "6"]
    assert axes.get_xlabel()
    assert axes.get_ylabel().startswith("BLEU")
    mine = plt.figure().add_subplot()
    assert plot_bleu_by_length(lengths, hypotheses, references, mine) is mine


@given(st.lists(st.integers(1, 40), min_size=1, max_size=20))
def test_every_sentence_is_in_one_group_of_its_length(lengths):
    pytest.importorskip("sacrebleu")
    text = ["one two three four five"] * len(lengths)
    axes = plot_bleu_by_length(lengths, text, text)
    names = ticks(axes.xaxis)
    sizes = [int(label.get_text()) for label in axes.texts]
    np.testing.assert_allclose([bar.get_height() for bar in axes.patches], 100)
    plt.close("all")
    bounds = [tuple(map(int, (name.split("-") * 2)[:2])) for name in names]
    assert bounds == sorted(bounds)
    assert sum(sizes) == len(lengths)
    for (shortest, longest), size in zip(bounds, sizes, strict=True):
        assert size == sum(shortest <= length <= longest for length in lengths)
