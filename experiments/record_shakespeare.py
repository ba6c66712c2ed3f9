"""All of Shakespeare's plays: the lowest perplexity of at most 44,487 parameters and context 32.

Beside shakespeare.py: Muon, rotary positions, normed queries and keys, squared ReLU, short
convolutions, and output layers that begin at 0; no dropout, no biases, and the embedding as the
output layer, whose parameters go into wider hidden layers: 44,176 in all.

command   make record-shakespeare   (five seeds)
time      5 min for the five
result    validation perplexity 5.728 +- 0.033 (loss 1.7453 +- 0.0058); all replicas together
          (--replica all) 5.269; tlite 0.2.0, with value residuals: 5.708 +- 0.039;
          `shakespeare` 6.240
"""

from experiments.record_tiny_shakespeare import Convolved
from experiments.record_tiny_shakespeare import experiment as record
from tlite import override
from tlite.data import Shakespeare
from tlite.models import FeedForward

experiment = override(
    record,
    {
        "name": "record_shakespeare",
        "data": Shakespeare(),
        "model.context": 32,
        "model.width": 32,
        "model.num_blocks": 3,
        "model.feed_forward": Convolved(FeedForward(150, "squared_relu", zero_output=True)),
        "training.steps": 6_000,
        "training.batch_size": 64,
        "training.learning_rate": 1e-2,
        "training.warmup_steps": 100,
        "training.clip_norm": None,
        "training.precision": "float32",
        "training.evaluate_every": 2_000,
        "prompt": "LYSANDER.\n",
    },
)
