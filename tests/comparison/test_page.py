"""The page: nothing from a network, every name is text, and all of the sentences are there."""

import html
import re

import numpy as np
import pytest

from tests.helpers.fake_runs import GENERATOR, fake_run
from tlite.comparison.entries import find_entries
from tlite.comparison.page import page
from tlite.comparison.results import find_results

BAD = "<script>alert('&')", "\"><img src='x' onerror=alert(1)>"
FINAL = np.array([1.5, 1.6, 1.55])


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    runs = [fake_run(folder / name, GENERATOR, FINAL + i) for i, name in enumerate(BAD)]
    return find_results(find_entries(runs))


@pytest.fixture(scope="module")
def whole(found):
    return page(found, {"a.png": ("caption < & \"b\" 'c'", b"picture")})


def test_names_are_text(found, whole):
    tags = set(re.findall(r"<(\w+)", whole))
    known = "html head meta title style body h1 h2 ul li div table tr th td figure img figcaption"
    assert tags <= {*known.split()}
    assert "onerror=" not in re.sub(r">[^<]*<", "><", whole)
    for name in BAD:
        assert html.escape(name) in whole


def test_nothing_is_fetched(whole):
    inside = re.sub(r'src="data:image/png;base64,[^"]*"', "", whole)
    assert not re.search(r"<link|@import|url\(|<[^>]*(src|href)=|<script|https?:", inside)
    assert 'src="data:image/png;base64,cGljdHVyZQ=="' in whole
    assert whole.startswith("<!doctype html>")
    assert "prefers-color-scheme: dark" in whole


def test_every_sentence_and_number_is_there(found, whole):
    text = html.unescape(re.sub(r"<[^>]*>", "\n", whole))
    for sentence in [*found.verdicts, *found.notes]:
        assert sentence in text
    assert "1.550 ± 0.050" in text
    assert whole.count("<tr>") == 3  # no config differs


def test_a_title_is_short(tmp_path):
    runs = [fake_run(tmp_path / f"{i:020}") for i in range(5)]
    assert "<h1>Compared: 5 runs</h1>" in page(find_results(find_entries(runs)), {})
    assert f"<h1>Compared: {0:020}</h1>" in page(find_results(find_entries(runs[:1])), {})
