"""Which family of transformers has a model of tlite's."""

import math
from typing import Any

from tlite.config import is_own
from tlite.errors import UserError
from tlite.models import BlocksConfig, ClassifierConfig, Learned, Sinusoidal
from tlite.pretrained.configs import read_config, write_config
from tlite.pretrained.fields import FIELDS
from tlite.pretrained.paths import filled_in, flat

# Fields of ours that change training only, or how the same is computed; and one that others say.
TRAINING = {
    "dropout", "feed_forward.dropout", "embedding.word_dropout", "embedding.deviation",
    "attention.function", "head.product", "attention.zero_output", "feed_forward.zero_output",
    "loop.scan", "loop.remat", "bias",
    "symbols.pad", "symbols.start", "symbols.end", "symbols.first",
}  # fmt: skip


def differences(config: BlocksConfig, other: BlocksConfig) -> list[str]:
    """The fields in which two models differ, but for what arrays can make up for.

    So biases, which can be zeros, a table of segments or of positions that were computed, rows of
    it that nobody reads, and what a table is multiplied by if it is not the head's as well.
    """
    ours, theirs = filled_in(config), filled_in(other)
    made_up = {name for name in ours if name.endswith("bias") and ours[name] is False}
    made_up |= {n for n in ("embedding.segments", "positions.offset") if not ours.get(n)}
    if isinstance(config.positions, Sinusoidal) and (
        isinstance(other.positions, Learned) and getattr(other.positions, "split", True)
    ):
        made_up |= {name for name in ours if name.startswith("positions")}
    if ours["embedding.scale"] and is_free(config):
        made_up.add("embedding.scale")

    def same(a: Any, b: Any) -> bool:
        both = isinstance(a, float) and isinstance(b, float | int)
        return math.isclose(a, b, rel_tol=1e-6) if both else a == b

    # A field that the other does not have is of a part that differs.
    names = [name for name in ours if name in theirs and name not in made_up | TRAINING]
    return [name for name in names if not same(ours[name], theirs[name])]


def best_family(
    config: BlocksConfig, kind: str, family: str | None = None
) -> tuple[str, dict[str, Any], BlocksConfig]:
    """A family that has this model: its name, the fields of config.json, and our config of these.

    Raises:
        UserError: no family has it, or not the one that was asked for.
    """
    if own := [n for n, part in flat(config).items() if callable(part) or is_own(part)]:
        raise UserError(f"a model with a part of your own ({own[0]}) has no counterpart")
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
    head = getattr(config, "head", None)
    return getattr(head, "tied", True) and getattr(head, "embeddings", "tied") == "tied"


def is_free(config: BlocksConfig) -> bool:
    """Whether the embedding is nothing but that."""
    return not tied(config) or type(config) in (BlocksConfig, ClassifierConfig)
