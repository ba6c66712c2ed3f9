"""Runs: an experiment's data, tokenizer, trainer and checkpoints, held together by a folder."""

from tlite.runs.classifier import ClassifierRun
from tlite.runs.generator import GeneratorRun
from tlite.runs.kinds import RUN_TYPES, open_run_with_data, start
from tlite.runs.translator import TranslatorRun

__all__ = [
    "RUN_TYPES", "ClassifierRun", "GeneratorRun", "TranslatorRun", "open_run_with_data", "start"
]  # fmt: skip
