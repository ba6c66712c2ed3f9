"""Models of tlite as folders that `transformers` opens: which family has them, and its files."""

import functools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tlite.errors import UserError, disk_errors
from tlite.models import (
    MODELS,
    ClassifierConfig,
    Learned,
    Relative,
    Rotary,
    Sinusoidal,
    TransformerConfig,
)
from tlite.models.config import PRESETS
from tlite.models.parameters import named_arrays
from tlite.pretrained.configs import (
    CONFIGS,
    FROM_SCRATCH,
    architecture,
    context_field,
    filled_in,
    flat,
    labelled,
    read_config,
    says_tied,
    tied,
    write_config,
)
from tlite.pretrained.files import NAME, TYPES, write_arrays
from tlite.pretrained.folders import GENERATION, Pretrained, abstract_model
from tlite.pretrained.layers import LAYERS, counterparts, to_theirs
from tlite.pretrained.tokenizers import PretrainedTokenizer
from tlite.text import Tokenizer
from tlite.user_code import is_own

MARKS = "bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"
# Fields of ours that change training only, or how the same is computed; and one that others say.
TRAINING = {
    "dropout", "feed_forward.dropout", "embedding.word_dropout", "embedding.init_std",
    "attention.function", "attention.query_chunk_size", "head.product", "attention.zero_output",
    "feed_forward.zero_output", "loop.scan", "loop.remat", "bias",
    "special_tokens.pad_id", "special_tokens.bos_id", "special_tokens.eos_id",
    "special_tokens.forced_bos_id",
}  # fmt: skip
# What decides of fields that the data fills.
INSTEAD = {
    "wide.num_word_ngrams": "--word-ngrams 0",
    "wide.num_character_ngrams": "--character-ngrams 0",
}


def save_pretrained(
    folder: str | Path,
    model,
    tokenizer: Tokenizer | None = None,
    *,
    family: str | None = None,
    original: Pretrained | None = None,
    labels: list[str] | None = None,
) -> str:
    """Write config.json, model.safetensors and the tokenizer's files; returns the family.

    What a family asks for and the model does not have is written so that it changes nothing:
    biases of zeros, a row of zeros as the only segment, computed positions as a table.

    Args:
        tokenizer: of a folder, or tlite's own.
        family: gpt2, llama, gpt_neox, bert, marian, bart or t5; as kind and parts say unless given.
        original: what `load_pretrained` said of the folder that the model comes from; then all is
            written as it was, but for a context that is shorter, and in 16 bits too if no bit is
            lost by that.
        labels: the names of a classifier's classes.

    Raises:
        UserError: the family does not have this model, or the folder can't be written to.
    """
    folder, config, kind = Path(folder), model.config, _kind(model)
    original = original if original and original.kind == kind and not family else None
    (family, theirs, target), tokenizer = _without_refusal(
        lambda: _as_it_was(config, original) if original else described(config, kind, family),
        lambda: None if tokenizer is None else PretrainedTokenizer(*tokenizer.to_hugging_face()),
    )
    told = original or Pretrained(folder, family, kind, {}, config)
    theirs |= (labelled(labels) if labels else {}) | _marks(theirs, tokenizer)
    arrays = _filled(model, target)
    dtype = told.dtype if _fits(arrays | told.kept, told.dtype) else "F32"
    _write_fields(folder, theirs, dtype, told)
    if tokenizer is not None:
        tokenizer.save(folder, model_max_length=config.context)
    write_arrays(folder / NAME, _theirs(family, kind, target, arrays, told.kept), dtype)
    return family


def _without_refusal(*steps: Callable[[], Any]) -> list[Any]:
    """Return the results of all steps; raise the errors of all steps as one UserError."""
    results, refusals = [], []
    for step in steps:
        try:
            results.append(step())
        except UserError as error:
            refusals.append(str(error))
    if refusals:
        raise UserError("; and ".join(refusals))
    return results


