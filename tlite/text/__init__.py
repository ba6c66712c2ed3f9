"""From text to numbers and back."""

from tlite.text.characters import CharTokenizer
