"""Whether a review is negative or positive: `record_reviews` of two classes.

command   make record-reviews-binary   (five seeds)
machine   two cores of an AMD EPYC with AVX-512
time      8 min for the five, of a machine shared with other work
result    test accuracy 84.4 +- 0.2 %, all replicas together (--replica all) 85.2 %: below
          TF-IDF + logistic regression, 85.4 (`reviews_binary` 82.8, with --wide.bigrams 60000 83.9)
"""

from experiments.reviews_binary import experiment as binary
from tlite import override

experiment = override(
    binary,
    {
        "name": "record_reviews_binary",
        "tokenizer.word_ngrams": 2,
        "tokenizer.character_ngrams": 5,
        "ngram_l2": 3e-5,
        "model.context": 128,
        "training.steps": 500,
        "training.evaluate_every": 100,
    },
)
