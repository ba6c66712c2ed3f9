"""The page escapes tokens, captions and titles, and appears only when it is complete."""

import base64
import html
import json
import re

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.complaints import complaint
from tlite.pictures.labels import escape_controls, show_whitespace
from tlite.report.models import draw_attention
from tlite.report.page import (
    SCRIPT,
    Page,
    check_replaceable,
    new_page,
    preformatted,
    render_losses,
)

TEXT = st.text(
    st.one_of(st.sampled_from("<>&/\"'!-\\\n\f\x1b\x00"), st.characters(exclude_categories=["Cs"]))
)
NAME = "a < b & \"c\" 'd'\f"
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f]")


@pytest.fixture(scope="module")
def new(tmp_path_factory):
    """Return a function that makes pages without pictures in one folder."""
    folder = tmp_path_factory.mktemp("page")
    return lambda title="": Page(folder, title)


def with_heads(page, queries, keys):
    weights = np.random.default_rng(0).random((2, 3, len(queries), len(keys)))
    page.add_heads("attention", queries, keys, list(weights), [None, None], [0, 1])
    return weights


@given(st.lists(TEXT, min_size=1, max_size=4), st.lists(TEXT, min_size=1, max_size=4))
def test_the_head_view_escapes_any_tokens(new, queries, keys):
    page, queries, keys = new(), [*queries, "</script>", "\f"], [*keys, "<!--<script>"]
    weights = with_heads(page, queries, keys)
    content = page.content()
    assert not CONTROL.search(content)
    (inside,) = re.findall(r'<script type="application/json">(.*?)</script>', content, re.S)
    assert "<" not in inside
    (data,) = json.loads(inside)
    assert data["queries"] == [show_whitespace(token) for token in queries]
    assert data["keys"] == [show_whitespace(token) for token in keys]
    np.testing.assert_allclose(np.array(data["weights"]) / 1000, weights, atol=5.1e-4)


def test_a_picture_is_embedded_with_its_caption_and_closed(new):
    page, mine = new(), plt.figure()
    page.draw("positions-{name}", plt.figure().add_subplot(), name=NAME)
    assert plt.get_fignums() == [mine.number]
    plt.close(mine)
    content, caption = re.fullmatch(
        r'<figure><div><img alt="" src="data:image/png;base64,([^"]*)"></div>'
        r"<figcaption>([^<]*)</figcaption></figure>",
        *page.topics["Positions"],
    ).groups()
    (path,) = page.folder.glob("positions-*.png")
    assert base64.b64decode(content) == path.read_bytes()
    assert html.unescape(caption).startswith(f"The {escape_controls(NAME)} positions: ")


@given(TEXT, st.lists(TEXT, max_size=3), st.sets(st.sampled_from(["Data", "Heads", "Training"])))
def test_facts_precede_heads_which_precede_topics_in_order(new, title, names, topics):
    page = new(title)
    for name in names:
        page.add_html_fact(name, preformatted(name))
    with_heads(page, "ab", "ab")
    for topic in topics:
        page.add_figure(topic, f"<p>{topic}</p>", "A sentence.")
    content = page.content()
    assert f"<title>{html.escape(escape_controls(title))}</title>" in content
    parts = [f"<dt>{html.escape(n)}</dt><dd>{preformatted(n)}</dd>" for n in names]
    parts += ['<div class="heads">', SCRIPT]
    parts += [f"<p>{topic}</p>" for topic in ("Heads", "Training", "Data") if topic in topics]
    at = content.index(f"<h1>{html.escape(escape_controls(title))}</h1>")
    for part in parts:
        at = content.index(part, at)
    assert content.count("<details>") == len(topics)  # none is open


def test_a_complete_page_replaces_the_folder(tmp_path):
    folder = tmp_path / "inspection"
    for name in ("first", "second"):
        with new_page(folder, name) as page:
            plt.figure()
            page.add_fact("Name", name, "", "again")
        assert f"<dd>{name}, again</dd>" in (folder / "index.html").read_text()
    with pytest.raises(ValueError, match="no"), new_page(folder, "third"):
        raise ValueError("no")
    assert "second" in (folder / "index.html").read_text()
    assert [*tmp_path.iterdir()] == [folder]
    assert not plt.get_fignums()


def test_a_page_without_heads_has_no_view_of_them(new):
    content = new("title").content()
    assert SCRIPT not in content
    assert "Attention of each head" not in content


def test_a_folder_with_another_page_is_not_replaced(tmp_path):
    with new_page(tmp_path / "page", "mine"):
        pass
    assert check_replaceable(tmp_path / "page") == tmp_path / "page"
    (tmp_path / "page" / "index.html").write_text("<title>mine</title>")
    assert "not from inspect" in complaint(check_replaceable, tmp_path / "page")


def test_heads_are_in_the_order_of_their_blocks(tmp_path):
    """A compiled function returns a dictionary in the order of its names as text."""
    page, weights = Page(tmp_path), jnp.arange(12.0).reshape(12, 1, 1, 1) / 12
    layers = {f"blocks.{n}.cross_attention.weights": a for n, a in enumerate(weights)}
    draw_attention(page, "cross", dict(sorted(layers.items())), None, ["a"], ["b"])
    (view,) = page.heads
    np.testing.assert_allclose(view["weights"], np.round(1000 * np.asarray(weights)))
    assert view["blocks"] == [*range(12)]


@given(TEXT)
def test_a_sample_is_text_without_control_characters(text):
    inside = preformatted(text).removeprefix("<pre>").removesuffix("</pre>")
    assert not re.search(f"[<>]|{CONTROL.pattern}", inside)
    assert html.unescape(inside) == escape_controls(text)


SPAN = r'<span style="background:rgba\(214,39,40,([\d.]+)\)" title="([\d.]+) bits">(.*?)</span>'


@given(st.lists(st.tuples(TEXT, st.floats(0, 30, width=32)), min_size=1, max_size=5))
def test_redness_grows_with_the_loss_and_tokens_are_escaped(pairs):
    tokens, losses = zip(*pairs, strict=True)
    shown = render_losses(tokens, np.array(losses))
    inside = shown.removeprefix('<p class="text">').removesuffix("</p>")
    assert re.sub(SPAN, "", inside, flags=re.S) == ""
    spans = re.findall(SPAN, inside, re.S)
    for token, loss, (shade, bits, text) in zip(tokens, losses, spans, strict=True):
        assert float(bits) == pytest.approx(loss / np.log(2), abs=0.051)
        assert float(shade) == pytest.approx(min(loss / np.log(2) / 8, 1), abs=0.0051)
        plain = text.replace("&#8629;<br>", "\n")
        assert not re.search(r"[<>\"\f]|&(?!(amp|lt|gt|quot|#x27);)", plain)
        assert html.unescape(plain) == escape_controls(token)
