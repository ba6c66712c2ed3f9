"""The stars of a review: `reviews` with a linear model of n-grams fitted first.

command   make record-reviews   (five seeds)
time      16 min for the five, while much other work ran
result    test accuracy 50.6 +- 1.1 %, all replicas together (--replica all) 51.8 %
          (TF-IDF + logistic regression 50.1; `reviews` 45.2, with --wide.bigrams 60000 48.0)
"""

from experiments.reviews import experiment as reviews
from tlite import override

experiment = override(
    reviews,
    {
        "name": "record_reviews",
        "tokenizer.word_ngrams": 2,
        "tokenizer.character_ngrams": 5,
        "ngram_l2": 3e-5,
        "model.context": 128,
        "training.steps": 500,
        "training.evaluate_every": 100,
    },
)
