"""Fields of version 0.2.0's configs, and the parts that have them now.

Runs of then keep opening, and its options are still understood on a command line.
"""

import dataclasses
from typing import Any

from tlite.config import to_dict
from tlite.models.parts import part

BLOCKS = {
    "norm_first": "block.pre_norm",
    "output_norms": "block.output_norms",
    "first_norm": "block.first_norm",
    "norm_epsilon": "norm.epsilon",
    "norm_bias": "norm.bias",
    "hidden_width": "feed_forward.hidden_width",
    "activation": "feed_forward.activation",
    "gated": "feed_forward.gated",
    "feed_forward_bias": "feed_forward.bias",
    "hidden_dropout": "feed_forward.dropout",
    "zero_output": "attention.zero_output feed_forward.zero_output",
    "head_width": "attention.head_width",
    "key_heads": "attention.key_heads",
    "qkv_bias": "attention.input_bias",
    "query_key_norm": "attention.query_key_norm",
    "windows": "attention.windows",
    "softcap": "attention.softcap",
    "attention_scale": "attention.scale",
    "embedding_deviation": "embedding.deviation",
    "scale_embedding": "embedding.scale",
    "embedding_norm": "embedding.norm",
    "segments": "embedding.segments",
    "position_offset": "positions.offset",
    "rotary_base": "positions.base",
    "local_rotary_base": "positions.local_base",
    "rotary_scaling": "positions.scaling",
    "relative_buckets": "positions.buckets",
    "relative_distance": "positions.distance",
    "scan": "loop.scan",
    "remat": "loop.remat",
}
GENERATOR = BLOCKS | {
    "tied_head": "head.tied",
    "head_bias": "head.bias",
    "head_softcap": "head.softcap",
}
PROJECTION = {"projection_bias": "projection.bias", "projection_norm": "projection.norm"}
MASKED = BLOCKS | PROJECTION
CLASSIFIER = BLOCKS | {
    "aggregation": "pool.method",
    "projection": "pool.projection",
    "projection_bias": "pool.projection.bias",
    "projection_norm": "pool.projection.norm",
    "bigrams": "wide.bigrams",
    "pairs": "wide.bigrams",
    "word_ngram_rows": "wide.word_rows",
    "character_ngram_rows": "wide.character_rows",
    "word_dropout": "embedding.word_dropout",
}
SEQ2SEQ = BLOCKS | {
    "embeddings": "head.embeddings",
    "head_bias": "head.bias",
    "head_scale": "head.scale",
    "pad_id": "symbols.pad",
    "start_id": "symbols.start",
    "end_id": "symbols.end",
    "first_id": "symbols.first",
}
GONE = {"convolution": 0, "value_residual": False}


def read_earlier(kind: type, values: dict[str, Any], table: dict[str, str]) -> dict[str, Any]:
    """What version 0.2.0 wrote of a config, as it would be written now; today's as it is.

    Raises:
        ValueError: it says what is gone.
    """
    if not table.keys() & values.keys():
        return values
    values = dict(values)
    for name, nothing in GONE.items():
        if values.pop(name, nothing) != nothing:
            raise ValueError(f"{name} is no part of a model any more: tlite 0.2.0 opens this run")
    parts: dict[str, dict[str, Any]] = {}
    if "attention" in values:
        parts["attention"] = {"function": values.pop("attention")}
    if kind.__name__ == "MaskedConfig":
        parts["projection"] = {"activation": values.pop("projection", "gelu_exact")}
    given = {name: values.pop(name) for name in table.keys() & values.keys()}
    for name, value in given.items():
        for path in table[name].split():
            slot, field = path.rsplit(".", 1)
            parts.setdefault(slot, {})[field] = value
    named = {n: values.pop(n) for n in ("positions", "feed_forward", "norm") if n in values}
    parts |= {slot: _placed(slot, value, parts.get(slot, {})) for slot, value in named.items()}
    width, embedding = values.get("width", 32), parts.get("embedding", {})
    sized = type(width) is int and width > 0
    if kind.__name__ == "Seq2SeqConfig" and sized and embedding.get("deviation", ...) is None:
        embedding["deviation"] = width**-0.5
    projection = parts.pop("pool.projection", {})
    if (activation := parts.get("pool", {}).get("projection")) is not None:
        parts["pool"]["projection"] = {"kind": "Projection", "activation": activation} | projection
    classes = {slot: type(getattr(kind, slot, None)).__name__ for slot in parts}
    return values | {slot: {"kind": classes[slot]} | part for slot, part in parts.items()}


def _placed(slot: str, value: Any, numbers: dict[str, Any]) -> dict[str, Any]:
    """What a field said by a word, or by a function of a user's own; with the numbers it has."""
    if isinstance(value, str):
        if slot == "feed_forward":
            return numbers
        named = part(slot, value)
        has = {field.name for field in dataclasses.fields(named)}
        return to_dict(named) | {name: n for name, n in numbers.items() if name in has}
    kinds = {"positions": "PositionsFunction", "feed_forward": "FeedForwardFunction"}
    return {"kind": kinds.get(slot, "NormFunction"), "function": value}
