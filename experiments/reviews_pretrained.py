"""`reviews` after a generator has read the reviews without their stars.

The classifier starts from the generator's embedding and blocks. From scratch, for comparison:
OPTIONS="--pretraining-steps 0".

command   make reviews-pretrained   (five seeds after one pre-training)
time      17 min beside other work
result    test accuracy 44.7 +- 1.2 %, from scratch 46.8 +- 0.9 %
"""

from experiments.reviews import experiment as reviews
from tlite import override
from tlite.experiment import Pretraining

experiment = override(
    reviews,
    {
        "name": "reviews_pretrained",
        "tokenizer.min_document_frequency": 5,
        "model.context": 256,
        "model.width": 64,
        "pretraining": Pretraining(
            pretraining_steps=1500,
            pretraining_batch_size=16,
            unlabelled=("reviews/binary_extra.jsonl.gz",),
        ),
    },
)
