"""The page: nothing from a network, and no token, caption or title is read as HTML."""

import base64
import html
import json
import re

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tlite.inspection import heads_view, page, picture
from tlite.inspection.page import SCRIPT, STYLE

TEXT = st.text(st.one_of(st.sampled_from("<>&/\"'!-\\"), st.characters(exclude_categories=["Cs"])))
OPEN = '<div class="heads"><script type="application/json">'
CLOSE = "</script></div>"


def content(view):
    assert view.startswith(OPEN)
    assert view.endswith(CLOSE)
    return view.removeprefix(OPEN).removesuffix(CLOSE)


@given(st.lists(TEXT, min_size=1, max_size=4), st.lists(TEXT, min_size=1, max_size=4))
def test_any_tokens_come_through_the_head_view(queries, keys):
    queries, keys = [*queries, "</script>"], [*keys, "<!--<script>"]
    weights = np.random.default_rng(0).random((2, 3, len(queries), len(keys)))
    inside = content(heads_view(list(weights), queries, keys))
    assert "<" not in inside
    data = json.loads(inside)
    assert (data["queries"], data["keys"]) == (queries, keys)
    np.testing.assert_allclose(data["weights"], weights, atol=5.1e-4)


def test_a_picture_is_in_the_page_itself(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(bytes(range(256)))
    found = re.fullmatch(
        r'<figure><img alt="([^"]*)" src="data:image/png;base64,([^"]*)">'
        r"<figcaption>([^<]*)</figcaption></figure>",
        picture(path, "a < b & \"c\" 'd'"),
    )
    assert base64.b64decode(found[2]) == bytes(range(256))
    assert html.unescape(found[1]) == html.unescape(found[3]) == "a < b & \"c\" 'd'"


@given(TEXT, st.lists(TEXT, max_size=3))
def test_titles_are_text_and_sections_stand_in_their_order(title, names):
    sections = [(name, f"<p>{index}</p>") for index, name in enumerate(names)]
    whole = page(title, sections)
    parts = "".join(f"<h2>{html.escape(name)}</h2>{inside}" for name, inside in sections)
    body = re.search(r"<body>(.*)<script>", whole, re.S)[1]
    assert body == f"<h1>{html.escape(title)}</h1>{parts}"
    assert f"<title>{html.escape(title)}</title>" in whole


def test_the_page_needs_no_network():
    view = heads_view([np.eye(2)[None]], ["a", "b"], ["a", "b"])
    whole = page("a run", [("Attention", view)])
    assert not re.search(r"https?:|//|<link|@import|url\(|src=|href=|fetch|XMLHttp", whole)
    assert whole.startswith("<!doctype html>")
    assert STYLE in whole
    assert SCRIPT in whole
