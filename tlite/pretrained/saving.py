"""Save tlite models as folders that `transformers` loads."""

import dataclasses
import functools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tlite.functional as F
from tlite.errors import UserError, disk_errors
from tlite.models import MODELS, Learned, Relative, Rotary, Sinusoidal, TransformerConfig
from tlite.models.parameters import named_arrays, unstack_blocks
from tlite.pretrained import configs
from tlite.pretrained.arrays import map_names, to_hf
from tlite.pretrained.configs import flatten, is_hf_tied, is_tied, resolve_fields
from tlite.pretrained.families import FAMILIES
from tlite.pretrained.files import WEIGHTS, write_arrays
from tlite.pretrained.folders import GENERATION, Pretrained, abstract_model
from tlite.pretrained.tokenizers import PretrainedTokenizer
from tlite.text import Tokenizer
from tlite.user_code import is_user_code

SPECIAL_TOKENS = "bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"
TRAINING_FIELDS = {  # no effect on logits, or implied by other fields
    "dropout", "attention.dropout", "feed_forward.dropout", "embedding.word_dropout", "bias",
    "embedding.init_std", "attention.zero_output", "feed_forward.zero_output", "head.product",
    "attention.function", "attention.query_chunk_size", "loop.scan", "loop.remat",
    "special_tokens.pad_id", "special_tokens.bos_id", "special_tokens.eos_id",
    "special_tokens.forced_bos_id",
}  # fmt: skip


def save_pretrained(
    folder: str | Path,
    model,
    tokenizer: Tokenizer | None = None,
    *,
    family: str | None = None,
    original: Pretrained | None = None,
    labels: list[str] | None = None,
) -> str:
    """Write config.json, model.safetensors (float32) and the tokenizer's files; returns the family.

    Layers that the model lacks are written without effect: as zeros, or as computed positions.

    Args:
        family: gpt2, llama, gpt_neox, bert, marian, bart or t5; None chooses by the config.
        original: the folder that the model was loaded from, whose fields are written again; only
            the context may be shorter.
        labels: names of a classifier's classes.

    Raises:
        UserError: the family does not have this model, or the folder can't be written.
    """
    folder, config, kind = Path(folder), model.config, _kind(model)
    original = original if original and original.kind == kind and not family else None
    (name, hf, target), hf_tokenizer = _collect_errors(
        lambda: describe(config, kind, family, original),
        lambda: None if tokenizer is None else PretrainedTokenizer(*tokenizer.to_hugging_face()),
    )
    hf |= (configs.label_fields(labels) if labels else {}) | _special_token_fields(hf, hf_tokenizer)
    hf["dtype" if "dtype" in hf else "torch_dtype"] = "float32"
    arrays = _to_hf_arrays(name, kind, target, _convert_arrays(model, target))
    if original:  # "cls" is not below the prefix
        prefix = "" if kind == "encoder" else FAMILIES[name].prefix
        unused = original.unused.items()
        arrays |= {n if n.startswith("cls.") else prefix + n: array for n, array in unused}
    _write_fields(folder, hf, original.generation if original else {})
    if hf_tokenizer is not None:
        hf_tokenizer.save(folder, model_max_length=config.context)
    write_arrays(folder / WEIGHTS, arrays)
    return name


def _write_fields(folder: Path, hf: dict[str, Any], generation: dict[str, Any]) -> None:
    ids = {name: hf[name] for name in SPECIAL_TOKENS if hf.get(name) is not None}
    with disk_errors(folder / WEIGHTS):
        folder.mkdir(parents=True, exist_ok=True)
        for file, content in (("config.json", hf), (GENERATION, ids | generation)):
            (folder / file).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _collect_errors(*steps: Callable[[], Any]) -> list[Any]:
    """Return the results of all steps; raise the errors of all steps as one UserError."""
    results, errors = [], []
    for step in steps:
        try:
            results.append(step())
        except UserError as error:
            errors.append(str(error))
    if errors:
        raise UserError("; and ".join(errors))
    return results


def describe(
    config: TransformerConfig, kind: str, family: str | None, original: Pretrained | None = None
) -> tuple[str, dict[str, Any], TransformerConfig]:
    """Return the family, the fields of config.json, and the equivalent tlite config of these."""
    if custom := [path for path, v in flatten(config).items() if callable(v) or is_user_code(v)]:
        raise UserError(f"a custom {custom[0]} has no counterpart in transformers")
    family = original.family if original else family or _default_family(kind, config)
    if not original and family not in configs.FROM_SCRATCH[kind]:
        families = ", ".join(configs.FROM_SCRATCH[kind])
        raise UserError(f"a {kind} can't be saved as {family}, only as {families}")
    head = [] if is_tied(config) else [f"{FAMILIES[family].output}.weight"]
    try:
        hf = (
            _update_fields(config, original)
            if original
            else configs.write_config(family, kind, config)
        )
        target = configs.read_config(hf, family, kind, ["final_logits_bias", *head])
    except (ValueError, TypeError) as error:
        raise UserError(f"the model has no counterpart in {family}: {error}") from error
    if paths := find_differences(config, target):
        needed = ", ".join(f"{path}={_value(target, path)!r}" for path in paths)
        raise UserError(f"the model has no counterpart in transformers: {family} needs {needed}")
    return family, hf, target


