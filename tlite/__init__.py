"""tlite: transformers as short pure functions, and tools to train and study them.

Packages and functions (`tlite.models`, `tlite.load`) are imported when they are first used.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tlite import (
        comparison,
        data,
        decoding,
        experiment,
        functional,
        inspection,
        models,
        pictures,
        pretrained,
        report,
        runs,
        text,
        training,
    )
    from tlite.config import override
    from tlite.runs.api import compare, evaluate, train
    from tlite.runs.experiment_files import load_experiment
    from tlite.runs.models import load
    from tlite.runs.run import Run

__version__ = "0.3.0"
FOLDERS = (
    "comparison", "data", "decoding", "experiment", "functional", "inspection", "models",
    "pictures", "pretrained", "runs", "report", "text", "training",
)  # fmt: skip
FUNCTIONS = {
    "Run": "tlite.runs.run",
    "compare": "tlite.runs.api",
    "evaluate": "tlite.runs.api",
    "load": "tlite.runs.models",
    "load_experiment": "tlite.runs.experiment_files",
    "override": "tlite.config",
    "train": "tlite.runs.api",
}
__all__ = [*FOLDERS, *FUNCTIONS, "__version__"]


def __getattr__(name: str):
    if name in FOLDERS:
        return importlib.import_module(f"tlite.{name}")
    if name in FUNCTIONS:
        return getattr(importlib.import_module(FUNCTIONS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
