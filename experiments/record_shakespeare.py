"""All of Shakespeare's plays: the lowest perplexity of at most 44,487 parameters and context 32.

Beside shakespeare.py: Muon, rotary positions, normed queries and keys, squared ReLU, short
convolutions, value residuals, and output layers that begin at 0; no dropout, no biases, and the
embedding as the output layer, whose parameters go into wider hidden layers: 44,180 in all.

command   make record-shakespeare   (five seeds)
machine   two cores of an AMD EPYC with AVX-512
time      43 min for the five, of a machine shared with much other work
result    validation perplexity 5.708 +- 0.039 (loss 1.7419 +- 0.0068); all members together
          (--member all) 5.258; `shakespeare` 6.240
"""

from tlite.data import Shakespeare
from tlite.experiment import GeneratorExperiment
from tlite.models import GeneratorConfig
from tlite.training import TrainingConfig

experiment = GeneratorExperiment(
    name="record_shakespeare",
    data=Shakespeare(),
    model=GeneratorConfig(
        context=32,
        width=32,
        num_heads=4,
        num_blocks=3,
        hidden_width=150,
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
        steps=6_000,
        batch_size=64,
        learning_rate=1e-2,
        schedule="cosine",
        warmup_steps=100,
        optimizer="muon",
        beta2=0.99,
        seeds=5,
        evaluate_every=2_000,
    ),
    prompt="LYSANDER.\n",
)
