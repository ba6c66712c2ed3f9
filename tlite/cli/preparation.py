"""`tlite prepare`: which tokenizer a corpus gets, and what is said of the corpus."""

from functools import partial
from typing import Any

from tlite.cli.options import Prepare
from tlite.data.corpus import BEGINNINGS
from tlite.data.documents import Source
from tlite.data.prepare import Texts
from tlite.data.prepare import prepare as write_corpus
from tlite.data.reading import MEGABYTE
from tlite.errors import UserError
from tlite.pretrained import learn_bpe
from tlite.pretrained.tokenizers import open_tokenizer
from tlite.text import ByteTokenizer, CharTokenizer

LEARNED_FROM = 50 * MEGABYTE  # bytes of the training part
LEAST_PIECES, MOST_PIECES = 257, 1_000_000


def prepare(options: Prepare) -> None:
    """Make a corpus of texts, a folder of token files, and say what it has come to."""
    tokenizer, pieces = options.tokenizer, options.pieces
    if tokenizer == "bpe" and not LEAST_PIECES <= pieces <= MOST_PIECES:
        raise UserError(
            f"--pieces must be between {LEAST_PIECES} and {MOST_PIECES:,}, not {pieces:,}"
        )
    if tokenizer not in ("bytes", "characters", "bpe"):
        open_tokenizer(tokenizer)  # so that one that is not there is told before anything is read
    names = "source", "field", "split", "subset", "validation_fraction"
    source = Source(*(getattr(options, name) for name in names))
    name = f"bpe of {pieces} pieces" if tokenizer == "bpe" else tokenizer
    sizes = {"shard_tokens": options.shard_tokens, "processes": options.processes}
    make = partial(make_tokenizer, tokenizer, pieces)
    manifest = write_corpus(source, options.folder, name, make, **sizes)
    for part in BEGINNINGS:
        if found := manifest.parts.get(part):
            print(
                f"{part}: {found.tokens:,} tokens of {found.bytes:,} bytes of text, "
                f"{found.documents:,} documents end in it"
            )
    print(f"{options.folder}: {manifest.vocabulary_size:,} different tokens, as {manifest.dtype}")


def make_tokenizer(name: str, pieces: int, texts: Texts) -> Any:
    """The tokenizer of that name; what has to be learned is learned from the texts."""
    if name == "bytes":
        return ByteTokenizer()
    if name == "characters":
        letters = set()
        for text in texts(None):
            letters.update(text)
        return CharTokenizer("".join(letters))
    if name == "bpe":
        return learn_bpe(texts(LEARNED_FROM), pieces)
    return open_tokenizer(name)[0]
