"""Training losses: what a word stands for, and functions of (logits, targets)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from jaxtyping import Array, Float, Int

import tlite.functional as F
from tlite.config import Config, resolve_word


@dataclass(frozen=True)
class CrossEntropy(Config, rates="label_smoothing z_loss"):
    """Cross-entropy of each target, with label smoothing and z-loss."""

    label_smoothing: float = 0.0
    """Share of each target that is spread evenly over all classes or tokens."""
    z_loss: float = 0.0
    """Factor of the squared logarithm of the sum of exp(logits) (`functional.z_loss`); 1e-4 is
    usual."""

    def __call__(
        self, logits: Float[Array, "*batch V"], targets: Int[Array, "*batch"]
    ) -> Float[Array, "*batch"]:
        loss = F.token_cross_entropy(logits, targets, self.label_smoothing)
        return loss + self.z_loss * F.z_loss(logits, targets) if self.z_loss else loss


@dataclass(frozen=True)
class Focal(Config, nonnegative="gamma"):
    """Focal loss: targets that are predicted well count less (`functional.focal_loss`)."""

    gamma: float = 2.0
    """Exponent; 0 is the cross-entropy."""

    def __call__(
        self, logits: Float[Array, "*batch V"], targets: Int[Array, "*batch"]
    ) -> Float[Array, "*batch"]:
        return F.focal_loss(logits, targets, self.gamma)


LOSSES: dict[str, Callable] = {"cross_entropy": CrossEntropy(), "focal": Focal()}
"""What the words for `TrainingConfig.loss` stand for."""


resolve_loss = partial(resolve_word, "loss", LOSSES, "(logits, targets)")
"""Return the loss for a word, or a function of (logits, targets) as it is."""
