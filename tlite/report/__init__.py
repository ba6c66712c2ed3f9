"""The page of a run or of a pretrained model: what it is, what its heads look at, and pictures."""

from tlite.report.page import Page, new_page
from tlite.report.runs import inspect_pretrained, inspect_run

__all__ = [name for name in globals() if name[0] != "_"]  # offered, to type checkers too
