"""Trained models from folders, tlite's runs and Hugging Face's, without data and a trainer: opened,
written for transformers, and those of others scored on a text."""

import math
import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from tlite.config import name_files
from tlite.data import every_window
from tlite.data.reading import decoded
from tlite.errors import UserError, disk_errors
from tlite.experiment import Experiment, GeneratorExperiment, Pretrained
from tlite.models import Ensemble, make_model
from tlite.models.parameters import model_maker
from tlite.models.probe import probe
from tlite.pretrained import is_pretrained, load_pretrained, save_pretrained
from tlite.recipes.kinds import RECIPES
from tlite.recipes.recipe import check_member, model_shapes, read_parameters
from tlite.terminal import printable
from tlite.training import generator_task
from tlite.training.runs import Run, find_run, open_run
from tlite.training.tasks import in_batches

LONGEST = 1024  # tokens of a window that a text is scored in
MOST_LOGITS = 2**26  # numbers, in memory at a time
UNHEEDED = {
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "repetition_penalty": 1.0,
    "min_length": 0,
    "min_new_tokens": 0,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
}
"""What a folder may ask of generation beside its model, and what asks for nothing."""


def load(
    folder: str | Path,
    *,
    checkpoint: str | int = "best",
    member: int | Literal["all"] = 0,
    code: str | Path | Iterable[str | Path] = (),
) -> tuple[Any, Any]:
    """The model and the tokenizer of a run's folder, a Hugging Face folder, or a hub name.

    Of a folder of runs the newest is taken; "latest" is the newest in ./runs.

    Args:
        checkpoint: of a run: best, last, average (of the last that are kept), or a step.
        member: of a run: which of the models that were trained side by side; "all": an `Ensemble`.
        code: the files with your own functions that a run was made with.

    Raises:
        UserError: it is no such folder, or can't be read.
    """
    if is_pretrained(folder := find_run(folder)):
        return load_pretrained(folder)[:2]
    name_files(map(Path, [code] if isinstance(code, str | Path) else code))
    return load_run(open_run(folder, Experiment), str(checkpoint), member)


def load_run(
    run: Run, checkpoint: str = "best", member: int | Literal["all"] = 0
) -> tuple[Any, Any]:
    """One of a run's models, or all where there are several; and the tokenizer.

    Raises:
        UserError: there is no such checkpoint or member, or a part of the user's is not what a
            model needs.
    """
    probe(run.experiment.model, make_model)
    number = run.experiment.training.seeds
    member = 0 if number == 1 and member == "all" else member
    if member != "all":
        check_member(member, number)
    chosen = slice(None) if member == "all" else member
    parameters, _ = read_parameters(run, checkpoint)
    arrays = {name: jnp.asarray(np.asarray(a)[chosen]) for name, a in parameters.items()}
    model = model_maker(model_shapes(run))(arrays)
    tokenizer = RECIPES[type(run.experiment)].load_tokenizer(run)
    return Ensemble(model) if member == "all" else model, tokenizer


def open_model(
    folder: str | Path, kind: Any, checkpoint: str = "best", member: int | Literal["all"] = 0
) -> tuple[Any, Any, Any]:
    """The model and the tokenizer as `load` gives them, and the run, or what a folder says.

    Args:
        kind: the type of a run's experiment, or a union of types; a Hugging Face folder must have
            the model that it trains.

    Raises:
        UserError: it is no such folder, or of another kind of model.
    """
    if not is_pretrained(folder):
        run = open_run(Path(folder), kind)
        return *load_run(run, checkpoint, member), run
    if checkpoint != "best" or member:
        raise UserError("--checkpoint and --member are for runs: this folder has one model")
    model, tokenizer, told = load_pretrained(folder)
    if kind in RECIPES and not isinstance(model, RECIPES[kind].model_type):
        raise UserError(f"{folder} has a {told.family} {told.kind}: that is another kind of model")
    if tokenizer is None:
        raise UserError(told.no_tokenizer)
    return model, tokenizer, told


def warn_of_unheeded(told) -> None:
    """Say what a Hugging Face folder asks of generation, and does not get."""
    asked = {name: told.fields.get(name) for name in UNHEEDED} | told.generation
    if unheeded := [n for n, plain in UNHEEDED.items() if asked.get(n) not in (None, [], plain)]:
        warning = f"warning: {told.folder} asks for {', '.join(unheeded)}: not heeded"
        print(printable(warning), file=sys.stderr)


def evaluate_text(folder: str | Path, path: Path | None) -> None:
    """Print how well a generator of a Hugging Face folder predicts each token of a text."""
    if path is None:
        raise UserError(f"{folder} has no data of its own: name a text, --path FILE")
    model, tokenizer, _ = open_model(folder, GeneratorExperiment)
    text = "".join(decoded(path))
    tokens, bos, config = tokenizer.encode(text, marks=False), tokenizer.bos_id, model.config
    begun = bos is not None and tokenizer.encode(text)[:1].tolist() == [bos]
    if len(tokens) < 2:
        raise UserError(f"{path} is too short: it has {len(tokens)} tokens")
    length = min(config.context, LONGEST, len(tokens) - 1)
    inputs, *others = every_window(np.r_[bos, tokens] if begun else tokens, length)
    if begun:  # each of the windows is
        inputs = np.concatenate([np.full((len(inputs), 1), bos), inputs[:, 1:]], axis=1)
    size = max(1, MOST_LOGITS // (length * config.vocabulary_size))
    score, totals = jax.jit(generator_task(config).evaluate), np.zeros(3)
    for batch in zip(*in_batches((inputs, *others), size), strict=True):
        sums = score(model, batch)
        names = "loss", "accuracy", "count"
        totals += [np.asarray(sums[name], np.float64).sum() for name in names]
    (loss, right), nats, count = totals[:2] / totals[2], totals[0], totals[2]
    # Without a mark before it the first token is not predicted, and its bytes do not count.
    size = len(text.encode()) - (0 if begun else len(tokenizer.decode(tokens[:1]).encode()))
    print(
        f"{path}: loss {loss:.4f} nats per token, perplexity {math.exp(min(loss, 700)):.3f}, "
        f"{nats / math.log(2) / max(size, 1):.4f} bits per byte, "
        f"accuracy {100 * right:.1f} %, {count:,.0f} tokens in windows of {length:,}"
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
    settings: dict[str, Any] = {"family": family}
    if is_pretrained(folder):
        model, tokenizer, settings["original"] = load_pretrained(folder)
    else:
        model, tokenizer, run = open_model(folder, Experiment, checkpoint, member)
        settings["labels"] = getattr(run.experiment.data, "classes", None)
        if getattr(run.experiment, "sentences", 0):
            raise UserError("a text's class is joined from sentences': transformers has no such")
        source = getattr(run.experiment, "pretraining", None)
        if isinstance(source, Pretrained) and not family:
            settings["original"] = _origin(source, model)
    with disk_errors(to):
        to.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{to.name}.", dir=to.parent) as place:
            beside = Path(place) / to.name
            family = save_pretrained(beside, model, tokenizer, **settings)
            beside.rename(to)
    return family


def _origin(source: Pretrained, model):
    """What the folder says that a run has started from."""
    try:
        classes = getattr(model.config, "num_classes", None)
        return load_pretrained(source.folder, num_classes=classes)[2]
    except UserError as error:
        raise UserError(f"{error}; without what the run started from name a --family") from error
