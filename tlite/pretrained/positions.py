"""Rotary embeddings and attention windows in config.json, as transformers 4 and 5 write them."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from tlite.config import check_size
from tlite.errors import UserError
from tlite.models import Rotary, RotaryScaling, TransformerConfig
from tlite.models.config import MAX_BLOCKS

FULL, SLIDING = "full_attention", "sliding_attention"
RENAMED: dict[str, str] = {  # fields of a scaling with another name in tlite
    "original_max_position_embeddings": "original_context",
    "low_freq_factor": "low_frequency_factor",
    "high_freq_factor": "high_frequency_factor",
}
SCALINGS: dict[str, tuple[str, ...]] = {
    "default": (), "linear": ("factor",), "llama3": ("factor", *RENAMED),
    "yarn": (
        "factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "attention_factor",
    ),
}  # fmt: skip
# Fields of transformers 4 for two bases, of full and of sliding attention, and their defaults.
TWO_BASES = {
    "gemma3_text": {FULL: ("rope_theta", 1e6), SLIDING: ("rope_local_base_freq", 1e4)},
    "modernbert": {FULL: ("global_rope_theta", 160_000.0), SLIDING: ("local_rope_theta", 1e4)},
}
# Which blocks slide if there is no `layer_types`: a field n, its default, a test of block and n.
PATTERNS: dict[str, tuple[str, int, Callable[[int, int], bool]]] = {
    "mistral": ("", 0, lambda block, n: True),
    "qwen2": ("max_window_layers", 28, lambda block, n: block >= n),
    "qwen3": ("max_window_layers", 28, lambda block, n: block >= n),
    "gemma2": ("", 2, lambda block, n: (block + 1) % n > 0),
    "gemma3_text": ("sliding_window_pattern", 6, lambda block, n: (block + 1) % n > 0),
    "modernbert": ("global_attn_every_n_layers", 3, lambda block, n: block % n > 0),
}


def read_rotary(family: str, hf: Mapping[str, Any]) -> Rotary:
    """Read the rotary embedding of a config.json; one that tlite lacks is a UserError."""
    context, parameters = hf["max_position_embeddings"], hf.get("rope_parameters") or {}
    scaling = hf.get("rope_scaling") or {}
    if family not in TWO_BASES:
        neox = family == "gpt_neox"
        base = hf.get("rotary_emb_base", hf.get("rope_theta", 10_000.0))
        fraction = hf.get("partial_rotary_factor", hf.get("rotary_pct", 0.25 if neox else 1.0))
        common = {"rope_theta": base, "partial_rotary_factor": fraction}
        return _read_one(common | (scaling or parameters), context)
    if unknown := set(parameters) - {FULL, SLIDING}:
        raise UserError(f"rope_parameters of a {family} model has layer types, not {unknown}")
    rotary = {}
    for layer_type, (key, default) in TWO_BASES[family].items():
        one = {"rope_theta": hf.get(key, default)} | (parameters.get(layer_type) or {})
        is_scaled = layer_type == FULL or family == "modernbert"
        rotary[layer_type] = _read_one(one | (scaling if is_scaled else {}), context)
    if rotary[FULL] == rotary[SLIDING]:
        return rotary[FULL]
    if rotary[SLIDING].scaling:
        raise UserError("tlite can't scale rotary embeddings of sliding attention separately")
    return dataclasses.replace(rotary[FULL], local_base=rotary[SLIDING].base)


def _read_one(parameters: dict[str, Any], context: int) -> Rotary:
    """Read one set of `rope_parameters`, or of `rope_scaling` with its base."""
    method = parameters.pop("rope_type", parameters.pop("type", None)) or "default"
    base = float(parameters.pop("rope_theta"))
    if (fraction := parameters.pop("partial_rotary_factor", 1.0)) != 1:
        raise UserError(f"partial_rotary_factor is {fraction}: tlite rotates whole heads only")
    if method not in SCALINGS:
        raise UserError(f"tlite has no rotary embeddings of type {method!r}")
    fields = {RENAMED.get(key, key): v for key, v in parameters.items() if v is not None}
    names = {RENAMED.get(key, key) for key in SCALINGS[method]}
    if unknown := fields.keys() - names:
        raise UserError(f"tlite has no rotary embeddings of type {method!r} with {sorted(unknown)}")
    if method == "default":
        return Rotary(base)
    if "original_context" in names:
        fields = {"original_context": context} | fields
    if "factor" not in fields:
        raise UserError(f"rotary embeddings of type {method!r} need a factor")
    return Rotary(base, scaling=RotaryScaling(method, **fields))


def write_rotary(family: str, config: TransformerConfig) -> dict[str, Any]:
    """Write the rotary embedding of a Llama or GPT-NeoX in the format of transformers 4."""
    rotary = config.positions if isinstance(config.positions, Rotary) else Rotary()
    hf: dict[str, Any] = {"rope_theta": rotary.base}
    if family == "gpt_neox":
        hf = {"rotary_emb_base": rotary.base, "rotary_pct": 1.0, "use_parallel_residual": False}
    if (scaling := rotary.scaling) is not None:
        names = {key: RENAMED.get(key, key) for key in SCALINGS[scaling.method]}
        fields = {key: getattr(scaling, name) for key, name in names.items()}
        fields = {key: value for key, value in fields.items() if value is not None}
        hf["rope_scaling"] = {"rope_type": scaling.method} | fields
    return hf


def read_windows(family: str, hf: Mapping[str, Any]) -> tuple[int, ...]:
    """Read the attention window of each block, 0 for full attention; () if all are 0."""
    if family not in PATTERNS:
        return ()
    check_size("num_hidden_layers", blocks := hf["num_hidden_layers"], MAX_BLOCKS)
    window = hf.get("sliding_window", hf.get("sliding_window_size", 4096))
    if family == "modernbert":
        window = hf.get("local_attention", 128) // 2 + 1
    if family.startswith("qwen") and not hf.get("use_sliding_window", False):
        window = None
    key, default, is_sliding = PATTERNS[family]
    number = hf.get(key, hf.get(f"_{key}", default))
    types = hf.get("layer_types")
    if types is None:
        types = [SLIDING if is_sliding(block, number) else FULL for block in range(blocks)]
    if len(types) != blocks or not set(types) <= {FULL, SLIDING}:
        raise UserError(f"layer_types must name {FULL} or {SLIDING} for each layer, not {types}")
    windows = tuple((window or 0) if each == SLIDING else 0 for each in types)
    return windows if any(windows) else ()
