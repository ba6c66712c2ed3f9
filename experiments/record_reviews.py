"""The stars of a review: `reviews` beside a linear model of n-grams that is found first.

command   make record-reviews   (five seeds)
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
