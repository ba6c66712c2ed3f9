"""tlite: transformers as short pure functions, with what it takes to train and study them."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tlite.recipes.loading import load


def __getattr__(name: str):
    """`tlite.load`, and JAX with it, are imported when they are asked for."""
    if name == "load":
        from tlite.recipes.loading import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
