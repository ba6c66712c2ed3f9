"""Models that others have trained: evaluated on a text, taken into a run, and given back."""

import dataclasses
import math
import os
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tlite.data.reading import MAX_MEGABYTES, decode, pieces, whole
from tlite.errors import UserError, disk_errors
from tlite.experiment import Experiment, GeneratorExperiment, Pretrained
from tlite.models import BlocksConfig
from tlite.pretrained import is_pretrained, load_pretrained, save_pretrained
from tlite.runs.loading import open_model
from tlite.training import Member, language_task, validation_batches
from tlite.training.loop import host_copy
from tlite.training.named import from_named, parameter_names, to_named

LONGEST = 1024  # tokens of a window that a text is scored in
MOST_LOGITS = 2**26  # numbers, in memory at a time
OURS = "dropout", "hidden_dropout", "attention", "scan", "remat"  # fields that an experiment keeps


def evaluate_text(folder: str | Path, path: Path | None) -> None:
    """Print how well a generator of a Hugging Face folder predicts each token of a text."""
    if path is None:
        raise UserError(f"{folder} has no data of its own: name a text, --path FILE")
    model, tokenizer, _ = open_model(folder, GeneratorExperiment)
    text = decode(whole(pieces(path), path, MAX_MEGABYTES, "score a part of it"), path, "utf-8")
    tokens = tokenizer.encode(text, marks=False)
    if len(tokens) < 2:
        raise UserError(f"{path} is too short: it has {len(tokens)} tokens")
    config = model.config
    length = min(config.context, LONGEST, len(tokens) - 1)
    size = max(1, MOST_LOGITS // (length * config.vocabulary_size))
    score = jax.jit(language_task(config).evaluate)
    totals: dict[str, float] = {}
    for batch in zip(*validation_batches(tokens, length, size, 1), strict=True):
        for name, sums in score(model, batch).items():
            totals[name] = totals.get(name, 0.0) + float(np.asarray(sums, np.float64).sum())
    loss, right = (totals[name] / totals["count"] for name in ("loss", "accuracy"))
    # The first token is not predicted, and so its bytes do not count.
    predicted = len(tokenizer.decode(tokens[1:]).encode())
    print(
        f"{path}: loss {loss:.4f} nats per token, perplexity {math.exp(min(loss, 700)):.3f}, "
        f"{totals['loss'] / math.log(2) / max(predicted, 1):.4f} bits per byte, "
        f"accuracy {100 * right:.1f} %, {len(tokens) - 1:,} tokens in windows of {length:,}"
    )


def export(
    folder: str | Path,
    to: Path,
    *,
    checkpoint: str = "best",
    member: int = 0,
    family: str | None = None,
) -> str:
    """Write a run's model to a new folder that `transformers` opens; returns its family.

    Raises:
        UserError: the folder exists, or there is no counterpart; the reason is told.
    """
    if os.path.lexists(to):
        raise UserError(f"{to} exists already: name another folder")
    model, tokenizer, source = open_model(folder, Experiment, checkpoint, member)
    settings: dict[str, Any] = {"family": family}
    if is_pretrained(folder):
        settings["original"] = source
    elif data := getattr(source.experiment, "sentences", 0):
        raise UserError(f"a text's class is joined from {data} sentences: transformers has no such")
    else:
        settings["labels"] = getattr(source.experiment.data, "classes", None)
    with disk_errors(to):
        to.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{to.name}.", dir=to.parent) as place:
            beside = Path(place) / to.name
            family = save_pretrained(beside, model, tokenizer, **settings)
            beside.rename(to)
    return family


def taken_from(settings: Pretrained, config: BlocksConfig, num_classes: int | None = None):
    """The config, the arrays by name and the tokenizer that a run starts from.

    Its context, dropout and attention are the experiment's, the rest is the folder's.

    Raises:
        UserError: the folder can't be read, or has another kind of model.
    """
    model, tokenizer, told = load_pretrained(settings.folder, num_classes=num_classes)
    if type(model.config) is not type(config):
        raise UserError(f"{settings.folder} has a {told.family} {told.kind}: that can't start it")
    if tokenizer is None:
        raise UserError(told.no_tokenizer)
    changed = {name: getattr(config, name) for name in OURS}
    changed["context"] = min(config.context, model.config.context)
    arrays = dict(zip(parameter_names(model), jax.tree.leaves(model), strict=True))
    for name in told.new:  # each member draws its own
        del arrays[name]
    if "positions.table" in arrays:  # those of the places that are not used are left out
        rows = changed["context"] + model.config.position_offset
        arrays["positions.table"] = arrays["positions.table"][:rows]
    return dataclasses.replace(model.config, **changed), arrays, tokenizer


def start_from(run, arrays: dict[str, Any]) -> Member:
    """A run's members, all with these parameters; a classifier's new head is drawn by each."""
    start = run.trainer.init()
    named = to_named(run.trainer.model, host_copy(start))
    for name, array in named["parameters"].items():
        named["parameters"][name] = np.broadcast_to(
            np.asarray(arrays.get(name, array)), array.shape
        )
    return run.trainer.place(from_named(run.trainer.model, start, named))
