"""Models loaded from folders of transformers: logits, generated tokens, errors."""

import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.arrays import numbers
from tests.helpers.models import call
from tests.helpers.tokenizers import words
from tests.helpers.transformers_models import (
    ALL,
    FULL_ROTARY,
    LLAMA3,
    PAD,
    SEQ2SEQ,
    VOCABULARY,
    batch,
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
from tests.helpers.transformers_models import edited as copied_and_edited
from tlite import functional as F
from tlite.decoding import generate
from tlite.decoding.search import greedy_search
from tlite.errors import UserError
from tlite.models.parameters import named_arrays
from tlite.pretrained import is_pretrained, load_pretrained, local_folder
from tlite.pretrained.configs import read_config
from tlite.pretrained.families import FAMILIES


@pytest.fixture
def edited(tmp_path):
    return lambda name, *change, **fields: copied_and_edited(
        name, tmp_path / "edited", *change, **fields
    )


@pytest.mark.parametrize("name", ALL)
def test_logits(name):
    """Logits are within 1e-5 of those of transformers, in a batch with padding."""
    model, pretrained = loaded(name)
    assert pretrained.fields["model_type"] == saved(name)[0].config.model_type
    expected = saved_logits(name)
    assert np.abs(expected).max() > 0.3
    np.testing.assert_allclose(tlite_logits(model), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["gpt2", "gemma3", "bert ForMaskedLM", "bart", "t5"])
def test_gradients_are_those_of_pytorch(name, edited):
    """Gradients of a weighted sum of the logits, in float64 there, read like arrays of a folder."""
    inputs = [np.random.default_rng(0).integers(3, PAD, (2, 24))]
    inputs += [inputs[0][:, :17]] if name in SEQ2SEQ else []
    hf_model, weights = make(name).double(), numbers(*inputs[-1].shape, VOCABULARY)
    names = ("input_ids", "decoder_input_ids")[: len(inputs)]
    logits = hf_model(**dict(zip(names, map(torch.tensor, inputs), strict=True)))[0]
    (logits * torch.tensor(weights)).sum().backward()
    by_name = {n: np.float32(p.grad) for n, p in hf_model.named_parameters()}

    def gradients(stored):  # final_logits_bias is a buffer in transformers
        return {n: by_name.get(n, np.zeros_like(array)) for n, array in stored.items()}

    expected = named_arrays(load_pretrained(edited(name, gradients))[0])
    tokens = [*map(jnp.asarray, inputs)]
    ours = jax.jit(jax.grad(lambda model: (model(*tokens) * weights).sum()))(loaded(name)[0])
    ours = {n: a for n, a in named_arrays(ours).items() if np.any(expected[n])}
    assert len(ours) > 20
    for n, gradient in ours.items():
        atol = 1e-5 + 1e-4 * np.abs(expected[n]).max()
        np.testing.assert_allclose(gradient, expected[n], rtol=0, atol=atol, err_msg=n)


@pytest.mark.parametrize("name", ["gpt2", "gemma2", "gemma3"])
def test_greedy_generation(name):
    """16 tokens for prompts of two lengths, which transformers pads on the left."""
    hf_model, model = saved(name)[0], loaded(name)[0]
    tokens = np.random.default_rng(2).integers(3, 48, (2, 12))
    lengths, mask = np.array([12, 7]), np.ones_like(tokens)
    mask[1, :5] = 0
    hf_model.generation_config.eos_token_id = None
    expected = hf_model.generate(
        torch.tensor(tokens), attention_mask=torch.tensor(mask), max_new_tokens=16, do_sample=False
    )
    prompt = jnp.asarray([tokens[0], np.roll(tokens[1], -5)])
    settings = {"num_tokens": 16, "rng": jax.random.key(0), "sampler": F.greedy}
    generated = generate(model, prompt, lengths=jnp.asarray(lengths), **settings)
    np.testing.assert_array_equal(generated, expected[:, 12:].numpy())


@pytest.mark.parametrize("name", ["marian", "bart", "t5"])
def test_greedy_search(name):
    hf_model, (model, pretrained) = saved(name)[0], loaded(name)
    tokens, mask = batch(hf_model.config.pad_token_id)
    expected = hf_model.generate(
        torch.tensor(tokens),
        attention_mask=torch.tensor(mask),
        max_new_tokens=16,
        do_sample=False,
        bad_words_ids=[[hf_model.config.pad_token_id]],
    )
    result = greedy_search(model, jnp.asarray(tokens), max_length=16)
    assert pretrained.end_ids == [model.config.special_tokens.eos_id]
    expected = expected[:, 1:].numpy()
    np.testing.assert_array_equal(result.tokens[:, 0, : expected.shape[1]], expected)


def without_prefix(stored):
    prefix = re.compile(r"(transformer|model)\.")
    return {prefix.sub("", name, count=1): array for name, array in stored.items()}


def gamma_and_beta(stored):
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    pattern = re.compile("|".join(old))
    return {pattern.sub(lambda m: old[m[0]], name): array for name, array in stored.items()}


def copied(copy, of, alone=False):
    """Copy an array, or rename it with `alone`."""
    return lambda stored: {
        name: array
        for name, array in (stored | {copy: stored[of].copy()}).items()
        if not (alone and name == of)
    }


def with_buffers(stored):
    mask = np.tril(np.ones((1, 1, 64, 64), np.uint8))
    gpt2 = {"transformer.h.0.attn.bias": mask, "transformer.h.1.attn.masked_bias": np.array([-1e4])}
    layer = "gpt_neox.layers.0.attention"
    neox = {f"{layer}.bias": mask, f"{layer}.rotary_emb.inv_freq": np.ones(4, np.float32)}
    return stored | (gpt2 if any("c_attn" in name for name in stored) else neox)


GONE = {"rope_parameters": ..., "layer_types": ...}
VERSION_4 = LLAMA3["rope_parameters"] | {"type": "llama3"}
LINEAR = {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}
WORDS, TABLE = "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"


@pytest.mark.parametrize(
    ("name", "change", "fields"),
    [
        *((name, without_prefix, {}) for name in ("gpt2", "llama3", "bart", "marian")),
        ("bert ForMaskedLM", gamma_and_beta, {}),
        ("gpt2", copied("lm_head.weight", "transformer.wte.weight"), {}),
        ("gpt2", copied("lm_head.weight", "transformer.wte.weight", alone=True), {}),
        ("bert ForMaskedLM", copied(TABLE, WORDS, alone=True), {}),
        ("t5", copied("encoder.embed_tokens.weight", "shared.weight"), {}),
        ("t5", copied("encoder.embed_tokens.weight", "shared.weight", alone=True), {}),
        ("gpt2", with_buffers, {}),
        ("llama3", dict, GONE | {"rope_theta": 500.0, "rope_scaling": VERSION_4, "dtype": ...}),
        ("tied gpt_neox", with_buffers, GONE | {"rotary_emb_base": 500, "rotary_pct": 1.0}),
        (
            "gemma3",
            dict,
            GONE | LINEAR | {"rope_theta": 3000.0, "rope_local_base_freq": 70.0}
            | {"sliding_window_pattern": 2, "_sliding_window_pattern": ...},
        ),
        (
            "modernbert Model",
            dict,
            GONE | {"global_rope_theta": 160000.0, "local_rope_theta": 10000.0}
            | {"global_attn_every_n_layers": 3},
        ),
    ],
)  # fmt: skip
def test_formats_of_earlier_versions_give_the_same_model(name, change, fields, edited):
    logits = tlite_logits(load_pretrained(edited(name, change, **fields))[0])
    np.testing.assert_allclose(logits, saved_logits(name), rtol=0, atol=1e-5)


CLASSIFIER = "bert ForSequenceClassification"


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("gpt2", {"n_special": 0, "predict_special_tokens": True, "summary_type": "cls_index"}),
        ("llama", {"rope_interleaved": False, "pretraining_tp": 1, "quantization_config": None}),
        ("llama", {"clip_qkv": None, "logits_soft_cap": 0.0, "residual_multiplier": 1.0}),
        ("modernbert Model", {"layer_norm_eps": 1e-3, "reference_compile": True}),
        ("marian", {"static_position_embeddings": True, "normalize_before": False}),
    ],
)
def test_fields_without_effect_are_ignored(name, fields, edited):
    assert load_pretrained(edited(name, **fields))[2].config == loaded(name)[1].config


