"""`tlite inspect`: every picture of a run, on a page that needs no network and works."""

import html
import re
from functools import cache, partial
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure

from tests.helpers.complaints import complaint
from tests.helpers.inspected import (
    GENERATOR,
    SEQ2SEQ,
    TABLE,
    facts_of,
    groups_of,
    trained,
    undrawn,
    weights_of,
)
from tests.helpers.python import CHROMIUM, shown_by_browser
from tests.helpers.runs import LOGISTIC, TEXTS, TRANSFORMER, labelled, varied
from tlite.pictures.labels import show_whitespace
from tlite.report import inspect_run
from tlite.report.page import Page
from tlite.report.runs import draw_classifier_run
from tlite.runs import Run
from tlite.training import Trainer
from tlite.training.metrics import iterate_metrics

pytest.importorskip("tokenizers")
pytest.importorskip("sacrebleu")
pytest.importorskip("sklearn")

DATA = ["frequencies-character", "frequencies-word"]
TRAINED = ["schedule", "curve-loss", "curve-accuracy"]
PICTURES = {
    "learned": [
        *(*TRAINED, *TABLE["learned"], "blocks-0-attention", *GENERATOR, "loss-by-position"),
        *(*DATA, "lengths-line"),
    ],
    "classifier": [
        *(*TRAINED, *TABLE["sinusoidal"], "blocks-0-attention", "embedding"),
        *("saliency", "ablation", *DATA, "lengths-text"),
    ],
    "translator": [
        *(*TRAINED, *TABLE["sinusoidal"], "curve-bleu", "curve-exact_match", *SEQ2SEQ),
        *("encoder-blocks-0-attention", "decoder-blocks-0-attention"),
        *("decoder-blocks-0-cross_attention", *DATA),
        *("lengths-source-sentence", "lengths-target-sentence"),
    ],
}
each_kind = pytest.mark.parametrize("kind", ["learned", "classifier", "translator"])


@cache
def page_of(kind) -> Path:
    """The page of a run, in pictures of few dots."""
    save = Figure.savefig
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", lambda f, path, **_: save(f, path, dpi=20))
        return inspect_run(trained(kind))


@pytest.fixture
def drawn(monkeypatch):
    yield undrawn(monkeypatch)
    plt.close("all")


def marks(text) -> list[str]:
    return [show_whitespace(token) for token in text]


@each_kind
def test_every_picture_is_on_the_page_once_with_a_caption(kind):
    page = page_of(kind)
    assert {path.stem for path in page.parent.glob("*.png")} == set(PICTURES[kind])
    assert {path.suffix for path in page.parent.iterdir()} == {".png", ".html"}
    content = page.read_text(encoding="utf-8")
    assert content.count("<img") == content.count('src="data:image/png') == len(PICTURES[kind])
    figures = re.findall(r"<figure>(.*?)</figure>", content, re.S)
    assert {figure.count("<figcaption>") for figure in figures} == {1}


@each_kind
def test_the_page_names_no_network_and_has_no_control_character(kind):
    content = page_of(kind).read_text(encoding="utf-8")
    without = re.sub(r'"data:image/png;base64,[^"]*"', '""', content)
    without = without.replace("http://www.w3.org/2000/svg", "")  # a name, no address
    assert not re.search(
        r"https?:|//[a-z]|<link|@import|url\([^#]|<script[^>]+src|<iframe|href=|fetch|XMLHttp",
        without,
    )
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", content)


@each_kind
def test_the_page_opens_with_the_facts_of_the_run(kind):
    run, facts = trained(kind), facts_of(page_of(kind))
    parameters, step = run.parameters("best")
    assert list(facts) == ["Experiment", "Size", "Training", "Validation", "Sample"]
    assert f"best step {step}, replica 0" in facts["Experiment"]
    size = sum(leaf.size for leaf in jax.tree.leaves(run.trainer.models(parameters)[0]))
    assert f"{size:,} parameters" in facts["Size"]
    lines = [*iterate_metrics(run.dir.metrics, "validation")]
    (loss,) = (line["loss_replicas"][0] for line in lines if line["step"] == step)
    assert f"loss {loss:.4f}" in facts["Validation"]
    beginning = {"learned": "The ", "classifier": "It is good", "translator": "source: "}[kind]
    assert html.unescape(facts["Sample"]).startswith(f"<pre>{beginning}")


