"""Tiny Shakespeare with nanoGPT's parameters and tokens (2,000 steps of 12 x 64), five seeds.

Beside tiny_shakespeare.py: Muon, rotary positions, normed queries and keys, squared ReLU, short
convolutions, value residuals, and output layers that begin at 0. 799,366 parameters.

command   make record-tiny-shakespeare   (five seeds)
machine   two cores of an AMD EPYC with AVX-512
time      14 min for the five, one after the other (OPTIONS="--seeds 1 --seed 0", ... 4), as side by
          side is slow with Muon; of a machine shared with other work
result    validation loss 1.5523 +- 0.0052; `tiny_shakespeare` 1.8161
"""

from tlite.data import TinyShakespeare
from tlite.experiment import GeneratorExperiment
from tlite.models import GeneratorConfig
from tlite.training import TrainingConfig

experiment = GeneratorExperiment(
    name="record_tiny_shakespeare",
    data=TinyShakespeare(),
    model=GeneratorConfig(
        context=64,
        width=128,
        num_heads=4,
        num_blocks=4,
        dropout=0.0,
        norm_first=True,
        norm="rms",
        activation="squared_relu",
        positions="rotary",
        query_key_norm=True,
        convolution=3,
        value_residual=True,
        zero_output=True,
        bias=False,
        tied_head=True,
    ),
    training=TrainingConfig(
        steps=2_000,
        batch_size=12,
        learning_rate=4e-3,
        schedule="cosine",
        warmup_steps=50,
        optimizer="muon",
        beta2=0.99,
        clip_norm=1.0,
        seeds=5,
        precision="mixed",
        evaluate_every=500,
    ),
    prompt="ROMEO:\n",
)