@pytest.mark.parametrize("name", FAMILIES)
def test_default_fields_of_transformers_are_known(name):
    """Defaults of every field, of which a saved config.json has some only."""
    family, defaults = FAMILIES[name], transformers.AutoConfig.for_model(name).to_dict()
    if name == "gpt_neox":  # tlite has only models without these two defaults
        full = {"rope_theta": 1e4} | FULL_ROTARY
        defaults |= {"use_parallel_residual": False, "rope_parameters": full}
    kind = next(iter(family.kinds))
    config = read_config(defaults, name, kind, [f"{family.output}.weight"])
    assert config.num_blocks == len(config.windows)


def test_labels(edited):
    """transformers does not store the default names of two classes."""

    def two(stored):
        heads = "classifier.weight", "classifier.bias"
        return stored | {name: stored[name][:2] for name in heads}

    pretrained = load_pretrained(edited(CLASSIFIER, two, id2label=..., label2id=...))[2]
    assert pretrained.labels == ["LABEL_0", "LABEL_1"]
    names = {"0": "a", "2": "c", "1": "b"}
    assert load_pretrained(edited(CLASSIFIER, id2label=names))[2].labels == ["a", "b", "c"]
    assert load_pretrained(saved("gpt2")[1])[2].labels == []


def test_a_tokenizer_with_more_tokens_than_the_model(edited):
    """An id without an embedding, which would be NaN, is an error."""
    folder = edited("gpt2")
    words({"a": 0, "b": 49, "c": 50}, "a").save(folder)
    opened = load_pretrained(folder)[1]
    assert opened.encode("a b").tolist() == [0, 49]
    with pytest.raises(UserError, match="the token 'c' the id 50, but the model has 50 tokens"):
        opened.encode("b c")


