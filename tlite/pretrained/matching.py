"""Which family of transformers has a model of tlite's."""

import dataclasses
import math
from typing import Any

from tlite.errors import UserError
from tlite.models import BlocksConfig
from tlite.pretrained.configs import read_config, write_config
from tlite.pretrained.fields import FIELDS
from tlite.pretrained.filled_in import filled_in

# Fields of ours that change training only, or how the same is computed.
TRAINING = {
    "dropout", "hidden_dropout", "word_dropout", "embedding_deviation", "zero_output",
    "attention", "scan", "remat", "start_id", "end_id", "first_id", "pad_id",
}  # fmt: skip


def differences(config: BlocksConfig, other: BlocksConfig) -> list[str]:
    """The fields in which two models differ, but for what arrays can make up for.

    So biases, which can be zeros, a table of segments or of positions that were computed, and rows
    of it that nobody reads.
    """
    ours, theirs = filled_in(config), filled_in(other)
    computed = ours["positions"] in ("sinusoidal", "split_sinusoidal")
    made_up = {name for name in ours if name.endswith("bias") and ours[name] is False}
    made_up |= {"segments"} if not config.segments else set()
    made_up |= {"position_offset"} if not config.position_offset else set()
    if computed and theirs["positions"] in ("learned", "split_sinusoidal"):
        made_up |= {"positions"}

    def same(a: Any, b: Any) -> bool:
        both = isinstance(a, float) and isinstance(b, float | int)
        return math.isclose(a, b, rel_tol=1e-6) if both else a == b

    names = [name for name in ours if name not in made_up | TRAINING]
    return [name for name in names if not same(ours[name], theirs[name])]


def best_family(
    config: BlocksConfig, kind: str, family: str | None = None
) -> tuple[str, dict[str, Any], BlocksConfig]:
    """A family that has this model: its name, the fields of config.json, and our config of these.

    Raises:
        UserError: no family has it, or not the one that was asked for.
    """
    if own := [f.name for f in dataclasses.fields(config) if callable(getattr(config, f.name))]:
        raise UserError(f"a model with a function of your own ({own[0]}) has no counterpart")
    named = [name for name, fields in FIELDS.items() if kind in fields.endings]
    if family and family not in named:
        raise UserError(f"{family} has no {kind}: choose one of {', '.join(named)}")
    tries = []
    for name in [family] if family else named:
        try:
            written = write_config(name, kind, config)
            arrays = {"final_logits_bias"}
            back = read_config(written, name, kind, own_head=not tied(config), arrays=arrays)
        except (UserError, ValueError, TypeError) as error:
            tries.append((99, f"{name}: {error}"))
            continue
        if not (wrong := differences(config, back)):
            return name, written, back
        says = ", ".join(f"{field} {filled_in(config)[field]!r}" for field in wrong)
        tries.append((len(wrong), f"{name} has no {says}"))
    raise UserError(f"no family of transformers has this {kind}: {min(tries)[1]}")


def tied(config: BlocksConfig) -> bool:
    """Whether the output layer, if there is one, is the embedding."""
    return getattr(config, "tied_head", True) and getattr(config, "embeddings", "tied") == "tied"
