"""Logistic regression on the words of a review, a baseline of the transformer.

command   make logistic   (five seeds: they differ in the order of the batches alone)
time      25 s for the five
result    test accuracy 47.8 +- 0.4 %
"""

from experiments.reviews import experiment as reviews
from tlite import override
from tlite.models import LogisticConfig

experiment = override(
    reviews,
    {
        "name": "logistic",
        "model": LogisticConfig(context=400, bigrams=60_000),
        "training.learning_rate": 1e-2,
        "training.loss.label_smoothing": 0.0,
        "training.precision": "float32",
    },
)