def _as_it_was(
    config: TransformerConfig, original: Pretrained
) -> tuple[str, dict[str, Any], TransformerConfig]:
    """Family and fields of the folder that a model comes from, with its context; our config of it.

    Raises:
        UserError: the model has been changed in something else.
    """
    family, kind, theirs = original.family, original.kind, dict(original.fields)
    theirs["architectures"] = [architecture(family, kind)]
    if config.context != original.config.context:
        theirs |= context_field(family, config)
    # Of T5 the arrays say it: the field says how logits are scaled.
    has_head = kind not in ("encoder", "classifier") and family != "t5"
    if has_head and says_tied(theirs, family) != tied(config):
        theirs["tie_word_embeddings"] = tied(config)
    bias = kind != "seq2seq" or bool(original.config.head.bias)
    return family, theirs, read_again(theirs, family, kind, config, bias)


def _write_fields(folder: Path, theirs: dict[str, Any], dtype: str, told: Pretrained) -> None:
    theirs.pop("torch_dtype", None)
    theirs["dtype" if "dtype" in told.fields else "torch_dtype"] = TYPES[dtype].name
    marks = {name: theirs[name] for name in MARKS if theirs.get(name) is not None}
    with disk_errors(folder / NAME):
        folder.mkdir(parents=True, exist_ok=True)
        for file, content in (("config.json", theirs), (GENERATION, marks | told.generation)):
            (folder / file).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _kind(model) -> str:
    for kind, config in CONFIGS.items():
        if (type(model.config), type(model)) == (config, MODELS[config]):
            return kind
    raise UserError(f"a {type(model).__name__} has no counterpart in transformers")


def _marks(theirs: dict[str, Any], tokenizer: PretrainedTokenizer | None) -> dict[str, Any]:
    """The marks that the tokenizer has and the config does not say."""
    if tokenizer is None:
        return {}
    ids = dict(zip(MARKS, (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id), strict=False))
    if theirs.get("is_encoder_decoder"):
        ids["decoder_start_token_id"] = tokenizer.bos_id
    return {mark: i for mark, i in ids.items() if i is not None and theirs.get(mark) is None}


def _filled(model, target: TransformerConfig) -> dict[str, Any]:
    """The arrays of a model as those of one with the target's config, which computes the same."""
    config = model.config
    arrays, filled = named_arrays(model), {}
    for name, wanted in named_arrays(abstract_model(target)).items():
        if name in arrays:
            array = arrays.pop(name)
        elif name.endswith("positions.table"):
            array = config.positions.table(None, config)
        elif name.endswith(("bias", "segments.table")):
            array = np.zeros(wanted.shape, np.float32)
        else:
            raise UserError(f"a model without {name} has no counterpart in transformers")
        if name.endswith("positions.table") and len(array) < len(wanted):  # an offset
            array = np.pad(np.asarray(array), [(len(wanted) - len(array), 0), (0, 0)])
        factors = [of.embedding.factor(of) for of in (config, target)]
        if name.endswith("embedding.table") and factors[0] != factors[1]:
            array = factors[0] * array  # the family doesn't scale it
        filled[name] = array
    if arrays:
        raise UserError(f"the array {next(iter(arrays))} has no counterpart in transformers")
    if (config.positions, target.positions) == (Sinusoidal(), Sinusoidal(split=True)):
        filled = {name: _split_columns(name, array) for name, array in filled.items()}
    return filled


def _split_columns(name: str, array) -> np.ndarray:
    """The array with the columns of the vectors x in another order: the even ones, then the odd.

    So interleaved sines and cosines lie in two halves; all else that reads or writes x follows.
    """
    array, layer = np.asarray(array), name.split(".")[-2:]
    inputs = layer[0] in ("query", "key", "value", "hidden", "gate", "head")
    if layer[-1] == "head_bias" or (inputs and layer[-1] == "bias"):
        return array
    axis = 0 if inputs else -1
    columns = np.arange(array.shape[axis])
    return np.take(array, np.concatenate([columns[::2], columns[1::2]]), axis=axis)


