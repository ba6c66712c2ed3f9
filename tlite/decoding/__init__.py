"""From a trained model to text."""

from tlite.decoding.generate import generate, stream

__all__ = [name for name in globals() if name[0] != "_"]  # offered, to type checkers too
