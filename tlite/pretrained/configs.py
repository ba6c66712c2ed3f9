"""config.json to a config of tlite, and back, as the tables of fields say."""

import dataclasses
import math
import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from tlite.errors import UserError
from tlite.models import (
    ClassifierConfig,
    GeneratorConfig,
    MaskedConfig,
    Rotary,
    Seq2SeqConfig,
    TransformerConfig,
)
from tlite.pretrained.fields import FIELDS
from tlite.pretrained.layers import LAYERS
from tlite.pretrained.positions import read_rotary, read_windows, write_rotary
from tlite.user_code import is_own

CONFIGS = {
    "generator": GeneratorConfig,
    "masked": MaskedConfig,
    "classifier": ClassifierConfig,
    "encoder": TransformerConfig,
    "seq2seq": Seq2SeqConfig,
}
ACTIVATIONS = {
    "relu": "relu", "gelu": "gelu_exact", "gelu_new": "gelu", "gelu_pytorch_tanh": "gelu",
    "gelu_fast": "gelu", "silu": "silu", "swish": "silu", "relu2": "squared_relu", "tanh": "tanh",
}  # fmt: skip
SPELLED = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
POOLING = {"cls": "first", "mean": "mean"}
FIXED = {
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "position_embedding_type": ("absolute", "sans_pos"),
    "tie_encoder_decoder": (False,),
    "quantization_config": (),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "use_bidirectional_attention": (False,),
    "rope_interleaved": (False,),
    "use_mrope": (False,),
    "normalize_before": (False,),
}
"""Fields of theirs of which only these values, or none, are known: others compute otherwise."""

HARMLESS = re.compile(
    r"_.*|model_type|architectures|transformers.*|(torch_)?dtype|name_or_path|use_(cache|bfloat16)"
    r"|init\w*_(range|std|factor)|return_dict.*|output_.*|torchscript|attn_implementation"
    r"|unsloth_fixed|gradient_checkpointing|chunk_size_feed_forward|is_encoder_decoder"
    r"|\w*dropout\w*|\w+_(layer|p)drop|task_specific_params|finetuning_task|problem_type"
    r"|\w*label\w*|summary_\w+|tokenizer_class|prefix|\w+_token_id|(min|max)_length|num_beam\w*"
    r"|num_return_sequences|do_sample|early_stopping|\w+_penalty|\w*no_repeat_ngram_size"
    r"|bad_words_ids|(begin_)?suppress_tokens|temperature|top_[kp]|typical_p|cache_implementation"
    r"|remove_invalid_values|cross_attention_hidden_size|force_bos_token_to_be_generated"
    # Of earlier versions of a family, or without an effect on this one.
    r"|n_ctx|n_special|predict_special_tokens|reorder_and_upcast_attn|pretraining_tp"
    r"|is_llama_config|directionality|pooler_\w+|sinusoidal_pos_embds"
    r"|tie_\w+|sparse_pred\w+|reference_compile|deterministic_flash_attn|repad_logits_with_grad"
    r"|static_position_embeddings|normalize_embedding|extra_pos_embeddings|num_hidden_layers"
    # Read here and in `positions`, but not by a row of a table.
    r"|rope_\w+|\w*rotary\w*|\w*sliding_window\w*|layer_types|max_window_layers|local_attention"
    r"|(global|local)_(rope|attn)_\w+|use_parallel_residual|share_encoder_decoder_embeddings"
    r"|decoder_vocab_size|feed_forward_proj|dense_act_fn|is_gated_act|scale_decoder_outputs"
)
"""Fields of theirs that a family need not have in its table."""

FROM_SCRATCH = {
    "generator": ("gpt2", "llama", "gpt_neox"),
    "masked": ("bert",),
    "classifier": ("bert",),
    "encoder": ("bert",),
    "seq2seq": ("marian", "bart", "t5"),
}
"""The families that are written without a folder that the model comes from."""

# Families with a head of its own unless told.
UNTIED = "llama", "mistral", "qwen2", "qwen3", "gpt_neox"