def test_the_page_shows_a_window_of_letters_or_the_first_example():
    run, (data,) = trained("learned"), groups_of(page_of("learned"))
    text = run.tokenizer.decode(run.validation_tokens)
    windows = [text[i : i + 16] for i in range(0, len(text) - 16, 16)]
    shown = max(windows, key=lambda window: sum(map(str.isalpha, window)))
    assert data["queries"] == data["keys"] == marks(shown)
    (data,) = groups_of(page_of("classifier"))
    assert data["queries"] == ["it", "is", "good", "like", "it", "very", "good", "sound"]
    across, encoder, decoder = groups_of(page_of("translator"))
    names = [group["name"] for group in (across, encoder, decoder)]
    assert names == ["cross-attention", "encoder", "decoder"]
    assert (across["queries"][0], across["keys"][-1]) == ("[START]", "[END]")
    assert not np.isnan(weights_of(across)).any()
    assert (np.isnan(weights_of(decoder)) == ~np.tri(len(decoder["keys"]), dtype=bool)).all()


def test_a_user_text_replaces_the_last_one_unless_it_is_wrong(drawn, tmp_path):
    draw = partial(inspect_run, trained("learned"), to=tmp_path / "pictures")
    page = draw(text="fox & <b> </scr")
    assert groups_of(page)[0]["queries"] == marks("fox & <b> </scr")
    assert set(drawn) == set(PICTURES["learned"])
    before = page.read_bytes()
    message = complaint(draw, text="The \u65e5")
    assert message == "the model does not know '\u65e5' in the text"
    assert page.read_bytes() == before
    assert [*tmp_path.iterdir()] == [page.parent]
    drawn.clear()
    assert draw(text="T") == page
    assert groups_of(page)[0]["queries"] == ["T"]
    assert set(PICTURES["learned"]) - set(drawn) == {"ablation", "patching"}  # nothing to predict
    assert not (page.parent / "ablation.png").exists()


CHOICES = """<script>
document.querySelectorAll(".heads .thumbs button")[1].click();
document.querySelectorAll(".heads .query")[2].dispatchEvent(new MouseEvent("click"));
</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on the PATH")
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


def test_texts_are_cut_to_the_context_and_not_padded(drawn, tmp_path):
    for text, number in (("It is good. " * 9, 12), ("A bad lamp. It is so so. Not bad", 8)):
        (data,) = groups_of(inspect_run(trained("classifier"), text=text, to=tmp_path / "page"))
        assert len(data["queries"]) == len(data["weights"][0][0]) == number
        assert len(drawn["saliency"][1]().patches) == number


def test_a_logistic_regression_is_refused(tmp_path):
    data = labelled(tmp_path / "texts.jsonl", 4 * TEXTS)
    run = Run.create(varied(LOGISTIC, data=data, steps=1), tmp_path / "run").train(report=False)
    assert "has no blocks to draw" in complaint(inspect_run, run)
    assert not (tmp_path / "run" / "inspection").exists()


@pytest.mark.parametrize(
    ("experiment", "changes", "message"),
    [
        (TRANSFORMER, {"padding": "unknown"}, "no word in it"),
        (TRANSFORMER, {"sentences": 2}, "sentence by sentence"),
    ],
)
def test_a_classifier_without_attention_on_a_text_is_refused(
    experiment, changes, message, tmp_path, monkeypatch
):
    monkeypatch.setattr(Trainer, "compile", lambda *_: None)  # it is not trained
    data = labelled(tmp_path / "texts.jsonl", 4 * TEXTS)
    run = Run.create(varied(experiment, data=data, **changes), tmp_path / "run")
    model = run.trainer.models(run.init_state().parameters)[0]
    page = Page(tmp_path / "page")
    assert message in complaint(draw_classifier_run, run, model, page, "☕ ... a")
