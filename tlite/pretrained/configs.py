"""Conversion between config.json and a tlite config, by the tables in `families`."""

import dataclasses
import math
import re
from collections import UserDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from tlite import models as M
from tlite.config import override
from tlite.errors import UserError
from tlite.models import Rotary, TransformerConfig
from tlite.pretrained.families import FAMILIES
from tlite.pretrained.positions import read_rotary, read_windows, write_rotary
from tlite.user_code import is_user_code

CONFIGS = {
    "generator": M.GeneratorConfig, "masked": M.MaskedConfig, "classifier": M.ClassifierConfig,
    "encoder": TransformerConfig, "seq2seq": M.Seq2SeqConfig,
}  # fmt: skip
TLITE_ACTIVATIONS = {
    "relu": "relu", "gelu": "gelu_exact", "gelu_new": "gelu", "gelu_pytorch_tanh": "gelu",
    "gelu_fast": "gelu", "silu": "silu", "swish": "silu", "relu2": "squared_relu", "tanh": "tanh",
}  # fmt: skip
HF_ACTIVATIONS = {tlite: hf for hf, tlite in reversed(TLITE_ACTIVATIONS.items())}
POOLING = {"cls": "first", "mean": "mean"}
NO_EFFECT = re.compile(
    # Names, versions, storage, initial values.
    r"_.*|model_type|architectures|transformers.*|(torch_)?dtype|name_or_path|unsloth_\w+|prefix"
    r"|tokenizer_class|task_specific_params|finetuning_task|\w*label\w*|init\w*_(range|std|factor)"
    # Outputs of a call; other ways to compute the same.
    r"|return_dict\w*|output_\w+|torchscript|attn_implementation|use_(cache|bfloat16)|sparse_pred\w+"
    r"|gradient_checkpointing|chunk_size_feed_forward|pretraining_tp|reorder_and_upcast_attn"
    r"|reference_compile|deterministic_flash_attn|repad_logits_with_grad|cache_implementation"
    # Generation, which has options of its own.
    r"|\w+_token_id|(min|max)_length|num_beam\w*|num_return_sequences|do_sample|early_stopping"
    r"|\w+_penalty|\w*no_repeat_ngram_size|bad_words_ids|(begin_)?suppress_tokens|temperature"
    r"|top_[kp]|typical_p|remove_invalid_values|force_bos_token_to_be_generated"
    # Other heads; fields that follow from others, or that transformers does not read.
    r"|summary_\w+|pooler_\w+|directionality|qa_dropout|\w*classif\w*_dropout|dense_act_fn"
    r"|is_(encoder_decoder|gated_act|llama_config)|num_hidden_layers|tie_w\w+|problem_type"
    r"|n_ctx|n_special|predict_special_tokens|extra_pos_embeddings|sinusoidal_pos_embds"
)
"""Fields of config.json that change neither the logits nor the gradient of a family here.

The dropout rate of a classifier's head is not read: fine-tuning uses that of the other layers.
"""
FACTOR = re.compile(r"\w*(scal|multiplier|factor)\w*")
FROM_SCRATCH = {  # families as which models are saved that were not loaded from a folder
    "generator": ("gpt2", "llama", "gpt_neox"), "seq2seq": ("marian", "bart", "t5"),
    "masked": ("bert",), "classifier": ("bert",), "encoder": ("bert",),
}  # fmt: skip
UNTIED = "llama", "mistral", "qwen2", "qwen3", "gpt_neox"  # tie_word_embeddings is false by default


def flatten(component, prefix: str = "") -> dict[str, Any]:
    """Return the fields by path ("attention.num_kv_heads"); a component is its class name."""
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(component):
        value, path = getattr(component, field.name), prefix + field.name
        if dataclasses.is_dataclass(value) and not is_user_code(value):
            fields |= {path: type(value).__name__} | flatten(value, f"{path}.")
        else:
            fields[path] = value
    return fields


def is_tied(config: TransformerConfig) -> bool:
    """True if the model has no output layer, or its output layer is the embedding."""
    head = getattr(config, "head", None)
    return getattr(head, "tied", getattr(head, "embeddings", "tied") == "tied")


def resolve_fields(config: TransformerConfig) -> dict[str, Any]:
    """Return the fields by path, with defaults that depend on other fields resolved."""
    fields = flatten(config)
    defaults = {path: config.bias for path in fields if path.endswith("bias")} | {
        "feed_forward.mlp_dim": 4 * config.width,
        "attention.head_dim": config.head_dim,
        "attention.num_kv_heads": config.num_heads,
        "attention.scale": 1 / math.sqrt(config.head_dim),
        "decoder_blocks": config.num_blocks,
        "head.bias": config.bias and not is_tied(config),
    }
    fields |= {path: value for path, value in defaults.items() if fields.get(path, 0) is None}
    fields["attention.windows"] = config.windows
    if fields.get("norm.method") == "rms":
        fields["norm.bias"] = False
    return fields


