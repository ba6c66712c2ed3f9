"""Figures of arrays, each in one call: `plot_...` draws on new Axes and returns them."""

from tlite.pictures.embeddings import plot_embedding
from tlite.pictures.figures import (
    cosine_similarity,
    heat_map,
    own_figures,
    plot_attention,
    plot_confusion,
    plot_heads,
    plot_top_of_lens,
    plot_top_tokens,
)
from tlite.pictures.lines import (
    plot_curves,
    plot_frequencies,
    plot_lengths,
    plot_lines,
    plot_loss_by_position,
    plot_predictions_by_value,
    plot_probability_by_value,
    plot_saliency,
    plot_schedule,
    plot_scores_by_step,
)
from tlite.pictures.marks import mark_of

__all__ = [name for name in globals() if name[0] != "_"]  # offered, to type checkers too
