"""Write a page on a run or a pretrained model: facts, attention of its heads, and pictures."""

from tlite.report.page import Page, new_page
from tlite.report.runs import inspect_pretrained, inspect_run

__all__ = [name for name in globals() if name[0] != "_"]  # offered, to type checkers too
