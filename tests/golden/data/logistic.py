"""Logistic regression on the words of a text."""

import dataclasses

from experiments.reviews_demo import experiment as reviews
from tlite.models import LogisticConfig

experiment = dataclasses.replace(reviews, name="logistic", model=LogisticConfig(context=16))
