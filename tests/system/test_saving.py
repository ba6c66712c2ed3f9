"""Models of tlite as folders that transformers opens, with the same logits."""

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
    in_transformers,
    load_file,
    loaded,
    logits_of,
    logits_of_saved,
    make,
    ours,
    saved,
    torch,
    transformers,
)
from tlite import models as M
from tlite.errors import UserError
from tlite.pretrained import load_pretrained, save_pretrained
from tlite.pretrained.configs import FROM_SCRATCH, flat
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
def test_there_and_back(name, tmp_path):
    """The same bits of every array, the same fields, and of theirs the same logits.

    Of families that are written so, also without what is known of the folder: from the config.
    """
    theirs, folder = saved(name)
    model, info = loaded(name)
    assert save_pretrained(tmp_path / "same", model, original=info) == info.family
    expected, found = (load_file(f / "model.safetensors") for f in (folder, tmp_path / "same"))
    assert found.keys() == expected.keys()
    for key, array in expected.items():
        np.testing.assert_array_equal(found[key].view(np.uint32), array.view(np.uint32))
    assert json.loads((tmp_path / "same" / "config.json").read_text()) == info.fields
    if info.family not in FROM_SCRATCH[info.kind]:
        return
    assert save_pretrained(tmp_path / "new", model, family=info.family) == info.family
    opened = in_transformers(tmp_path / "new").eval()
    assert type(opened) is type(theirs)
    opened.config.pad_token_id = theirs.config.pad_token_id  # a tokenizer's to say
    # The same arithmetic on the same numbers, but for what fields say in other words.
    np.testing.assert_allclose(logits_of(opened), logits_of_saved(name), rtol=0, atol=2e-6)
    again = load_pretrained(tmp_path / "new")[2]
    mine, other = flat(info.config), flat(again.config)
    assert mine.keys() == other.keys()
    for path, value in mine.items():
        left_open = path == "feed_forward.mlp_dim" or path.startswith("positions.scaling")
        assert other[path] == value or left_open, path


def test_16_bits_in_shards_stay_if_no_bit_is_lost(tmp_path):
    make("gpt2").to(torch.bfloat16).save_pretrained(tmp_path / "theirs", max_shard_size="20KB")
    shards = list((tmp_path / "theirs").glob("*.safetensors"))
    assert len(shards) > 2
    expected = {name: array for shard in shards for name, array in load_file(shard).items()}
    model, _, info = load_pretrained(tmp_path / "theirs")
    assert {leaf.dtype for leaf in jax.tree.leaves(model)} == {jnp.dtype("float32")}
    save_pretrained(tmp_path / "same", model, original=info)
    found = load_file(tmp_path / "same" / "model.safetensors")
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], array) for name, array in expected.items())
    assert json.loads((tmp_path / "same" / "config.json").read_text())["dtype"] == "bfloat16"
    tuned = jax.tree.map(lambda a: np.asarray(a) * np.float32(1.001), model)
    save_pretrained(tmp_path / "tuned", tuned, original=info)
    found = load_file(tmp_path / "tuned" / "model.safetensors")
    assert found["transformer.wte.weight"].dtype == np.float32
    np.testing.assert_array_equal(found["transformer.wte.weight"], tuned.embedding.table)
    assert json.loads((tmp_path / "tuned" / "config.json").read_text())["dtype"] == "float32"


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
def test_untied_tables_that_are_equal(name, copy, of, tmp_path):
    """They stay two, or are said to be tied: transformers misses no array."""
    sides = [f"model.{side}.embed_tokens.weight" for side in ("encoder", "decoder")]
    copies = [copy, *sides] if name == "bart" else [copy]
    theirs = edited(
        name,
        tmp_path / "theirs",
        lambda stored: stored | {copy: stored[of].copy() for copy in copies},
        tie_word_embeddings=False,
    )
    model, _, info = load_pretrained(theirs)
    save_pretrained(tmp_path / "same", model, original=info)
    opened, told = in_transformers(tmp_path / "same", output_loading_info=True)
    assert not told["missing_keys"]
    np.testing.assert_allclose(ours(model), logits_of(opened.eval()), rtol=0, atol=1e-5)
    back = load_pretrained(tmp_path / "same")[0]
    np.testing.assert_array_equal(ours(back), ours(model))


def test_arrays_that_are_kept_keep_their_bits(tmp_path):
    pooler = np.float32(np.random.default_rng(0).normal(size=(32, 32)))
    kept = {"bert.pooler.dense.weight": pooler}

    def half(stored):
        return {name: array.astype(np.float16) for name, array in stored.items()} | kept

    theirs = edited("bert ForMaskedLM", tmp_path / "theirs", half)
    model, _, info = load_pretrained(theirs)
    assert info.dtype == "F16"
    save_pretrained(tmp_path / "same", model, original=info)
    found = load_file(tmp_path / "same" / "model.safetensors")
    for name, array in load_file(theirs / "model.safetensors").items():
        np.testing.assert_array_equal(found[name], array)


