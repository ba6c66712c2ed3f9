"""Looking inside a model and at the course of its training."""

from tlite.inspection.attention import plot_attention, plot_head_lines
from tlite.inspection.capture import names, run
from tlite.inspection.classifier import (
    plot_confusion,
    plot_learning_curves,
    plot_predictions_by_value,
    plot_probability_by_value,
)
from tlite.inspection.embeddings import plot_embedding
from tlite.inspection.heads import (
    plot_heads,
    plot_logit_lens,
    plot_patches,
    plot_saliency,
    plot_scores_by_step,
    plot_top_of_lens,
)
from tlite.inspection.plots import (
    plot_curves,
    plot_loss_by_position,
    plot_next_token_probabilities,
    plot_top_tokens,
)
from tlite.inspection.positions import (
    cosine_similarity,
    plot_bias,
    plot_position_curves,
    plot_positions,
    plot_similarity,
    rotary_similarity,
)
from tlite.inspection.texts import (
    coloured_by_loss,
    plot_frequencies,
    plot_lengths,
)
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
from tlite.inspection.translator import plot_alignment, plot_bleu_by_length, plot_schedule
