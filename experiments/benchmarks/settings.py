"""The benchmark's work: shapes of nanoGPT-style generators, and tlite's trainer of each."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from tlite.comparison.flops import flops_of_generator
from tlite.data import BuiltinText
from tlite.models import FeedForward, GeneratorConfig, LMHead
from tlite.text import CharTokenizer
from tlite.training import Trainer, TrainingConfig, generator_task
from tlite.training.precision import choose_products


@dataclass(frozen=True)
class Setting:
    """Shape and batch of one timed training."""

    name: str
    width: int
    num_blocks: int
    num_heads: int
    context: int
    batch_size: int
    steps: int
    """Steps in one timed round."""
    vocabulary_size: int = 66
    dropout: float = 0.1

    def config(self, **changes) -> GeneratorConfig:
        """Return nanoGPT's architecture (pre-norm, no biases, tied head), with GELU by tanh."""
        return GeneratorConfig(
            vocabulary_size=self.vocabulary_size,
            context=self.context,
            width=self.width,
            num_heads=self.num_heads,
            num_blocks=self.num_blocks,
            dropout=self.dropout,
            block="pre_norm",
            feed_forward=FeedForward(activation="gelu"),
            bias=False,
            head=LMHead(tied=True),
            **changes,
        )

    def flops_per_token(self) -> float:
        """Return the FLOPs of a training step per token, as `tlite plan` counts them."""
        return flops_of_generator(self.config())

    def load_tokens(self) -> Int[np.ndarray, "N"]:
        text = BuiltinText().load()  # its number of characters depends on the version of Python
        return CharTokenizer(text).encode(text) % self.vocabulary_size

    def make_trainer(self, precision: str = "float32") -> Trainer:
        """Return tlite's trainer, whose initial parameters and batches PyTorch uses too."""
        training = TrainingConfig(batch_size=self.batch_size, precision=precision)
        task = generator_task(choose_products(self.config(), precision))
        return Trainer(task, training, jnp.asarray(self.load_tokens()))


CPU_TRAINING = [  # name, width, num_blocks, num_heads, context, batch_size
    Setting("44k", 32, 3, 4, 64, 32, steps=200),
    Setting("0.8M", 128, 4, 4, 64, 12, steps=60),
    Setting("10.8M", 384, 6, 6, 256, 8, steps=3),
    Setting("0.8M-batch-128", 128, 4, 4, 64, 128, steps=12),
    Setting("0.8M-context-512", 128, 4, 4, 512, 16, steps=12),
    Setting("0.8M-context-2048", 128, 4, 4, 2048, 4, steps=12),
]
GPU_TRAINING = Setting("124M", 768, 12, 12, 1024, 12, steps=10, vocabulary_size=50304, dropout=0.0)
"""GPT-2 small takes hours on a CPU: timed on a GPU, or with `--only 124M`."""
TRAINING = {setting.name: setting for setting in [*CPU_TRAINING, GPU_TRAINING]}
