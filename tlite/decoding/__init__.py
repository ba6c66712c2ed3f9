"""Generation of text and search for translations."""

from tlite.decoding.generate import PADDING, Sampler, generate, stream

__all__ = ["PADDING", "Sampler", "generate", "stream"]
