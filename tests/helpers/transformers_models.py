"""Small transformers models of each family, with random values in every parameter."""

import functools
import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.models import call
from tlite.pretrained import load_pretrained

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
load_file = pytest.importorskip("safetensors.numpy").load_file
save_file = pytest.importorskip("safetensors.numpy").save_file
transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)  # faster for small models

FOLDER = tempfile.TemporaryDirectory()
# Most values differ from the defaults, so that a field that is not read changes the logits.
VOCABULARY, PAD = 50, 49
EAGER = {"vocab_size": VOCABULARY, "attn_implementation": "eager", "pad_token_id": PAD}
SPECIAL = EAGER | {"bos_token_id": 1, "eos_token_id": 2}
SIZES = SPECIAL | {
    "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 64,
}  # fmt: skip
LLAMA = SIZES | {"num_key_value_heads": 2, "head_dim": 12, "rms_norm_eps": 1e-3}
BERT = SIZES | {"max_position_embeddings": 40, "num_labels": 3, "layer_norm_eps": 1e-3}
MODERN = BERT | {"local_attention": 8, "cls_token_id": 1, "sep_token_id": 2, "norm_eps": 1e-3}
BART = EAGER | {
    "d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40,
    "max_position_embeddings": 40, "forced_eos_token_id": None, "eos_token_id": 0,
}  # fmt: skip
T5 = EAGER | {
    "d_model": 32, "d_kv": 12, "d_ff": 40, "num_layers": 2, "num_heads": 4, "eos_token_id": 1,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 12,
    "decoder_start_token_id": PAD,
}  # fmt: skip


def rope(kind, **settings):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 500.0} | settings}


ORIGINAL = {"original_max_position_embeddings": 16}
LLAMA3 = rope("llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, **ORIGINAL)
YARN = rope("yarn", factor=4.0, beta_fast=8.0, **ORIGINAL)
GEMMA3 = {
    "layer_types": ["sliding_attention", "full_attention"],
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 3000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 70.0},
    },
}
SCALED_YARN = YARN["rope_parameters"] | {"attention_factor": 1.0}
GEMMA3_YARN = {"rope_parameters": GEMMA3["rope_parameters"] | {"full_attention": SCALED_YARN}}
GPT2 = SPECIAL | {
    "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "activation_function": "gelu",
    "layer_norm_epsilon": 1e-3,
}  # fmt: skip
DISTILBERT = SPECIAL | {
    "dim": 32, "hidden_dim": 40, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 40,
    "num_labels": 3,
}  # fmt: skip
GPT_NEOX = SIZES | {"use_parallel_residual": False}
BIASED = {"attention_bias": True, "mlp_bias": True}
WINDOWED = LLAMA | {"sliding_window": 5}
GEMMA = WINDOWED | {"query_pre_attn_scalar": 20}
CAPPED = {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 7.0}
QWEN2 = {"use_sliding_window": True, "max_window_layers": 1}
FULL_ROTARY = {"partial_rotary_factor": 1.0}
GENERATORS = {
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "llama": ("LlamaForCausalLM", LLAMA | BIASED),
    "llama3": ("LlamaForCausalLM", LLAMA | LLAMA3 | {"tie_word_embeddings": True}),
    "linear": ("LlamaForCausalLM", LLAMA | rope("linear", factor=4.0)),
    "yarn": ("LlamaForCausalLM", LLAMA | YARN),
    "mistral": ("MistralForCausalLM", WINDOWED),
    "qwen2": ("Qwen2ForCausalLM", WINDOWED | QWEN2),
    "gpt_neox": ("GPTNeoXForCausalLM", GPT_NEOX | rope("linear", factor=4.0, **FULL_ROTARY)),
    "tied gpt_neox": (
        "GPTNeoXForCausalLM",
        GPT_NEOX | rope("default", **FULL_ROTARY) | {"tie_word_embeddings": True},
    ),
    "qwen3": ("Qwen3ForCausalLM", LLAMA | {"attention_bias": True}),
    "gemma2": ("Gemma2ForCausalLM", GEMMA | CAPPED),
    "gemma3": ("Gemma3ForCausalLM", GEMMA | GEMMA3),
    "gemma3 yarn": ("Gemma3ForCausalLM", GEMMA | GEMMA3 | GEMMA3_YARN),
}
OTHER_MODERN = MODERN | BIASED | {
    "norm_bias": True, "classifier_bias": True, "classifier_pooling": "mean", "decoder_bias": False,
}  # fmt: skip
HEADS = ("ForMaskedLM", "ForSequenceClassification")
ROBERTA = BERT | {"pad_token_id": 1, "max_position_embeddings": 42}
ENCODERS = {}
for name, stem, settings, endings in [
    ("bert", "Bert", BERT | {"hidden_act": "gelu_new"}, (*HEADS, "Model")),
    ("roberta", "Roberta", ROBERTA, HEADS),
    ("distilbert", "DistilBert", DISTILBERT, HEADS),
    ("modernbert", "ModernBert", MODERN, (*HEADS, "Model")),
    ("biased modernbert", "ModernBert", OTHER_MODERN, HEADS),
]:
    ENCODERS |= {f"{name} {ending}": (stem + ending, settings) for ending in endings}
