"""From a trained model to text."""

from tlite.decoding.generate import generate, stream

__all__ = ["generate", "stream"]
