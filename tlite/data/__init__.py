"""Where examples come from, and how they become batches."""

from typing import TYPE_CHECKING

from tlite import import_lazily
from tlite.data.corpus import Corpus, Tokens
from tlite.data.sources import BuiltinText, Shakespeare, TextFile, TextSource, TinyShakespeare
from tlite.data.windows import contiguous_windows, sample_positions, sample_windows, split_tokens

if TYPE_CHECKING:
    from tlite.data.examples import Example, LabelledText, Pair, ParallelText
    from tlite.data.synthetic import CopyTask, NumberWords, SyntheticReviews

FILES = {
    "Example": "tlite.data.examples",
    "LabelledText": "tlite.data.examples",
    "Pair": "tlite.data.examples",
    "ParallelText": "tlite.data.examples",
    "CopyTask": "tlite.data.synthetic",
    "NumberWords": "tlite.data.synthetic",
    "SyntheticReviews": "tlite.data.synthetic",
}
"""Module of each name that is imported when it is used."""

__all__ = [
    "BuiltinText",
    "CopyTask",
    "Corpus",
    "Example",
    "LabelledText",
    "NumberWords",
    "Pair",
    "ParallelText",
    "Shakespeare",
    "SyntheticReviews",
    "TextFile",
    "TextSource",
    "TinyShakespeare",
    "Tokens",
    "contiguous_windows",
    "sample_positions",
    "sample_windows",
    "split_tokens",
]  # fmt: skip


__getattr__ = import_lazily(__name__, FILES)