def test_a_tuned_classifier(tmp_path):
    """From a masked model, with a new head, to one that transformers classifies with."""
    model, _, info = load_pretrained(saved("bert ForMaskedLM")[1], num_classes=3)
    family = save_pretrained(tmp_path, model, original=info, labels=["bad", "fair", "good"])
    assert family == "bert"
    theirs = in_transformers(tmp_path)
    np.testing.assert_allclose(logits_of(theirs.eval()), ours(model), rtol=0, atol=1e-5)
    assert theirs.config.id2label == {0: "bad", 1: "fair", 2: "good"}
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
        ("marian", seq2seq, {"head": M.TranslatorHead("shared")}),
        ("marian", seq2seq, SEPARATE),
        ("bart", seq2seq, SCALED),
    ],
)
def test_trained_by_tlite(family, make, settings, tmp_path):
    """The family of its kind; what it asks for besides is zeros."""
    model = make(**settings)
    assert save_pretrained(tmp_path, model) == family
    back, theirs = load_pretrained(tmp_path)[0], in_transformers(tmp_path).eval()
    theirs.config.pad_token_id = 49
    expected = ours(model)
    np.testing.assert_allclose(logits_of(theirs), expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(ours(back), expected, rtol=0, atol=1e-5)


WINDOWS = {"attention": M.Attention(windows=(4, 8)), "num_blocks": 2}
OWN = {"feed_forward": M.FeedForward(activation=jnp.tanh)}


@pytest.mark.parametrize(
    ("make", "settings", "says"),
    [
        (generator, {}, "gpt2 has no head.bias True"),
        (generator, TIED | {"block": "post_norm"}, "gpt2 has no block.pre_norm False"),
        (
            generator,
            TIED | {"embedding": M.Embedding(scale=True)},
            "gpt2 has no embedding.scale True",
        ),
        (generator, ROTARY | WINDOWS, "llama has no attention.windows"),
        (generator, OWN, r"of your own \(feed_forward.activation\)"),
        (classifier, {"pool": M.Pool()}, "pool.method 'dense'"),
        (classifier, {"wide": M.Wide(bigrams=100)}, "bert has no wide.bigrams 100"),
        (seq2seq, {"block": "pre_norm"}, "marian has no block.pre_norm True"),
    ],
)
def test_without_counterpart(make, settings, says, tmp_path):
    with pytest.raises(UserError, match=says):
        save_pretrained(tmp_path / "folder", make(**settings))
    assert not (tmp_path / "folder").exists()


def test_all_that_a_model_and_its_tokenizer_lack_is_said_at_once(tmp_path):
    words = IndexTokenizer(["a", "b"])
    with pytest.raises(UserError, match=r"pool\.method.*; and IndexTokenizer.*Subwords\(\)"):
        save_pretrained(tmp_path / "folder", classifier(pool=M.Pool()), words)


def test_family_asked_for(tmp_path):
    assert save_pretrained(tmp_path, generator(**ROTARY), family="llama") == "llama"
    with pytest.raises(UserError, match=r"gpt2 has no .*norm\.method 'rms'"):
        save_pretrained(tmp_path, generator(**ROTARY), family="gpt2")
    with pytest.raises(UserError, match="a generator is not written as bert: choose one of gpt2"):
        save_pretrained(tmp_path, generator(**ROTARY), family="bert")


@pytest.mark.parametrize("name", ["roberta ForSequenceClassification", "mistral", "yarn"])
def test_a_folder_with_another_context(name, tmp_path):
    """As a fine-tuned run has it; what else is changed is refused."""
    model, info = loaded(name)
    config = dataclasses.replace(info.config, context=20)
    arrays = jax.tree.leaves(model)
    rows = [a[: 20 + 2] if a.shape == (42, 32) else a for a in arrays]  # of learned positions
    shorter = jax.tree.unflatten(jax.tree.structure(abstract_model(config)), rows)
    save_pretrained(tmp_path / "short", shorter, original=info)
    again = load_pretrained(tmp_path / "short")[2].config
    assert again == config
    opened = in_transformers(tmp_path / "short")
    assert opened.config.max_position_embeddings == 20 + 2 * name.startswith("roberta")
    config = dataclasses.replace(
        info.config, norm=dataclasses.replace(info.config.norm, epsilon=1.0)
    )
    changed = jax.tree.unflatten(jax.tree.structure(abstract_model(config)), arrays)
    with pytest.raises(UserError, match=r"has no norm\.epsilon 1\.0"):
        save_pretrained(tmp_path / "other", changed, original=info)


def test_with_pairs(tmp_path):
    tokenizer = PairTokenizer.train(["ab cd", "b a d c"], ["dd cc", "aa bb"], 20)
    sizes = dict.fromkeys(("vocabulary_size", "source_vocabulary_size"), len(tokenizer))
    save_pretrained(tmp_path, seq2seq(special_tokens=M.SpecialTokens(), **sizes), tokenizer)
    _, opened, info = load_pretrained(tmp_path)
    assert info.config.special_tokens == M.SpecialTokens(pad_id=0, bos_id=2, eos_id=3)
    (expected,) = tokenizer.encode_sources(["ab dc"])
    np.testing.assert_array_equal(opened.encode("ab dc"), expected)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert theirs.encode("ab dc") == expected.tolist()
    assert theirs.pad_token_id == 0
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    tokens = model.generate(torch.tensor(batch()[0] % len(tokenizer)), max_new_tokens=3)
    assert tokens[0, 0] == 2
