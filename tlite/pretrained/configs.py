"""config.json to a config of tlite, and back, as the tables of fields say."""

import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from tlite.errors import UserError
from tlite.models import (
    BlocksConfig,
    ClassifierConfig,
    GeneratorConfig,
    MaskedConfig,
    Rotary,
    Seq2SeqConfig,
)
from tlite.pretrained.fields import FIELDS
from tlite.pretrained.layers import LAYERS
from tlite.pretrained.paths import filled_in, with_fields
from tlite.pretrained.positions import (
    BASES,
    PATTERNS,
    ROTARY_KEYS,
    WINDOW_KEYS,
    read_rotary,
    read_windows,
    write_rotary,
)

CONFIGS = {
    "generator": GeneratorConfig,
    "masked": MaskedConfig,
    "classifier": ClassifierConfig,
    "encoder": BlocksConfig,
    "seq2seq": Seq2SeqConfig,
}
ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu_exact",
    "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "gelu_fast": "gelu",
    "silu": "silu",
    "swish": "silu",
    "relu2": "squared_relu",
    "tanh": "tanh",
}
POOLING = {"cls": "first", "mean": "mean"}
FIXED = {
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "pruned_heads": ({}, None),
    "position_embedding_type": ("absolute",),
    "tie_encoder_decoder": (False,),
    "quantization_config": (None,),
}
HARMLESS = re.compile(
    r"_.*|model_type|architectures|transformers.*|(torch_)?dtype|name_or_path|use_(cache|bfloat16)"
    r"|init\w*_(range|std)|return_dict.*|output_.*|torchscript|attn_implementation|unsloth_fixed"
    r"|gradient_checkpointing|chunk_size_feed_forward|is_encoder_decoder|\w*dropout\w*"
    r"|\w+_layerdrop|task_specific_params|finetuning_task|problem_type|\w*label\w*|summary_\w+"
    r"|tie_word_embeddings|tokenizer_class|prefix|\w+_token_id|(min|max)_length|num_beam\w*"
    r"|num_return_sequences|do_sample|early_stopping|\w+_penalty|\w*no_repeat_ngram_size"
    r"|bad_words_ids|(begin_)?suppress_tokens|temperature|top_[kp]|typical_p"
    r"|remove_invalid_values|cross_attention_hidden_size"
)
"""Fields of every family that say nothing about what a model computes."""

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


def architecture(family: str, kind: str) -> str:
    """The name of a model's class in transformers."""
    return FIELDS[family].stem + FIELDS[family].endings[kind][0]


def read_config(
    theirs: dict[str, Any], family: str, kind: str, *, own_head: bool, arrays: Collection[str]
) -> BlocksConfig:
    """Our config of one of theirs.

    Args:
        own_head: whether its output layer is another array than the embedding.
        arrays: the names of its arrays.

    Raises:
        UserError: a field is missing, or says what tlite doesn't have.
        ValueError, TypeError, LookupError, AttributeError, ArithmeticError: it makes no sense.
    """
    fields = FIELDS[family]
    for key, values in (FIXED | fields.fixed).items():
        if key in theirs and theirs[key] not in values:
            raise UserError(f"config.json says {key}: {theirs[key]!r}, which tlite doesn't have")
    ours = fields.constants | ({"pool": fields.pool} if kind == "classifier" else {})
    for names, targets, default in _rows(family):
        if names[0] not in theirs and default is ...:
            raise UserError(f"config.json of a {family} model has no {names[0]}")
        values = [theirs.get(name, default) for name in names]
        if any(value != values[0] for value in values):
            raise UserError(f"tlite has no model with different {' and '.join(names)}: {values}")
        ours |= dict.fromkeys(targets, _read_value(targets[0], values[0]))
    if isinstance(ours["positions"], Rotary):
        ours["positions"] = read_rotary(family, theirs)
    ours["attention.windows"] = read_windows(family, theirs)
    ours |= _special(theirs, family, kind, ours, own_head, arrays)
    called = {target: names[0] for names, targets, _ in _rows(family) for target in targets}
    config = with_fields(CONFIGS[kind](), ours, called)
    sizes = {"pad": "source_vocabulary_size", "start": "vocabulary_size", "end": "vocabulary_size"}
    for name, of in sizes.items() if kind == "seq2seq" else ():
        path, index, size = f"symbols.{name}", getattr(config.symbols, name), getattr(config, of)
        if index is not None and not 0 <= index < size:
            raise ValueError(f"{called.get(path, path)} {index} is none of {size} tokens")
    return config


