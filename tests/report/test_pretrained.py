"""`tlite inspect` of a Hugging Face folder: each kind of model, from a text alone."""

import re
from functools import cache, partial
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np
import pytest

from tests.helpers.complaints import complaint
from tests.helpers.inspected import (
    FOLDER,
    GENERATOR,
    SEQ2SEQ,
    TABLE,
    facts_of,
    groups_of,
    undrawn,
    weights_of,
)
from tests.helpers.models import LeakySum
from tests.helpers.models import drawn as drawn_model
from tests.helpers.tokenizers import words
from tlite import inspection
from tlite import models as M
from tlite.models.inputs import window_inputs
from tlite.pictures.labels import matplotlib_label
from tlite.pretrained import PretrainedTokenizer, load_pretrained, save_pretrained
from tlite.report import inspect_pretrained
from tlite.report import runs as module
from tlite.report.models import draw_generator, draw_positions, positional_inputs
from tlite.report.page import Page

pytest.importorskip("tokenizers")
pytest.importorskip("sklearn")

MARKS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [*MARKS, "the", "cat", "sat", "on", "mat", "a", "dog", "ran", "good", "bad", "and", "$"]
TEXT = "the cat sat on the mat and the dog ran"
SIZES = {
    "vocabulary_size": len(WORDS), "context": 16, "width": 8, "num_heads": 2, "num_blocks": 2,
}  # fmt: skip
PRE_NORM = M.Block(pre_norm=True)
QKV_BIAS = M.Attention(qkv_bias=True)
BERT = SIZES | {
    "feed_forward": M.FeedForward(activation="gelu_exact"), "norm": M.Norm(epsilon=1e-12),
    "attention": QKV_BIAS, "embedding": M.Embedding(norm=True, type_vocab_size=2),
}  # fmt: skip
CLASSES = ["bad", "so so", "good"]
THREE_CLASSES = {"num_classes": 3, "pool": M.Pool("first", M.Projection("tanh", norm=False))}
MODELS = {
    "generator": ("gpt2", M.GeneratorConfig(
        **SIZES, block=PRE_NORM, attention=QKV_BIAS, head=M.LMHead(tied=True),
        feed_forward=M.FeedForward(activation="gelu"),
    )),
    "masked": ("bert", M.MaskedConfig(**BERT)),
    "encoder": ("bert", M.TransformerConfig(**BERT)),
    "classifier": ("bert", M.ClassifierConfig(**BERT | THREE_CLASSES)),
    "seq2seq": ("t5", M.Seq2SeqConfig(
        **SIZES, block=PRE_NORM, attention=M.Attention(scale=1.0), norm=M.Norm("rms", 1e-6),
        bias=False, positions=M.Relative(), embedding=M.Embedding(scale=False),
        source_vocabulary_size=len(WORDS), head=M.TranslatorHead(scale=8**-0.5),
        special_tokens=M.SpecialTokens(bos_id=0, eos_id=3),
    )),
}  # fmt: skip
ATTENTION = ["blocks-0-attention", "blocks-1-attention"]
PICTURES = {
    "generator": [*TABLE["learned"], *ATTENTION, *GENERATOR],
    "encoder": [*TABLE["learned"], *ATTENTION, "embedding"],
    "seq2seq": [
        *("bias-relative", "bias-relative-decoder", *SEQ2SEQ),
        *(f"{stack}-{name}" for stack in ("encoder", "decoder") for name in ATTENTION),
        *(f"decoder-blocks-{block}-cross_attention" for block in range(2)),
    ],
}
PICTURES["masked"] = [*PICTURES["encoder"], "masked-tokens"]
PICTURES["classifier"] = [*PICTURES["encoder"], "saliency", "ablation"]


def tokenizer(kind) -> PretrainedTokenizer:
    around = () if kind == "generator" else ("[CLS]", "[SEP]")
    roles = dict(zip(("pad", "unk", "cls", "sep", "mask"), MARKS, strict=True))
    return words({word: index for index, word in enumerate(WORDS)}, "[UNK]", around, **roles)


