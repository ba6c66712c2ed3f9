"""The 2022 post's own classifier: one block of width 32 over 50 words, one number a word.

command   make reviews-post   (five seeds; OPTIONS="--padding unknown" pads as that does)
time      1 min for the five
result    test accuracy 31.3 +- 3.3 %, padded with unknown words 31.2 +- 3.2 %
"""

from experiments.reviews import experiment as reviews
from tlite import override
from tlite.experiment import Words
from tlite.models import ClassifierConfig
from tlite.training import TrainingConfig

experiment = override(
    reviews,
    {
        "name": "reviews_post",
        "tokenizer": Words(min_document_frequency=5),
        "model": ClassifierConfig(context=50, num_blocks=1, dropout=0.1),
        "training": TrainingConfig(
            steps=2200, learning_rate=1e-3, seeds=5, best_metric="accuracy", evaluate_every=220
        ),
    },
)