def _rows(family: str) -> Iterator[tuple[list[str], list[str], Any]]:
    for theirs, ours, *default in FIELDS[family].table:
        yield theirs.split("+"), ours.split("+"), default[0] if default else ...


def unknown_fields(theirs: dict[str, Any], family: str) -> dict[str, Any]:
    """The fields that tlite doesn't know, where they ask for anything."""
    fields = FIELDS[family]
    known = {name for names, _, _ in _rows(family) for name in names}
    known |= {*fields.others.split(), *FIXED, *fields.fixed}
    if isinstance(fields.constants["positions"], Rotary):
        known |= ROTARY_KEYS | {key for key, _ in BASES.get(family, {}).values()}
    if family in PATTERNS:
        known |= WINDOW_KEYS | {PATTERNS[family][0]}
    return {k: v for k, v in theirs.items() if v and k not in known and not HARMLESS.fullmatch(k)}


def _read_value(ours: str, value: Any) -> Any:
    if ours == "feed_forward.activation":
        return _activation(value)
    if ours == "attention.scale":  # Gemma's query_pre_attn_scalar
        return value**-0.5
    if ours == "symbols.end" and isinstance(value, list):
        return value[0]
    return float(value) if isinstance(value, int) and ours.endswith(("dropout", "cap")) else value