# The fields of configs and their parts, by dotted paths: "attention.num_kv_heads"


def flat(part, prefix: str = "") -> dict[str, Any]:
    """Every field by its path; of a part the name of its class, then its fields."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(part):
        value, path = getattr(part, field.name), prefix + field.name
        if dataclasses.is_dataclass(value) and not is_own(value):
            found |= {path: type(value).__name__} | flat(value, f"{path}.")
        else:
            found[path] = value
    return found


def with_fields(part, values: dict[str, Any]):
    """The same with other fields, by their paths; a part itself comes before its fields."""
    own: dict[str, Any] = {}
    inner: dict[str, dict[str, Any]] = {}
    for path, value in values.items():
        name, _, rest = path.partition(".")
        if rest:
            inner.setdefault(name, {})[rest] = value
        else:
            own[name] = value
    for name, fields in inner.items():
        own[name] = with_fields(own.get(name, getattr(part, name)), fields)
    return dataclasses.replace(part, **own)


def tied(config: TransformerConfig) -> bool:
    """Whether the output layer, if there is one, is the embedding."""
    return getattr(getattr(config, "head", None), "tied", True)


def filled_in(config: TransformerConfig) -> dict[str, Any]:
    """The fields of a config, with what is left open filled in and what has no effect left out."""
    ours, heads = flat(config), config.head_dim
    found = {path: config.bias for path in ours if path.endswith("bias")} | {
        "feed_forward.mlp_dim": 4 * config.width,
        "attention.head_dim": heads,
        "attention.num_kv_heads": config.num_heads,
        "attention.scale": 1 / math.sqrt(heads),
        "decoder_blocks": config.num_blocks,
        "head.bias": config.bias and not tied(config),
    }
    ours |= {path: found[path] for path in found.keys() & ours.keys() if ours[path] is None}
    ours["attention.windows"] = config.windows
    if ours.get("norm.method") == "rms":
        ours["norm.bias"] = False
    if isinstance(positions := config.positions, Rotary):
        same = positions.local_base == positions.base and not positions.scaling
        if same or not any(config.windows):
            ours["positions.local_base"] = None
        if positions.scaling:
            ours["positions.scaling.attention_factor"] = positions.scaling.magnitude
    return ours


# In


def kind_of(theirs: dict[str, Any]) -> tuple[str, str]:
    """Family and kind of a model: ("bert", "classifier").

    Raises:
        UserError: it is none that tlite has.
    """
    family, names = theirs.get("model_type"), theirs.get("architectures") or []
    if family not in FIELDS:
        raise UserError(f"tlite has no model of type {family!r}: it knows {', '.join(FIELDS)}")
    fields = FIELDS[family]
    if not names:
        return family, list(fields.endings)[-1]
    for kind, endings in fields.endings.items():
        if names[0] in [fields.stem + ending for ending in endings]:
            return family, kind
    raise UserError(f"tlite has no {names[0]}: of {family} it knows {', '.join(fields.endings)}s")


def read_config(
    theirs: dict[str, Any], family: str, kind: str, arrays: Collection[str]
) -> TransformerConfig:
    """Our config of one of theirs.

    Args:
        arrays: the names of its arrays, which say what is tied.

    Raises:
        UserError: a field is missing, or says what tlite doesn't have.
        ValueError, TypeError, LookupError, AttributeError, ArithmeticError: it makes no sense.
    """
    for key, values in FIXED.items():
        if theirs.get(key) not in (None, *values):
            raise UserError(f"config.json says {key}: {theirs[key]!r}, which tlite doesn't have")
    ours = dict(FIELDS[family].constants)
    for names, targets, *default in _rows(family):
        values = [theirs[name] for name in names if name in theirs] or default
        if not values:
            raise UserError(f"config.json of a {family} model has no {names[0]}")
        if any(value != values[0] for value in values):
            raise UserError(f"tlite has no model with different {' and '.join(names)}")
        ours |= dict.fromkeys(targets, _value(targets[0], values[0]))
    if isinstance(ours["positions"], Rotary):
        ours["positions"] = read_rotary(family, theirs)
    ours["attention.windows"] = read_windows(family, theirs)
    ours |= _special(theirs, family, kind, ours, arrays)
    config = CONFIGS[kind]()
    has = {field.name for field in dataclasses.fields(config)}
    return with_fields(config, {p: v for p, v in ours.items() if p.partition(".")[0] in has})


def _rows(family: str) -> Iterator[tuple[Any, ...]]:
    """Of each row the names of theirs, the paths of ours, and the default if there is one."""
    for theirs, row in FIELDS[family].table.items():
        ours, *default = [row] if isinstance(row, str) else row
        yield theirs.split("+"), ours.split("+"), *default


def unknown_fields(theirs: dict[str, Any], family: str) -> str:
    """The fields that tlite doesn't know, where they ask for anything: "clip_qkv (3.0), ..."."""
    known = {*FIXED}.union(*(names for names, *_ in _rows(family)))
    asked = [k for k, v in theirs.items() if v and k not in known and not HARMLESS.fullmatch(k)]
    return ", ".join(f"{name} ({theirs[name]!r})" for name in asked)


