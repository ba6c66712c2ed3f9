"""How a model is trained."""

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
    """Parameter updates."""
    batch_size: int = 32
    """Examples in a batch; of a translator tokens, padding among them."""
    gradient_accumulation_steps: int = 1
    """Batches whose gradients are summed into one update."""
    per_device_batch_size: int = 0
    """Compute at most so many examples at a time on a device, as many as divide the batches of an
    update; 0: batches as they are told."""
    learning_rate: float = 1e-3
    """Step size, or its peak."""
    schedule: Literal["constant", "cosine", "inverse_sqrt"] = "constant"
    """Learning rate after the warm-up: constant, a half cosine down to the last step, or falling
    with the inverse square root of the step."""
    warmup_steps: int = 0
    """Steps over which the learning rate rises linearly from 0."""
    final_learning_rate: float = 0.0
    """Where the cosine ends, as a fraction of its peak."""
    optimizer: Literal["adamw", "muon", "lion"] = "adamw"
    """AdamW; Muon for the matrices of blocks, with AdamW for the rest; or Lion (Chen et al. 2023),
    which wants a third of the learning rate."""
    beta1: float = 0.9
    """Adam's decay of the mean gradient."""
    beta2: float | None = None
    """Decay of Adam's mean squared gradient, 0.999 unless given; or of Lion's momentum, 0.99."""
    adam_epsilon: float = 1e-8
    """Added to Adam's root mean square: what has a smaller gradient moves less than the rest."""
    muon_momentum: float = 0.95
    """Muon's decay of the mean gradient."""
    weight_decay: float = 0.0
    """Decoupled decay, on matrices and embeddings only."""
    clip_norm: float | None = None
    """Scale the gradient down to this Euclidean norm; not at all unless given."""
    label_smoothing: float = 0.0
    """Part of each target that is spread evenly over all classes or tokens."""
    best_metric: Literal["loss", "accuracy", "bleu", "exact_match"] = "loss"
    """What the best checkpoint has the best of, on the validation part; the last two are a
    translator's."""
    patience: int = 0
    """Stop after so many validations without a better one; 0: never."""
    max_to_keep: int = 2
    """The last checkpoints that are kept beside the best (to be averaged, say)."""
    seed: int = 0
    """The (first) seed of parameters, batches and dropout."""
    seeds: int = 1
    """How many seeds to train side by side in one program: seed, seed + 1, ..."""
    precision: Literal["float32", "mixed", "auto"] = "float32"
    """Operands of the matrix products: float32 (on a GPU, too, and not TF32), or bfloat16 with
    float32 sums ("mixed"); "auto" is mixed on GPUs, TPUs and CPUs that multiply bfloat16."""
    sharding: Literal["auto", "data_parallel", "fsdp"] = "auto"
    """Parameters whole on every device, or each large array divided over them; "auto" divides
    models of 268 million parameters or more."""
    fsdp_inner: int = 1
    """Size of the second axis that a sharded model lies over: its parameters are divided over
    data x model devices. Each device still computes complete examples."""
    evaluate_every: int = 500
    """Steps between validations; each follows a checkpoint."""
    save_every_minutes: float = 0.0
    """Minutes after which a checkpoint is saved between validations; it is deleted by the next
    save. 0: only at validations."""
    log_norms: bool = False
    """Note at every step the norms of gradient and parameters, and what part of it they move by."""

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

    def on_devices(self, number: int) -> "TrainingConfig":
        """The same updates with batches that fit so many devices; numbers differ by rounding."""
        if not self.per_device_batch_size:
            return self
        examples, most = (
            self.batch_size * self.gradient_accumulation_steps,
            self.per_device_batch_size * number,
        )
        size = max(size for size in range(number, most + 1, number) if examples % size == 0)
        return dataclasses.replace(
            self, batch_size=size, gradient_accumulation_steps=examples // size
        )

    def is_regular(self, step: int) -> bool:
        """Whether the validation after `step` counts: the schedule has it, and no interruption."""
        return step % self.evaluate_every == 0 or step == self.steps

    def regular(self, steps: Iterable[int]) -> list[int]:
        """Those of the steps whose validation counts; all where none does."""
        steps = list(steps)
        return list(filter(self.is_regular, steps)) or steps

    @property
    def seed_range(self) -> range:
        """The seeds of the models that are trained side by side."""
        return range(self.seed, self.seed + self.seeds)
