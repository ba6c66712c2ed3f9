"""The stars of a review, from 1 to 5.

Amazon's, from `reviews/` in the data folder (TLITE_DATA); `yelp` reads Yelp's from the Hugging Face
hub, which are other texts and another measure.

command   make reviews   (five seeds; OPTIONS="--wide.bigrams 60000" for the wide model)
time      8 min for the five, beside other work
result    test accuracy 45.2 +- 0.3 %, with bigrams 48.0 +- 0.5 % (TF-IDF + LR 50.1)
"""

from tlite.data import LabelledText
from tlite.experiment import ClassifierExperiment, Words
from tlite.models import ClassifierConfig, Embedding, Pool
from tlite.training import CrossEntropy, TrainingConfig

STARS = ["1 star", "2 stars", "3 stars", "4 stars", "5 stars"]

data = LabelledText(
    training=("reviews/train.jsonl.gz",),
    validation=("reviews/validation.jsonl.gz",),
    test=("reviews/test.jsonl.gz",),
    text_column="review_body",
    label_column="stars",
    labels={str(stars): name for stars, name in enumerate(STARS, 1)},
)

experiment = ClassifierExperiment(
    name="reviews",
    data=data,
    tokenizer=Words(min_document_frequency=2, marks=True),
    model=ClassifierConfig(
        context=320,
        num_heads=2,
        block="pre_norm",
        positions="learned",
        embedding=Embedding(init_std=0.1, word_dropout=0.3),
        pool=Pool("mean"),
        dropout=0.5,
    ),
    training=TrainingConfig(
        steps=600,
        batch_size=64,
        learning_rate=3e-3,
        schedule="cosine",
        loss=CrossEntropy(label_smoothing=0.1),
        best_metric="accuracy",
        seeds=5,
        precision="auto",
        evaluate_every=60,
    ),
)
