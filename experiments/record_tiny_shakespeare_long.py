"""Tiny Shakespeare on two cores, below the 1.4697 of nanoGPT on a GPU.

Changes from record_tiny_shakespeare.py: a context of 256, a width of 192, and dropout and a little
weight decay, as it trains for fifteen epochs. 1,788,736 parameters, a sixth of nanoGPT's.

command   make record-tiny-shakespeare-long   (three seeds)
time      100 min for the three, while nothing else ran, at 6,800 to 8,200 tokens/s
result    validation loss 1.4360 +- 0.0075, all replicas together (--replica all) 1.3676
          1.4553 +- 0.0114 with 2,400 steps, dropout 0.1 and weight decay 0.05; the same with
          value residuals in tlite 0.2.0: 1.4584 (seed 0)
"""

from experiments.record_tiny_shakespeare import Convolved
from experiments.record_tiny_shakespeare import experiment as record
from tlite import override
from tlite.models import Attention

experiment = override(
    record,
    {
        "name": "record_tiny_shakespeare_long",
        "model.context": 256,
        "model.width": 192,
        "model.num_heads": 6,
        "model.dropout": 0.15,
        "model.attention": Convolved(Attention("mixed", query_key_norm=True, zero_output=True)),
        "training.steps": 4_800,
        "training.learning_rate": 5e-3,
        "training.warmup_steps": 100,
        "training.weight_decay": 0.1,
        "training.seeds": 3,
        "training.evaluate_every": 800,
    },
)
