"""The page of `tlite inspect` in a real browser."""

import html
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.browser import CHROMIUM, shown_by_browser
from tests.helpers.inspected import groups_of, trained, undrawn, weights_of
from tlite.report import inspect_run

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on the PATH")
CHOICES = """<script>
document.querySelectorAll(".heads .thumbs button")[1].click();
document.querySelectorAll(".heads .query")[2].dispatchEvent(new MouseEvent("click"));
</script>"""


@cache
def page_of(kind) -> Path:
    """The page of a run of a kind; its pictures stay empty."""
    with pytest.MonkeyPatch.context() as patch:
        undrawn(patch)
        return inspect_run(trained(kind))


@pytest.mark.parametrize("kind", ["learned", "translator"])
def test_the_head_view_shows_the_selected_head_and_token(kind, tmp_path):
    page = page_of(kind)
    group = groups_of(page)[0]
    content, chosen = page.read_text("utf-8"), tmp_path / "chosen.html"
    chosen.write_text(content.replace("</body>", f"{CHOICES}</body>"), "utf-8")
    view = shown_by_browser(chosen.as_uri(), tmp_path)
    layers, heads = np.shape(group["weights"])[:2]
    names = [f"block {layer}, head {head}" for layer, head in np.ndindex(layers, heads)]
    assert re.findall(r'<button[^>]* title="(.*?)"', view) == names
    for key, number in (("layer", layers), ("head", heads)):
        (options,) = re.findall(rf'<select data-of="{key}">(.*?)</select>', view)
        assert re.findall(r"<option[^>]*>(\d+)<", options) == [str(i) for i in range(number)]
    pressed = re.findall(r'<button[^>]* aria-pressed="(.*?)"', view)
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
