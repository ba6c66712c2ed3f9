"""How a model is trained."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal

from tyro.conf import Fixed, Suppress

from tlite.config import check_size


@dataclass(frozen=True)
class Varied:
    """The numbers that one of several variants has of its own; None: the config's.

    A compiled program takes them as data, so that variants which differ in nothing else are trained
    side by side (`tlite.training.side_by_side`).
    """

    learning_rate: float | None = None
    weight_decay: float | None = None
    beta1: float | None = None
    beta2: float | None = None
    adam_epsilon: float | None = None
    muon_momentum: float | None = None
    label_smoothing: float | None = None
    clip_norm: float | None = None
    final_learning_rate: float | None = None

    @property
    def given(self) -> dict[str, float]:
        """Those that are given, by name."""
        return {name: value for name, value in vars(self).items() if value is not None}


VARIED = tuple(field.name for field in dataclasses.fields(Varied))


@dataclass(frozen=True)
class TrainingConfig:
    """An optimizer with a schedule. Every step's batch and noise are functions of (seed, step)."""

    steps: int = 5000
    """Parameter updates."""
    batch_size: int = 32
    """Examples in a batch; of a translator tokens, padding among them."""
    accumulate: int = 1
    """Batches whose gradients are summed into one update."""
    examples_per_device: int = 0
    """Compute at most so many examples at a time on a device, as many as divide the batches of an
    update; 0: batches as they are told."""
    learning_rate: float = 1e-3
    """Step size, or its peak."""
    learning_rates: tuple[float, ...] = ()
    """Several step sizes, trained side by side in one program; replaces learning_rate."""
    varied: Suppress[Fixed[tuple[Varied, ...]]] = ()
    """Variants that differ in such numbers, trained side by side in one program."""
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
    beta2: float = 0.999
    """Adam's decay of the mean squared gradient."""
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
    select: Literal["loss", "accuracy", "bleu", "exact_match"] = "loss"
    """What the best checkpoint has the best of, on the validation part; the last two are a
    translator's."""
    patience: int = 0
    """Stop after so many validations without a better one; 0: never."""
    keep: int = 2
    """The last checkpoints that are kept beside the best (to be averaged, say)."""
    seed: int = 0
    """The (first) seed of parameters, batches and dropout."""
    seeds: int = 1
    """How many seeds to train side by side in one program: seed, seed + 1, ..."""
    precision: Literal["float32", "mixed", "auto"] = "float32"
    """Operands of the matrix products: float32, or bfloat16 with float32 sums ("mixed"); "auto"
    tries both and takes the faster."""
    placement: Literal["auto", "replicated", "sharded"] = "auto"
    """Parameters whole on every device, or each large array divided over them; "auto" divides
    models of 268 million parameters or more."""
    model_devices: int = 1
    """Of a model that is divided: devices that share the work on one example."""
    evaluate_every: int = 500
    """Steps between validations; each is followed by a checkpoint."""
    norms: bool = False
    """Note at every step the norms of gradient and parameters, and what part of it they move by."""

    GONE = ("follow",)
    """Fields of version 0.2.0 that have changed no number."""

    def __post_init__(self):
        sizes = "steps", "batch_size", "accumulate", "seeds", "evaluate_every", "keep"
        for name in (*sizes, "model_devices"):
            check_size(name, getattr(self, name))
        rates = {"learning_rate": [self.learning_rate], "learning_rates": self.learning_rates}
        rates |= {"warmup_steps": [self.warmup_steps], "weight_decay": [self.weight_decay]}
        rates |= {"adam_epsilon": [self.adam_epsilon], "patience": [self.patience]}
        rates |= {"examples_per_device": [self.examples_per_device]}
        for name, values in rates.items():
            if not all(0 <= value < math.inf for value in values):
                raise ValueError(f"{name} must not be negative or infinite")
        for name in ("beta1", "beta2", "muon_momentum", "label_smoothing"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be in [0, 1), not {getattr(self, name)}")
        if not 0 <= self.final_learning_rate <= 1:
            raise ValueError("final_learning_rate is a fraction of the peak, from 0 to 1")
        if self.clip_norm is not None and not 0 < self.clip_norm < math.inf:
            raise ValueError(f"clip_norm must be positive and finite, not {self.clip_norm}")
        if not 0 <= self.seed < 2**31 - self.seeds:
            raise ValueError(f"seeds must be in [0, 2^31), not {self.seed}")
        if self.varied and (self.learning_rates or self.patience):
            raise ValueError("varied can't go with learning_rates, or with patience")
        if self.varied:
            _ = self.variants  # each is checked

    @classmethod
    def read_earlier(cls, values: dict[str, Any]) -> dict[str, Any]:
        """What version 0.2.0 wrote, without the fields that are gone."""
        return {name: value for name, value in values.items() if name not in cls.GONE}

    def on_devices(self, number: int) -> "TrainingConfig":
        """The same updates with batches that fit so many devices; numbers differ by rounding."""
        if not self.examples_per_device:
            return self
        examples, most = self.batch_size * self.accumulate, self.examples_per_device * number
        size = max(size for size in range(number, most + 1, number) if examples % size == 0)
        return dataclasses.replace(self, batch_size=size, accumulate=examples // size)

    @property
    def num_members(self) -> int:
        return self.seeds * max(len(self.varied), len(self.learning_rates), 1)

    @property
    def variants(self) -> tuple["TrainingConfig", ...]:
        """What is trained side by side with every seed, each as a config without the others."""
        rates = tuple(Varied(learning_rate=rate) for rate in self.learning_rates)
        return tuple(
            dataclasses.replace(self, learning_rates=(), varied=(), **varied.given)
            for varied in self.varied or rates or (Varied(),)
        )

    @property
    def members(self) -> list[tuple[int, float]]:
        """(seed, learning rate) of each of the models that are trained side by side."""
        rates = [variant.learning_rate for variant in self.variants]
        return [(self.seed + i, rate) for rate in rates for i in range(self.seeds)]

    @property
    def numbers(self) -> dict[str, list[float]]:
        """By name: a value for each member, of what members have of their own beside the rate.

        No clipping is infinity.
        """
        own = {name: [getattr(v, name) for v in self.variants] for name in VARIED[1:]}
        return {
            name: [math.inf if v is None else v for v in values for _ in range(self.seeds)]
            for name, values in own.items()
            if any(value != getattr(self, name) for value in values)
        }

    def of_member(self, member: int) -> "TrainingConfig":
        """The config of one of the models, alone."""
        variant, index = divmod(member, self.seeds)
        return dataclasses.replace(self.variants[variant], seed=self.seed + index, seeds=1)
