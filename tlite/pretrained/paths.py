"""The fields of configs and their parts, by dotted paths: "attention.key_heads"."""

import dataclasses
import math
from types import NoneType
from typing import Any, get_args

from tlite.config import is_own
from tlite.models import BlocksConfig, Rotary

PLAIN = {int, float, bool, NoneType}


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


def with_fields(part, values: dict[str, Any], called: dict[str, str] | None = None, prefix=""):
    """The same with other fields, by their paths; a part itself comes before its fields.

    Args:
        called: other names of paths, for the error.

    Raises:
        TypeError: a number or a switch is of another type.
    """
    types = {field.name: field.type for field in dataclasses.fields(part)}
    own: dict[str, Any] = {}
    inner: dict[str, dict[str, Any]] = {}
    for path, value in values.items():
        name, _, rest = path.partition(".")
        if rest:
            inner.setdefault(name, {})[rest] = value
        elif _fits(value, types[name]):
            own[name] = value
        else:
            path = prefix + path
            raise TypeError(f"{(called or {}).get(path, path)} can't be {value!r}")
    for name, fields in inner.items():
        of = own.get(name, getattr(part, name))
        own[name] = with_fields(of, fields, called, f"{prefix}{name}.")
    return dataclasses.replace(part, **own)


def _fits(value: Any, kind: Any) -> bool:
    """Whether it is a number, a switch or nothing where a field's type is of these alone."""
    kinds = {*(get_args(kind) or [kind])}
    return not kinds <= PLAIN or type(value) in kinds or (float in kinds and type(value) is int)


def filled_in(config: BlocksConfig) -> dict[str, Any]:
    """The fields of a config, with what is left open filled in and what has no effect left out."""
    ours = flat(config)
    tied = ours.get("head.tied") or ours.get("head.embeddings") == "tied"
    heads, positions = config.width_of_heads, config.positions
    found = {
        "feed_forward.hidden_width": 4 * config.width,
        "attention.head_width": heads,
        "attention.key_heads": config.num_heads,
        "attention.scale": 1 / math.sqrt(heads),
        "embedding.scale": config.embedding.factor(config) != 1,
        "decoder_blocks": config.num_blocks,
        "head.bias": config.bias and not tied,
    }
    found |= {path: config.bias for path in ours if path.endswith("bias")} | found
    ours |= {path: found[path] for path in found.keys() & ours.keys() if ours[path] is None}
    ours["attention.windows"] = config.windows
    if ours.get("norm.method") == "rms":
        ours["norm.bias"] = False
    if isinstance(positions, Rotary):
        same = positions.local_base == positions.base and not positions.scaling
        if same or not any(config.windows):
            ours["positions.local_base"] = None
        if positions.scaling:
            ours["positions.scaling.attention_factor"] = positions.scaling.magnitude
    return ours
