"""Runs: create, train, open, evaluate and compare."""

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
"""File of each name; imported when the name is used, as it imports JAX."""
__all__ = [*FILES]


def __getattr__(name: str):
    if name in FILES:
        return getattr(importlib.import_module(f"tlite.runs.{FILES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
