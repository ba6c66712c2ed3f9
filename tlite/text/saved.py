"""Tokenizers of texts that are known by what their files say."""

from pathlib import Path

from tlite.text.byte_level import ByteTokenizer
from tlite.text.characters import CharTokenizer
from tlite.text.numbers import NumberTokenizer
from tlite.text.tokenizer import Tokenizer, read_saved

KINDS = {known.kind: known for known in (CharTokenizer, ByteTokenizer, NumberTokenizer)}


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of characters, bytes or numbers that was saved in a file.

    Raises:
        UserError: the file can't be read, or has something else in it.
    """
    # Older files, of characters only, don't say what they are.
    return read_saved(path, lambda saved: KINDS[saved.get("kind", "characters")].from_dict(saved))
