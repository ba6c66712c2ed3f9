"""`tlite inspect`: every picture of a run, on a page that needs no network and works."""

import base64
import dataclasses
import html
import re
from functools import partial
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure

from tests.helpers.complaints import complaint
from tests.helpers.inspected import TRAINING, experiment, groups_of, undrawn, weights_of
from tests.helpers.recipes import LOGISTIC, TEXTS, TRANSFORMER, labelled, train
from tlite import inspection
from tlite.experiment import Words
from tlite.pictures.marks import symbols
from tlite.recipes import GeneratorRecipe, start
from tlite.report import inspect_run
from tlite.report import runs as module
from tlite.report.page import Page, sample
from tlite.report.runs import word_weights
from tlite.training.metrics import iterate_metrics

pytest.importorskip("tokenizers")
pytest.importorskip("sacrebleu")
pytest.importorskip("sklearn")

EMBEDDING = ["embedding-pca", "embedding-tsne"]
TRAINED = ["schedule", "curve-loss", "curve-accuracy"]
TABLE = "positions-{}", "position-curves-{}", "similarity-{}"
LEARNED, SINUSOIDAL = ([t.format(kind) for t in TABLE] for kind in ("learned", "sinusoidal"))
GENERATOR = [
    *(*TRAINED, "blocks-0-attention", *EMBEDDING, "values-of-block-0-pca"),
    *("values-of-block-0-tsne", "next-token", "logit-lens", "loss-by-position"),
    *("head-previous", "head-duplicate", "head-induction"),
    *("previous-by-step", "duplicate-by-step", "induction-by-step", "ablation", "patching"),
    *("frequencies-character", "frequencies-word", "lengths-line", "lengths-passage"),
]
PICTURES = {
    "learned": [*GENERATOR, *LEARNED],
    "rotary": [*GENERATOR, "angles-rotary", "similarity-rotary"],
    "classifier": [
        *(*TRAINED, *SINUSOIDAL, "blocks-0-attention", *EMBEDDING),
        *("saliency", "ablation", "frequencies-character", "frequencies-word", "lengths-text"),
    ],
    "translator": [
        *(*TRAINED, *SINUSOIDAL, "curve-bleu", "curve-exact_match"),
        *("alignment", "next-token", "logit-lens", "ablation-encoder-attention"),
        *("ablation-decoder-attention", "ablation-decoder-cross_attention"),
        *("encoder-blocks-0-attention", "decoder-blocks-0-attention", *EMBEDDING),
        *("decoder-blocks-0-cross_attention", "frequencies-character", "frequencies-word"),
        *("lengths-source-sentence", "lengths-target-sentence"),
    ],
}
each_kind = pytest.mark.parametrize("kind", ["learned", "classifier", "translator"])


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
    """The page of a run, drawn when it is first asked for, in pictures of few dots."""
    drawn, save = {}, Figure.savefig

    def page(kind) -> Path:
        if kind not in drawn:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(
                    Figure, "savefig", lambda figure, path, **_: save(figure, path, dpi=20)
                )
                drawn[kind] = inspect_run(trained(kind))
        return drawn[kind]

    return page


@pytest.fixture
def drawn(monkeypatch):
    yield undrawn(monkeypatch)
    plt.close("all")


def marks(text) -> list[str]:
    return [symbols(token) for token in text]


