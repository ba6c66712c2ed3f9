"""The page of `tlite inspect` in a real browser."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.inspected import experiment, groups_of, undrawn, weights_of
from tests.helpers.recipes import train
from tlite.report import inspect_run

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on the PATH")
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--virtual-time-budget=2000", "--dump-dom"),
]


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The page of a run of a kind, made when it is first asked for; its pictures stay empty."""
    made = {}

    def page(kind) -> Path:
        if kind not in made:
            folder = tmp_path_factory.mktemp(kind)
            with pytest.MonkeyPatch.context() as patch:
                undrawn(patch)
                made[kind] = inspect_run(train(experiment(kind, folder), folder / "run"))
        return made[kind]

    return page


def dumped(page: Path, folder: Path) -> str:
    """The document after the page's scripts have run."""
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={folder}", page.resolve().as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def shown_by(page: Path, folder: Path, clicks: str) -> str:
    """What the page says, after clicks or keys on what a selector finds, one after another."""
    script = (
        f"<script>for (const [selector, index, key] of {clicks}) "
        'document.querySelectorAll(".heads " + selector)[index].dispatchEvent('
        'key ? new KeyboardEvent("keydown", {key}) : new MouseEvent("click"));</script>'
    )
    clicked = folder / "clicked.html"
    content = page.read_text(encoding="utf-8").replace("</body>", f"{script}</body>")
    clicked.write_text(content, encoding="utf-8")
    return dumped(clicked, folder / "profile")


@pytest.mark.parametrize("kind", ["learned", "translator"])
def test_the_head_view_shows_the_weights_of_the_head_and_token_that_are_chosen(
    pages, kind, tmp_path
):
    page = pages(kind)
    group = groups_of(page)[0]
    dom = shown_by(page, tmp_path, '[[".thumbs button", 1], [".query", 2]]')
    (view,) = re.findall(r'<div class="heads">(.*?)</div><script>', dom, re.S)
    layers, heads = np.shape(group["weights"])[:2]
    names = [f"block {layer}, head {head}" for layer, head in np.ndindex(layers, heads)]
    assert re.findall(r'<button[^>]* title="(.*?)"', view) == names
    for key, number in (("layer", layers), ("head", heads)):
        (options,) = re.findall(rf'<select data-of="{key}">(.*?)</select>', view)
        assert re.findall(r"<option[^>]*>(\d+)<", options) == [str(i) for i in range(number)]
    pressed = re.findall(r'aria-pressed="(\w+)"', view)
    assert pressed == ["false", "true", *["false"] * (len(names) - 2)]

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
def test_the_arrow_keys_choose_a_token(pages, keys, token, tmp_path):
    page = pages("learned")
    moves = json.dumps([[".lines", 0, key] for key in keys])
    queries = groups_of(page)[0]["queries"]
    place = token % len(queries)
    told = re.search(r'<p class="readout".*?>(.*?)</p>', shown_by(page, tmp_path, moves))[1]
    assert html.unescape(told).startswith(f"Block 0, head 0: token {place}, {queries[place]}, ")
