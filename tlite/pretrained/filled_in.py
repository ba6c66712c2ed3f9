"""What a config says once everything that it leaves open is filled in."""

import dataclasses
import math
from typing import Any

from tlite.models import BlocksConfig


def filled_in(config: BlocksConfig) -> dict[str, Any]:
    """The fields of a config, with what is left open filled in and what has no effect left out."""
    ours = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}

    def fill(name: str, value: Any) -> None:
        if name in ours and ours[name] is None:
            ours[name] = value

    fill("hidden_width", 4 * config.width)
    fill("head_width", config.width_of_heads)
    fill("key_heads", config.num_heads)
    fill("attention_scale", 1 / math.sqrt(config.width_of_heads))
    fill("decoder_blocks", config.num_blocks)
    for name in ("norm_bias", "feed_forward_bias", "projection_bias"):
        fill(name, config.bias)
    tied = ours.get("tied_head") or ours.get("embeddings") == "tied"
    fill("head_bias", config.bias and not tied)
    if config.norm != "layer":
        ours["norm_bias"] = False
    if ours.get("projection", ...) is None:
        ours |= {"projection_bias": False, "projection_norm": False}
    if config.positions != "rotary":
        ours |= {"rotary_base": None, "local_rotary_base": None, "rotary_scaling": None}
    elif not any(config.windows) or config.local_rotary_base == config.rotary_base:
        ours["local_rotary_base"] = None
    if ours["rotary_scaling"] is not None:
        factor = config.rotary_scaling.magnitude
        ours["rotary_scaling"] = dataclasses.replace(config.rotary_scaling, attention_factor=factor)
    if config.positions != "relative":
        ours |= {"relative_buckets": None, "relative_distance": None}
    if config.positions != "learned":
        ours["position_offset"] = 0
    ours["windows"] = [config.window(block) for block in range(config.num_blocks)]
    return ours
