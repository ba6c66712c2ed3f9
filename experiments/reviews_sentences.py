"""`reviews_binary` sentence by sentence: each is scored alone, and the sure ones count most.

command   make reviews-sentences   (five seeds)
"""

import dataclasses

from experiments.reviews_binary import experiment as binary

experiment = dataclasses.replace(
    binary,
    name="reviews_sentences",
    sentences=12,
    model=dataclasses.replace(binary.model, context=32),
)
