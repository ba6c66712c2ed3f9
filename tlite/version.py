"""The version of tlite: pyproject.toml says it, and what is installed has it from there."""

import importlib.metadata
import tomllib
from pathlib import Path


def find_version() -> str:
    """That of the checkout the package lies in; elsewhere that of what is installed."""
    project = Path(__file__).parents[1] / "pyproject.toml"
    try:
        return tomllib.loads(project.read_text(encoding="utf-8"))["project"]["version"]
    except OSError:
        return importlib.metadata.version("tlite")
