"""Trained models from folders: tlite's runs and Hugging Face's, without data and a trainer.

Whoever wants the parameters of a run, wherever they are to lie, has them from `read_parameters`;
only what goes on training reads an optimizer (`training.loop.restore`).
"""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from tlite.config import name_files
from tlite.errors import UserError
from tlite.experiment import Experiment
from tlite.models import Ensemble, make_model
from tlite.models.parameters import by_name, model_maker
from tlite.models.probe import probe
from tlite.pretrained import is_pretrained, load_pretrained
from tlite.terminal import printable
from tlite.training.checkpoints import Checkpoints
from tlite.training.runs import Run, find_run, open_run

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
    run = open_run(folder, Experiment)
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
    from tlite.recipes.kinds import RECIPES

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


def load_model(run: Run, checkpoint: str = "best", member: int | Literal["all"] = 0):
    """One of a run's models; or all of them, where there are several.

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
    model = model_maker(_shapes(run))(arrays)
    return Ensemble(model) if member == "all" else model


def load_tokenizer(run: Run):
    """The tokenizer that was saved with a run."""
    from tlite.recipes.kinds import RECIPES

    return RECIPES[type(run.experiment)].load_tokenizer(run)


def read_parameters(
    run: Run, checkpoint: str = "best", wanted: dict[str, jax.ShapeDtypeStruct] | None = None
) -> tuple[dict[str, jax.Array], int]:
    """The parameters (M, ...) of a run's members by name, without their optimizer; and the step.

    Args:
        checkpoint: "best", "last" or a step; or "average", the mean in float64 over the last ones.
        wanted: their shapes, types and where they are to lie; on the host unless given.

    Raises:
        UserError: the run has no such checkpoint, or one of several is damaged.
    """
    wanted = wanted or _on_host(run)
    totals: dict[str, np.ndarray] = {}
    with Checkpoints(run.checkpoints, run.experiment.training) as checkpoints:
        steps = checkpoint_steps(run, checkpoints, checkpoint)
        for step in steps:
            found, trees = checkpoints.load({"parameters": wanted}, step)
            if len(steps) == 1:
                return trees["parameters"], found
            if found != step:
                raise UserError(f"checkpoint {step} is damaged: there is no average without it")
            for name, array in trees["parameters"].items():
                totals[name] = totals.get(name, 0.0) + np.asarray(array, np.float64)
    mean = {name: (total / len(steps)).astype(np.float32) for name, total in totals.items()}
    return {name: jax.device_put(a, wanted[name].sharding) for name, a in mean.items()}, steps[-1]


def checkpoint_steps(run: Run, checkpoints: Checkpoints, checkpoint: str) -> list[int]:
    """The step that "best", "last" or a number names; for "average" the last that are kept.

    Raises:
        UserError: the run has no such checkpoint.
    """
    steps = {str(step): step for step in checkpoints.steps()}
    if not steps:
        raise UserError(f"{run.folder} has no checkpoint yet")
    if checkpoint == "average":
        return checkpoints.regular_steps()[-run.experiment.training.keep :]
    known = steps | {"best": checkpoints.best_step(), "last": max(steps.values())}
    if checkpoint not in known:
        raise UserError(
            f"there is no checkpoint {checkpoint}: choose best, last, average or one of "
            f"{', '.join(steps)}"
        )
    return [known[checkpoint]]


def check_member(member: int, number: int) -> None:
    """Raises a `UserError` where a run of `number` models has no such member."""
    if not 0 <= member < number:
        raise UserError(f"there is no member {member}: the run has {number}, counted from 0")


def _shapes(run: Run):
    """One of a run's models, as shapes."""
    return jax.eval_shape(lambda: make_model(run.experiment.model, rng=jax.random.key(0)))


def _on_host(run: Run) -> dict[str, jax.ShapeDtypeStruct]:
    """All members' parameters by name, in the memory of this process."""
    host = jax.sharding.SingleDeviceSharding(jax.local_devices(backend="cpu")[0])
    number = run.experiment.training.seeds
    return {
        name: jax.ShapeDtypeStruct((number, *leaf.shape), leaf.dtype, sharding=host)
        for name, leaf in by_name(_shapes(run)).items()
    }
