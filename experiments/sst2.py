"""Sentences from film reviews, negative or positive: the Stanford Sentiment Treebank.

They are read from `sst2/` in the data folder (TLITE_DATA). From the Hugging Face hub:
OPTIONS="--hub SetFit/sst2 --training train --validation validation --test test".

command   make sst2   (five seeds; OPTIONS="--bigrams 60000" for the wide model)
machine   two cores of an AMD EPYC with AVX-512
time      a minute and a half for the five
result    test accuracy 80.0 +- 0.8 %, with bigrams 81.2 +- 0.8 % (TF-IDF + LR 81.2)
"""

import dataclasses

from experiments.reviews import experiment as reviews
from tlite.data import LabelledText

data = LabelledText(
    training=("sst2/train.tsv.gz",),
    validation=("sst2/dev.tsv.gz",),
    test=("sst2/test.tsv.gz",),
    columns=("text", "label"),
    text_column="text",
    label_column="label",
    labels={"0": "negative", "1": "positive"},
)

experiment = dataclasses.replace(
    reviews,
    name="sst2",
    data=data,
    model=dataclasses.replace(
        reviews.model,
        context=50,
        num_heads=4,
        width=64,
        dropout=0.3,
        embedding=dataclasses.replace(reviews.model.embedding, word_dropout=0.4),
    ),
    training=dataclasses.replace(reviews.training, steps=800, precision="float32"),
)
