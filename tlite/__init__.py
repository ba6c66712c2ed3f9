"""tlite: transformers as short pure functions, and tools to train and study them.

Packages and functions (`tlite.models`, `tlite.load`) are imported when they are first used.
"""

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

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
    from tlite.runs.tune import tune

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
    "tune": "tlite.runs.tune",
}
__all__ = [*FOLDERS, *FUNCTIONS, "__version__"]


def import_lazily(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package that imports public names when they are used.

    Args:
        package: its `__name__`.
        modules: for each name the module that defines it, or that it is.
    """

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(modules[name])
        return module if modules[name] == f"{package}.{name}" else getattr(module, name)

    return get


__getattr__ = import_lazily(__name__, {name: f"tlite.{name}" for name in FOLDERS} | FUNCTIONS)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