class RecordedFields(UserDict[str, Any]):
    """The fields of a config.json, with the names of those that have not been read yet."""

    def __init__(self, fields: Mapping[str, Any]):
        super().__init__(fields)
        self.unread = set(fields)

    def __getitem__(self, name: str) -> Any:
        self.unread.discard(name)
        return super().__getitem__(name)


def identify(hf: Mapping[str, Any]) -> tuple[str, str]:
    """Return the family and the kind of a model, such as ("bert", "classifier")."""
    name, architectures = hf.get("model_type"), hf.get("architectures") or []
    if name not in FAMILIES:
        raise UserError(f"tlite has no model of type {name!r}, only {', '.join(FAMILIES)}")
    family = FAMILIES[name]
    if not architectures:
        return name, list(family.kinds)[-1]
    for kind, endings in family.kinds.items():
        if architectures[0] in [family.stem + ending for ending in endings]:
            return name, kind
    raise UserError(f"tlite has no {architectures[0]}; kinds of {name}: {', '.join(family.kinds)}")


def read_config(
    fields: Mapping[str, Any], family: str, kind: str, arrays: Collection[str]
) -> TransformerConfig:
    """Convert a config.json to a tlite config; the names of `arrays` decide what is tied.

    Raises:
        UserError: a field is missing, or has no counterpart in tlite.
        ValueError, TypeError, LookupError, AttributeError, ArithmeticError: a value is invalid.
    """
    hf, tlite = RecordedFields(fields), dict(FAMILIES[family].constants)
    for names, paths, *default in _rows(family):
        values = [hf[name] for name in names if name in hf] or default
        if not values:
            raise UserError(f"config.json of a {family} model has no {names[0]}")
        if any(value != values[0] for value in values):
            raise UserError(f"tlite has no model with different {' and '.join(names)}: {values}")
        tlite |= dict.fromkeys(paths, _to_tlite(paths[0], values[0]))
    if isinstance(tlite["positions"], Rotary):
        tlite["positions"] = read_rotary(family, hf)
    tlite["attention.windows"] = read_windows(family, hf)
    tlite |= _read_special(hf, family, kind, tlite, arrays)
    _check_unread(hf, family)
    config = CONFIGS[kind]()
    names = {field.name for field in dataclasses.fields(config)}
    values = {path: v for path, v in tlite.items() if path.partition(".")[0] in names}
    return override(config, values, convert=lambda kind, value: value)


def _rows(family: str) -> Iterator[tuple[Any, ...]]:
    """Yield each row's Hugging Face names, tlite paths and, if there is one, default."""
    for names, row in FAMILIES[family].fields.items():
        paths, *default = [row] if isinstance(row, str) else row
        yield names.split("+"), paths.split("+"), *default


def _check_unread(hf: RecordedFields, family: str) -> None:
    """Raise a UserError that names the fields which may change the computation unread."""
    unknown = []
    for name in sorted(hf.unread):
        value, required = hf.data[name], FAMILIES[family].required.get(name)
        is_factor_1 = FACTOR.fullmatch(name) and type(value) in (int, float) and value == 1
        is_neutral = not value or is_factor_1 or NO_EFFECT.fullmatch(name)
        if value not in (None, *required) if required else not is_neutral:
            unknown.append(f"{name}={value!r}")
    if unknown:
        raise UserError(f"tlite has no {family} model with {', '.join(unknown)}")


def _to_tlite(path: str, value: Any) -> Any:
    if path.endswith(".activation"):
        if value not in TLITE_ACTIVATIONS:
            raise UserError(f"tlite has no activation {value!r}, only {[*TLITE_ACTIVATIONS]}")
        return TLITE_ACTIVATIONS[value]
    if path == "pool.method":
        return POOLING[value]
    if path == "attention.scale":  # Gemma's query_pre_attn_scalar
        return value**-0.5
    return value[0] if path == "special_tokens.eos_id" and isinstance(value, list) else value


def is_hf_tied(hf: Mapping[str, Any], family: str) -> bool:
    """True if the fields say that the output layer is the embedding."""
    return bool(hf.get("tie_word_embeddings", family not in UNTIED))


def class_names(hf: Mapping[str, Any]) -> list[str]:
    """Return the names of a classifier's classes 0, 1, ..., or []."""
    names = hf.get("id2label") or {}
    return [names[str(index)] for index in range(len(names))]


