"""A scaling law on a laptop: the loss on Shakespeare by parameters and training tokens.

Six sizes and four budgets of one generator on all of the plays, two seeds each. Every run has a
cosine that ends at its own budget, and is scored once, at its end, on the whole validation split.
The longest budget is 1.7 epochs. The learning rate depends on the width: it is
0.01 sqrt(32 / width), as tuned for 16x2, 32x3 and 64x4 at 1.5 million characters. The law is fitted
without the largest size, which it then has to predict. All parameters are multiplied with every
token, as the embedding is the output layer too and positions have none: N counts them all.

command   make scaling   (or, for an existing study: python -m experiments.tools.scaling STUDY)
time      80 min for 20 variants, all but the four larger ones of 8M, while other jobs ran
result    E 1.43, alpha 0.29, beta 0.82; 449,952 parameters, left out of the fit, at 4M characters:
          predicted 1.658 (1.618 to 1.686), measured 1.6556 (SD 0.0015)
"""

from tlite import override
from tlite.data import Shakespeare
from tlite.experiment import GeneratorExperiment
from tlite.models import FeedForward, GeneratorConfig, LMHead
from tlite.training import AdamW, TrainingConfig

SIZES = {  # width, blocks
    "16x2": (16, 2),
    "24x2": (24, 2),
    "32x3": (32, 3),
    "48x3": (48, 3),
    "64x4": (64, 4),
    "96x4": (96, 4),
}
BUDGETS = {"1M": 1_000_000, "2M": 2_000_000, "4M": 4_000_000, "8M": 8_000_000}
BATCH, CONTEXT = 16, 64

experiment = GeneratorExperiment(
    name="scaling",
    data=Shakespeare(),
    model=GeneratorConfig(
        context=CONTEXT,
        block="pre_norm",
        norm="rms",
        feed_forward=FeedForward(activation="gelu"),
        positions="rotary",
        dropout=0.0,
        bias=False,
        head=LMHead(tied=True),
    ),
    training=TrainingConfig(
        batch_size=BATCH,
        schedule="cosine",
        optimizer=AdamW(b2=0.99),
        weight_decay=0.1,
        clip_norm=1.0,
        seeds=2,
        precision="auto",
    ),
    prompt="LYSANDER.\n",
)


def variant(width: int, num_blocks: int, tokens: int) -> GeneratorExperiment:
    """Return the experiment of a model size and a training budget."""
    steps = tokens // (BATCH * CONTEXT)
    return override(
        experiment,
        {
            "model.width": width,
            "model.num_heads": max(width // 16, 2),
            "model.num_blocks": num_blocks,
            "training.steps": steps,
            "training.warmup_steps": steps // 20,
            "training.evaluate_every": steps,
            "training.learning_rate": 0.01 * (32 / width) ** 0.5,
        },
    )


variants = {
    f"{size}-{budget}": variant(*shape, tokens)
    for budget, tokens in BUDGETS.items()
    for size, shape in SIZES.items()
}
