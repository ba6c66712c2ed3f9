"""Training config: loss, optimizer, schedule, batches, precision, checkpoints."""

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from tlite.config import Config, from_dict
from tlite.models.init import INIT_WORDS, INITIALIZERS, resolve_init
from tlite.models.low_rank import LowRank
from tlite.training.losses import LOSSES, CrossEntropy, Focal, resolve_loss
from tlite.training.optimizers import (
    OPTIMIZERS,
    SGD,
    Adafactor,
    AdamW,
    Lion,
    Muon,
    OptimizerConfig,
    ScheduleFree,
    check_weight_decay,
    resolve_optimizer,
)
from tlite.training.schedules import SCHEDULES, resolve_schedule

FUNCTION_FIELDS = "schedule", "optimizer", "loss", "init"
Optimizer = AdamW | Muon | Lion | SGD | Adafactor | ScheduleFree | str | Callable


def word_field(default: Any, parse: Callable, words: Iterable[str]) -> Any:
    """Return a field that words, functions or dataclasses may set."""
    return field(default=default, metadata={"parse": parse, "words": tuple(words)})


@dataclass(frozen=True)
class ParameterGroup(Config, positive="learning_rate_factor", nonnegative="weight_decay"):
    """Settings of the parameters whose dotted names match a pattern; None: the config's.

    The first group that matches a parameter decides. `tlite plan --parameters` lists the names.
    """

    pattern: str
    """Pattern with * and ?, as `fnmatch` reads it: "*.attention.*"."""
    learning_rate_factor: float = 1.0
    """Multiplies the learning rate."""
    weight_decay: float | None = None
    """Weight decay of all arrays of the group, biases too."""
    optimizer: Optimizer | None = word_field(None, resolve_optimizer, OPTIMIZERS)
    """Optimizer of the group: a word, or a function of the learning rate, as in the config."""
    init: str | Callable | None = word_field(None, resolve_init, INITIALIZERS)
    """Initial values of the group: a word draws its matrices (normal and gpt2 tables too), a jax
    initializer all its arrays."""

    def __post_init__(self):
        super().__post_init__()
        if self.optimizer is not None:
            object.__setattr__(self, "optimizer", resolve_optimizer(self.optimizer))
        if isinstance(self.optimizer, ScheduleFree):
            raise ValueError("schedule_free is an optimizer of all parameters, not of a group")
        if self.init is not None:
            resolve_init(self.init)


@dataclass(frozen=True)
class UpdateConfig(
    Config,
    sizes="steps batch_size gradient_accumulation_steps",
    counts="warmup_steps per_device_batch_size",
    positive="clip_norm",
    nonnegative="learning_rate weight_decay aux_weight",
):
    """One update of the parameters: batches, loss, optimizer and schedule."""

    steps: int = 5000
    """Number of parameter updates."""
    batch_size: int = 32
    """Examples per micro-batch, on all devices together; for a translator tokens, with padding.
    per_device_batch_size divides it further."""
    gradient_accumulation_steps: int = 1
    """Micro-batches per update; the loss is the mean over the targets of all of them."""
    per_device_batch_size: int = 0
    """Largest micro-batch per device; the update, of batch_size * gradient_accumulation_steps
    examples, is split into as few equal micro-batches of at most this size as possible. 0: no
    limit, micro-batches of batch_size."""
    learning_rate: float = 1e-3
    """Learning rate; its peak if the schedule decays or warms up."""
    schedule: str | Callable = word_field("constant", resolve_schedule, SCHEDULES)
    """Schedule of the learning rate: constant, cosine, linear, inverse_sqrt, wsd (constant, then a
    linear decay over the last decay_fraction of the steps), or a function of the step that returns
    a factor of learning_rate, at most about 1, such as optax.cosine_decay_schedule(1.0, 5000)."""
    warmup_steps: int = 0
    """Steps over which the learning rate rises linearly, from 1 / warmup_steps of its peak; the
    schedule begins after them."""
    decay_fraction: float = 0.2
    """Schedule wsd: share of the steps over which the learning rate decays."""
    final_learning_rate_fraction: float = 0.0
    """Schedules cosine, linear and wsd: final learning rate, as a fraction of its peak. The decay
    reaches it after the last step, whose own learning rate is a little higher."""
    optimizer: Optimizer = word_field(AdamW(), resolve_optimizer, OPTIMIZERS)
    """adamw, muon (matrices of blocks, AdamW for the rest), lion (needs about a third of the
    learning rate), sgd, adafactor, schedule_free; or a function of the learning rate that returns
    an optax GradientTransformation, such as optax.sgd or
    partial(optax.adamw, weight_decay=0.0). If it decays weights itself, weight_decay must be 0."""
    weight_decay: float = 0.0
    """Decoupled weight decay, of arrays with two or more axes: not of biases and scales."""
    clip_norm: float | None = None
    """Largest Euclidean norm of the gradient; larger ones are scaled down. None: no clipping."""
    loss: CrossEntropy | Focal | str | Callable = word_field(CrossEntropy(), resolve_loss, LOSSES)
    """Training loss: cross_entropy, focal, or a function of (logits, targets) that returns a value
    for each target. A validation's loss is always the cross-entropy."""
    aux_weight: float = 0.01
    """Weight of the scalars that layers add to the loss (`aux`)."""
    init: str | Callable = word_field("default", resolve_init, INIT_WORDS)
    """Initial values of matrices: default (each layer's own), glorot, orthogonal, normal and gpt2
    (which draw embeddings and position tables too), or a jax initializer (key, shape, dtype)."""
    groups: tuple[ParameterGroup, ...] = field(default=(), metadata={"option": False})
    """Groups of parameters with settings of their own."""
    trainable: str | None = None
    """Patterns, separated by spaces, of the names of parameters that are trained, such as
    "head.* *.bias"; the others have no gradient and no optimizer state. None: all parameters; with
    low_rank only its updates, and the new head of a pretrained classifier."""
    low_rank: LowRank | None = None
    """Low-rank updates (LoRA) of frozen matrices: LowRank("*.attention.*", rank=8), or a pattern of
    names. They are always trained, and merged into the matrices when a model is loaded or exported:
    --low-rank "*.query.* *.value.*" --low-rank.rank 4."""
    ema: float | None = None
    """Decay d of an exponential moving average of the trained parameters (Polyak and Juditsky
    1992), which is validated as ema_loss, ema_accuracy and so on. After step t the parameters of
    step i have a weight proportional to d^(t - i); the initial values have none. None: no
    average."""


