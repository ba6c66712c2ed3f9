"""A tiny generator of which `--sharding fsdp` shards every array; no report is written.

With its large epsilon Adam's steps are 0.1 times the gradient, so a sum in place of a mean shows.
"""

from tlite.data import BuiltinText
from tlite.experiment import GeneratorExperiment
from tlite.models import GeneratorConfig
from tlite.runs import GeneratorRun
from tlite.training import AdamW, TrainingConfig, sharding

sharding.MIN_SHARDED_SIZE = 64
GeneratorRun.report = lambda *_: None

experiment = GeneratorExperiment(
    "divided",
    BuiltinText(),
    GeneratorConfig(context=16, width=16, num_heads=2, num_blocks=1, dropout=0.1),
    TrainingConfig(
        steps=6, batch_size=8, learning_rate=1e2, optimizer=AdamW(eps=1e3), evaluate_every=3
    ),
)