def _read_special(hf, family: str, kind: str, tlite: dict[str, Any], arrays) -> dict[str, Any]:
    """Read the fields that need more than a row of the table."""
    has_output = kind in ("generator", "seq2seq")
    fields: dict[str, Any] = _read_head(hf, family, kind, arrays) if has_output else {}
    if kind == "classifier":
        problem, number = hf.get("problem_type"), len(class_names(hf)) or hf.get("num_labels", 2)
        if problem not in (None, "single_label_classification") or number == 1:
            raise UserError(f"tlite has no classifier of {number} labels, problem_type {problem!r}")
        fields |= {"num_classes": number, "head_bias": True}
    if family == "gpt_neox" and hf.get("use_parallel_residual", True):
        raise UserError("tlite has no parallel residuals: use_parallel_residual must be false")
    if family == "roberta":
        offset = 2 if hf.get("pad_token_id") is None else hf["pad_token_id"] + 1
        fields |= {"positions.offset": offset, "context": tlite["context"] - offset}
    if family == "t5":
        projection = hf.get("feed_forward_proj", "relu")
        name = "gelu_new" if projection == "gated-gelu" else projection.removeprefix("gated-")
        is_scaled = hf.get("scale_decoder_outputs", hf.get("tie_word_embeddings") is not False)
        pad_id = tlite["special_tokens.pad_id"]
        fields |= {
            "feed_forward.activation": _to_tlite("feed_forward.activation", name),
            "feed_forward.gated": projection.startswith("gated-"),
            "head.scale": tlite["width"] ** -0.5 if is_scaled else 1.0,
            "special_tokens.bos_id": hf.get("decoder_start_token_id", pad_id),
        }
    return fields


def _read_head(hf, family: str, kind: str, arrays: Collection[str]) -> dict[str, Any]:
    output = f"{FAMILIES[family].output}.weight"
    is_tied = output not in arrays
    # tie_word_embeddings=false of T5 means that logits are not scaled.
    if is_tied and not is_hf_tied(hf, family) and family != "t5":
        raise UserError(f"there is no array {output}, though tie_word_embeddings is false")
    if kind == "generator":
        return {"head.tied": is_tied}
    size, bos_id = hf.get("decoder_vocab_size") or hf["vocab_size"], hf.get("forced_bos_token_id")
    fields = {"special_tokens.forced_bos_id": bos_id}
    fields |= {"head.embeddings": "tied" if is_tied else "shared"}
    fields |= {} if family == "t5" else {"head.bias": "final_logits_bias" in arrays}
    if family == "marian" and not hf.get("share_encoder_decoder_embeddings", True):
        if is_tied:
            raise UserError("tlite can't tie the head to a separate embedding of the decoder")
        fields |= {"head.embeddings": "separate", "vocabulary_size": size}
    return fields


def write_config(family: str, kind: str, config: TransformerConfig) -> dict[str, Any]:
    """Convert a tlite config to the fields of config.json that the family has for it."""
    tlite = resolve_fields(config)
    # Special tokens that are left out would be those of the family's first model.
    hf = dict.fromkeys(f"{name}_token_id" for name in ("bos", "eos", "pad", "cls", "sep"))
    for names, paths, *_ in _rows(family):
        value: Any = tlite.get(paths[0])
        if paths[0] == "feed_forward.activation":
            value = HF_ACTIVATIONS[value]
        elif isinstance(value, bool):
            value = any(tlite[path] for path in paths)
        hf |= dict.fromkeys(names, value)
    hf |= {"model_type": family, "architectures": [FAMILIES[family].architecture(kind)]}
    if family in ("llama", "gpt_neox"):
        hf |= write_rotary(family, config)
    if family == "bert":
        hf["type_vocab_size"] = max(tlite["embedding.type_vocab_size"], 1)
    if kind in ("generator", "seq2seq"):
        hf["tie_word_embeddings"] = is_tied(config)
    if kind == "classifier":
        hf |= label_fields(f"LABEL_{index}" for index in range(tlite["num_classes"]))
    return hf | (_write_seq2seq(family, tlite) if kind == "seq2seq" else {})


def _write_seq2seq(family: str, tlite: dict[str, Any]) -> dict[str, Any]:
    """Write the fields of an encoder-decoder that are in no row of the table."""
    bos_id, forced_id = (tlite[f"special_tokens.{name}_id"] for name in ("bos", "forced_bos"))
    hf = {"decoder_start_token_id": bos_id, "forced_bos_token_id": forced_id}
    hf["is_encoder_decoder"] = True
    if family == "marian":
        sizes = tlite["source_vocabulary_size"], tlite["vocabulary_size"]
        hf |= {"vocab_size": sizes[0], "decoder_vocab_size": sizes[1]}
        hf["share_encoder_decoder_embeddings"] = tlite["head.embeddings"] != "separate"
    if family == "t5":
        activation, is_gated = tlite["feed_forward.activation"], tlite["feed_forward.gated"]
        name = "gelu" if is_gated and activation == "gelu" else HF_ACTIVATIONS[activation]
        hf["feed_forward_proj"] = "gated-" * is_gated + name
        hf["scale_decoder_outputs"] = tlite["head.scale"] != 1
    return hf


def context_fields(family: str, config: TransformerConfig) -> dict[str, int]:
    """Return the Hugging Face fields for the context length."""
    offset = flatten(config)["positions.offset"] if family == "roberta" else 0
    names = next(names for names, paths, *_ in _rows(family) if paths == ["context"])
    return dict.fromkeys(names, config.context + offset)


def label_fields(names: Iterable[str]) -> dict[str, Any]:
    """Return the Hugging Face fields for the names of a classifier's classes."""
    labels = {str(index): name for index, name in enumerate(names)}
    return {"id2label": labels, "label2id": {name: int(i) for i, name in labels.items()}}