@cache
def folder_of(kind) -> Path:
    """Save the model of a kind, and return its folder."""
    family, config = MODELS[kind]
    labels = CLASSES if kind == "classifier" else None
    folder = Path(FOLDER.name, "folders", kind, "model")
    model = drawn_model(M.make_model, config)
    save_pretrained(folder, model, tokenizer(kind), family=family, labels=labels)
    return folder


@cache
def inspected(kind):
    """Return the page of a kind on the text, and its pictures by name."""
    with pytest.MonkeyPatch.context() as patch:
        pictures, to = undrawn(patch), Path(FOLDER.name, "inspected", kind)
        return inspect_pretrained(folder_of(kind), text=TEXT, to=to), pictures


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Write pages below the test's own working directory."""
    monkeypatch.chdir(tmp_path)
    yield
    plt.close("all")


@pytest.fixture
def drawn(monkeypatch):
    return undrawn(monkeypatch)


@jax.jit
def probabilities_of(model, tokens):
    return jax.nn.softmax(model(tokens))


@pytest.mark.parametrize("kind", MODELS)
def test_a_page_has_the_pictures_facts_and_weights_of_its_kind(kind):
    page, drawn = inspected(kind)
    assert page.name == "index.html"
    assert page.parent.name == kind
    assert set(drawn) == set(PICTURES[kind])
    assert {path.stem for path in page.parent.glob("*.png")} == set(drawn)
    assert all(caption.endswith(".") for caption, _ in drawn.values())
    model, read, origin = load_pretrained(folder_of(kind))
    facts, number = facts_of(page), M.count_parameters(model)
    assert set(facts) == {"Model", "Size", "Sample"} | ({"Score"} if kind == "masked" else set())
    assert facts["Model"].startswith(origin.family)
    assert f"{number:,} parameters" in facts["Size"]
    assert TEXT.split()[0] in facts["Sample"]

    tokens, (data, *_) = read.encode(TEXT), groups_of(page)
    keys = [WORDS[token] for token in tokens]
    assert data["keys"] == keys
    weights = weights_of(data)
    assert weights.shape == (2, 2, len(data["queries"]), len(keys))
    masked = ~np.tri(len(keys), dtype=bool) if kind == "generator" else False
    assert (np.isnan(weights) == masked).all()
    weights = np.nan_to_num(weights)
    np.testing.assert_allclose(weights.sum(-1), 1, atol=0.01)
    if kind == "seq2seq":
        assert data["queries"][0] == "[PAD]"  # the start token of T5
        return
    pattern = "blocks.*.attention.weights"
    _, captured = jax.jit(partial(inspection.run, capture=pattern))(model, tokens)
    np.testing.assert_allclose(weights, np.stack([*captured.values()]), atol=6e-4)


def test_a_generator_shows_its_predictions_and_losses():
    page, drawn = inspected("generator")
    model, read, _ = load_pretrained(folder_of("generator"))
    tokens = read.encode(TEXT)
    probabilities = np.asarray(probabilities_of(model, tokens))
    cells = {text.get_position(): text.get_text() for text in drawn["next-token"][1]().texts}
    for position, row in enumerate(probabilities):
        assert cells[position, 0] == matplotlib_label(WORDS[row.argmax()])
    bits = -np.log2(probabilities[np.arange(len(tokens) - 1), tokens[1:]])
    titles = re.findall(r'title="([\d.]+) bits"', page.read_text(encoding="utf-8"))
    np.testing.assert_allclose([float(n) for n in titles], bits, atol=0.051)
    loss = bits.mean() * np.log(2)
    assert f"({loss:.2f} nats)" in drawn["ablation"][0]


def test_a_classifier_page_explains_the_most_probable_class():
    page, drawn = inspected("classifier")
    model, read, _ = load_pretrained(folder_of("classifier"))
    probabilities = np.asarray(probabilities_of(model, read.encode(TEXT)))
    name, highest = CLASSES[probabilities.argmax()], probabilities.max()
    assert f"{name!r}, which has probability {highest:.3f}" in drawn["saliency"][0]
    for each, probability in zip(CLASSES, probabilities, strict=True):
        assert f"<span>{each}</span><span>{probability:.3f}</span>" in facts_of(page)["Sample"]


