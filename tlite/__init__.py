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
MODULES = {
    "tlite.config": "override",
    "tlite.runs.api": "compare evaluate train",
    "tlite.runs.experiment_files": "load_experiment",
    "tlite.runs.models": "load",
    "tlite.runs.run": "Run",
    "tlite.runs.tune": "tune",
}
__all__ = [*FOLDERS, *" ".join(MODULES.values()).split(), "__version__"]


def import_lazily(
    package: str, modules: Mapping[str, str], folders: tuple[str, ...] = ()
) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package that imports public names when they are used.

    Args:
        package: its `__name__`.
        modules: public names, separated by spaces, by the module that defines them.
        folders: names that are packages themselves.
    """

    def get(name: str) -> Any:
        if name in folders:
            return importlib.import_module(f"{package}.{name}")
        for module, names in modules.items():
            if name in names.split():
                return getattr(importlib.import_module(module), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get


__getattr__ = import_lazily(__name__, MODULES, FOLDERS)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
