"""Pictures of texts: what is counted, coloured and placed is what was given."""

import html
import re
from collections import Counter

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlite.inspection import (
    coloured_by_loss,
    plot_frequencies,
    plot_lengths,
)
from tlite.inspection.plots import readable

TOKENS = ["a", "B", "3", "$", " ", "\n", "it", "The"]
LOSSES = np.linspace(0, 7, len(TOKENS))
COUNTS = Counter({"a": 5, " ": 3, "$": 2})
LENGTHS = [3, 4, 4, 5, 9]
PLOTS = {
    "frequencies": lambda axes=None: plot_frequencies(COUNTS, "character", axes=axes),
    "lengths": lambda axes=None: plot_lengths(LENGTHS, "line", "character", axes),
}


def ticks(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


@pytest.mark.parametrize("plot", PLOTS)
def test_every_plot_labels_its_axes_and_can_be_drawn_where_wanted(plot, check_plot):
    check_plot(PLOTS[plot])


def test_frequencies_are_shares_in_falling_order():
    axes = PLOTS["frequencies"]()
    assert [bar.get_height() for bar in axes.patches] == [50, 30, 20]
    assert ticks(axes.xaxis) == ["a", "␣", r"\$"]
    assert "characters" in axes.get_ylabel()
    assert len(plot_frequencies(COUNTS, "word", most=2).patches) == 2


def test_lengths_are_counted_with_their_median():
    axes = PLOTS["lengths"]()
    bars = {bar.get_x() + bar.get_width() / 2: bar.get_height() for bar in axes.patches}
    assert {int(x): n for x, n in bars.items() if n} == Counter(LENGTHS[:-1])
    assert axes.get_legend().get_texts()[0].get_text() == "median 4"
    assert axes.lines[0].get_xdata()[0] == 4


@given(st.lists(st.integers(0, 500), min_size=1, max_size=30))
def test_all_lengths_but_the_longest_hundredth_are_counted(lengths):
    axes = plot_lengths(lengths, "text", "word")
    kept = sum(n <= max(int(np.quantile(lengths, 0.99)), 1) for n in lengths)
    counted = sum(bar.get_height() for bar in axes.patches)
    plt.close("all")
    assert counted == kept


# Coloured text


SPAN = re.compile(
    r'<span style="background:rgba\(214,39,40,([\d.]+)\)" title="([\d.]+) bits">(.*?)</span>', re.S
)


def spans(page):
    assert page.startswith('<p class="text">')
    assert page.endswith("</p>")
    inside = page.removeprefix('<p class="text">').removesuffix("</p>")
    assert SPAN.sub("", inside) == ""
    return SPAN.findall(inside)


@given(st.lists(st.text(alphabet=st.one_of(st.sampled_from("<>&\"'\n/ $\f"), st.characters()))))
def test_no_token_is_read_as_html_or_steers_the_page(tokens):
    found = spans(coloured_by_loss(tokens, np.zeros(len(tokens))))
    assert len(found) == len(tokens)
    for token, (_, _, text) in zip(tokens, found, strict=True):
        plain = text.replace("&#8629;<br>", "\n")
        assert not re.search(r"[<>\"\f]|&(?!(amp|lt|gt|quot|#x27);)", plain)
        restored = re.sub("&(amp|lt|gt|quot|#x27);", lambda m: html.unescape(m[0]), plain)
        assert restored == readable(token)


@given(st.lists(st.floats(0, 30, width=32), min_size=1, max_size=5))
def test_the_ground_is_the_redder_the_larger_the_loss(losses):
    found = spans(coloured_by_loss(["a"] * len(losses), np.array(losses)))
    for loss, (shade, bits, _) in zip(losses, found, strict=True):
        assert float(bits) == pytest.approx(loss / np.log(2), abs=0.051)
        assert float(shade) == pytest.approx(min(loss / np.log(2) / 8, 1), abs=0.0051)
