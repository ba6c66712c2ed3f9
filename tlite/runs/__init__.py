"""Runs: create, train, open, evaluate and compare."""

from typing import TYPE_CHECKING

from tlite import import_lazily

if TYPE_CHECKING:
    from tlite.runs.classifier import ClassifierRun
    from tlite.runs.generator import GeneratorRun, TextRun
    from tlite.runs.run import Built, Run, build, run_class
    from tlite.runs.translator import TranslatorRun

MODULES = {
    "tlite.runs.classifier": "ClassifierRun",
    "tlite.runs.generator": "GeneratorRun TextRun",
    "tlite.runs.run": "Built Run build run_class",
    "tlite.runs.translator": "TranslatorRun",
}
"""Public names by module, which is imported (and JAX with it) when a name is first used."""
__all__ = " ".join(MODULES.values()).split()


__getattr__ = import_lazily(__name__, MODULES)
