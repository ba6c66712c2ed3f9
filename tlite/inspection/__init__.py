"""Looking inside a model: values by their names, edits, and tools made of them."""

from tlite.inspection.capture import names, run
from tlite.inspection.tools import (
    ablate_heads,
    attention_pattern_scores,
    gradient_times_input,
    logit_lens,
    logit_lens_top_k,
    patch_residual,
    pseudo_log_likelihoods,
    repeated_tokens,
    score_attention_patterns,
)

__all__ = [name for name in globals() if name[0] != "_"]  # offered, to type checkers too