def _update_fields(config: TransformerConfig, original: Pretrained) -> dict[str, Any]:
    """Return the original's fields with the model's context and tied or untied head."""
    family, kind = original.family, original.kind
    hf = original.fields | {"architectures": [FAMILIES[family].architecture(kind)]}
    if config.context != original.config.context:
        hf |= configs.context_fields(family, config)
    # T5's tie_word_embeddings says how logits are scaled.
    has_head = kind not in ("encoder", "classifier") and family != "t5"
    if has_head and is_hf_tied(hf, family) != is_tied(config):
        hf["tie_word_embeddings"] = is_tied(config)
    return hf


def _default_family(kind: str, config: TransformerConfig) -> str:
    if kind == "seq2seq":
        return {Learned: "bart", Relative: "t5"}.get(type(config.positions), "marian")
    if kind != "generator":
        return "bert"
    if not isinstance(config.positions, Rotary):
        return "gpt2"
    fields = flatten(config)
    is_llama = fields["norm.method"] == "rms" or fields["feed_forward.gated"]
    return "llama" if is_llama else "gpt_neox"


def _value(config: TransformerConfig, path: str) -> Any:
    value = functools.reduce(getattr, path.split("."), config)
    return value if dataclasses.is_dataclass(value) else resolve_fields(config)[path]


def find_differences(config: TransformerConfig, target: TransformerConfig) -> list[str]:
    """Return the paths of fields that differ and that converted arrays can't compensate."""
    fields, target_fields = resolve_fields(config), resolve_fields(target)
    ignored = {path for path in fields if path.endswith("bias") and fields[path] is False}
    ignored |= {p for p in ("embedding.type_vocab_size", "positions.offset") if not fields.get(p)}
    ignored |= TRAINING_FIELDS
    is_table = getattr(target.positions, "split", isinstance(target.positions, Learned))
    if isinstance(config.positions, Sinusoidal) and is_table:
        ignored |= {path for path in fields if path.startswith("positions")}
    differences = []
    # Fields that the target lacks belong to a component that differs.
    for path in [path for path in fields if path in target_fields.keys() - ignored]:
        value, other = fields[path], target_fields[path]
        is_close = isinstance(value, float) and other and math.isclose(value, other, rel_tol=1e-6)
        differences += [] if is_close or value == other else [path]
    return differences


def _kind(model) -> str:
    for kind, config in configs.CONFIGS.items():
        if type(model.config) is config and type(model).__name__ == MODELS[config.__name__]:
            return kind
    raise UserError(f"a {type(model).__name__} has no counterpart in transformers")


def _special_token_fields(
    hf: dict[str, Any], tokenizer: PretrainedTokenizer | None
) -> dict[str, int]:
    """Return the ids of the tokenizer's special tokens that config.json lacks."""
    if tokenizer is None:
        return {}
    ids = {f"{role}_token_id": getattr(tokenizer, f"{role}_id") for role in ("bos", "eos", "pad")}
    if hf.get("is_encoder_decoder"):
        ids["decoder_start_token_id"] = tokenizer.bos_id
    return {name: i for name, i in ids.items() if i is not None and hf.get(name) is None}


def _convert_arrays(model, target: TransformerConfig) -> dict[str, np.ndarray]:
    """Convert a model's arrays to those of an equivalent model with the target config."""
    config, arrays = model.config, unstack_blocks(named_arrays(model))
    converted = {}
    for name, expected in named_arrays(abstract_model(target)).items():
        if name in arrays:
            array = np.asarray(arrays.pop(name))
        elif name.endswith("positions.table"):
            split = config.positions.split
            array = np.asarray(F.sinusoidal_positions(config.context, config.width, split=split))
        elif name.endswith(("bias", "token_types.table")):
            array = np.zeros(expected.shape, np.float32)
        else:
            raise UserError(f"a model without {name} has no counterpart in transformers")
        if name.endswith("positions.table") and len(array) < len(expected):  # an offset
            array = np.pad(array, [(len(expected) - len(array), 0), (0, 0)])
        converted[name] = array
    if arrays:
        raise UserError(f"the array {next(iter(arrays))} has no counterpart in transformers")
    if (config.positions, target.positions) == (Sinusoidal(), Sinusoidal(split=True)):
        return {name: _split_columns(name, array) for name, array in converted.items()}
    return converted


def _split_columns(name: str, array: np.ndarray) -> np.ndarray:
    """Reorder the columns of x, even before odd, so that interleaved sinusoids are split ones."""
    layer = name.split(".")[-2:]
    reads_x = layer[0] in ("query", "key", "value", "hidden", "gate", "head")
    if layer[-1] == "head_bias" or (reads_x and layer[-1] == "bias"):
        return array
    axis = 0 if reads_x else -1
    columns = np.arange(array.shape[axis])
    return np.take(array, np.concatenate([columns[::2], columns[1::2]]), axis=axis)


def _to_hf_arrays(
    family: str, kind: str, config: TransformerConfig, arrays: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    prefix, hf_arrays = "" if kind == "encoder" else FAMILIES[family].prefix, {}
    for hf, names in map_names(family, kind, list(arrays), prefix).items():
        hf_arrays[hf] = to_hf(family, hf, {n: arrays[n] for n in names}, config.head_dim)
    if family in ("marian", "bart") and flatten(config)["head.embeddings"] == "shared":
        # Without a tied head transformers does not tie the embeddings of the two sides either.
        for side in ("encoder", "decoder"):
            hf_arrays[f"{prefix}{side}.embed_tokens.weight"] = hf_arrays[f"{prefix}shared.weight"]
    return hf_arrays
