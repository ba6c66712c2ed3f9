"""Runs: create, train, open, evaluate and compare."""

from typing import TYPE_CHECKING

from tlite import import_lazily

if TYPE_CHECKING:
    from tlite.runs.classifier import ClassifierRun
    from tlite.runs.generator import GeneratorRun, TextRun
    from tlite.runs.run import Built, Run, build, run_class
    from tlite.runs.translator import TranslatorRun

FILES = {
    "Built": "tlite.runs.run",
    "ClassifierRun": "tlite.runs.classifier",
    "GeneratorRun": "tlite.runs.generator",
    "Run": "tlite.runs.run",
    "TextRun": "tlite.runs.generator",
    "TranslatorRun": "tlite.runs.translator",
    "build": "tlite.runs.run",
    "run_class": "tlite.runs.run",
}
"""Module of each name; imported when the name is used, as it imports JAX."""
__all__ = [*FILES]


__getattr__ = import_lazily(__name__, FILES)
