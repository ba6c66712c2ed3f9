"""Runs: an experiment's data, tokenizer, trainer and checkpoints, held together by a folder."""

from tlite.recipes.classifier import ClassifierRecipe
from tlite.recipes.generator import GeneratorRecipe
from tlite.recipes.kinds import RECIPES, open_recipe, start
from tlite.recipes.translator import TranslatorRecipe

__all__ = [
    "RECIPES", "ClassifierRecipe", "GeneratorRecipe", "TranslatorRecipe", "open_recipe", "start"
]  # fmt: skip
