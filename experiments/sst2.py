"""Sentences from film reviews, negative or positive: the Stanford Sentiment Treebank.

They are read from `sst2/` in the data folder (TLITE_DATA). From the Hugging Face hub:
OPTIONS="--hub SetFit/sst2 --training train --validation validation --test test".

command   make sst2   (five seeds; OPTIONS="--wide.bigrams 60000" for the wide model)
machine   two cores of an AMD EPYC with AVX-512
time      a minute and a half for the five
result    test accuracy 79.9 % (SD 0.8), with bigrams 81.2 % (SD 0.8; TF-IDF + LR 81.2)
"""

from tlite.data import LabelledText
from tlite.experiment import ClassifierExperiment, Words
from tlite.models import ClassifierConfig, Embedding, Pool
from tlite.training import TrainingConfig

data = LabelledText(
    training=("sst2/train.tsv.gz",),
    validation=("sst2/dev.tsv.gz",),
    test=("sst2/test.tsv.gz",),
    columns=("text", "label"),
    text_column="text",
    label_column="label",
    labels={"0": "negative", "1": "positive"},
)

experiment = ClassifierExperiment(
    name="sst2",
    data=data,
    tokenizer=Words(min_document_frequency=2, marks=True),
    model=ClassifierConfig(
        context=50,
        num_heads=4,
        width=64,
        block="pre_norm",
        positions="learned",
        embedding=Embedding(init_std=0.1, word_dropout=0.4),
        pool=Pool("mean"),
        dropout=0.3,
    ),
    training=TrainingConfig(
        steps=800,
        batch_size=64,
        learning_rate=3e-3,
        schedule="cosine",
        label_smoothing=0.1,
        best_metric="accuracy",
        seeds=5,
        precision="float32",
        evaluate_every=60,
    ),
)