SEQ2SEQ = {
    "marian": (
        "MarianMTModel",
        BART | {"decoder_start_token_id": PAD, "scale_embedding": True, "bos_token_id": None}
        | {"activation_function": "swish"},
    ),
    "bart": ("BartForConditionalGeneration", BART | {"decoder_start_token_id": 0}),
    "t5": ("T5ForConditionalGeneration", T5),
    "t5 1.1": (
        "T5ForConditionalGeneration",
        T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ),
}  # fmt: skip
ALL = GENERATORS | ENCODERS | SEQ2SEQ


def make(name, **changes):
    """Return a transformers model with noise added to every parameter."""
    architecture, settings = ALL[name]
    torch.manual_seed(0)
    cls = getattr(transformers, architecture)
    model = cls(cls.config_class(**settings | changes))
    if name == "t5 1.1":
        model.lm_head.weight = torch.nn.Parameter(0.1 * torch.randn(VOCABULARY, 32))
    generator, scale = torch.Generator().manual_seed(0), 0.1 if "t5" in name else 0.15
    with torch.no_grad():
        for key, values in model.state_dict().items():
            is_fixed = name == "marian" and "embed_positions" in key
            if values.is_floating_point() and not is_fixed:
                values.add_(scale * torch.randn(values.shape, generator=generator))
    return model.eval()


@functools.cache
def saved(name):
    """Return the transformers model of a name, and the folder it is saved in."""
    model, folder = make(name), Path(FOLDER.name) / name
    model.save_pretrained(folder)
    return model, folder


def edited(name, folder, change=lambda stored: stored, **fields):
    """Copy a folder with changed arrays and fields; `...` removes a field."""
    shutil.copytree(saved(name)[1], folder, dirs_exist_ok=True)
    fields = json.loads((folder / "config.json").read_text()) | fields
    fields = {key: value for key, value in fields.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(fields))
    save_file(change(load_file(folder / "model.safetensors")), folder / "model.safetensors")
    return folder


def in_transformers(folder, **settings):
    """Load a folder with the class of transformers that its config.json names."""
    (name,) = json.loads((folder / "config.json").read_text())["architectures"]
    settings |= {"attn_implementation": "eager", "dtype": torch.float32}
    return getattr(transformers, name).from_pretrained(folder, **settings)


def batch(pad=PAD, length=24):
    """Return tokens (2, 24) of two texts, one padded, and their mask."""
    tokens = np.random.default_rng(0).integers(3, PAD, (2, length))
    mask = np.ones_like(tokens)
    mask[1, 15:] = 0
    return np.where(mask, tokens, pad), mask


def hf_logits(model):
    """Return the logits of a transformers model for `batch`, 0 at padding."""
    pad = model.config.pad_token_id
    tokens, mask = batch(pad)
    inputs = {"input_ids": torch.tensor(tokens), "attention_mask": torch.tensor(mask)}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = torch.tensor(targets(model.config.decoder_start_token_id))
    with torch.no_grad():
        logits = model(**inputs)[0].numpy()
    encoder = logits.ndim == 3 and not model.config.is_encoder_decoder
    return np.where(mask[..., None], logits, 0) if encoder else logits


def tlite_logits(model, pad=PAD):
    """Return the logits of a tlite model for `batch`, 0 at padding."""
    kind = type(model).__name__
    tokens, mask = batch(model.config.special_tokens.pad_id if kind == "Seq2Seq" else pad)
    if kind == "Seq2Seq":
        return np.asarray(call(model, tokens, targets(model.config.special_tokens.bos_id)))
    if kind != "CausalLM":
        tokens = np.where(mask, tokens, -1)
    logits = np.asarray(call(model, tokens))
    return np.where(mask[..., None], logits, 0) if logits.ndim == 3 else logits


@functools.cache
def saved_logits(name):
    return hf_logits(saved(name)[0])


@functools.cache
def loaded(name):
    """Return the tlite model of a name, and its `Pretrained`; read-only."""
    model, _, pretrained = load_pretrained(saved(name)[1])
    return model, pretrained


def targets(start):
    tokens = np.random.default_rng(1).integers(3, PAD, (2, 17))
    tokens[:, 0] = start
    return tokens