def _activation(name: str) -> str:
    if name not in ACTIVATIONS:
        raise UserError(f"tlite has no activation {name!r}: it knows {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def says_tied(theirs: dict[str, Any], family: str) -> bool:
    """Whether the fields say that the output layer is the embedding."""
    return bool(theirs.get("tie_word_embeddings", family not in UNTIED))


def class_names(theirs: dict[str, Any]) -> list[str]:
    """The names of a classifier's classes, if they are given.

    Raises:
        ValueError, TypeError: they are not the names of classes 0, 1, ...
    """
    given = theirs.get("id2label") or {}
    if not isinstance(given, dict) or not all(isinstance(name, str) for name in given.values()):
        raise TypeError("id2label does not name the classes")
    if sorted(map(int, given)) != list(range(len(given))):
        raise ValueError(f"id2label names the classes {', '.join(given)}, not 0, 1, ...")
    return [given[key] for key in sorted(given, key=int)]


def _num_classes(theirs: dict[str, Any]) -> int:
    problem = theirs.get("problem_type")
    if problem not in (None, "single_label_classification"):
        raise UserError(f"config.json says problem_type: {problem!r}, which tlite doesn't have")
    number = len(class_names(theirs)) or theirs.get("num_labels", 2)
    if number == 1:
        raise UserError("a model with num_labels 1 is a regression, which tlite doesn't have")
    return number


def _special(theirs, family, kind, ours, own_head, arrays) -> dict[str, Any]:
    """The fields of ours that need more than a line of a table."""
    found = {}
    # T5 says that it is not tied where it means that it is not scaled.
    tied = says_tied(theirs, family) or family == "t5"
    if kind in ("generator", "seq2seq") and not own_head and not tied:
        name = f"{LAYERS[family].head}.weight"
        raise UserError(f"there is no array {name}, though the head is not tied")
    if kind == "generator":
        found["head.tied"] = not own_head
    if kind == "classifier":
        found["num_classes"] = _num_classes(theirs)
    if kind == "masked" and family in ("bert", "distilbert"):
        found["projection.activation"] = ours["feed_forward.activation"]
    if family == "gpt_neox" and theirs.get("use_parallel_residual", True):
        raise UserError("tlite has no layers side by side: use_parallel_residual must be false")
    if family == "roberta":
        offset = 2 if theirs.get("pad_token_id") is None else theirs["pad_token_id"] + 1
        found |= {"positions.offset": offset, "context": ours["context"] - offset}
    if family == "modernbert":
        found |= _special_modernbert(theirs, kind, ours)
    if kind == "seq2seq":
        found["head.embeddings"] = "shared" if own_head else "tied"
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
        found["feed_forward.activation"] = _activation(theirs.get("dense_act_fn", name))
        found["feed_forward.gated"] = theirs.get("is_gated_act", way.startswith("gated-"))
        scaled = theirs.get("scale_decoder_outputs", theirs.get("tie_word_embeddings") is not False)
        found["head.scale"] = ours["width"] ** -0.5 if scaled else 1.0
        found["symbols.start"] = theirs.get("decoder_start_token_id", ours["symbols.pad"])
    return found


def _special_modernbert(theirs, kind, ours) -> dict[str, Any]:
    if theirs.get("layer_norm_eps", ours["norm.epsilon"]) != ours["norm.epsilon"]:
        raise UserError("tlite has no model with different norm_eps and layer_norm_eps")
    pooling = theirs.get("classifier_pooling", "cls")
    if pooling not in POOLING:
        raise UserError(f"tlite has no pooling {pooling!r}: it knows {', '.join(POOLING)}")
    path = "pool.projection" if kind == "classifier" else "projection"
    activation = _activation(theirs.get("classifier_activation", "gelu"))
    bias = theirs.get("classifier_bias", False)
    found = {f"{path}.activation": activation, f"{path}.bias": bias}
    of_kind = {
        "classifier": {"pool.method": POOLING[pooling], "head_bias": True},
        "masked": {"head_bias": theirs.get("decoder_bias", True)},
    }
    return found | of_kind[kind] if kind in of_kind else {}


def write_config(family: str, kind: str, config: BlocksConfig) -> dict[str, Any]:
    """The fields of theirs that describe a config of ours, as well as the family can.

    Raises:
        UserError: the activation is not one of theirs.
    """
    ours = filled_in(config)
    # Else transformers takes those of the family's first model, whose vocabulary was another.
    written = dict.fromkeys(f"{mark}_token_id" for mark in ("bos", "eos", "pad", "cls", "sep"))
    for names, targets, _ in _rows(family):
        value = ours.get(targets[0])
        if targets[0] == "feed_forward.activation":
            value = _spelled(value)
        elif isinstance(value, bool):
            value = any(ours[target] for target in targets)
        written |= dict.fromkeys(names, value)
    written |= {"model_type": family, "architectures": [architecture(family, kind)]}
    if family in ("llama", "gpt_neox"):
        written |= write_rotary(family, config)
    if family == "gpt_neox":
        written["use_parallel_residual"] = False
    if family == "bert":
        written["type_vocab_size"] = max(config.embedding.segments, 1)
    if kind == "generator":
        written["tie_word_embeddings"] = config.head.tied
    if kind == "classifier":
        written |= labelled(f"LABEL_{index}" for index in range(config.num_classes))
    if kind == "seq2seq":
        written |= _write_seq2seq(family, config)
    return written


def _write_seq2seq(family: str, config: Seq2SeqConfig) -> dict[str, Any]:
    """What no line of a table says of an encoder-decoder."""
    written = {"is_encoder_decoder": True, "decoder_start_token_id": config.symbols.start}
    written["tie_word_embeddings"] = config.head.embeddings == "tied"
    if config.symbols.first is not None:
        written["forced_bos_token_id"] = config.symbols.first
    if family == "marian":
        written["vocab_size"] = config.source_vocabulary_size
        written["decoder_vocab_size"] = config.vocabulary_size
        written["share_encoder_decoder_embeddings"] = config.head.embeddings != "separate"
    if family == "t5":
        activation, gated = config.feed_forward.activation, config.feed_forward.gated
        short = "gelu" if gated and activation == "gelu" else _spelled(activation)
        written |= {"feed_forward_proj": "gated-" * gated + short, "is_gated_act": gated}
        written |= {"dense_act_fn": _spelled(activation)}
        written["scale_decoder_outputs"] = config.head.scale != 1
    return written


def _spelled(activation: str) -> str:
    """Their name of an activation."""
    names = {name: theirs for theirs, name in reversed(ACTIVATIONS.items())}
    if activation not in names:
        raise UserError(f"transformers has no activation {activation!r}")
    return names[activation]


def context_field(family: str, config: BlocksConfig) -> dict[str, int]:
    """The fields of theirs that say how long a text may be."""
    offset = config.positions.offset if family == "roberta" else 0
    named = (names for names, targets, _ in _rows(family) if targets == ["context"])
    return dict.fromkeys(next(named), config.context + offset)


def labelled(names: Iterable[str]) -> dict[str, Any]:
    """The fields that name the classes of a classifier."""
    by_index = dict(enumerate(names))
    return {
        "id2label": {str(index): name for index, name in by_index.items()},
        "label2id": {name: index for index, name in by_index.items()},
    }
