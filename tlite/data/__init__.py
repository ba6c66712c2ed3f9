"""Sources of examples, and their splits and windows."""

from tlite.data.corpus import Corpus, Tokens
from tlite.data.examples import Example, LabelledText, Pair, ParallelText
from tlite.data.sources import BuiltinText, Shakespeare, TextFile, TextSource, TinyShakespeare
from tlite.data.synthetic import CopyTask, NumberWords, SyntheticReviews
from tlite.data.windows import contiguous_windows, sample_positions, sample_windows, split_tokens

__all__ = [
    "BuiltinText", "CopyTask", "Corpus", "Example", "LabelledText", "NumberWords", "Pair",
    "ParallelText", "Shakespeare", "SyntheticReviews", "TextFile", "TextSource",
    "TinyShakespeare", "Tokens", "contiguous_windows", "sample_positions", "sample_windows",
    "split_tokens",
]  # fmt: skip
