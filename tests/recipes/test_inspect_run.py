"""`tlite inspect`: every picture of a run, on a page that needs no network and works."""

import dataclasses
import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest

from tests.recipes.helpers import LOGISTIC, TEXTS, TRANSFORMER, complaint, labelled, train
from tlite import inspection
from tlite.data import CopyTask
from tlite.data.sources import TextFile
from tlite.experiment import GeneratorExperiment, PairSubwords, TranslatorExperiment
from tlite.models import GeneratorConfig, Seq2SeqConfig
from tlite.recipes import inspect_run as module
from tlite.recipes import start
from tlite.recipes.gallery import Gallery
from tlite.recipes.inspect_run import inspect_run, word_weights
from tlite.training import TrainingConfig

pytest.importorskip("tokenizers")
pytest.importorskip("sacrebleu")
pytest.importorskip("sklearn")

TRAINING = TrainingConfig(
    steps=2, batch_size=4, learning_rate=1e-2, evaluate_every=1, seeds=2, precision="float32"
)
SMALL = {"width": 8, "num_heads": 2, "num_blocks": 1}
TEXT = "The <b>quick</b> & $fox$ jumps;\n\nover </script> a dog.\n" * 20
POSITIONS = [
    "positions-sinusoidal",
    "position-curves-sinusoidal",
    "similarity-sinusoidal",
    "similarity-rotary",
]
LEARNED = ["positions-learned", "position-curves-learned", "similarity-learned"]
EMBEDDING = ["embedding-pca", "embedding-tsne"]
PICTURES = {
    "learned": [
        *("curve-loss", "curve-accuracy", *POSITIONS, *LEARNED, "blocks-0-attention", *EMBEDDING),
        *("values-of-block-0-pca", "values-of-block-0-tsne", "next-token", "logit-lens"),
        *("loss-by-position", "text-loss", "head-previous", "head-duplicate", "head-induction"),
        *("previous-by-step", "duplicate-by-step", "induction-by-step", "ablation", "patching"),
        *("frequencies-character", "frequencies-word", "lengths-line", "lengths-passage"),
    ],
    "classifier": [
        *("curve-loss", "curve-accuracy", *POSITIONS, "blocks-0-attention", *EMBEDDING),
        *("saliency", "ablation", "frequencies-character", "frequencies-word", "lengths-text"),
    ],
    "translator": [
        *("curve-loss", "curve-accuracy", "curve-bleu", "curve-exact_match", "schedule"),
        *(*POSITIONS, "alignment", "next-token", "logit-lens", "ablation-encoder-attention"),
        *("ablation-decoder-attention", "ablation-decoder-cross_attention"),
        *("encoder-blocks-0-attention", "decoder-blocks-0-attention", *EMBEDDING),
        *("decoder-blocks-0-cross_attention", "frequencies-character", "frequencies-word"),
        *("lengths-source-sentence", "lengths-target-sentence"),
    ],
}
PICTURES["rotary"] = [name for name in PICTURES["learned"] if name not in LEARNED]
PICTURES["rotary"].append("angles-rotary")
LOOKED_AT = ["induction-by-step", "head-induction", "loss-by-position", "next-token", "saliency"]
each_kind = pytest.mark.parametrize("kind", ["learned", "classifier", "translator"])


def generator(folder, **switches) -> GeneratorExperiment:
    (folder / "text.txt").write_text(TEXT)
    data = TextFile(str(folder / "text.txt"), validation_fraction=0.2)
    config = GeneratorConfig(context=16, **SMALL | switches)
    return GeneratorExperiment("tiny", data, config, TRAINING, prompt="The ")