def _value(ours: str, theirs: Any) -> Any:
    if ours.endswith(".activation"):
        if theirs not in ACTIVATIONS:
            raise UserError(
                f"tlite has no activation {theirs!r}: it knows {', '.join(ACTIVATIONS)}"
            )
        return ACTIVATIONS[theirs]
    if ours == "pool.method":
        return POOLING[theirs]
    if ours == "attention.scale":  # Gemma's query_pre_attn_scalar
        return theirs**-0.5
    return theirs[0] if ours == "special_tokens.eos_id" and isinstance(theirs, list) else theirs


def says_tied(theirs: dict[str, Any], family: str) -> bool:
    """Whether the fields say that the output layer is the embedding."""
    return bool(theirs.get("tie_word_embeddings", family not in UNTIED))


def class_names(theirs: dict[str, Any]) -> list[str]:
    """The names of a classifier's classes 0, 1, ..., if they are given."""
    given = theirs.get("id2label") or {}
    return [given[str(index)] for index in range(len(given))]


def _num_classes(theirs: dict[str, Any]) -> int:
    problem = theirs.get("problem_type")
    if problem not in (None, "single_label_classification"):
        raise UserError(f"config.json says problem_type: {problem!r}, which tlite doesn't have")
    number = len(class_names(theirs)) or theirs.get("num_labels", 2)
    if number == 1:
        raise UserError("a model with num_labels 1 is a regression, which tlite doesn't have")
    return number


def _special(theirs, family, kind, ours, arrays) -> dict[str, Any]:
    """The fields of ours that need more than a line of a table."""
    found: dict[str, Any] = {}
    head = f"{LAYERS[family].head}.weight"
    own_head = head in arrays
    # T5 says that it is not tied where it means that it is not scaled.
    tied = says_tied(theirs, family) or family == "t5"
    if kind in ("generator", "seq2seq") and not own_head and not tied:
        raise UserError(f"there is no array {head}, though the head is not tied")
    if kind == "generator":
        found["head.tied"] = not own_head
    if kind == "classifier":
        found |= {"num_classes": _num_classes(theirs), "head_bias": True}
    if family == "gpt_neox" and theirs.get("use_parallel_residual", True):
        raise UserError("tlite has no layers side by side: use_parallel_residual must be false")
    if family == "roberta":
        offset = 2 if theirs.get("pad_token_id") is None else theirs["pad_token_id"] + 1
        found |= {"positions.offset": offset, "context": ours["context"] - offset}
    if kind == "seq2seq":
        found["head.embeddings"] = "shared" if own_head else "tied"
        found["special_tokens.forced_bos_id"] = theirs.get("forced_bos_token_id")
    if family in ("marian", "bart"):
        found["head.bias"] = "final_logits_bias" in arrays
    if family == "marian" and not theirs.get("share_encoder_decoder_embeddings", True):
        if not own_head:
            raise UserError("tlite can't tie the head to a decoder's embedding of its own")
        size = theirs.get("decoder_vocab_size") or ours["vocabulary_size"]
        found |= {"head.embeddings": "separate", "vocabulary_size": size}
    if family == "t5":
        way = theirs.get("feed_forward_proj", "relu")
        name = "gelu_new" if way == "gated-gelu" else way.removeprefix("gated-")
        found["feed_forward.activation"] = _value("feed_forward.activation", name)
        found["feed_forward.gated"] = way.startswith("gated-")
        scaled = theirs.get("scale_decoder_outputs", theirs.get("tie_word_embeddings") is not False)
        found["head.scale"] = ours["width"] ** -0.5 if scaled else 1.0
        found["special_tokens.bos_id"] = theirs.get(
            "decoder_start_token_id", ours["special_tokens.pad_id"]
        )
    return found


