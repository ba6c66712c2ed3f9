"""A classifier that starts from a generator, which is trained on the same texts before."""

import dataclasses

from experiments.reviews_demo import experiment as reviews
from tlite.experiment import Pretraining

experiment = dataclasses.replace(
    reviews,
    name="pretraining",
    pretraining=Pretraining(pretraining_steps=12, pretraining_batch_size=4),
)