SCALED_WINDOWS = {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}


def extra_array(stored):
    return stored | {"extra": np.zeros(3, np.float32)}


def other_head(stored):
    return stored | {TABLE: np.zeros((50, 32), np.float32)}


UNKNOWN = [
    ("llama", "clip_qkv", 3.0), ("llama", "residual_multiplier", 0.5),
    ("llama", "sliding_window", 8), ("llama", "rope_interleaved", True),
    ("llama", "quantization_config", {"bits": 4}), ("gpt2", "scale_attn_weights", False),
    ("gpt2", "scale_attn_by_inverse_layer_idx", True), ("bert Model", "is_decoder", True),
    ("gemma3", "use_bidirectional_attention", True), ("bart", "normalize_before", True),
    ("bert Model", "position_embedding_type", "relative_key"),
    ("modernbert Model", "attention_dropout", 0.1), ("bart", "encoder_layerdrop", 0.1),
]  # fmt: skip
ROPE = [
    ({"rope_type": "dynamic", "factor": 2.0}, "'dynamic'"),
    ({"rope_type": "linear"}, "need a factor"),
    ({"rope_type": "linear", "factor": 2.0, "x": 1}, "x"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ({"rope_type": "yarn", "truncate": False}, "truncate"),
]
INVALID = [
    ("llama", {"architectures": True}), ("llama", {"rope_parameters": "x"}),
    ("llama", {"hidden_size": 10**30}), ("gemma3", {"layer_types": 1}),
    ("gemma3", {"query_pre_attn_scalar": 0}), ("gemma3", {"num_hidden_layers": 10**9}),
    ("modernbert Model", {"local_attention": None}),
    (CLASSIFIER, {"id2label": {"1": "a", "2": "b", "3": "c"}}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        *(
            (name, {field: value}, f"model with {field}={value!r}")
            for name, field, value in UNKNOWN
        ),
        *(("llama", {"rope_parameters": fields}, message) for fields, message in ROPE),
        *((name, fields, "config.json of .*edited is invalid") for name, fields in INVALID),
        ("llama", {"model_type": "mamba"}, "no model of type 'mamba'"),
        ("llama", {"architectures": ["LlamaForTokenClassification"]}, "TokenClassification"),
        ("llama", {"hidden_act": "mish"}, "no activation 'mish'"),
        ("llama", {"hidden_size": ...}, "no hidden_size"),
        ("llama", {"hidden_size": 64}, "as in its config.json"),
        ("gemma3", {"rope_parameters": {"rope_type": "default"}}, "layer types"),
        ("gemma3", {"rope_parameters": SCALED_WINDOWS}, "sliding attention separately"),
        ("llama", {"attention_bias": False}, "has no array layers.0.self_attn"),
        ("mistral", {"num_hidden_layers": 1}, "has no array layers.1."),
        ("mistral", {"num_hidden_layers": 3}, "no array layers.2."),
        ("mistral", {"num_key_value_heads": ...}, "as in its config.json"),
        ("llama3", {"tie_word_embeddings": False}, "lm_head.weight"),
        ("gemma2", {"layer_types": ["chunked_attention"] * 2}, "chunked_attention"),
        ("bart", {"decoder_ffn_dim": 44}, "different encoder_ffn_dim and decoder_ffn_dim"),
        ("modernbert Model", {"layer_norm_eps": 1e-4}, "different norm_eps and layer_norm_eps"),
        ("bart", {"tie_word_embeddings": False}, "no array lm_head.weight"),
        ("tied gpt_neox", {"tie_word_embeddings": False}, "no array embed_out.weight"),
        ("gpt_neox", {"use_parallel_residual": ...}, "use_parallel_residual must be false"),
        ("gpt_neox", {"rope_parameters": ...}, "partial_rotary_factor is 0.25"),
        (CLASSIFIER, {"problem_type": "multi_label_classification"}, "multi_label"),
        (CLASSIFIER, {"id2label": ..., "num_labels": 1}, "1 labels"),
        ("gpt2", {"change": extra_array}, "has no array extra"),
        ("bert ForMaskedLM", {"change": other_head}, f"has no array {TABLE}"),
    ],
)
def test_models_without_counterpart_are_errors(name, fields, message, edited):
    with pytest.raises(UserError, match=re.sub(r"([({])", r"\\\1", message)):
        load_pretrained(edited(name, **fields))


def test_an_untied_head(edited):
    """The arrays decide whether the head is tied, as in transformers 5."""
    head = np.random.default_rng(0).normal(size=(50, 32)).astype(np.float32)
    folder = edited("gpt2", lambda stored: stored | {"lm_head.weight": head})
    model = load_pretrained(folder)[0]
    hf_model = in_transformers(folder).eval()
    np.testing.assert_allclose(tlite_logits(model), hf_logits(hf_model), rtol=0, atol=1e-5)


# A new head


def test_a_classifier_from_a_masked_model():
    key = jax.random.key(1)
    model, _, pretrained = load_pretrained(saved("bert ForMaskedLM")[1], num_classes=5, rng=key)
    assert pretrained.new == ("projection.kernel", "projection.bias", "head.kernel", "head.bias")
    logits = call(model, batch()[0])
    assert logits.shape == (2, 5)
    assert 1e-3 < np.abs(logits).max() < 10
    assert not np.array_equal(model.head.kernel, np.asarray(model.projection.kernel)[:, :5])


def test_a_new_head_keeps_the_pooler_not_the_old_head(edited):
    model, _, pretrained = load_pretrained(saved("bert Model")[1], num_classes=2)
    assert pretrained.new == ("head.kernel", "head.bias")
    pooler = load_file(saved("bert Model")[1] / "model.safetensors")["pooler.dense.weight"]
    np.testing.assert_array_equal(model.projection.kernel, pooler.T)
    folder = edited(CLASSIFIER, problem_type="multi_label_classification", num_labels=3)
    pretrained = load_pretrained(folder, num_classes=2)[2]
    assert not {"problem_type", "num_labels"} & pretrained.fields.keys()
    assert pretrained.labels == ["LABEL_0", "LABEL_1"]
    with pytest.raises(UserError, match="is a generator"):
        load_pretrained(saved("gpt2")[1], num_classes=2)


# Names


def test_is_pretrained(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "first").mkdir(parents=True)
    (tmp_path / "runs" / "first" / "config.json").write_text('{"kind": "generator"}')
    assert is_pretrained(saved("gpt2")[1])
    assert is_pretrained("openai-community/gpt2")
    for name in ["runs/first", "runs/second", "runs", "gpt2", "/a/b", "../a", "a/b/c", "a b/c"]:
        assert not is_pretrained(name), name


def test_local_folder(tmp_path, monkeypatch):
    assert local_folder(tmp_path) == tmp_path
    with pytest.raises(UserError, match=r"there is no folder nowhere;"):
        local_folder("nowhere")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(UserError, match="the Hugging Face hub gave no model of this name"):
        local_folder("nobody/nothing-of-the-sort")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match="install"):
        local_folder("nobody/nothing-of-the-sort")
