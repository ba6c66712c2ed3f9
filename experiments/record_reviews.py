"""The stars of a review: `reviews` beside a linear model of n-grams that is found first.

command   make record-reviews   (five seeds)
machine   two cores of an AMD EPYC with AVX-512
time      16 min for the five, of a machine shared with much other work
result    test accuracy 50.6 +- 1.1 %, all replicas together (--replica all) 51.8 %
          (TF-IDF + logistic regression 50.1; `reviews` 45.2, with --wide.bigrams 60000 48.0)
"""

import dataclasses

from experiments.reviews import experiment as reviews

experiment = dataclasses.replace(
    reviews,
    name="record_reviews",
    tokenizer=dataclasses.replace(reviews.tokenizer, word_ngrams=2, character_ngrams=5),
    ngram_l2=3e-5,
    model=dataclasses.replace(reviews.model, context=128),
    training=dataclasses.replace(reviews.training, steps=500, evaluate_every=100),
)
