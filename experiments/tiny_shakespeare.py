"""nanoGPT's setting for a CPU on tiny Shakespeare, five seeds side by side.

command   make tiny-shakespeare   (five seeds)
time      7 min 34 s for all five, beside other work
result    validation loss 1.8161 +- 0.0218 in float32, 1.8158 +- 0.0218 with --precision mixed
"""

from tlite.data import TinyShakespeare
from tlite.experiment import GeneratorExperiment
from tlite.models import FeedForward, GeneratorConfig, LMHead
from tlite.training import AdamW, TrainingConfig

experiment = GeneratorExperiment(
    name="tiny_shakespeare",
    data=TinyShakespeare(),
    model=GeneratorConfig(
        context=64,
        width=128,
        num_heads=4,
        num_blocks=4,
        dropout=0.0,
        block="pre_norm",
        feed_forward=FeedForward(activation="gelu"),
        bias=False,
        head=LMHead(tied=True),
    ),
    training=TrainingConfig(
        steps=2_000,
        batch_size=12,
        learning_rate=1e-3,
        schedule="cosine",
        warmup_steps=100,
        final_learning_rate_fraction=0.1,
        optimizer=AdamW(b2=0.99),
        weight_decay=0.1,
        clip_norm=1.0,
        seeds=5,
        evaluate_every=250,
    ),
    prompt="ROMEO:\n",
)