# Out


def write_config(family: str, kind: str, config: TransformerConfig) -> dict[str, Any]:
    """The fields of theirs that describe a config of ours, as well as the family can."""
    ours = filled_in(config)
    # Else transformers takes those of the family's first model, whose vocabulary was another.
    written = dict.fromkeys(f"{mark}_token_id" for mark in ("bos", "eos", "pad", "cls", "sep"))
    for names, targets, *_ in _rows(family):
        value = ours.get(targets[0])
        if targets[0] == "feed_forward.activation":
            value = SPELLED[value]
        elif isinstance(value, bool):
            value = any(ours[target] for target in targets)
        written |= dict.fromkeys(names, value)
    written |= {"model_type": family, "architectures": [architecture(family, kind)]}
    if family in ("llama", "gpt_neox"):
        written |= write_rotary(family, config)
    if family == "gpt_neox":
        written["use_parallel_residual"] = False
    if family == "bert":
        written["type_vocab_size"] = max(config.embedding.type_vocab_size, 1)
    if kind in ("generator", "seq2seq"):
        written["tie_word_embeddings"] = config.head.tied
    if kind == "classifier":
        written |= labelled(f"LABEL_{index}" for index in range(config.num_classes))
    return written | (_write_seq2seq(family, config) if kind == "seq2seq" else {})


def _write_seq2seq(family: str, config: Seq2SeqConfig) -> dict[str, Any]:
    """What no line of a table says of an encoder-decoder."""
    written: dict[str, Any] = {"is_encoder_decoder": True}
    written["decoder_start_token_id"] = config.special_tokens.bos_id
    if config.special_tokens.forced_bos_id is not None:
        written["forced_bos_token_id"] = config.special_tokens.forced_bos_id
    if family == "marian":
        written["vocab_size"] = config.source_vocabulary_size
        written["decoder_vocab_size"] = config.vocabulary_size
        written["share_encoder_decoder_embeddings"] = config.head.embeddings != "separate"
    if family == "t5":
        activation, gated = config.feed_forward.activation, config.feed_forward.gated
        short = "gelu" if gated and activation == "gelu" else SPELLED[activation]
        written["feed_forward_proj"] = "gated-" * gated + short
        written["scale_decoder_outputs"] = config.head.scale != 1
    return written


def architecture(family: str, kind: str) -> str:
    """The name of a model's class in transformers."""
    return FIELDS[family].stem + FIELDS[family].endings[kind][0]


def context_field(family: str, config: TransformerConfig) -> dict[str, int]:
    """The fields of theirs that say how long a text may be."""
    offset = config.positions.offset if family == "roberta" else 0
    named = (names for names, targets, *_ in _rows(family) if targets == ["context"])
    return dict.fromkeys(next(named), config.context + offset)


def labelled(names: Iterable[str]) -> dict[str, Any]:
    """The fields that name the classes of a classifier."""
    by_index = {str(index): name for index, name in enumerate(names)}
    ids = {name: int(index) for index, name in by_index.items()}
    return {"id2label": by_index, "label2id": ids}
