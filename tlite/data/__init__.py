"""Where examples come from, and how they become batches."""

from tlite.data.corpus import Corpus, Tokens
from tlite.data.examples import Example, LabelledText, Pair, ParallelText
from tlite.data.sources import BuiltinText, Shakespeare, TextFile, TextSource, TinyShakespeare
from tlite.data.synthetic import CopyTask, NumberWords, SyntheticReviews
from tlite.data.windows import draw_windows, every_window, places, split_tokens

__all__ = [name for name in globals() if name[0] != "_"]  # offered, to type checkers too
