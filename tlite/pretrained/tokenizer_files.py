"""A tokenizer by its name alone: a tokenizer.json, a folder that has one, or a name on the hub."""

import hashlib
from pathlib import Path

from tlite.data.reading import is_there
from tlite.errors import UserError
from tlite.pretrained.files import download
from tlite.pretrained.folders import HUB_NAME
from tlite.pretrained.tokenizers import CONFIG, FILE, FILES, MAP, PretrainedTokenizer
from tlite.text.byte_level import END

ENDS = END, "</s>", "<eos>", "<|end_of_text|>"  # marks that end a text, where nothing says which


def open_tokenizer(name: str | Path, sha256: str = "") -> tuple[PretrainedTokenizer, str]:
    """The tokenizer of that name, and the SHA-256 of its files.

    It puts no marks around a text, and takes those that are typed in one as letters: a text
    can't end itself.

    Raises:
        UserError: there is none, it is damaged, or not the one of this SHA-256.
    """
    path = _find(str(name))
    tokenizer = PretrainedTokenizer.load(path)
    digest = _digest(path)
    if sha256 not in ("", digest):
        raise UserError(f"the tokenizer {name} has changed: its SHA-256 is {digest}, not {sha256}")
    return plain(tokenizer), digest


def plain(tokenizer: PretrainedTokenizer) -> PretrainedTokenizer:
    """The tokenizer without marks around a text; those typed in one are letters.

    A text begins with the mark that has ended the one before.
    """
    content, marks = tokenizer._tokenizer, dict(tokenizer.marks)
    content.post_processor = None
    content.encode_special_tokens = True  # not kept in a file
    known = (mark for mark in ENDS if content.token_to_id(mark) is not None)
    if "eos" not in marks and (end := next(known, None)):
        marks["eos"] = end
    if "eos" in marks:
        marks["bos"] = marks["eos"]
    return PretrainedTokenizer(content, marks, tokenizer.settings)


def _find(name: str) -> Path:
    """The file or folder; of a hub name, where the hub's client keeps its tokenizer."""
    path = Path(name)
    if name and (path.is_dir() or is_there(path)):
        return path
    if (
        not name
        or path.suffix in (".json", ".txt")
        or not (HUB_NAME.fullmatch(name) or path.name == name)
    ):
        raise UserError(f"there is no tokenizer {name!r}: name a tokenizer.json, or its folder")
    return download(name, "tokenizer", [*FILES, CONFIG, MAP, "config.json"])


def _digest(path: Path) -> str:
    """SHA-256 of the file, or of those of a folder that say the pieces."""
    found = [path]
    if path.is_dir():
        found = [path / name for name in FILES if (path / name).is_file()]
        found = found[:1] if found[0].name == FILE else found
    return hashlib.sha256(b"".join(file.read_bytes() for file in found)).hexdigest()
