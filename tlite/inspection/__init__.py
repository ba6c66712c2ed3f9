"""Capture and edit the values inside a model, and analyse them."""

from tlite.inspection.capture import match_names, run, tap_names
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

__all__ = [name for name in globals() if name[0] != "_"]
