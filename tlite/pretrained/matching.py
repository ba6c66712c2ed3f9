"""Which family of transformers has a model of tlite's, and what config.json then says."""

import functools
import math
from typing import Any

from tlite.config import is_own
from tlite.errors import UserError
from tlite.models import BlocksConfig, ClassifierConfig, Learned, Relative, Rotary, Sinusoidal
from tlite.models.parts import WORDS
from tlite.pretrained.configs import FROM_SCRATCH, read_config, write_config
from tlite.pretrained.paths import filled_in, flat

# Fields of ours that change training only, or how the same is computed; and one that others say.
TRAINING = {
    "dropout", "feed_forward.dropout", "embedding.word_dropout", "embedding.deviation",
    "attention.function", "attention.rows", "head.product", "attention.zero_output",
    "feed_forward.zero_output", "loop.scan", "loop.remat", "bias",
    "symbols.pad", "symbols.start", "symbols.end", "symbols.first",
}  # fmt: skip

# What decides of fields that the data fills.
INSTEAD = {"wide.word_rows": "--word-ngrams 0", "wide.character_rows": "--character-ngrams 0"}


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
    if ours.get("norm.method") != theirs.get("norm.method"):
        made_up.add("norm.bias")  # goes with the method
    if ours["embedding.scale"] and is_free(config):
        made_up.add("embedding.scale")

    def same(a: Any, b: Any) -> bool:
        both = isinstance(a, float) and isinstance(b, float | int)
        return math.isclose(a, b, rel_tol=1e-6) if both else a == b

    # A field that the other does not have is of a part that differs.
    names = [name for name in ours if name in theirs and name not in made_up | TRAINING]
    return [name for name in names if not same(ours[name], theirs[name])]


def natural_family(kind: str, config: BlocksConfig) -> str:
    """The family that a model of tlite's is written as, by its positions, norms and gates."""
    if kind == "generator":
        if not isinstance(config.positions, Rotary):
            return "gpt2"
        ours = flat(config)
        return "llama" if ours["norm.method"] == "rms" or ours["feed_forward.gated"] else "gpt_neox"
    if kind == "seq2seq":
        return {Learned: "bart", Relative: "t5"}.get(type(config.positions), "marian")
    return "bert"


def described(
    config: BlocksConfig, kind: str, family: str | None = None
) -> tuple[str, dict[str, Any], BlocksConfig]:
    """The family, the fields of config.json, and our config of these.

    Raises:
        UserError: the family does not have this model.
    """
    if own := [n for n, part in flat(config).items() if callable(part) or is_own(part)]:
        raise UserError(f"a model with a part of your own ({own[0]}) has no counterpart")
    family = family or natural_family(kind, config)
    if family not in FROM_SCRATCH.get(kind, ()):
        known = ", ".join(FROM_SCRATCH[kind])
        raise UserError(f"a {kind} is not written as {family}: choose one of {known}")
    try:
        fields = write_config(family, kind, config)
        back = read_again(fields, family, kind, config)
    except (ValueError, TypeError) as error:
        raise UserError(f"the model has no counterpart in {family}: {error}") from error
    return family, fields, back


def read_again(
    fields: dict[str, Any], family: str, kind: str, config: BlocksConfig, bias: bool = True
) -> BlocksConfig:
    """Our config of fields that describe one of ours.

    Args:
        bias: whether the head of an encoder-decoder has one.

    Raises:
        UserError: they don't describe it.
    """
    arrays = {"final_logits_bias"} if bias else ()
    back = read_config(fields, family, kind, own_head=not tied(config), arrays=arrays)
    if wrong := differences(config, back):
        says = ", ".join(f"{name} {filled_in(config)[name]!r}" for name in wrong)
        raise UserError(
            f"the model has no counterpart in transformers: {family} has no {says}; "
            f"train with {options_of(back, wrong)}"
        )
    return back


def options_of(config: BlocksConfig, names: list[str]) -> str:
    """The options that give an experiment's model these fields of a config."""
    options = []
    for path, value in flat(config).items():
        *outer, name = path.split(".")
        field = type(functools.reduce(getattr, outer, config)).__dataclass_fields__[name]
        of_part = any(path.startswith(f"{part}.") for part in names)
        if path in names or (of_part and value != field.default):
            options.append(_option(path, value, field.type is bool))
    return " ".join(filter(None, options))


def _option(path: str, value: Any, is_switch: bool) -> str:
    outer, _, name = path.replace("_", "-").rpartition(".")
    dotted = f"--{outer}." if outer else "--"
    if path in INSTEAD:
        return INSTEAD[path]
    if is_switch:
        return f"{dotted}{'' if value else 'no-'}{name}"
    if path == "positions":
        value = next(w for w, part in WORDS[path].items() if type(part).__name__ == value)
    if path == "pool.projection":  # any of its numbers, which follow, makes it
        return ""
    words = value if isinstance(value, tuple) else [value]
    return " ".join([dotted + name, *map(str, words)])


def tied(config: BlocksConfig) -> bool:
    """Whether the output layer, if there is one, is the embedding."""
    head = getattr(config, "head", None)
    return getattr(head, "tied", True) and getattr(head, "embeddings", "tied") == "tied"


def is_free(config: BlocksConfig) -> bool:
    """Whether the embedding is nothing but that."""
    return not tied(config) or type(config) in (BlocksConfig, ClassifierConfig)
