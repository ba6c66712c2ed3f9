"""Training config: optimizer, schedule, batches, precision, checkpoints."""

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from tlite.config import check_size, validate_fields


@dataclass(frozen=True)
class TrainingConfig:
    """An optimizer with a schedule. Every step's batch and noise are functions of (seed, step)."""

    steps: int = 5000
    """Number of parameter updates."""
    batch_size: int = 32
    """Examples per micro-batch; of a translator tokens, padding included."""
    gradient_accumulation_steps: int = 1
    """Micro-batches whose gradients are summed into one update."""
    per_device_batch_size: int = 0
    """Largest micro-batch per device; the update is split into equal micro-batches of at most this
    size. 0: use batch_size and gradient_accumulation_steps."""
    learning_rate: float = 1e-3
    """Learning rate; its peak if the schedule decays or warms up."""
    schedule: Literal["constant", "cosine", "inverse_sqrt"] = "constant"
    """Learning rate after the warm-up: constant, a half cosine down to the last step, or decreasing
    with the inverse square root of the step."""
    warmup_steps: int = 0
    """Steps over which the learning rate rises linearly from 0."""
    final_learning_rate: float = 0.0
    """Learning rate at the end of the cosine, as a fraction of its peak."""
    optimizer: Literal["adamw", "muon", "lion"] = "adamw"
    """AdamW; Muon for the matrices of blocks and AdamW for the rest; or Lion (Chen et al. 2023),
    which needs about a third of the learning rate."""
    beta1: float = 0.9
    """Adam's decay rate of the mean gradient."""
    beta2: float | None = None
    """Decay rate of Adam's mean squared gradient (default 0.999) or of Lion's momentum (0.99)."""
    adam_epsilon: float = 1e-8
    """Added to Adam's root mean square gradient."""
    muon_momentum: float = 0.95
    """Muon's decay rate of the mean gradient."""
    weight_decay: float = 0.0
    """Decoupled weight decay, of matrices and embeddings only."""
    clip_norm: float | None = None
    """Largest Euclidean norm of the gradient; larger ones are scaled down. None: no clipping."""
    label_smoothing: float = 0.0
    """Share of each target that is spread evenly over all classes or tokens."""
    best_metric: Literal["loss", "accuracy", "bleu", "exact_match"] = "loss"
    """Validation metric that selects the best checkpoint (bleu, exact_match: translators only)."""
    patience: int = 0
    """Stop after this many validations without a better one; 0: never."""
    max_to_keep: int = 2
    """Number of last checkpoints to keep beside the best one (they can be averaged)."""
    seed: int = 0
    """First seed of parameters, batches and dropout."""
    seeds: int = 1
    """Number of seeds trained side by side in one program: seed, seed + 1, ..."""
    precision: Literal["float32", "mixed", "auto"] = "float32"
    """Operands of matrix products: float32 (on a GPU, too, not TF32) or "mixed", bfloat16 with
    float32 sums; "auto" is mixed on GPUs, TPUs and CPUs with bfloat16 products."""
    sharding: Literal["auto", "data_parallel", "fsdp"] = "auto"
    """data_parallel: all parameters on every device; fsdp: each large array divided over them;
    "auto": fsdp from 268 million parameters on."""
    fsdp_inner: int = 1
    """Size of the second FSDP axis. Parameters are divided over data x model devices; each device
    still computes complete examples."""
    evaluate_every: int = 500
    """Steps between validations; each saves a checkpoint."""
    save_every_minutes: float = 0.0
    """Minutes after which a checkpoint is saved between validations; it is deleted by the next
    save. 0: only at validations."""
    log_norms: bool = False
    """Log gradient norm, parameter norm and update-to-parameter ratio of every step."""

    def __post_init__(self):
        validate_fields(self)
        sizes = (
            "steps",
            "batch_size",
            "gradient_accumulation_steps",
            "seeds",
            "evaluate_every",
            "max_to_keep",
        )
        for name in (*sizes, "fsdp_inner"):
            check_size(name, getattr(self, name))
        rates = "learning_rate", "warmup_steps", "weight_decay", "adam_epsilon"
        for name in (*rates, "patience", "per_device_batch_size", "save_every_minutes"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must not be negative or infinite")
        for name in ("beta1", "beta2", "muon_momentum", "label_smoothing"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1:
                raise ValueError(f"{name} must be in [0, 1), not {value}")
        if not 0 <= self.final_learning_rate <= 1:
            raise ValueError("final_learning_rate is a fraction of the peak, from 0 to 1")
        if self.clip_norm is not None and not 0 < self.clip_norm < math.inf:
            raise ValueError(f"clip_norm must be positive and finite, not {self.clip_norm}")
        if not 0 <= self.seed < 2**31 - self.seeds:
            raise ValueError(f"seeds must be in [0, 2^31), not {self.seed}")

    def with_microbatches(self, number: int) -> "TrainingConfig":
        """Return the config with micro-batches that fit this number of devices.

        The updates are the same but for rounding.
        """
        if not self.per_device_batch_size:
            return self
        examples = self.batch_size * self.gradient_accumulation_steps
        sizes = range(number, self.per_device_batch_size * number + 1, number)
        size = max(size for size in sizes if examples % size == 0)
        return dataclasses.replace(
            self, batch_size=size, gradient_accumulation_steps=examples // size
        )

    def is_eval_step(self, step: int) -> bool:
        """True if a validation is scheduled after `step`."""
        return step % self.evaluate_every == 0 or step == self.steps

    def eval_steps(self, steps: Iterable[int]) -> list[int]:
        """Return the steps with a scheduled validation, or all steps if there is none."""
        steps = list(steps)
        return list(filter(self.is_eval_step, steps)) or steps

    @property
    def seed_range(self) -> range:
        """The seeds that are trained side by side."""
        return range(self.seed, self.seed + self.seeds)
