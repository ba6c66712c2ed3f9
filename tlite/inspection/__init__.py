"""Looking inside a model: values by their names, edits, and tools made of them."""

from tlite.inspection.capture import names, run
from tlite.inspection.tools import (
    ablate_heads,
    fill_in,
    gradient_times_input,
    head_scores,
    logit_lens,
    patch_residual,
    repeated_tokens,
    score_heads,
    top_of_lens,
)

__all__ = [name for name in globals() if name[0] != "_"]  # offered, to type checkers too
