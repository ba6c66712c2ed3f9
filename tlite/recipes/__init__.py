"""Runs: an experiment's data, tokenizer, trainer and checkpoints, held together by a folder."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tlite.recipes.kinds import (
        RECIPES,
        ClassifierRecipe,
        GeneratorRecipe,
        TranslatorRecipe,
        open_recipe,
        start,
    )

RECIPE_NAMES = ("GeneratorRecipe", "ClassifierRecipe", "TranslatorRecipe")


def __getattr__(name: str):
    """They are imported, and JAX with them, when they are asked for."""
    if name in ("RECIPES", "open_recipe", "start", *RECIPE_NAMES):
        import tlite.recipes.kinds as kinds

        return getattr(kinds, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
