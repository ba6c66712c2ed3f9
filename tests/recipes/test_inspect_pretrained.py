"""`tlite inspect` of a Hugging Face folder: each kind of model, from a text alone."""

import json
import re
import shutil
from functools import partial

import jax
import matplotlib.pyplot as plt
import numpy as np
import pytest

from tests.helpers.recipes import complaint
from tlite import inspection
from tlite.inspection.gallery import Gallery
from tlite.inspection.head_view import MASKED
from tlite.models import (
    BlocksConfig,
    ClassifierConfig,
    Encoder,
    GeneratorConfig,
    MaskedConfig,
    Seq2SeqConfig,
    TransformerClassifier,
    TransformerGenerator,
    TransformerMasked,
    TransformerSeq2Seq,
)
from tlite.pretrained import PretrainedTokenizer, load_pretrained, save_pretrained
from tlite.recipes import inspect_pretrained as module
from tlite.recipes.inspect_pretrained import inspect_pretrained

tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("sklearn")

MARKS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [*MARKS, "the", "cat", "sat", "on", "mat", "a", "dog", "ran", "good", "bad", "and", "$"]
TEXT = "the cat sat on the mat and the dog ran"
SIZES = {
    "vocabulary_size": len(WORDS), "context": 16, "width": 8, "num_heads": 2, "num_blocks": 2,
}  # fmt: skip
GPT2 = {"norm_first": True, "activation": "gelu", "qkv_bias": True, "tied_head": True}
LLAMA = {
    "norm_first": True, "norm": "rms", "activation": "silu", "gated": True, "bias": False,
    "positions": "rotary", "key_heads": 1,
}  # fmt: skip
BERT = {
    "activation": "gelu_exact", "qkv_bias": True, "embedding_norm": True, "segments": 2,
    "norm_epsilon": 1e-12,
}  # fmt: skip
OF_CLASSES = {"num_classes": 3, "aggregation": "first", "projection": "tanh"}
T5 = {
    "norm_first": True, "norm": "rms", "bias": False, "positions": "relative",
    "attention_scale": 1.0, "scale_embedding": False, "source_vocabulary_size": len(WORDS),
    "head_scale": 8**-0.5, "start_id": 0, "end_id": 3, "norm_epsilon": 1e-6,
}  # fmt: skip
MODELS = {
    "generator": ("gpt2", TransformerGenerator, GeneratorConfig(**SIZES, **GPT2)),
    "rotary": ("llama", TransformerGenerator, GeneratorConfig(**SIZES, **LLAMA)),
    "masked": ("bert", TransformerMasked, MaskedConfig(**SIZES, **BERT)),
    "encoder": ("bert", Encoder, BlocksConfig(**SIZES, **BERT)),
    "classifier": ("bert", TransformerClassifier, ClassifierConfig(**SIZES, **BERT | OF_CLASSES)),
    "seq2seq": ("t5", TransformerSeq2Seq, Seq2SeqConfig(**SIZES, **T5)),
}
LEARNED = ["positions-learned", "position-curves-learned", "similarity-learned"]
ROTARY = ["angles-rotary", "similarity-rotary"]
ATTENTION = ["blocks-0-attention", "blocks-1-attention"]
EMBEDDING = ["embedding-pca", "embedding-tsne"]
GENERATOR = [
    *(*ATTENTION, *EMBEDDING, "values-of-block-0-pca", "values-of-block-0-tsne", "next-token"),
    *("logit-lens", "head-previous", "head-duplicate", "head-induction", "ablation", "patching"),
]
PICTURES = {
    "generator": [*LEARNED, *GENERATOR],
    "rotary": [*ROTARY, *GENERATOR],
    "encoder": [*LEARNED, *ATTENTION, *EMBEDDING],
    "seq2seq": [
        *("bias-relative", "bias-relative-decoder", *EMBEDDING, "alignment", "next-token"),
        *(f"{place}-{name}" for place in ("encoder", "decoder") for name in ATTENTION),
        *("decoder-blocks-0-cross_attention", "decoder-blocks-1-cross_attention", "logit-lens"),
        *("ablation-encoder-attention", "ablation-decoder-attention"),
        "ablation-decoder-cross_attention",
    ],
}
PICTURES["masked"] = [*PICTURES["encoder"], "filled-in", "tokens", "logit-lens", "ablation"]
PICTURES["classifier"] = [*PICTURES["encoder"], "saliency", "ablation"]
each_kind = pytest.mark.parametrize("kind", MODELS)


