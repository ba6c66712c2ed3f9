"""Looking inside a model and at the course of its training."""

from tlite.inspection.plots import (
    plot_curves,
    plot_loss_by_position,
    plot_next_token_probabilities,
)
