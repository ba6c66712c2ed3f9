"""A generator so small that it trains in a moment, of which `--sharding fsdp` divides all.

With that epsilon Adam's steps are 0.1 of the gradient, and a sum in place of a mean is noticed. At
its end nothing is drawn, which would take longer than all the rest.
"""

from tlite.data import BuiltinText
from tlite.experiment import GeneratorExperiment
from tlite.models import GeneratorConfig
from tlite.runs import GeneratorRun
from tlite.training import TrainingConfig, sharding

sharding.MIN_SHARDED_SIZE = 64
GeneratorRun.report = lambda *_: None

experiment = GeneratorExperiment(
    "divided",
    BuiltinText(),
    GeneratorConfig(context=16, width=16, num_heads=2, num_blocks=1, dropout=0.1),
    TrainingConfig(steps=6, batch_size=8, learning_rate=1e2, adam_epsilon=1e3, evaluate_every=3),
)
