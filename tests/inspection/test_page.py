"""The page: nothing from a network, and no token, caption or title is read as HTML."""

import base64
import html
import json
import re

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tlite.inspection.head_view import MASKED, SCRIPT, STYLE, Heads, head_view
from tlite.inspection.page import bars, page, picture, sample
from tlite.inspection.plots import readable, symbols

TEXT = st.text(
    st.one_of(st.sampled_from("<>&/\"'!-\\\f\x1b\x00"), st.characters(exclude_categories=["Cs"]))
)
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f]")


def data_of(view):
    (inside,) = re.findall(r'<script type="application/json">(.*?)</script>', view, re.S)
    assert "<" not in inside
    return json.loads(inside)


def heads(queries, keys, masks=None):
    weights = np.random.default_rng(0).random((2, 3, len(queries), len(keys)))
    return Heads("attention", queries, keys, list(weights), masks or [None, None])


@given(st.lists(TEXT, min_size=1, max_size=4), st.lists(TEXT, min_size=1, max_size=4))
def test_any_tokens_come_through_the_head_view_as_symbols(queries, keys):
    queries, keys = [*queries, "</script>", "\f"], [*keys, "<!--<script>"]
    group = heads(queries, keys)
    view = head_view([group])
    assert not CONTROL.search(view)
    (data,) = data_of(view)
    assert data["queries"] == [symbols(token) for token in queries]
    assert data["keys"] == [symbols(token) for token in keys]
    np.testing.assert_allclose(np.array(data["weights"]) / 1000, group.weights, atol=5.1e-4)


def test_what_is_masked_is_no_weight_of_zero():
    mask = np.tril(np.ones((3, 3), bool))
    weights = [np.where(mask, 0.25, 0.0)[None], np.zeros((1, 3, 3))]
    (data,) = data_of(head_view([Heads("decoder", "abc", "abc", weights, [mask, None])]))
    first, free = np.array(data["weights"])
    np.testing.assert_array_equal(first[0], np.where(mask, 250, MASKED))
    np.testing.assert_array_equal(free, 0)


def test_a_picture_is_in_the_page_itself_with_a_caption(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(bytes(range(256)))
    found = re.fullmatch(
        r'<figure><div><img alt="" src="data:image/png;base64,([^"]*)"></div>'
        r"<figcaption>([^<]*)</figcaption></figure>",
        picture(path, "a < b & \"c\" 'd'\f."),
    )
    assert base64.b64decode(found[1]) == bytes(range(256))
    assert html.unescape(found[2]) == "a < b & \"c\" 'd'␌."


@given(TEXT, st.lists(TEXT, max_size=3), st.lists(TEXT, max_size=3))
def test_facts_come_first_then_the_heads_then_topics_in_their_order(title, names, topics):
    facts = [(name, sample(name)) for name in names]
    folded = [(topic, f"{topic}.", f"<p>{index}</p>") for index, topic in enumerate(topics)]
    whole = page(title, facts, "<div>view</div>", folded)
    assert f"<title>{html.escape(readable(title))}</title>" in whole
    parts = [f"<dt>{html.escape(n)}</dt><dd>{sample(n)}</dd>" for n in names]
    parts += ["<div>view</div>", SCRIPT]
    parts += [f"<p>{index}</p></div></details>" for index in range(len(topics))]
    at = [whole.index(f"<h1>{html.escape(readable(title))}</h1>")]
    for part in parts:
        at.append(whole.index(part, at[-1]))
    assert whole.count("<details>") == len(topics)  # none is open


@given(TEXT)
def test_a_sample_is_text_without_control_characters(text):
    shown = sample(text)
    assert not CONTROL.search(shown)
    inside = shown.removeprefix("<pre>").removesuffix("</pre>")
    assert not re.search(r"[<>]", inside)
    assert html.unescape(inside) == readable(text)


def test_probabilities_have_bars():
    found = re.findall(
        r"<span>(.*?)</span><span>(.*?)</span><i style=\"width:(.*?)%", bars({"<a>": 0.25})
    )
    assert found == [("&lt;a&gt;", "0.250", "25.0")]


def test_the_page_needs_no_network():
    whole = page("a run", [("Size", "1")], head_view([heads("ab", "ab")]), [("Heads", "x", "y")])
    without = whole.replace("http://www.w3.org/2000/svg", "")  # the name of SVG, no address
    assert not re.search(r"https?:|[^:]//[a-z]|<link|@import|src=|href=|fetch|XMLHttp", without)
    assert re.findall(r"url\((.*?)\)", whole) == ["#hatched"]
    assert whole.startswith("<!doctype html>")
    assert STYLE in whole