def _fits(arrays: dict[str, Any], dtype: str) -> bool:
    """Whether the type holds all numbers exactly."""
    values = map(np.asarray, arrays.values())
    return all(np.array_equal(v, v.astype(TYPES[dtype]).astype(np.float32)) for v in values)


def _theirs(
    family: str, kind: str, config: TransformerConfig, arrays: dict[str, Any], kept: dict[str, Any]
) -> dict[str, np.ndarray]:
    """The arrays of a folder, those that only training used among them."""
    prefix = "" if kind == "encoder" else LAYERS[family].prefix
    found = {name if name.startswith("cls.") else prefix + name: a for name, a in kept.items()}
    for name, names in counterparts(family, kind, list(arrays), prefix).items():
        ours = {of: np.asarray(arrays[of]) for of in names}
        found[name] = to_theirs(family, name, ours, config.head_dim)
    if family in ("marian", "bart") and config.head.embeddings == "shared":
        # Where the head is not tied, transformers ties the embeddings of the two sides neither.
        for side in ("encoder", "decoder"):
            found[f"{prefix}{side}.embed_tokens.weight"] = found[f"{prefix}shared.weight"]
    return found


# Which family has a model, and in which fields it differs


def differences(config: TransformerConfig, other: TransformerConfig) -> list[str]:
    """The fields in which two models differ, but for what arrays can make up for.

    So biases, which can be zeros, a table of segments or of positions that were computed, rows of
    it that nobody reads, and what a table is multiplied by if it is not the head's as well.
    """
    ours, theirs = filled_in(config), filled_in(other)
    made_up = {name for name in ours if name.endswith("bias") and ours[name] is False}
    made_up |= {n for n in ("embedding.type_vocab_size", "positions.offset") if not ours.get(n)}
    if isinstance(config.positions, Sinusoidal) and (
        isinstance(other.positions, Learned) and getattr(other.positions, "split", True)
    ):
        made_up |= {name for name in ours if name.startswith("positions")}
    if ours.get("norm.method") != theirs.get("norm.method"):
        made_up.add("norm.bias")  # goes with the method
    untied = not tied(config) or type(config) in (TransformerConfig, ClassifierConfig)
    if ours["embedding.scale"] and untied:
        made_up.add("embedding.scale")

    def same(a: Any, b: Any) -> bool:
        both = isinstance(a, float) and isinstance(b, float | int)
        return math.isclose(a, b, rel_tol=1e-6) if both else a == b

    # A field that the other does not have is of a part that differs.
    names = [name for name in ours if name in theirs and name not in made_up | TRAINING]
    return [name for name in names if not same(ours[name], theirs[name])]


def natural_family(kind: str, config: TransformerConfig) -> str:
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
    config: TransformerConfig, kind: str, family: str | None = None
) -> tuple[str, dict[str, Any], TransformerConfig]:
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
    fields: dict[str, Any], family: str, kind: str, config: TransformerConfig, bias: bool = True
) -> TransformerConfig:
    """Our config of fields that describe one of ours.

    Args:
        bias: whether the head of an encoder-decoder has one.

    Raises:
        UserError: they don't describe it.
    """
    head = f"{LAYERS[family].head}.weight"
    arrays = ["final_logits_bias"] * bias + [head] * (not tied(config))
    back = read_config(fields, family, kind, arrays)
    if wrong := differences(config, back):
        says = ", ".join(f"{name} {filled_in(config)[name]!r}" for name in wrong)
        raise UserError(
            f"the model has no counterpart in transformers: {family} has no {says}; "
            f"train with {options_of(back, wrong)}"
        )
    return back


def options_of(config: TransformerConfig, names: list[str]) -> str:
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
        value = next(w for w, part in PRESETS[path].items() if type(part).__name__ == value)
    if path == "pool.projection":  # any of its numbers, which follow, makes it
        return ""
    words = value if isinstance(value, tuple) else [value]
    return " ".join([dotted + name, *map(str, words)])
