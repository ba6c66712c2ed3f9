"""Whether a review is negative (1 or 2 stars) or positive (4 or 5); 3 stars are left out.

command   make reviews-binary   (five seeds; OPTIONS="--wide.bigrams 60000" for the wide model)
machine   two cores of an AMD EPYC with AVX-512
time      9 min for the five, beside other work
result    test accuracy 82.8 +- 0.6 %, with bigrams 83.9 +- 0.4 % (TF-IDF + LR 85.4)
"""

from tlite.data import LabelledText
from tlite.experiment import ClassifierExperiment, Words
from tlite.models import ClassifierConfig, Embedding, Pool
from tlite.training import TrainingConfig

NEGATIVE, POSITIVE = "negative", "positive"

data = LabelledText(
    training=("reviews/train.jsonl.gz", "reviews/binary_extra.jsonl.gz"),
    validation=("reviews/validation.jsonl.gz",),
    test=("reviews/test.jsonl.gz",),
    text_column="review_body",
    label_column="stars",
    labels={"1": NEGATIVE, "2": NEGATIVE, "3": "", "4": POSITIVE, "5": POSITIVE},
)

experiment = ClassifierExperiment(
    name="reviews_binary",
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
        label_smoothing=0.1,
        best_metric="accuracy",
        seeds=5,
        precision="auto",
        evaluate_every=60,
    ),
)
