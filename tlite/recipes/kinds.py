"""The kinds of runs there are, and how one is started, opened, and given other steps or members."""

import dataclasses
from pathlib import Path

import jax

from tlite.errors import UserError
from tlite.experiment import Experiment
from tlite.parallel import processes
from tlite.recipes.classifier import ClassifierRecipe
from tlite.recipes.data import find_data
from tlite.recipes.generator import GeneratorRecipe
from tlite.recipes.loading import check_member
from tlite.recipes.recipe import Recipe
from tlite.recipes.translator import TranslatorRecipe
from tlite.training.checkpoints import Checkpoints, to_named
from tlite.training.loop import host_copy, restore, selection_scores
from tlite.training.metrics import MetricsFile, iterate_metrics, split_member
from tlite.training.precision import Precision, choose_precision
from tlite.training.runs import Run, create_run, new_folder, open_run, rewrite_config

RECIPES = {
    kind.experiment_type: kind for kind in (GeneratorRecipe, ClassifierRecipe, TranslatorRecipe)
}
"""The one table of them: its recipe has a kind's experiment, model and word."""


def start(experiment: Experiment, folder: Path | None = None) -> Recipe:
    """A new run of an experiment, in `folder` or the next of its name."""
    kind = RECIPES[type(experiment)]
    prepared = kind.prepare(find_data(experiment))
    path = Path(processes.of_first(lambda: str(new_folder(experiment.name, folder))))
    precision = agreed_precision(experiment.training.precision)
    training = dataclasses.replace(prepared.experiment.training, precision=precision)
    settled = dataclasses.replace(prepared.experiment, training=training)
    recipe = kind.build(prepared._replace(experiment=settled), path)
    recipe.save(exactly=folder is not None)
    return recipe


def open_recipe(folder: Path, steps: int | None = None) -> Recipe:
    """The run in a folder, whatever it is a run of; with other `steps` than it had, if given."""
    run = open_run(folder, Experiment)
    run = run if steps is None else with_steps(run, steps)
    recipe = RECIPES[type(run.experiment)].open(run)
    if steps is not None:
        save_steps(run)
    return recipe


def agreed_precision(asked: Precision) -> Precision:
    """What is computed with, of all processes what the first one finds; it is printed, and why.

    The choice is kept with a run, so that a resumed one computes as it began.
    """
    precision, reason = processes.of_first(lambda: choose_precision(asked))
    print(f"precision: {reason}")
    return precision


def with_steps(run: Run, steps: int) -> Run:
    """The run with so many steps in all, as if it had always been so. All processes call it.

    Its folder is not touched yet.

    Raises:
        UserError: they can't be: the steps before would have been others, or more are done.
    """
    if reason := processes.of_first(lambda: _reason_against(run, steps)):
        raise UserError(reason)
    training = dataclasses.replace(run.experiment.training, steps=steps)
    return dataclasses.replace(
        run, experiment=dataclasses.replace(run.experiment, training=training)
    )


def save_steps(run: Run) -> None:
    """Write the steps of `with_steps` to config.json, at once or not at all.

    Raises:
        UserError: the run is being trained by another process, or can't be written.
    """
    if not processes.is_first():
        return
    if run.metrics.exists():
        with MetricsFile(run.metrics):  # while this one has it, no other trains
            rewrite_config(run)
    else:
        rewrite_config(run)


def _reason_against(run: Run, steps: int) -> str | None:
    training = run.experiment.training
    if steps == training.steps:
        return None
    if training.schedule == "cosine":
        return (
            f"--steps can't be {steps:,} where a run has {training.steps:,} with a cosine: that "
            "would have had another learning rate at every step before; only a constant or an "
            "inverse_sqrt schedule can go on"
        )
    try:
        dataclasses.replace(training, steps=steps)
    except ValueError as error:
        return f"--{error}"
    done = max(Checkpoints(run.checkpoints).steps(), default=0)
    if steps < done:
        return f"--steps must be at least {done:,}: {run.folder} has done as many"
    return None


def take_member(recipe: Recipe, member: int) -> Recipe:
    """A new run, beside the folder of the one, at its last checkpoint.

    Raises:
        UserError: there is no such member.
    """
    run, training = recipe.run, recipe.experiment.training
    if processes.count() > 1:
        raise UserError("a member is taken by one process: name it without the others first")
    check_member(member, training.seeds)
    experiment = dataclasses.replace(recipe.experiment, training=training.of_member(member))
    with Checkpoints(run.checkpoints) as checkpoints:
        if not checkpoints.steps():
            raise UserError(f"{run.folder} has no checkpoint yet")
        members, step = restore(recipe.trainer, checkpoints)
    lines = [split_member(n, member) for n in iterate_metrics(run.metrics) if n["step"] <= step]
    validated = [n for n in lines if n["split"] == "validation" and n["step"] == step]
    if not (scores := selection_scores(experiment.training, validated)):
        raise UserError(f"{run.metrics} has no validation at step {step}")
    alone = to_named(jax.tree.map(lambda a: a[member : member + 1], host_copy(members)))

    def fill(new: Run) -> None:
        with MetricsFile(new.metrics) as metrics:
            metrics.write(lines)
        with Checkpoints(new.checkpoints, writing=True) as checkpoints:
            checkpoints.save(step, alone, scores[-1])

    folder = run.folder.with_name(f"{run.folder.name}-{member}")
    folder = new_folder(experiment.name, folder)
    new = create_run(folder, experiment, run.data, recipe.tokenizer, fill, exactly=False)
    return type(recipe)(new, recipe.tokenizer, recipe.data)
