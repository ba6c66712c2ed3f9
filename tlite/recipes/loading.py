"""Trained models from folders: tlite's runs and Hugging Face's, without data and a trainer."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp

from tlite.errors import UserError
from tlite.experiment import (
    ClassifierExperiment,
    Experiment,
    GeneratorExperiment,
    TranslatorExperiment,
)
from tlite.models import (
    Ensemble,
    TransformerClassifier,
    TransformerGenerator,
    TransformerSeq2Seq,
    make_model,
)
from tlite.models.probe import probe
from tlite.own_code import name_files
from tlite.pretrained import is_pretrained, load_pretrained
from tlite.recipes.ensemble import check_together
from tlite.recipes.restoring import (
    check_member,
    checkpoint_steps,
    mean_parameters,
    open_checkpoints,
)
from tlite.terminal import printable
from tlite.training.named import parameter_names
from tlite.training.runs import Run, open_run

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

    Args:
        checkpoint: of a run: best, last, average (of the last that are kept), or a step.
        member: of a run: which of the models that were trained side by side; "all": an `Ensemble`.
        code: the files with your own functions that a run was made with.

    Raises:
        UserError: it is no such folder, or can't be read.
    """
    if is_pretrained(folder):
        return load_pretrained(folder)[:2]
    name_files(map(Path, [code] if isinstance(code, str | Path) else code))
    run = open_run(Path(folder), Experiment)
    return load_model(run, str(checkpoint), member), load_tokenizer(run)


def open_model(
    folder: str | Path,
    kind: Any,
    checkpoint: str = "best",
    member: int | Literal["all"] = 0,
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
        return load_model(run, checkpoint, member), load_tokenizer(run), run
    if checkpoint != "best" or member:
        raise UserError("--checkpoint and --member are for runs: this folder has one model")
    model, tokenizer, told = load_pretrained(folder)
    wanted = {
        GeneratorExperiment: TransformerGenerator,
        ClassifierExperiment: TransformerClassifier,
        TranslatorExperiment: TransformerSeq2Seq,
    }
    if kind in wanted and not isinstance(model, wanted[kind]):
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


def load_model(run: Run, checkpoint: str = "best", member: int | Literal["all"] = 0):
    """One of a run's models, from its parameters alone; or all of them, where there are several.

    Raises:
        UserError: there is no such checkpoint or member, or a part of the user's is not what a
            model needs.
    """
    probe(run.experiment.model, make_model)
    number = run.experiment.training.num_members
    member = 0 if number == 1 and member == "all" else member
    if member == "all":
        check_together(run)
    else:
        check_member(member, number)
    chosen = slice(None) if member == "all" else member
    model = jax.eval_shape(lambda: make_model(run.experiment.model, rng=jax.random.key(0)))
    names, leaves = parameter_names(model), jax.tree.leaves(model)
    host = jax.sharding.SingleDeviceSharding(jax.local_devices(backend="cpu")[0])
    shapes = {
        name: jax.ShapeDtypeStruct((number, *leaf.shape), leaf.dtype, sharding=host)
        for name, leaf in zip(names, leaves, strict=True)
    }
    with open_checkpoints(run) as checkpoints:

        def read(step: int) -> tuple[int, dict]:
            found, trees = checkpoints.load({"parameters": shapes}, step)
            return found, {name: trees["parameters"][name][chosen] for name in names}

        mean = mean_parameters(checkpoint_steps(run, checkpoints, checkpoint), read)
    arrays = [jnp.asarray(mean[name]) for name in names]
    model = jax.tree.unflatten(jax.tree.structure(model), arrays)
    return Ensemble(model) if member == "all" else model


def load_tokenizer(run: Run):
    """The tokenizer that was saved with a run."""
    from tlite.recipes.kinds import RECIPES

    return RECIPES[type(run.experiment)].load_tokenizer(run)