def caption_of(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


# The page


@each_kind
def test_every_picture_of_the_kind_is_on_the_page_once_with_a_sentence(pages, kind):
    page = pages(kind)
    files = {path.stem: path for path in page.parent.glob("*.png")}
    assert page.name == "index.html"
    assert set(files) == set(PICTURES[kind])
    assert {path.suffix for path in page.parent.iterdir()} == {".png", ".html"}
    assert all(path.read_bytes().startswith(b"\x89PNG\r\n") for path in files.values())
    content = page.read_text(encoding="utf-8")
    sources = re.findall(r'src="data:image/png;base64,([^"]+)"', content)
    assert sorted(sources) == sorted(map(caption_of, files.values()))
    figures = re.findall(r"<figure>(.*?)</figure>", content, re.S)
    assert len(figures) >= len(sources) == content.count("<img")
    for figure in figures:
        (caption,) = re.findall(r"<figcaption>(.*?)</figcaption>", figure)
        assert caption.endswith(".")
        assert len(caption.split()) > 4


@each_kind
def test_the_page_names_no_network_and_has_no_control_character(pages, kind):
    content = pages(kind).read_text(encoding="utf-8")
    without = re.sub(r'"data:image/png;base64,[^"]*"', '""', content)
    without = without.replace("http://www.w3.org/2000/svg", "")  # a name, no address
    assert not re.search(
        r"https?:|//[a-z]|<link|@import|url\([^#]|<script[^>]+src|<iframe|href=|fetch|XMLHttp",
        without,
    )
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", content)


@each_kind
def test_the_page_opens_with_what_the_run_is(pages, trained, kind):
    run, content = trained(kind), pages(kind).read_text(encoding="utf-8")
    facts = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", content, re.S))
    assert list(facts) == ["Experiment", "Size", "Training", "Score", "Sample"]
    assert content.index("<dl>") < content.index("What each head looks at")
    assert content.index("What each head looks at") < content.index("<details>")
    assert "<details open" not in content
    parameters, step = run.parameters("best")
    model = run.trainer.models(parameters)[0]
    assert facts["Experiment"].startswith("tiny, a ")
    assert f"best step {step}, member 0" in facts["Experiment"]
    assert f"{sum(leaf.size for leaf in jax.tree.leaves(model)):,} parameters" in facts["Size"]
    assert "2 heads, width 8" in facts["Size"]
    assert "2 steps" in facts["Training"]
    lines = [*iterate_metrics(run.run.metrics, "validation")]
    (line,) = (line for line in lines if line["step"] == step)
    assert f"validation loss {line['loss_members'][0]:.4f} nats" in facts["Score"]
    assert "the best of 2 validations by " in facts["Score"]
    beginning = {"learned": "The ", "classifier": "It is good", "translator": "source: "}[kind]
    assert html.unescape(facts["Sample"]).startswith(f"<pre>{beginning}")
    if kind == "classifier":
        found = map(float, re.findall(r"<span>(\d\.\d{3})</span>", facts["Sample"]))
        assert sum(found) == pytest.approx(1, abs=0.003)


def test_the_sample_is_the_one_that_training_has_printed(trained, drawn, capsys, monkeypatch):
    run = trained("learned")
    monkeypatch.setattr(run, "draw", lambda *_: None)
    GeneratorRecipe.report(run, run.validation(), *run.parameters())
    (path,) = run.run.samples.iterdir()
    written = path.read_text(encoding="utf-8")
    assert f"\n{written}\n" in capsys.readouterr().out
    content = inspect_run(run).read_text(encoding="utf-8")
    assert f"<dt>Sample</dt><dd>{sample(written)}</dd>" in content


@each_kind
def test_the_page_shows_the_weights_of_the_model_on_the_text(pages, trained, kind):
    run, groups = trained(kind), groups_of(pages(kind))
    parameters, _ = run.parameters("best")
    model = run.trainer.models(parameters)[0]
    for group in groups:
        weights, length = weights_of(group), len(group["queries"])
        assert weights.shape == (1, 2, length, len(group["keys"]))
        np.testing.assert_allclose(np.nansum(weights, -1), 1, atol=0.01)
        causal = kind == "learned" or group["name"] == "decoder"
        masked = ~np.tri(length, dtype=bool) if causal else np.zeros(weights.shape[2:], bool)
        assert (np.isnan(weights) == masked).all()
    data = groups[0]
    if kind == "learned":
        text = run.tokenizer.decode(run.validation_tokens)
        windows = [text[i : i + 16] for i in range(0, len(text) - 16, 16)]
        letters = [sum(map(str.isalpha, window)) for window in windows]
        shown = windows[letters.index(max(letters))]
        assert data["queries"] == data["keys"] == marks(shown)
        capture = jax.jit(partial(inspection.run, capture="*.weights"))
        _, captured = capture(model, run.tokenizer.encode(shown))
        found = np.nan_to_num(weights_of(data)[0])
        np.testing.assert_allclose(found, *captured.values(), atol=6e-4)
    elif kind == "translator":
        assert [group["name"] for group in groups] == ["cross-attention", "encoder", "decoder"]
        assert data["queries"][0] == "[START]"
        assert data["keys"][-1] == "[END]"
    else:
        beginning = ["it", "is", "good", "like", "it", "very", "good", "sound"]
        assert data["queries"] == beginning


def test_a_generator_with_rotary_positions_has_no_table_of_them_to_draw(trained, drawn):
    inspect_run(trained("rotary"))
    assert set(drawn) == set(PICTURES["rotary"])


def test_a_text_of_ones_own_takes_the_place_of_the_last_one_unless_it_is_wrong(trained, drawn):
    run = trained("learned")
    page = inspect_run(run, text="fox & <b> </scr")
    assert groups_of(page)[0]["queries"] == marks("fox & <b> </scr")
    assert set(drawn) == set(PICTURES["learned"])
    before = page.read_bytes()
    message = complaint(inspect_run, run, text="The \u65e5")
    assert message == "the model does not know '\u65e5' in the text"
    assert page.read_bytes() == before
    assert not [p for p in run.run.folder.iterdir() if p.name.startswith(".")]
    drawn.clear()
    assert inspect_run(run, text="T") == page
    assert groups_of(page)[0]["queries"] == ["T"]
    assert set(PICTURES["learned"]) - set(drawn) == {"ablation", "patching"}  # nothing to predict
    assert not (page.parent / "ablation.png").exists()


def test_members_and_checkpoints_have_pictures_of_their_own(trained, drawn):
    run, scores, losses = trained("learned"), [], []
    for member, checkpoint in ((0, "1"), (1, "2")):
        page = inspect_run(run, checkpoint, member)
        assert f"step {checkpoint}, member {member}" in page.read_text(encoding="utf-8")
        lines = [line.get_ydata() for line in drawn["induction-by-step"][1]().lines]
        table = drawn["head-induction"][1]().images[0].get_array()
        np.testing.assert_allclose(np.array(lines)[:, int(checkpoint) - 1], table.ravel())
        scores.append(np.array(lines))
        losses.append(drawn["loss-by-position"][1]().lines[0].get_ydata())
    assert np.abs(scores[0] - scores[1]).max() > 1e-6
    assert losses[0].mean() > losses[1].mean()


def coloured(content: str) -> str:
    """The text whose tokens are coloured by their losses."""
    (text,) = re.findall(r'<p class="text">(.*?)</p>', content)
    return html.unescape(re.sub(r"<[^>]+>", "", text.replace("&#8629;<br>", "\n")))


def test_the_coloured_text_is_the_beginning_of_the_validation_part(pages, trained):
    run, shown = trained("learned"), coloured(pages("learned").read_text(encoding="utf-8"))
    assert len(shown) == 6 * 16
    assert shown == run.tokenizer.decode(run.validation_tokens[1 : 1 + 6 * 16])


def test_only_the_characters_of_a_short_validation_part_are_shown(
    trained, drawn, monkeypatch, tmp_path
):
    run = trained("learned")
    monkeypatch.setattr(run, "validation_tokens", run.validation_tokens[:60])
    parameters, page = run.parameters("best")[0], Page(tmp_path)
    module.draw_validation(run, run.trainer.models(parameters)[0], page, parameters)
    shown = coloured("".join(page.topics["Predictions"]))
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
        (data,) = groups_of(inspect_run(trained("classifier"), text=text))
        assert len(data["queries"]) == len(data["weights"][0][0]) == number
        assert len(drawn["saliency"][1]().patches) == number


# Mistakes


@pytest.mark.parametrize(
    ("kind", "text"), [("learned", ""), ("classifier", " \n"), ("translator", "")]
)
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
            page = Page(tmp_path / "pictures")
            module.draw_classifier_run(run, model, page, text)
            return page

        def data(text):
            return look(text).heads[0]

        return look, data

    return classifier


def test_padding_with_unknown_words_is_none_of_the_text(untrained):
    look, data = untrained(TRANSFORMER, padding="unknown")
    assert complaint(look, "☕ ... a") == "the text to look at has no word in it"
    assert data("A bad lamp")["queries"] == ["bad", "lamp"]


def test_a_classifier_with_ngrams_is_looked_at_as_it_is(untrained, drawn):
    words = Words(min_document_frequency=2, word_ngrams=2, character_ngrams=3)
    look, _ = untrained(TRANSFORMER, tokenizer=words, ngram_l2=1e-3)
    page = look("A bad lamp")
    assert page.heads[0]["queries"] == ["bad", "lamp"]
    assert np.shape(page.heads[0]["weights"]) == (1, 2, 2, 2)
    assert {*PICTURES["classifier"]} - {*drawn} == {*TRAINED}
    assert len(drawn["saliency"][1]().patches) == 2


def test_a_text_longer_than_a_translators_context_is_told(trained, drawn):
    message = complaint(inspect_run, trained("translator"), text="a b c d " * 9)
    assert "more than the context of 8" in message


def test_a_logistic_regression_has_nothing_to_look_at(untrained):
    look, _ = untrained(LOGISTIC)
    assert "a logistic regression has no attention" in complaint(look, "good")


def test_a_run_that_reads_sentence_by_sentence_is_told(untrained):
    look, _ = untrained(TRANSFORMER, sentences=2)
    assert "sentence by sentence" in complaint(look, "good")
