"""Sentences from film reviews, negative or positive: the Stanford Sentiment Treebank.

They are read from `sst2/` in the data folder (TLITE_DATA). From the Hugging Face hub:
OPTIONS="--hub SetFit/sst2 --training train --validation validation --test test".

command   make sst2   (five seeds; OPTIONS="--wide.bigrams 60000" for the wide model)
time      a minute and a half for the five
result    test accuracy 79.9 % (SD 0.8), with bigrams 81.2 % (SD 0.8; TF-IDF + LR 81.2)
"""

from experiments.reviews import experiment as reviews
from tlite import override
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
experiment = override(
    reviews,
    {
        "name": "sst2",
        "data": data,
        "model.context": 50,
        "model.width": 64,
        "model.num_heads": 4,
        "model.dropout": 0.3,
        "model.embedding.word_dropout": 0.4,
        "training.steps": 800,
        "training.precision": "float32",
    },
)