@dataclass(frozen=True)
class TrainingConfig(
    UpdateConfig,
    sizes="seeds evaluate_every max_to_keep",
    counts="patience average_last",
    nonnegative="save_every_minutes",
):
    """Updates, validations, checkpoints, seeds and devices of a run.

    Each step's batch and noise are functions of (seed, step).
    """

    best_metric: Literal[
        "loss", "accuracy", "bleu", "exact_match",
        "ema_loss", "ema_accuracy", "ema_bleu", "ema_exact_match",
        "average_loss", "average_accuracy", "average_bleu", "average_exact_match",
    ] = "loss"  # fmt: skip
    """Validation metric that selects the best checkpoint (bleu, exact_match: translators only).
    ema_... and average_... need ema and average_last; the best checkpoint is then the average."""
    patience: int = 0
    """Stop after this many validations without a better one; 0: never."""
    max_to_keep: int = 2
    """Number of most recent checkpoints to keep beside the best one; --checkpoint average (of
    tlite evaluate, for example) averages them."""
    average_last: int = 0
    """Validate the mean of the parameters of this many last checkpoints, which are kept, as
    average_loss, average_accuracy and so on. 0: no mean is validated."""
    seed: int = 0
    """First seed of parameters, batches and dropout."""
    seeds: int = 1
    """Number of seeds trained side by side in one program: seed, seed + 1, ..."""
    precision: Literal["float32", "mixed", "auto"] = "float32"
    """Operands of matrix products: float32 (not TF32, on GPUs too), "mixed" (bfloat16 with float32
    sums), or "auto": mixed on GPUs, TPUs and CPUs with bfloat16 products, else float32."""
    sharding: Literal["auto", "data_parallel", "fsdp"] = "auto"
    """data_parallel: all parameters on every device; fsdp: each large array divided over the
    devices; "auto": fsdp from 268 million parameters on."""
    evaluate_every: int = 500
    """Steps between validations; each saves a checkpoint."""
    save_every_minutes: float = 0.0
    """Minutes after which a checkpoint is also saved between validations, to resume from; the next
    one replaces it. 0: only at validations."""
    log_norms: bool = False
    """Log gradient norm, parameter norm and update-to-parameter ratio of every step."""

    def __post_init__(self):
        super().__post_init__()
        for name in ("final_learning_rate_fraction", "decay_fraction"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is a fraction, from 0 to 1, not {getattr(self, name)}")
        if not 0 <= self.seed <= 2**31 - self.seeds:
            last = self.seed + self.seeds - 1
            raise ValueError(f"seeds {self.seed} to {last} are not all in [0, 2^31)")
        if self.ema is not None and not 0 < self.ema < 1:
            raise ValueError(f"ema is a decay between 0 and 1, such as 0.999, not {self.ema}")
        if self.best_weights and self.best_weights not in self.averages:
            needed = {"ema": "ema", "average": "average_last"}[self.best_weights]
            raise ValueError(f"best_metric {self.best_metric} needs {needed}")
        for name in ("groups", "trainable", "low_rank"):
            try:
                from_dict(self.__dataclass_fields__[name].type, getattr(self, name))
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error
        object.__setattr__(self, "groups", tuple(self.groups))
        for name in FUNCTION_FIELDS:
            resolve = self.__dataclass_fields__[name].metadata["parse"]
            object.__setattr__(self, name, resolve(getattr(self, name)))
        if isinstance(self.optimizer, ScheduleFree):
            if self.groups:
                raise ValueError("schedule_free is for all parameters: leave out the groups")
            if isinstance(self.schedule, str) and self.schedule != "constant":
                raise ValueError(
                    "schedule_free averages parameters in place of a decay: schedule must be "
                    f"constant, not {self.schedule}"
                )
        check_weight_decay(self)
        hash(self)  # a list in a component can't be compared: raise here

    def with_microbatches(self, number: int) -> "TrainingConfig":
        """Return the config with micro-batches that fit this number of devices.

        The updates are the same, except for rounding and for a layer's `aux`.
        """
        if not self.per_device_batch_size:
            return self
        examples = self.batch_size * self.gradient_accumulation_steps
        largest = min(self.per_device_batch_size * number, examples)
        sizes = range(number, largest + 1, number)
        size = max(size for size in sizes if examples % size == 0)
        return dataclasses.replace(
            self, batch_size=size, gradient_accumulation_steps=examples // size
        )

    def is_eval_step(self, step: int) -> bool:
        """True if a validation is scheduled after `step`."""
        return step % self.evaluate_every == 0 or step == self.steps

    @property
    def averages(self) -> list[str]:
        """Names of the averages of parameters that are validated beside the weights."""
        return ["ema"] * (self.ema is not None) + ["average"] * bool(self.average_last)

    @property
    def best_weights(self) -> str:
        """Name of the average that `best_metric` validates; "" if it validates the weights."""
        prefix = self.best_metric.partition("_")[0]
        return prefix if prefix in ("ema", "average") else ""

    def average_steps(self, step: int) -> list[int]:
        """Return the steps of the checkpoints in the mean at `step`, oldest first.

        They are `step` and the scheduled ones before it, `average_last` together, or `max_to_keep`
        if that is 0.
        """
        every, number = self.evaluate_every, self.average_last or self.max_to_keep
        before = range((step - 1) // every * every, 0, -every)
        return [step, *before][:number][::-1]

    @property
    def decay_start(self) -> int:
        """Step at which the decay of the schedule wsd begins."""
        # A decay over n steps has its first step at the peak: a single one would not decay.
        decay = max(round(self.decay_fraction * self.steps), 2) if self.decay_fraction else 0
        return max(self.steps - decay, self.warmup_steps)

    @property
    def trunk(self) -> int:
        """Step of the kept checkpoint from which other numbers of steps go on; 0 if there is none.

        It is where the decay of the schedule wsd begins.
        """
        return self.decay_start if self.schedule == "wsd" and self.decay_start < self.steps else 0

    def next_save(self, step: int) -> int:
        """Return the first step after `step` at which a checkpoint is scheduled."""
        following = step - step % self.evaluate_every + self.evaluate_every
        return min(stop for stop in (following, self.trunk, self.steps) if stop > step)

    def eval_steps(self, steps: Iterable[int]) -> list[int]:
        """Return the steps with a scheduled validation, or all steps if there is none."""
        steps = list(steps)
        return list(filter(self.is_eval_step, steps)) or steps

    @property
    def seed_range(self) -> range:
        """The seeds that are trained side by side."""
        return range(self.seed, self.seed + self.seeds)


def user_functions(config: Any) -> dict[str, Callable]:
    """Return the functions of a training config that are not tlite's, by field."""
    functions = {name: getattr(config, name) for name in FUNCTION_FIELDS}
    for i, group in enumerate(config.groups):
        functions |= {f"groups[{i}].{n}": getattr(group, n) for n in ("optimizer", "init")}
    known = OptimizerConfig, CrossEntropy, Focal, str, type(None)
    return {field: value for field, value in functions.items() if not isinstance(value, known)}


def read_training(saved: Any) -> TrainingConfig:
    """Return a training config of config.json without executing code of the user's.

    Fields that hold functions have their defaults; steps, seeds, metrics and so on are right.
    """
    if not isinstance(saved, dict):
        raise ValueError(f"expected TrainingConfig, not {saved!r:.40}")
    values = {name: value for name, value in saved.items() if not _has_code(value)}
    return from_dict(TrainingConfig, values)


def _has_code(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_has_code, value))
    if not isinstance(value, dict):
        return False
    is_code = "sha256" in value or value.get("kind") in ("library", "partial")
    return is_code or any(map(_has_code, value.values()))
