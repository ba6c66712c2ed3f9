"""What a token of a generator's text is: the tokenizer, and how much text its tokens stand for."""

from functools import lru_cache
from pathlib import Path

import numpy as np

from tlite.data import split_tokens
from tlite.data.sources import split_text
from tlite.errors import UserError
from tlite.experiment import BPE, Bytes, Characters, GeneratorExperiment, TextTokenizer
from tlite.pretrained import PretrainedTokenizer, learn_bpe
from tlite.pretrained.tokenizer_files import open_tokenizer, plain
from tlite.text import ByteTokenizer, CharTokenizer, Tokenizer, load_tokenizer
from tlite.text.tokenizer import read_saved


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
    if read_saved(path, lambda content: "model" in content):  # a tokenizer.json of others
        return plain(PretrainedTokenizer.load(path))
    return load_tokenizer(path)


def fit_vocabulary(size: int, tokenizer: Tokenizer, at_least: int = 0) -> int:
    """The rows of the embedding: of subwords as many as asked for, if they are enough.

    Raises:
        UserError: they are not.
    """
    needed = max(tokenizer.largest_id + 1, at_least)
    # More than there are, a multiple of 64 say, is faster on some devices.
    more = size > needed and tokenizer.unit != "character"
    if size not in (0, needed) and not more:
        raise UserError(
            f"the vocabulary size is {size}, but the text has {needed} tokens: leave it out"
        )
    return size or needed


def end_ids(tokenizer: Tokenizer) -> list[int]:
    """The tokens that end a text."""
    return [] if tokenizer.eos_id is None else [tokenizer.eos_id]


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
        tokens = split_tokens(tokenizer.encode_long(text), validation_fraction)
        return tokens, tuple(tokenizer.decode(part) for part in tokens)
    texts = split_text(text, validation_fraction)
    return tuple(tokenizer.encode_long(part) for part in texts), texts
