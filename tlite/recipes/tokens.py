"""What a token of a generator's text is: the tokenizer, and how much text its tokens stand for."""

import json
from functools import lru_cache
from pathlib import Path

import numpy as np

from tlite.data import split_tokens
from tlite.data.sources import split_text
from tlite.errors import UserError
from tlite.experiment import BPE, Bytes, Characters, GeneratorExperiment, TextTokenizer
from tlite.pretrained import PretrainedTokenizer, learn_bpe
from tlite.pretrained.tokenizer_files import byte_sizes, encode_long, open_tokenizer, plain
from tlite.text import ByteTokenizer, CharTokenizer, NumberTokenizer

Tokenizer = CharTokenizer | ByteTokenizer | NumberTokenizer | PretrainedTokenizer
KINDS = {"characters": CharTokenizer, "bytes": ByteTokenizer, "numbers": NumberTokenizer}


def make_tokenizer(
    settings: TextTokenizer, text: str, validation_fraction: float
) -> tuple[TextTokenizer, Tokenizer]:
    """The tokenizer of a new run on a text, and its settings with what identifies it.

    Raises:
        UserError: it can't be opened, or is another than the settings say.
    """
    if isinstance(settings, Characters):
        return settings, CharTokenizer(text)
    if isinstance(settings, Bytes):
        return settings, ByteTokenizer()
    if isinstance(settings, BPE):
        training, _ = split_text(text, validation_fraction)
        return settings, learn_bpe([training], settings.pieces)
    tokenizer, digest = open_tokenizer(settings.path, settings.sha256)
    place = str(Path(settings.path).resolve()) if Path(settings.path).exists() else settings.path
    return type(settings)(place, digest), tokenizer


def saved_tokenizer(experiment: GeneratorExperiment, path: Path) -> Tokenizer:
    """The tokenizer that was saved with a run."""
    if experiment.pretraining:
        return PretrainedTokenizer.load(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"can't read {path}: {error.strerror}") from error
    except (ValueError, RecursionError):
        content = None
    if isinstance(content, dict) and "model" in content:
        return plain(PretrainedTokenizer.load(path))
    kind = content.get("kind") if isinstance(content, dict) else None
    return KINDS.get(str(kind), CharTokenizer).load(path)


def fit_vocabulary(size: int, tokenizer: Tokenizer, at_least: int = 0) -> int:
    """The rows of the embedding: of subwords as many as asked for, if they are enough.

    Raises:
        UserError: they are not.
    """
    needed = max(getattr(tokenizer, "largest_id", len(tokenizer) - 1) + 1, at_least)
    # More than there are, a multiple of 64 say, is faster on some devices.
    more = size > needed and not isinstance(tokenizer, CharTokenizer)
    if size not in (0, needed) and not more:
        raise UserError(
            f"the vocabulary size is {size}, but the text has {needed} tokens: leave it out"
        )
    return size or needed


def unit_of(tokenizer: Tokenizer) -> str:
    """What a token is called."""
    units = {CharTokenizer: "character", ByteTokenizer: "byte"}
    return units.get(type(tokenizer), "token")


def end_ids(tokenizer: Tokenizer) -> list[int]:
    """The tokens that end a text."""
    end = getattr(tokenizer, "eos_id", None)
    return [] if end is None else [end]


def prompt_tokens(tokenizer: Tokenizer, prompt: str) -> np.ndarray:
    """The tokens (T,) that a sample starts from; without a prompt what ends the text before.

    Raises:
        UserError: there are none.
    """
    ends = end_ids(tokenizer)
    if not prompt and ends:
        return np.array(ends, np.int32)
    check_prompt(prompt)
    if not len(tokens := tokenizer.encode(prompt)):
        raise UserError(f"the prompt {prompt!r} has no token")
    return tokens


def check_prompt(prompt: str) -> None:
    if not prompt:
        raise UserError("the prompt is empty: give at least one character to start from")


def encode(tokenizer: Tokenizer, text: str) -> np.ndarray:
    """The tokens of a text (N,), without marks around it."""
    if isinstance(tokenizer, PretrainedTokenizer):
        return encode_long(tokenizer, text)
    return tokenizer.encode(text)


@lru_cache(maxsize=1)  # a run that starts asks for its sizes, and then for the tokens
def encoded_parts(
    tokenizer: Tokenizer, text: str, validation_fraction: float, whole: bool
) -> tuple[tuple[np.ndarray, np.ndarray], tuple[str, str]]:
    """Tokens and text of the training and the validation part.

    Args:
        whole: cut the tokens of the whole text, as runs with a pre-trained model do; else the
            text, so that a part's bytes are known exactly.
    """
    if whole:
        tokens = split_tokens(tokenizer.encode(text, marks=False), validation_fraction)
        return tokens, tuple(tokenizer.decode(part) for part in tokens)
    texts = split_text(text, validation_fraction)
    return tuple(encode(tokenizer, part) for part in texts), texts


def sizes_of(tokenizer: Tokenizer) -> np.ndarray | None:
    """Bytes of text that each token stands for (V,), where that does not depend on the text."""
    if isinstance(tokenizer, CharTokenizer):
        sizes = [len(c.encode("utf-8", "surrogatepass")) for c in tokenizer.characters]
        return np.array(sizes, np.int64)
    if isinstance(tokenizer, ByteTokenizer):
        return np.array([1] * 256 + [0], np.int64)
    return byte_sizes(tokenizer) if isinstance(tokenizer, PretrainedTokenizer) else None
