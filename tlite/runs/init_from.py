"""Load the pretrained model that an experiment starts from."""

import dataclasses
import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tlite.config import override
from tlite.errors import UserError, printable
from tlite.experiment import Pretrained
from tlite.models import TransformerConfig
from tlite.models.parameters import named_arrays, stack_blocks
from tlite.pretrained import load_pretrained
from tlite.pretrained.configs import resolve_fields
from tlite.training.run_dir import sha256

OVERRIDABLE_FIELDS = {
    "dropout", "attention.dropout", "feed_forward.dropout", "embedding.word_dropout",
    "attention.function", "attention.query_chunk_size", "head.product", "embedding.init_std",
    "loop.scan", "loop.remat", "context",
}  # fmt: skip
"""Fields of the model that the experiment sets; the others are the pretrained model's."""


class Init(NamedTuple):
    """A pretrained model that a run starts from."""

    config: TransformerConfig
    arrays: dict[str, Any]
    """By name; arrays that are missing, such as a new head, are random in each seed."""
    tokenizer: Any
    settings: Pretrained
    """With the SHA-256 of the arrays."""
    new: tuple[str, ...] = ()
    """Names of the arrays that are missing."""


def load_init(
    settings: Pretrained, config: TransformerConfig, num_classes: int | None = None
) -> Init:
    """Load a pretrained model for an experiment whose model config is `config`.

    The dropout rate of attention weights is the pretrained model's if the experiment has dropout
    but sets no rate there.

    Raises:
        UserError: the folder can't be read, has changed, or does not fit the experiment.
    """
    folder = settings.folder
    model, tokenizer, source = load_pretrained(folder, num_classes=num_classes)
    if type(model.config) is not type(config):
        model_name = f"{source.family} {source.kind}"
        raise UserError(f"{folder} has a {model_name}, which can't start this experiment's model")
    if tokenizer is None:
        raise UserError(source.no_tokenizer)
    digest = arrays_digest(source.folder)
    if settings.sha256 not in ("", digest):
        raise UserError(f"the arrays in {folder} have changed since the run was created")
    config = merge_configs(config, model.config, folder)
    arrays = stack_blocks(named_arrays(model)) if config.loop.scan else named_arrays(model)
    arrays = {name: array for name, array in arrays.items() if name not in source.new}
    if "positions.table" in arrays:  # without the rows beyond the context
        rows = config.context + model.config.positions.offset
        arrays["positions.table"] = arrays["positions.table"][:rows]
    settings = dataclasses.replace(settings, sha256=digest)
    return Init(config, arrays, tokenizer, settings, source.new)


def merge_configs(
    config: TransformerConfig, pretrained: TransformerConfig, folder: str
) -> TransformerConfig:
    """Return the pretrained config with the OVERRIDABLE_FIELDS of an experiment's `config`.

    The context is at most the pretrained one; a warning says so.

    Raises:
        UserError: another field is set and differs, or the values are invalid together.
    """
    ours, theirs = resolve_fields(config), resolve_fields(pretrained)
    for path in non_default_paths(config):
        if path not in OVERRIDABLE_FIELDS and ours[path] != theirs.get(path):
            raise UserError(f"{path} is set by the pretrained model: leave it out")
    changes = {path: ours[path] for path in OVERRIDABLE_FIELDS & ours.keys()}
    changes["context"] = min(config.context, pretrained.context)
    if config.context > pretrained.context:
        message = f"context {config.context:,} is reduced to {pretrained.context:,}, as in {folder}"
        print(printable(f"warning: {message}"), file=sys.stderr)
    if config.dropout and not changes.get("attention.dropout"):
        changes["attention.dropout"] = theirs["attention.dropout"]
    try:
        return override(pretrained, changes)
    except ValueError as error:
        raise UserError(str(error)) from error


def arrays_digest(folder: Path) -> str:
    """Return one SHA-256 of the arrays of a Hugging Face folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        digest.update(bytes.fromhex(sha256(path)))
    return digest.hexdigest()


def non_default_paths(config: Any, prefix: str = "") -> Iterator[str]:
    """Yield the dotted paths of the fields that are not at their defaults."""
    for field in dataclasses.fields(config):
        value, path = getattr(config, field.name), prefix + field.name
        if value != field.default:
            yield path
            if dataclasses.is_dataclass(value):
                yield from non_default_paths(value, f"{path}.")
