"""The page of `tlite inspect` in a real browser, with its pointer and its keys."""

import html
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.browser import CHROMIUM, Browser
from tests.helpers.inspected import groups_of, trained, undrawn, weights_of
from tlite.report import inspect_run

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on the PATH")
BUTTONS, ROWS = ".heads .thumbs button", ".heads .query rect"


@cache
def page_of(kind) -> Path:
    """The page of a run of a kind; its pictures stay empty."""
    with pytest.MonkeyPatch.context() as patch:
        undrawn(patch)
        return inspect_run(trained(kind))


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


def told(browser) -> str:
    """The sentence on what is chosen."""
    return browser.value("document.querySelector('.heads .readout').textContent")


def pressed(browser) -> list[str]:
    """Of each head whether it is the one that is shown."""
    buttons = f"[...document.querySelectorAll({BUTTONS!r})]"
    return browser.value(f"{buttons}.map(button => button.getAttribute('aria-pressed'))")


@pytest.mark.parametrize("kind", ["learned", "translator"])
def test_the_head_view_shows_the_weights_of_the_head_and_token_that_are_chosen(browser, kind):
    page = page_of(kind)
    group = groups_of(page)[0]
    browser.open(page)
    browser.click(BUTTONS, 1)
    browser.click(ROWS, 2)
    view = browser.value("document.querySelector('.heads').innerHTML")
    layers, heads = np.shape(group["weights"])[:2]
    names = [f"block {layer}, head {head}" for layer, head in np.ndindex(layers, heads)]
    assert re.findall(r'<button[^>]* title="(.*?)"', view) == names
    for key, number in (("layer", layers), ("head", heads)):
        (options,) = re.findall(rf'<select data-of="{key}">(.*?)</select>', view)
        assert re.findall(r"<option[^>]*>(\d+)<", options) == [str(i) for i in range(number)]
    assert pressed(browser) == ["false", "true", *["false"] * (len(names) - 2)]

    weights = weights_of(group)[0, 1, 2]
    keys = re.findall(r'<g class="key">(.*?)</g>', view)
    found = [re.search(r'data-weight="(.*?)"', key)[1] for key in keys]
    assert found == ["masked" if np.isnan(w) else f"{w:.3f}" for w in weights]
    hatched = ['class="masked"' in key for key in keys]
    assert hatched == list(np.isnan(weights))
    assert [html.unescape(re.findall(r"<text[^>]*>(.*?)</text>", key)[-1]) for key in keys] == (
        group["keys"]
    )
    assert view.count('class="line"') == (np.nan_to_num(weights) >= 0.02).sum()
    assert view.count('class="query chosen"') == 1
    assert "Block 0, head 1: token 2, " in view


@pytest.mark.parametrize(
    ("keys", "token"),
    [(["ArrowDown"] * 3, 2), (["ArrowUp"], -1), (["ArrowUp", "ArrowDown"], 0)],
    ids=str,
)
def test_the_arrow_keys_choose_a_token(browser, keys, token):
    page = page_of("learned")
    queries = groups_of(page)[0]["queries"]
    place = token % len(queries)
    browser.open(page)
    browser.value("document.querySelector('.heads .lines').focus()")
    for key in keys:
        browser.press(key)
    assert told(browser).startswith(f"Block 0, head 0: token {place}, {queries[place]}, ")


def test_a_click_holds_a_token_until_the_next_one(browser):
    browser.open(page_of("learned"))
    browser.click(ROWS, 2)
    for row in (0, 4):
        browser.point(ROWS, row)
        assert "token 2, " in told(browser)
    browser.click(ROWS, 2)
    browser.point(ROWS, 4)
    assert "token 4, " in told(browser)


def test_the_heads_are_one_stop_of_the_tab_key_and_arrow_keys_choose_among_them(browser):
    browser.open(page_of("learned"))
    focused, stops = "document.activeElement", []
    while "lines" not in stops and len(stops) < 20:
        browser.press("Tab")
        stops.append(browser.value(f"{focused}.closest('.thumbs, .lines')?.className ?? ''"))
        if stops[-1] == "thumbs":
            browser.press("ArrowRight")
            assert pressed(browser) == ["false", "true"]
            assert browser.value(f"{focused}.title") == "block 0, head 1"
    assert stops[-2:] == ["thumbs", "lines"]
    assert stops.count("thumbs") == 1
