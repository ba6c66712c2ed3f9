"""The commands that draw a page: no other command needs what these import."""

import jax

from tlite import comparison
from tlite.cli.options import Compare, Inspect
from tlite.pretrained import is_pretrained
from tlite.recipes.kinds import open_recipe
from tlite.recipes.loading import check_member
from tlite.report import inspect_pretrained, inspect_run


def compare(options: Compare) -> None:
    """Print how runs differ from the first, and write tables, pictures and a page of it."""
    jax.config.update("jax_platforms", "cpu")  # a GPU may be busy with what is compared
    comparison.compare(**vars(options))


def inspect(options: Inspect) -> None:
    """Draw every picture of a run into its folder, and write one page with all of them."""
    settings = options.checkpoint, options.member, options.text
    if is_pretrained(options.run):
        path = inspect_pretrained(options.run, *settings)
    else:
        recipe = open_recipe(options.run)
        check_member(options.member, len(recipe.experiment.training.members))
        path = inspect_run(recipe, *settings)
    number = len(list(path.parent.glob("*.png")))
    print(f"{number} pictures in {path.parent}; all of them on one page: {path}")