def experiment(kind, folder):
    if kind in ("learned", "rotary"):
        return generator(folder, positions=kind, norm_first=kind == "rotary")
    if kind == "classifier":
        data = labelled(folder / "texts.jsonl", 4 * TEXTS)
        return dataclasses.replace(TRANSFORMER, data=data, training=TRAINING)
    return TranslatorExperiment(
        "tiny",
        CopyTask(letters=4, longest=5, sequences=40),
        PairSubwords(pieces=20),
        Seq2SeqConfig(context=8, **SMALL),
        dataclasses.replace(TRAINING, batch_size=128),
        buckets=1,
        beam=2,
        bleu_sentences=2,
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The run of a kind, made when it is first asked for."""
    runs = {}

    def run(kind):
        if kind not in runs:
            folder = tmp_path_factory.mktemp(kind)
            runs[kind] = train(experiment(kind, folder), folder / "run")
        return runs[kind]

    return run


@pytest.fixture(scope="module")
def pages(trained):
    """The page of a run, drawn when it is first asked for."""
    drawn = {}

    def page(kind) -> Path:
        if kind not in drawn:
            drawn[kind] = inspect_run(trained(kind))
        return drawn[kind]

    return page


@pytest.fixture
def drawn(monkeypatch):
    """By name what would be drawn, without the time that it takes: (caption, Axes of some)."""
    pictures = {}

    def draw(gallery, section, name, caption, plot):
        pictures[name] = caption, plot() if name in LOOKED_AT else None

    monkeypatch.setattr(Gallery, "draw", draw)
    yield pictures
    plt.close("all")


# The page


@each_kind
def test_every_picture_of_the_kind_is_drawn(pages, kind):
    page = pages(kind)
    assert page.name == "index.html"
    assert {path.stem for path in page.parent.glob("*.png")} == set(PICTURES[kind])
    assert all(p.read_bytes().startswith(b"\x89PNG\r\n") for p in page.parent.glob("*.png"))
    assert {path.suffix for path in page.parent.iterdir()} == {".png", ".html"}


@each_kind
def test_the_page_holds_every_picture_once_and_names_no_network(pages, kind):
    page = pages(kind)
    content = page.read_text(encoding="utf-8")
    sources = re.findall(r'<img alt="([^"]+)" src="([^"]+)"', content)
    assert len(sources) == content.count("<img") == len(PICTURES[kind])
    for path in page.parent.glob("*.png"):
        caption = inspection.picture(path, "")
        assert re.search(r'src="([^"]+)"', caption)[1] in {source for _, source in sources}
    without = re.sub(r'"data:image/png;base64,[^"]*"', '""', content)
    assert not re.search(r"https?:|//[a-z]|<link|@import|url\(|<script[^>]+src|<iframe", without)


@each_kind
def test_the_page_shows_the_weights_of_the_model_on_the_text(pages, trained, kind):
    run, content = trained(kind), pages(kind).read_text(encoding="utf-8")
    (view,) = re.findall(r'<script type="application/json">(.*?)</script>', content)
    data = json.loads(view)
    members, _ = run.restore("best")
    model = run.trainer.models(members.parameters)[0]
    weights = np.asarray(data["weights"])
    assert weights.shape == (1, 2, len(data["queries"]), len(data["keys"]))
    np.testing.assert_allclose(weights.sum(-1), 1, atol=0.01)
    if kind == "learned":
        text = run.tokenizer.decode(run.validation_tokens)
        windows = [text[i : i + 16] for i in range(0, len(text) - 16, 16)]
        letters = [sum(map(str.isalpha, window)) for window in windows]
        shown = windows[letters.index(max(letters))]
        assert "".join(data["queries"]) == "".join(data["keys"]) == shown
        tokens = jnp.asarray(run.tokenizer.encode(shown))
        _, captured = inspection.run(model, tokens, capture="*.weights")
        np.testing.assert_allclose(weights[0], *captured.values(), atol=6e-4)
    elif kind == "translator":
        assert data["queries"][0] == "[START]"
        assert data["keys"][-1] == "[END]"
    else:
        beginning = ["it", "is", "good", "like", "it", "very", "good", "sound"]
        assert data["queries"] == beginning


def test_a_generator_with_rotary_positions_has_no_table_of_them_to_draw(trained, drawn):
    inspect_run(trained("rotary"))
    assert set(drawn) == set(PICTURES["rotary"])
    assert "this model's" in drawn["similarity-rotary"][0]
    assert "this model's" not in drawn["similarity-sinusoidal"][0]


def test_a_text_of_ones_own_is_looked_at(trained, drawn):
    content = inspect_run(trained("learned"), text="fox & <b> </scr").read_text(encoding="utf-8")
    (view,) = re.findall(r'<script type="application/json">(.*?)</script>', content)
    assert "".join(json.loads(view)["queries"]) == "fox & <b> </scr"
    assert set(drawn) == set(PICTURES["learned"])


def test_a_second_look_takes_the_place_of_the_first(trained):
    run = trained("learned")
    first = inspect_run(run, text="The fox")
    assert (first.parent / "ablation.png").exists()
    again = inspect_run(run, text="T")
    assert again == first
    assert not (first.parent / "ablation.png").exists()  # one character has none
    assert "The fox" not in again.read_text(encoding="utf-8")


def test_a_wrong_text_leaves_the_first_look(trained):
    run = trained("learned")
    page = inspect_run(run, text="The fox").read_bytes()
    message = complaint(inspect_run, run, text="The \u65e5")
    assert message == "the model does not know '\u65e5' in the text"
    assert (run.run.folder / "inspection" / "index.html").read_bytes() == page
    assert [p.name for p in run.run.folder.iterdir() if p.name.startswith("tmp")] == []


def test_a_text_of_one_character_predicts_nothing_and_is_looked_at(trained, drawn):
    inspect_run(trained("learned"), text="T")
    assert set(PICTURES["learned"]) - set(drawn) == {"ablation", "patching"}


def test_members_and_checkpoints_have_pictures_of_their_own(trained, drawn):
    run, scores, losses = trained("learned"), [], []
    for member, checkpoint in ((0, "1"), (1, "2")):
        page = inspect_run(run, checkpoint, member)
        assert f"step {checkpoint}" in page.read_text(encoding="utf-8")
        lines = [line.get_ydata() for line in drawn["induction-by-step"][1].lines]
        table = drawn["head-induction"][1].images[0].get_array()
        np.testing.assert_allclose(np.array(lines)[:, int(checkpoint) - 1], table.ravel())
        scores.append(np.array(lines))
        losses.append(drawn["loss-by-position"][1].lines[0].get_ydata())
    assert np.abs(scores[0] - scores[1]).max() > 1e-6
    assert losses[0].mean() > losses[1].mean()


def test_the_coloured_text_is_the_beginning_of_the_validation_part(pages, trained):
    content = pages("learned").read_text(encoding="utf-8")
    (text,) = re.findall(r'<p class="text">(.*?)</p>', content)
    shown = html.unescape(re.sub(r"<[^>]+>", "", text.replace("&#8629;<br>", "\n")))
    run = trained("learned")
    assert len(shown) == 6 * 16
    assert shown == run.tokenizer.decode(run.validation_tokens[1 : 1 + 6 * 16])


def test_only_the_characters_of_a_short_validation_part_are_shown(trained, drawn, monkeypatch):
    run = trained("learned")
    monkeypatch.setattr(run, "validation_tokens", run.validation_tokens[:60])
    content = inspect_run(run).read_text(encoding="utf-8")
    (text,) = re.findall(r'<p class="text">(.*?)</p>', content)
    shown = html.unescape(re.sub(r"<[^>]+>", "", text.replace("&#8629;<br>", "\n")))
    assert shown == run.tokenizer.decode(run.validation_tokens[1:])


# Of classifiers


@pytest.mark.parametrize("classes", [2, 3])
def test_the_weight_of_a_word_is_that_of_the_regression(classes):
    texts = ["good good", "bad thing", "so so", "good thing", "bad bad", "so thing"]
    labels = [label % classes for label in (1, 0, 2, 1, 0, 2)]
    pipeline = module.tfidf_logistic_regression(texts, labels)
    vectorizer, regression = (step for _, step in pipeline.steps)
    names = [*vectorizer.get_feature_names_out()]
    for label in range(classes):
        found = word_weights(pipeline, ["good", "nowhere", "bad"], label)
        assert found[1] == 0
        for word, weight in zip(("good", "bad"), found[[0, 2]], strict=True):
            column = regression.coef_[:, names.index(word)]
            expected = column[label] if classes > 2 else (2 * label - 1) * column[0]
            assert weight == pytest.approx(expected)
    assert word_weights(pipeline, ["good"], 1) > 0 > word_weights(pipeline, ["good"], 0)


def test_a_text_longer_than_the_context_is_cut_and_a_short_one_filled_with_nothing(trained, drawn):
    for text, number in (("It is good. " * 9, 12), ("A bad lamp. It is so so. Not bad", 8)):
        page = inspect_run(trained("classifier"), text=text).read_text(encoding="utf-8")
        data = json.loads(re.search(r'application/json">(.*?)</script>', page)[1])
        assert len(data["queries"]) == len(data["weights"][0][0]) == number
        assert len(drawn["saliency"][1].patches) == number


# Mistakes


@each_kind
@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_text_is_told(trained, kind, text):
    assert "the text to look at is empty" in complaint(inspect_run, trained(kind), text=text)


@pytest.fixture
def untrained(tmp_path, drawn):
    """For a classifier before its first step: look at a text; what its head view then holds."""

    def classifier(experiment, **changes):
        data = labelled(tmp_path / "texts.jsonl", 4 * TEXTS)
        experiment = dataclasses.replace(experiment, data=data, training=TRAINING, **changes)
        run = start(experiment, tmp_path / "run")
        model = run.trainer.models(run.start_members().parameters)[0]

        def look(text):
            gallery = Gallery(tmp_path / "pictures")
            module.look_at_classifier(run, model, gallery, text)
            return gallery

        def data(text):
            page = look(text).write("page").read_text(encoding="utf-8")
            return json.loads(re.search(r'application/json">(.*?)</script>', page)[1])

        return look, data

    return classifier


def test_a_text_without_a_word_is_told(trained, drawn):
    message = complaint(inspect_run, trained("classifier"), text="☕ ... a")
    assert message == "the text to look at has no word in it"


def test_padding_with_unknown_words_is_none_of_the_text(untrained):
    look, data = untrained(TRANSFORMER, padding="unknown")
    assert complaint(look, "☕ ... a") == "the text to look at has no word in it"
    assert data("A bad lamp")["queries"] == ["bad", "lamp"]


def test_a_text_longer_than_a_translators_context_is_told(trained, drawn):
    message = complaint(inspect_run, trained("translator"), text="a b c d " * 9)
    assert "more than the context of 8" in message


def test_a_logistic_regression_has_nothing_to_look_at(untrained):
    look, _ = untrained(LOGISTIC)
    assert "a logistic regression has no attention" in complaint(look, "good")


def test_a_run_that_reads_sentence_by_sentence_is_told(untrained):
    look, _ = untrained(TRANSFORMER, sentences=2)
    assert "sentence by sentence" in complaint(look, "good")


# In a browser


CHROMIUM = shutil.which("chromium")
in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on the PATH")
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--virtual-time-budget=2000", "--dump-dom"),
]


def dumped(page: Path, folder: Path) -> str:
    """The document after the page's scripts have run."""
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={folder}", page.resolve().as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def rows(dom: str) -> list[tuple[str, list[dict]]]:
    """The rows of the head view: its name and its tokens' texts, classes, styles and titles."""
    (view,) = re.findall(r'<div class="heads">(.*?)</div></div>', dom, re.S)
    found = []
    for row in re.findall(r'<div class="row [a-z]+">(.*?)(?:</div>|$)', view, re.S):
        (name,) = re.findall(r'<span class="name">(.*?)</span>', row)
        tokens = re.findall(r'<span class="(token[^"]*)"([^>]*)>(.*?)</span>', row)
        found.append((name, [{"class": c, "rest": r, "text": t} for c, r, t in tokens]))
    return found


def shade(token: dict) -> float:
    """How opaque the ground of a token is."""
    colour = re.search(r"background: rgba?\(([^)]*)\)", token["rest"])[1].split(", ")
    assert colour[:3] == ["31", "119", "180"]
    return float(colour[3]) if len(colour) > 3 else 1.0


def assert_shows(dom: str, data: dict, query: int) -> None:
    """The head view is whole, `query` is chosen and each ground is as strong as its weight."""
    (name, queries), *heads = rows(dom)
    assert name == "hover here"
    mark = {" ": "␣", "\n": "↵"}
    marks = ["".join(mark.get(c, c) for c in text) for text in data["queries"]]
    assert [html.unescape(token["text"]) for token in queries] == marks
    chosen = [index for index, token in enumerate(queries) if "chosen" in token["class"].split()]
    assert chosen == [query]
    layers, number = np.shape(data["weights"])[:2]
    expected = [f"block {layer} head {head}" for layer in range(layers) for head in range(number)]
    assert [name for name, _ in heads] == expected
    tables = [table for layer in data["weights"] for table in layer]
    for (_, tokens), table in zip(heads, tables, strict=True):
        assert len(tokens) == len(data["keys"])
        np.testing.assert_allclose([shade(t) for t in tokens], table[query], atol=3e-3)
        titles = [float(re.search(r'title="([\d.]+)"', t["rest"])[1]) for t in tokens]
        np.testing.assert_allclose(titles, table[query], atol=1e-6)


@in_a_browser
@pytest.mark.parametrize("kind", ["learned", "translator"])
def test_the_head_view_follows_the_mouse(pages, kind, tmp_path):
    page = pages(kind)
    content = page.read_text(encoding="utf-8")
    data = json.loads(re.search(r'application/json">(.*?)</script>', content)[1])
    assert_shows(dumped(page, tmp_path / "first"), data, len(data["queries"]) - 1)
    script = (
        '<script>document.querySelectorAll(".queries .token")[2]'
        '.dispatchEvent(new MouseEvent("mouseover"))</script>'
    )
    moved = tmp_path / "moved.html"
    moved.write_text(content.replace("</body>", f"{script}</body>"), encoding="utf-8")
    assert_shows(dumped(moved, tmp_path / "second"), data, 2)
