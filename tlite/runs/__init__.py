"""Runs: an experiment's data, tokenizer, trainer and checkpoints, held together by a folder."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tlite.runs.classifier import ClassifierRun
    from tlite.runs.generator import GeneratorRun
    from tlite.runs.run import Built, Run, build, run_class
    from tlite.runs.translator import TranslatorRun

FILES = {
    "Built": "run",
    "ClassifierRun": "classifier",
    "GeneratorRun": "generator",
    "Run": "run",
    "TranslatorRun": "translator",
    "build": "run",
    "run_class": "run",
}
"""File of each name; imported, and JAX with it, when the name is used."""
__all__ = [*FILES]


def __getattr__(name: str):
    if name in FILES:
        return getattr(importlib.import_module(f"tlite.runs.{FILES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
