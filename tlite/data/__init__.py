"""Where examples come from, and how they become batches."""

from tlite.data.sources import BuiltinText, Shakespeare, TextFile, TextSource, TinyShakespeare
from tlite.data.windows import draw_windows, every_window, split_tokens