def tokenizer(kind) -> PretrainedTokenizer:
    from tokenizers import decoders, models, pre_tokenizers, processors

    ids = {word: index for index, word in enumerate(WORDS)}
    content = tokenizers.Tokenizer(models.WordPiece(vocab=ids, unk_token="[UNK]"))
    content.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    content.decoder = decoders.WordPiece()
    if kind not in ("generator", "rotary"):
        single = "$A [SEP]" if kind == "seq2seq" else "[CLS] $A [SEP]"
        content.post_processor = processors.TemplateProcessing(
            single=single, special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    content.add_special_tokens(MARKS)
    roles = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    return PretrainedTokenizer(content, roles)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The folder of a kind, written when it is first asked for."""
    written = {}

    def folder(kind):
        if kind not in written:
            family, cls, config = MODELS[kind]
            # Drawn by NumPy: there is nothing to compile.
            shapes = jax.eval_shape(lambda: cls(config, key=jax.random.key(0)))
            noise = np.random.default_rng(0)

            def drawn(path, leaf):
                mean = "scale" in jax.tree_util.keystr(path)
                return np.float32(mean + 0.3 * noise.normal(size=leaf.shape))

            model = jax.tree_util.tree_map_with_path(drawn, shapes)
            written[kind] = tmp_path_factory.mktemp(kind) / "model"
            labels = ["bad", "so so", "good"] if kind == "classifier" else None
            settings = {"family": family, "labels": labels}
            save_pretrained(written[kind], model, tokenizer(kind), **settings)
        return written[kind]

    return folder


@pytest.fixture
def copy(folders, tmp_path):
    """A folder of a kind that another text may be looked at in."""
    return lambda kind: shutil.copytree(folders(kind), tmp_path / "model")


def undrawn(patch) -> dict:
    """By name what would be drawn, without the time that it takes: (caption, what draws it)."""
    pictures = {}

    def draw(gallery, topic, name, caption, plot):
        (gallery.folder / f"{name}.png").touch()
        pictures[name] = caption, plot

    patch.setattr(Gallery, "draw", draw)
    return pictures


@pytest.fixture
def drawn(monkeypatch):
    yield undrawn(monkeypatch)
    plt.close("all")


@pytest.fixture(scope="module")
def looked(folders):
    """The page of a kind on the text, and what would be drawn; made when first asked for."""
    pages = {}

    def page(kind):
        if kind not in pages:
            with pytest.MonkeyPatch.context() as patch:
                pictures = undrawn(patch)
                pages[kind] = inspect_pretrained(folders(kind), text=TEXT), pictures
        return pages[kind]

    yield page
    plt.close("all")


@jax.jit
def probabilities_of(model, tokens):
    return jax.nn.softmax(model(tokens))


def head_view(page) -> list[dict]:
    content = page.read_text(encoding="utf-8")
    return json.loads(re.search(r'application/json">(.*?)</script>', content)[1])


def facts_of(page) -> dict[str, str]:
    content = page.read_text(encoding="utf-8")
    return dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", content, re.S))


@each_kind
def test_a_page_of_the_kind_has_its_pictures_its_facts_and_the_weights(folders, looked, kind):
    page, drawn = looked(kind)
    assert page == folders(kind) / "inspection" / "index.html"
    assert set(drawn) == set(PICTURES[kind])
    assert {path.stem for path in page.parent.glob("*.png")} == set(drawn)
    assert all(caption.endswith(".") for caption, _ in drawn.values())
    model, read, told = load_pretrained(folders(kind))
    facts, number = facts_of(page), sum(leaf.size for leaf in jax.tree.leaves(model))
    scored = ["Score"] * (kind in ("generator", "rotary", "masked"))
    assert sorted(facts) == sorted(["Model", "Size", "Sample", *scored])
    assert facts["Model"].startswith(told.family)
    assert f"{number:,} parameters" in facts["Size"]
    assert TEXT.split()[0] in facts["Sample"]

    tokens, groups = read.encode(TEXT), head_view(page)
    pieces, data = [WORDS[token] for token in tokens], groups[0]
    assert data["keys"] == pieces
    weights = np.asarray(data["weights"])
    assert weights.shape == (2, 2, len(data["queries"]), len(pieces))
    causal = kind in ("generator", "rotary")
    mask = np.tri(len(pieces), dtype=bool) if causal else np.ones(weights.shape[2:], bool)
    assert ((weights == MASKED) == ~mask).all()
    weights = np.where(mask, weights, 0) / 1000
    np.testing.assert_allclose(weights.sum(-1), 1, atol=0.01)
    if kind == "seq2seq":
        assert data["queries"][0] == "[PAD]"  # which is where it starts
        return
    pattern = "blocks.*.attention.weights"
    _, captured = jax.jit(partial(inspection.run, capture=pattern))(model, tokens)
    np.testing.assert_allclose(weights, np.stack([*captured.values()]), atol=6e-4)


def test_pictures_are_files(copy):
    page = inspect_pretrained(copy("encoder"), text=TEXT)
    assert {path.stem for path in page.parent.glob("*.png")} == set(PICTURES["encoder"])
    assert all(p.read_bytes().startswith(b"\x89PNG\r\n") for p in page.parent.glob("*.png"))
    content = page.read_text(encoding="utf-8")
    assert content.count("<img") == content.count("<figcaption>") == len(PICTURES["encoder"])


def test_a_generator_shows_what_it_expects_and_what_surprises_it(folders, looked):
    page, drawn = looked("generator")
    model, read, _ = load_pretrained(folders("generator"))
    tokens = read.encode(TEXT)
    probabilities = np.asarray(probabilities_of(model, tokens))
    cells = {text.get_position(): text.get_text() for text in drawn["next-token"][1]().texts}
    for position, row in enumerate(probabilities):
        assert cells[position, 0] == inspection.plots.visible(WORDS[row.argmax()])
    bits = -np.log2(probabilities[np.arange(len(tokens) - 1), tokens[1:]])
    found = re.findall(r'title="([\d.]+) bits"', page.read_text(encoding="utf-8"))
    np.testing.assert_allclose([float(n) for n in found], bits, atol=0.051)
    loss = bits.mean() * np.log(2)
    assert f"({loss:.2f} nats)" in drawn["ablation"][0]
    assert f"loss {loss:.4f} nats per token" in facts_of(page)["Score"]


def test_a_classifier_is_asked_for_its_most_probable_class(folders, looked):
    page, drawn = looked("classifier")
    model, read, _ = load_pretrained(folders("classifier"))
    probabilities = np.asarray(probabilities_of(model, read.encode(TEXT)))
    classes = ["bad", "so so", "good"]
    name, most = classes[probabilities.argmax()], probabilities.max()
    assert f"What speaks for {name!r}, which has probability {most:.3f}" in drawn["saliency"][0]
    for each, probability in zip(classes, probabilities, strict=True):
        assert f"<span>{each}</span><span>{probability:.3f}</span>" in facts_of(page)["Sample"]


def test_positions_are_those_of_the_model(folders, looked):
    _, drawn = looked("seq2seq")
    model, _, _ = load_pretrained(folders("seq2seq"))
    for stack, name in ((model.encoder, "bias-relative"), (model.decoder, "bias-relative-decoder")):
        at = np.arange(stack.config.context)
        bias = jax.jit(lambda stack, at: stack.position_settings(at, at, None, 0)["bias"])(
            stack, at
        )
        lines = drawn[name][1]().lines
        middle = len(at) // 2
        np.testing.assert_allclose([line.get_ydata() for line in lines], bias[:, middle])


def test_a_long_text_is_cut_and_keeps_its_last_mark(copy, drawn, capsys):
    (data,) = head_view(inspect_pretrained(copy("encoder"), text=f"{TEXT} " * 3))
    assert len(data["queries"]) == 16
    assert data["queries"][-1] == "[SEP]"
    assert capsys.readouterr().out == "looking at 16 of 32 tokens\n"


def test_one_token_predicts_nothing_and_is_looked_at(copy, drawn):
    page = inspect_pretrained(copy("generator"), text="cat")
    assert head_view(page)[0]["queries"] == ["cat"]
    assert set(PICTURES["generator"]) - set(drawn) == {"ablation", "patching"}


def test_a_text_of_nothing_known_is_looked_at(copy, drawn):
    inspect_pretrained(copy("masked"), text="zzz $ " * 5)
    assert set(drawn) == set(PICTURES["masked"])


def test_without_a_text_an_english_one_is_read(copy, drawn):
    page = inspect_pretrained(copy("encoder"))  # which knows a few of its words
    known = [piece for piece in head_view(page)[0]["keys"] if piece != "[UNK]"]
    assert known == ["[CLS]", "and", "the", "a", "[SEP]"]


def test_pictures_of_a_hub_name_go_below_runs(folders, drawn, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "open_model", lambda *_: load_pretrained(folders("encoder")))
    page = inspect_pretrained("someone/a-model", text=TEXT)
    assert page.resolve() == tmp_path / "runs/inspection/someone--a-model/index.html"


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_text_is_told(folders, text):
    assert complaint(inspect_pretrained, folders("generator"), text=text) == (
        "the text to look at is empty"
    )


def test_a_checkpoint_or_member_is_told(folders):
    message = complaint(inspect_pretrained, folders("generator"), checkpoint="3")
    assert "--checkpoint and --member are for runs" in message


def test_a_folder_without_a_tokenizer_is_told(folders, tmp_path):
    folder = tmp_path / "bare"
    save_pretrained(folder, load_pretrained(folders("generator"))[0], family="gpt2")
    assert "tokenizer.json" in complaint(inspect_pretrained, folder)
    assert not (folder / "inspection").exists()
