"""tlite models saved as folders that transformers loads, with the same logits."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.models import drawn
from tests.helpers.transformers_models import (
    ALL,
    batch,
    edited,
    hf_logits,
    in_transformers,
    load_file,
    loaded,
    make,
    saved,
    saved_logits,
    tlite_logits,
    torch,
    transformers,
)
from tlite import models as M
from tlite.errors import UserError
from tlite.pretrained import load_pretrained, save_pretrained
from tlite.pretrained.configs import FROM_SCRATCH, flatten
from tlite.pretrained.folders import abstract_model
from tlite.text import IndexTokenizer, PairTokenizer

WORDS = "bert.embeddings.word_embeddings.weight"
SWIGLU = M.FeedForward(activation="silu", gated=True)
TIED = {"head": M.LMHead(tied=True)}
QKV_BIASES = M.Attention(qkv_bias=True)
ROTARY = TIED | {
    "norm": M.Norm("rms"), "positions": M.Rotary(), "feed_forward": SWIGLU, "bias": False,
}  # fmt: skip


@pytest.mark.parametrize("name", ALL)
def test_load_and_save_keeps_the_model(name, tmp_path):
    """All arrays are bitwise equal, with the original and, in some families, without it."""
    hf_model, folder = saved(name)
    model, pretrained = loaded(name)
    assert save_pretrained(tmp_path / "same", model, original=pretrained) == pretrained.family
    expected, arrays = (load_file(f / "model.safetensors") for f in (folder, tmp_path / "same"))
    assert arrays.keys() == expected.keys()
    for key, array in expected.items():
        np.testing.assert_array_equal(arrays[key].view(np.uint32), array.view(np.uint32))
    assert json.loads((tmp_path / "same" / "config.json").read_text()) == pretrained.fields
    if pretrained.family not in FROM_SCRATCH[pretrained.kind]:
        return
    assert save_pretrained(tmp_path / "new", model, family=pretrained.family) == pretrained.family
    opened = in_transformers(tmp_path / "new").eval()
    assert type(opened) is type(hf_model)
    opened.config.pad_token_id = hf_model.config.pad_token_id  # comes with a tokenizer
    # Not bitwise: some fields are written in another form.
    np.testing.assert_allclose(hf_logits(opened), saved_logits(name), rtol=0, atol=2e-6)
    again = load_pretrained(tmp_path / "new")[2]
    expected, fields = flatten(pretrained.config), flatten(again.config)
    assert fields.keys() == expected.keys()
    for path, value in expected.items():
        is_resolved = path == "feed_forward.mlp_dim" or path.startswith("positions.scaling")
        assert fields[path] == value or is_resolved, path


def test_16_bit_shards(tmp_path):
    make("gpt2").to(torch.bfloat16).save_pretrained(tmp_path / "hf", max_shard_size="20KB")
    shards = list((tmp_path / "hf").glob("*.safetensors"))
    assert len(shards) > 2
    expected = {name: array for shard in shards for name, array in load_file(shard).items()}
    model, _, pretrained = load_pretrained(tmp_path / "hf")
    assert {leaf.dtype for leaf in jax.tree.leaves(model)} == {jnp.dtype("float32")}
    save_pretrained(tmp_path / "same", model, original=pretrained)
    arrays = load_file(tmp_path / "same" / "model.safetensors")
    assert arrays.keys() == expected.keys()
    assert all(np.array_equal(arrays[name], array) for name, array in expected.items())
    assert json.loads((tmp_path / "same" / "config.json").read_text())["dtype"] == "float32"


@pytest.mark.parametrize(
    ("name", "copy", "of"),
    [
        ("llama3", "lm_head.weight", "model.embed_tokens.weight"),
        ("gpt2", "lm_head.weight", "transformer.wte.weight"),
        ("bart", "lm_head.weight", "model.shared.weight"),
        ("t5", "lm_head.weight", "shared.weight"),
        ("bert ForMaskedLM", "cls.predictions.decoder.weight", WORDS),
    ],
)
def test_equal_untied_embeddings(name, copy, of, tmp_path):
    """They are saved twice or declared as tied: transformers misses no array."""
    sides = [f"model.{side}.embed_tokens.weight" for side in ("encoder", "decoder")]
    copies = [copy, *sides] if name == "bart" else [copy]
    folder = edited(
        name,
        tmp_path / "hf",
        lambda stored: stored | {copy: stored[of].copy() for copy in copies},
        tie_word_embeddings=False,
    )
    model, _, pretrained = load_pretrained(folder)
    save_pretrained(tmp_path / "same", model, original=pretrained)
    opened, report = in_transformers(tmp_path / "same", output_loading_info=True)
    assert not report["missing_keys"]
    np.testing.assert_allclose(tlite_logits(model), hf_logits(opened.eval()), rtol=0, atol=1e-5)
    back = load_pretrained(tmp_path / "same")[0]
    np.testing.assert_array_equal(tlite_logits(back), tlite_logits(model))


def test_unused_arrays_keep_their_bits(tmp_path):
    pooler = np.float32(np.random.default_rng(0).normal(size=(32, 32)))
    unused = {"bert.pooler.dense.weight": pooler}
    folder = edited("bert ForMaskedLM", tmp_path / "hf", lambda stored: stored | unused)
    model, _, pretrained = load_pretrained(folder)
    save_pretrained(tmp_path / "same", model, original=pretrained)
    arrays = load_file(tmp_path / "same" / "model.safetensors")
    for name, array in load_file(folder / "model.safetensors").items():
        np.testing.assert_array_equal(arrays[name], array)


def test_save_a_classifier_from_a_masked_model(tmp_path):
    """A masked model with a new head becomes a classifier in transformers."""
    model, _, pretrained = load_pretrained(saved("bert ForMaskedLM")[1], num_classes=3)
    family = save_pretrained(tmp_path, model, original=pretrained, labels=["bad", "fair", "good"])
    assert family == "bert"
    hf_model = in_transformers(tmp_path)
    np.testing.assert_allclose(hf_logits(hf_model.eval()), tlite_logits(model), rtol=0, atol=1e-5)
    assert hf_model.config.id2label == {0: "bad", 1: "fair", 2: "good"}
    assert load_pretrained(tmp_path)[2].labels == ["bad", "fair", "good"]


SMALL = {"vocabulary_size": 50, "num_blocks": 1}


def generator(**settings):
    settings = SMALL | {"block": "pre_norm"} | settings
    return drawn(M.CausalLM, M.GeneratorConfig(**settings), spread=0.5)


def classifier(**settings):
    pool = M.Pool("first", M.Projection("tanh", norm=False))
    settings = (
        SMALL | {"num_classes": 3, "pool": pool, "embedding": M.Embedding(norm=True)} | settings
    )
    return drawn(M.SequenceClassifier, M.ClassifierConfig(**settings), spread=0.5)


def seq2seq(**settings):
    settings = (
        SMALL
        | {"source_vocabulary_size": 50, "special_tokens": M.SpecialTokens(49, 1, 2)}
        | settings
    )
    return drawn(M.Seq2Seq, M.Seq2SeqConfig(**settings), spread=0.5)


SQUARED = M.FeedForward(activation="squared_relu", gated=True)
PLAIN = {"positions": M.Sinusoidal(), "embedding": M.Embedding(scale=False)}
SEPARATE = {"head": M.TranslatorHead("separate"), "positions": M.Sinusoidal(split=True)}
SCALED = {"positions": M.Learned(), "embedding": M.Embedding(scale=True, norm=True)}


@pytest.mark.parametrize(
    ("family", "make", "settings"),
    [
        ("gpt2", generator, TIED | {"feed_forward": M.FeedForward(activation="gelu")}),
        ("gpt2", generator, {"positions": M.Sinusoidal(), "bias": False}),
        ("gpt2", generator, TIED | PLAIN),
        ("llama", generator, ROTARY | {"attention": M.Attention(num_kv_heads=2)}),
        ("llama", generator, ROTARY | {"bias": True, "head": M.LMHead(bias=False)}),
        ("llama", generator, ROTARY | {"feed_forward": SQUARED}),
        ("gpt_neox", generator, TIED | {"positions": M.Rotary(7.0), "attention": QKV_BIASES}),
        ("gpt_neox", generator, TIED | {"positions": "rotary", "bias": False}),
        ("bert", classifier, {}),
        (
            "bert",
            classifier,
            {"positions": "learned", "embedding": M.Embedding(norm=True, type_vocab_size=1)},
        ),
        ("marian", seq2seq, {}),
        ("marian", seq2seq, {"head": M.TranslatorHead("shared"), "loop": M.Loop(scan=True)}),
        ("marian", seq2seq, SEPARATE),
        ("bart", seq2seq, SCALED),
    ],
)
def test_models_of_tlite_have_the_same_logits(family, make, settings, tmp_path):
    """Layers that only the family has are zeros."""
    model = make(**settings)
    assert save_pretrained(tmp_path, model) == family
    back, hf_model = load_pretrained(tmp_path)[0], in_transformers(tmp_path).eval()
    hf_model.config.pad_token_id = 49
    expected = tlite_logits(model)
    np.testing.assert_allclose(hf_logits(hf_model), expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(tlite_logits(back), expected, rtol=0, atol=1e-5)


WINDOWS = {"attention": M.Attention(windows=(4, 8)), "num_blocks": 2}
CUSTOM = {"feed_forward": M.FeedForward(activation=jnp.tanh)}


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (generator, {}, "gpt2 needs head.bias=False"),
        (generator, TIED | {"block": "post_norm"}, "gpt2 needs block.pre_norm=True"),
        (
            generator,
            TIED | {"embedding": M.Embedding(scale=True)},
            "gpt2 needs embedding.scale=False",
        ),
        (generator, ROTARY | WINDOWS, "llama needs attention.windows="),
        (generator, CUSTOM, "a custom feed_forward.activation"),
        (classifier, {"pool": M.Pool()}, "bert needs pool.method='first'"),
        (classifier, {"wide": M.Wide(bigrams=100)}, "bert needs wide.bigrams=0"),
        (seq2seq, {"block": "pre_norm"}, "marian needs block.pre_norm=False"),
    ],
)
def test_models_without_counterpart_are_errors(make, settings, message, tmp_path):
    with pytest.raises(UserError, match=message):
        save_pretrained(tmp_path / "folder", make(**settings))
    assert not (tmp_path / "folder").exists()


def test_one_error_names_what_model_and_tokenizer_lack(tmp_path):
    words = IndexTokenizer(["a", "b"])
    with pytest.raises(UserError, match=r"pool\.method.*; and IndexTokenizer.*Subwords\(\)"):
        save_pretrained(tmp_path / "folder", classifier(pool=M.Pool()), words)


def test_family(tmp_path):
    assert save_pretrained(tmp_path, generator(**ROTARY), family="llama") == "llama"
    with pytest.raises(UserError, match=r"gpt2 needs .*norm\.method='layer'"):
        save_pretrained(tmp_path, generator(**ROTARY), family="gpt2")
    with pytest.raises(UserError, match="a generator can't be saved as bert, only as gpt2"):
        save_pretrained(tmp_path, generator(**ROTARY), family="bert")


@pytest.mark.parametrize("name", ["roberta ForSequenceClassification", "mistral", "yarn"])
def test_save_with_another_context(name, tmp_path):
    """A fine-tuned model may have a shorter context; any other change is an error."""
    model, pretrained = loaded(name)
    config = dataclasses.replace(pretrained.config, context=20)
    arrays = jax.tree.leaves(model)
    rows = [a[: 20 + 2] if a.shape == (42, 32) else a for a in arrays]  # of learned positions
    shorter = jax.tree.unflatten(jax.tree.structure(abstract_model(config)), rows)
    save_pretrained(tmp_path / "short", shorter, original=pretrained)
    again = load_pretrained(tmp_path / "short")[2].config
    assert again == config
    opened = in_transformers(tmp_path / "short")
    assert opened.config.max_position_embeddings == 20 + 2 * name.startswith("roberta")
    config = dataclasses.replace(
        pretrained.config, norm=dataclasses.replace(pretrained.config.norm, epsilon=1.0)
    )
    changed = jax.tree.unflatten(jax.tree.structure(abstract_model(config)), arrays)
    with pytest.raises(UserError, match=r"needs norm\.epsilon=0\.001"):
        save_pretrained(tmp_path / "other", changed, original=pretrained)


def test_save_with_a_pair_tokenizer(tmp_path):
    tokenizer = PairTokenizer.train(["ab cd", "b a d c"], ["dd cc", "aa bb"], 20)
    sizes = dict.fromkeys(("vocabulary_size", "source_vocabulary_size"), len(tokenizer))
    save_pretrained(tmp_path, seq2seq(special_tokens=M.SpecialTokens(), **sizes), tokenizer)
    _, opened, pretrained = load_pretrained(tmp_path)
    assert pretrained.config.special_tokens == M.SpecialTokens(pad_id=0, bos_id=2, eos_id=3)
    (expected,) = tokenizer.encode_sources(["ab dc"])
    np.testing.assert_array_equal(opened.encode("ab dc"), expected)
    hf_tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert hf_tokenizer.encode("ab dc") == expected.tolist()
    assert hf_tokenizer.pad_token_id == 0
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    tokens = model.generate(torch.tensor(batch()[0] % len(tokenizer)), max_new_tokens=3)
    assert tokens[0, 0] == 2