def test_positions_are_those_of_the_model():
    _, drawn = inspected("seq2seq")
    model, _, _ = load_pretrained(folder_of("seq2seq"))
    for stack, name in ((model.encoder, "bias-relative"), (model.decoder, "bias-relative-decoder")):
        length = stack.config.context
        inputs = positional_inputs(stack, length)
        bias = jax.jit(lambda stack, inputs: window_inputs(stack, inputs, 0).bias)(stack, inputs)
        lines = drawn[name][1]().lines
        np.testing.assert_allclose([line.get_ydata() for line in lines], bias[:, length // 2])


@pytest.mark.parametrize(
    ("positions", "windows", "expected"),
    [
        (M.Relative(), (3, 0), {"bias-relative"}),
        (M.ALiBi(), (3,), {"bias-alibi"}),
        (M.Rotary(), (3, 0), {*TABLE["rotary"]}),
        (M.Rotary(local_base=100.0), (3, 0), {*TABLE["rotary"]}),
        (M.Sinusoidal(split=True), (), {*TABLE["split_sinusoidal"]}),
        (M.NoPositions(), (3,), set()),
    ],
    ids=["relative", "alibi", "rotary", "local base", "split sinusoidal", "none"],
)
def test_positions_are_drawn_in_models_with_windows(positions, windows, expected, drawn, tmp_path):
    config = M.TransformerConfig(
        **SIZES, positions=positions, attention=M.Attention(windows=windows)
    )
    draw_positions(Page(tmp_path), M.Encoder(config, rng=jax.random.key(0)))
    assert set(drawn) == expected
    assert all(caption.endswith(".") for caption, _ in drawn.values())


def test_layers_without_attention_weights_are_left_out(drawn, tmp_path):
    blocks = (M.Block(attention=LeakySum()), M.Block())
    for block, expected in ((blocks[0], None), (blocks, [1])):
        drawn.clear()
        config = M.GeneratorConfig(**SIZES, block=block)
        page, model = Page(tmp_path), M.CausalLM(config, rng=jax.random.key(0))
        draw_generator(page, model, tokenizer("generator"), np.arange(8, dtype=np.int32))
        assert [view["blocks"] for view in page.heads] == ([expected] if expected else [])
        assert ("ablation" in drawn) == bool(expected)


def test_a_truncated_text_ends_with_its_special_token(drawn, capsys):
    (data,) = groups_of(inspect_pretrained(folder_of("encoder"), text=f"{TEXT} " * 3))
    assert len(data["queries"]) == 16
    assert data["queries"][-1] == "[SEP]"
    assert capsys.readouterr().out.count("16 of 32 tokens") == 1


def test_a_text_of_unknown_words_is_drawn(drawn):
    before = sorted(folder_of("masked").rglob("*"))
    inspect_pretrained(folder_of("masked"), text="zzz $ " * 5)
    assert set(drawn) == set(PICTURES["masked"])
    assert sorted(folder_of("masked").rglob("*")) == before


def test_the_default_folder_has_the_models_name(drawn, monkeypatch):
    assert inspect_pretrained(folder_of("encoder")) == Path("inspection/model/index.html")
    monkeypatch.setattr(module, "open_model", lambda *_: load_pretrained(folder_of("encoder")))
    page = inspect_pretrained("someone/a-model", text=TEXT)
    assert page == Path("inspection/someone--a-model/index.html")


def test_a_folder_without_a_tokenizer_is_an_error(tmp_path):
    folder = tmp_path / "bare"
    save_pretrained(folder, load_pretrained(folder_of("generator"))[0], family="gpt2")
    assert "tokenizer.json" in complaint(inspect_pretrained, folder)
    assert not (tmp_path / "inspection").exists()
