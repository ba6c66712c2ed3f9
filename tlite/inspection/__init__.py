"""Looking inside a model and at the course of its training."""

from tlite.inspection.classification import (
    plot_confusion,
    plot_learning_curves,
    plot_predictions_by_value,
    plot_probability_by_value,
)
from tlite.inspection.plots import (
    plot_curves,
    plot_loss_by_position,
    plot_next_token_probabilities,
)
from tlite.inspection.translation import plot_alignment, plot_bleu_by_length, plot_schedule
