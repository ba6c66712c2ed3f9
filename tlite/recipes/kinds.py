"""The kinds of runs there are, and how one is started or opened, whatever it is a run of."""

from pathlib import Path

from tlite.experiment import Experiment
from tlite.recipes.classifier import ClassifierRecipe
from tlite.recipes.extending import save_steps, with_steps
from tlite.recipes.generator import GeneratorRecipe
from tlite.recipes.recipe import Recipe
from tlite.recipes.translator import TranslatorRecipe
from tlite.training.runs import open_run

RECIPES = {
    kind.experiment_type: kind for kind in (GeneratorRecipe, ClassifierRecipe, TranslatorRecipe)
}


def start(experiment: Experiment, folder: Path | None = None) -> Recipe:
    """A new run of an experiment."""
    return RECIPES[type(experiment)].start(experiment, folder)


def open_recipe(folder: Path, steps: int | None = None) -> Recipe:
    """The run in a folder, whatever it is a run of; with other `steps` than it had, if given."""
    run = open_run(folder, Experiment)
    run = run if steps is None else with_steps(run, steps)
    recipe = RECIPES[type(run.experiment)].with_data(run)
    if steps is not None:
        save_steps(run)
    return recipe
