"""Rotary positions and windows as Hugging Face configs spell them, of transformers 4 and 5."""

import dataclasses
from collections.abc import Callable
from typing import Any

from tlite.config import check_size
from tlite.errors import UserError
from tlite.models import Rotary, RotaryScaling, TransformerConfig
from tlite.models.config import MAX_BLOCKS

FULL, SLIDING = "full_attention", "sliding_attention"
# The keys of each kind of scaling, and those that a field of ours has another name for.
RENAMED = {
    "original_max_position_embeddings": "original_context",
    "low_freq_factor": "low_frequency_factor",
    "high_freq_factor": "high_frequency_factor",
}
YARN = "original_max_position_embeddings", "beta_fast", "beta_slow", "attention_factor"
SCALINGS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", *RENAMED),
    "yarn": ("factor", *YARN),
}
# Where version 4 has the bases, and their defaults: of blocks that see everything, and of others.
BASES = {
    "gemma3_text": {FULL: ("rope_theta", 1e6), SLIDING: ("rope_local_base_freq", 1e4)},
    "modernbert": {FULL: ("global_rope_theta", 160_000.0), SLIDING: ("local_rope_theta", 1e4)},
}
# The keys of version 4 for the base and the part of a head that is turned, and the part's default.
NAMES = {"gpt_neox": ("rotary_emb_base", "rotary_pct", 0.25)}
# Which blocks have a window where `layer_types` does not say: by a number n, its key and default.
PATTERNS: dict[str, tuple[str, int, Callable[[int, int], bool]]] = {
    "mistral": ("", 0, lambda block, n: True),
    "qwen2": ("max_window_layers", 28, lambda block, n: block >= n),
    "qwen3": ("max_window_layers", 28, lambda block, n: block >= n),
    "gemma2": ("", 2, lambda block, n: (block + 1) % n > 0),
    "gemma3_text": ("sliding_window_pattern", 6, lambda block, n: (block + 1) % n > 0),
    "modernbert": ("global_attn_every_n_layers", 3, lambda block, n: block % n > 0),
}
DEFAULT_WINDOW = 4096


def read_rotary(family: str, theirs: dict[str, Any]) -> Rotary:
    """Our rotary positions.

    Raises:
        UserError: tlite has no such.
    """
    context = theirs["max_position_embeddings"]
    given = theirs.get("rope_parameters") or {}
    scaling = theirs.get("rope_scaling") or {}
    if family not in BASES:
        name, part, default = NAMES.get(family, ("rope_theta", "partial_rotary_factor", 1.0))
        common = {"partial_rotary_factor": theirs.get(part, default)}
        base = theirs.get(name, 10_000.0)
        return _one(common | {"rope_theta": base} | (scaling or given), context)
    if unknown := set(given) - {FULL, SLIDING}:
        raise UserError(f"rope_parameters of a {family} model are by kind of layer, not {unknown}")
    found = {}
    for kind, (key, default) in BASES[family].items():
        of_both = kind == FULL or family == "modernbert"
        own = {"rope_theta": theirs.get(key, default)} | (given.get(kind) or {})
        found[kind] = _one(own | (scaling if of_both else {}), context)
    if found[FULL] == found[SLIDING]:
        return found[FULL]
    if found[SLIDING].scaling:
        raise UserError("tlite can't scale rotary positions of blocks with a window by itself")
    return dataclasses.replace(found[FULL], local_base=found[SLIDING].base)


def _one(parameters: dict[str, Any], context: int) -> Rotary:
    """One set of rotary positions."""
    kind = parameters.pop("rope_type", parameters.pop("type", None)) or "default"
    base = float(parameters.pop("rope_theta"))
    if (part := parameters.pop("partial_rotary_factor", 1.0)) != 1:
        raise UserError(f"tlite rotates whole heads: partial_rotary_factor {part} is not known")
    if kind not in SCALINGS:
        raise UserError(f"tlite knows no rotary positions of type {kind!r}")
    keys = SCALINGS[kind]
    given = {key: value for key, value in parameters.items() if value is not None}
    if unknown := given.keys() - set(keys):
        raise UserError(f"rotary positions of type {kind!r}: tlite doesn't know {sorted(unknown)}")
    if kind == "default":
        return Rotary(base)
    fields = {RENAMED.get(key, key): value for key, value in given.items()}
    if "original_max_position_embeddings" in keys:
        fields = {"original_context": context} | fields
    if "factor" not in fields:
        raise UserError(f"rotary positions of type {kind!r} have no factor")
    return Rotary(base, scaling=RotaryScaling(kind, **fields))


def write_rotary(family: str, config: TransformerConfig) -> dict[str, Any]:
    """The inverse for a family that has one base, as version 4 spells it, which 5 reads too."""
    rotary = config.positions if isinstance(config.positions, Rotary) else Rotary()
    name, part, _ = NAMES.get(family, ("rope_theta", "", 1.0))
    written: dict[str, Any] = {name: rotary.base} | ({part: 1.0} if part else {})
    if (scaling := rotary.scaling) is not None:
        keys = SCALINGS[scaling.method]
        fields = {key: getattr(scaling, RENAMED.get(key, key)) for key in keys}
        fields = {key: value for key, value in fields.items() if value is not None}
        written["rope_scaling"] = {"rope_type": scaling.method} | fields
    return written


def read_windows(family: str, theirs: dict[str, Any]) -> tuple[int, ...]:
    """Our windows of attention, one a block; none where no block has one."""
    if family not in PATTERNS:
        return ()
    check_size("num_hidden_layers", blocks := theirs["num_hidden_layers"], MAX_BLOCKS)
    window = theirs.get("sliding_window", DEFAULT_WINDOW)
    if family == "modernbert":
        window = theirs.get("local_attention", 128) // 2 + 1
    if family.startswith("qwen") and not theirs.get("use_sliding_window", False):
        window = None
    key, default, pattern = PATTERNS[family]
    number = theirs.get(key, theirs.get("_" + key, default))
    types = theirs.get("layer_types")
    if types is None:
        types = [SLIDING if pattern(block, number) else FULL for block in range(blocks)]
    if len(types) != blocks or not set(types) <= {FULL, SLIDING}:
        raise UserError(f"layer_types must name {FULL} or {SLIDING} for each layer, not {types}")
    windows = tuple((window or 0) if kind == SLIDING else 0 for kind in types)
    return windows if any(windows) else ()
