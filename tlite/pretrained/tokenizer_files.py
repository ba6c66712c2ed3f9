"""A tokenizer by its name alone: a tokenizer.json, a folder that has one, or a name on the hub."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tlite.data.reading import is_there
from tlite.errors import UserError, needs_extra
from tlite.pretrained.folders import HUB_NAME
from tlite.pretrained.tokenizers import CONFIG, FILE, MAP, PretrainedTokenizer
from tlite.text.byte_level import END, ByteTokenizer, parts

FILES = FILE, "vocab.json", "merges.txt", "vocab.txt"  # what says the pieces, of those there are
ENDS = END, "</s>", "<eos>", "<|end_of_text|>"  # marks that end a text, where nothing says which
AT_ONCE = 16  # parts of a long text


def open_tokenizer(name: str | Path, sha256: str = "") -> tuple[PretrainedTokenizer, str]:
    """The tokenizer of that name, and the SHA-256 of its files.

    It puts no marks around a text, and takes those that are typed in one as letters: a text
    can't end itself.

    Raises:
        UserError: there is none, it is damaged, or not the one of this SHA-256.
    """
    path = _find(str(name))
    tokenizer = _other_file(path) if path.is_file() and path.name != FILE else None
    tokenizer = tokenizer or PretrainedTokenizer.load(path)
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


def same_pieces(tokenizer: PretrainedTokenizer, other: PretrainedTokenizer) -> bool:
    """Whether each id stands for the same piece."""
    return tokenizer._tokenizer.get_vocab() == other._tokenizer.get_vocab()


def encode_long(tokenizer: PretrainedTokenizer, text: str) -> np.ndarray:
    """Ids (N,) of a text that may have hundreds of megabytes, without marks.

    A text is cut into parts where GPT-2's rule cuts it too, which are encoded side by side; with
    another rule than its it is encoded as a whole.
    """
    from tokenizers import pre_tokenizers

    content = tokenizer._tokenizer
    rule = content.pre_tokenizer
    theirs = isinstance(rule, pre_tokenizers.ByteLevel) and content.normalizer is None
    if not theirs or rule.add_prefix_space or not rule.use_regex:
        return tokenizer.encode(text, marks=False)
    rows, left = [], list(parts(text))[::-1]
    while left:
        some = [left.pop() for _ in range(min(AT_ONCE, len(left)))]
        found = content.encode_batch_fast(some, add_special_tokens=False)
        rows += [np.array(encoding.ids, np.int32) for encoding in found]
    return np.concatenate(rows)


def byte_sizes(tokenizer: PretrainedTokenizer) -> np.ndarray | None:
    """Bytes of text that each token stands for (V,), of a tokenizer of bytes; else None."""
    from tokenizers import decoders

    content = tokenizer._tokenizer
    if not isinstance(content.decoder, decoders.ByteLevel):
        return None
    marks = content.get_added_tokens_decoder()
    sizes = np.zeros(tokenizer.largest_id + 1, np.int64)
    for piece, index in content.get_vocab().items():  # each letter of a piece is a byte
        mark = marks.get(index)
        sizes[index] = len(piece) if mark is None else 0 if mark.special else len(piece.encode())
    return sizes


def from_bytes(tokenizer: ByteTokenizer) -> PretrainedTokenizer:
    """Byte-pair encoding without merges: each byte is a token, with the id it had."""
    with needs_extra("text"):
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    ids = {letter: index for index, letter in enumerate(_letters_of_bytes())}
    content = Tokenizer(models.BPE(vocab=ids, merges=[]))
    content.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    content.decoder = decoders.ByteLevel()
    content.add_special_tokens([END])
    settings = {"clean_up_tokenization_spaces": False}
    return PretrainedTokenizer(content, {"bos": END, "eos": END}, settings)


def _letters_of_bytes() -> Iterator[str]:
    """The letter that stands for each byte in GPT-2's files: itself if it can be seen."""
    others = iter(range(256, 512))
    for byte in range(256):
        seen = 33 <= byte <= 126 or 161 <= byte <= 172 or 174 <= byte <= 255
        yield chr(byte if seen else next(others))


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
    with needs_extra("text"):
        from huggingface_hub import snapshot_download
    try:
        return Path(snapshot_download(name, allow_patterns=[*FILES, CONFIG, MAP, "config.json"]))
    except Exception as error:  # of the network, the hub, its cache: a dozen classes
        reason = " ".join(str(error).split())[:150]
        raise UserError(
            f"there is no file or folder {name}, and the Hugging Face hub gave no tokenizer of "
            f"this name ({type(error).__name__}: {reason})"
        ) from error


def _other_file(path: Path) -> PretrainedTokenizer:
    """That of a tokenizer.json with another name."""
    with needs_extra("text"):
        from tokenizers import Tokenizer
    try:
        return PretrainedTokenizer(Tokenizer.from_file(str(path)), {})
    except Exception as error:  # the library raises plain Exception
        raise UserError(f"{path} is not a tokenizer.json: {error}") from error


def _digest(path: Path) -> str:
    """SHA-256 of the file, or of those of a folder that say the pieces."""
    if path.is_dir():
        found = [path / name for name in FILES if (path / name).is_file()]
        path = found[0] if found[0].name == FILE else path
    files = found if path.is_dir() else [path]
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()
