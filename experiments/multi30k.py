"""Captions of pictures from English to German (Multi30k, Elliott et al. 2016), text only.

The size and training of fairseq's `transformer_tiny` as published for this set: 4 + 4 blocks of
width 128, one embedding for source, target and output, joint subwords, 8,000 updates of about
2 x 4,096 tokens.

They are read from `multi30k/` in the data folder (TLITE_DATA). From the Hugging Face hub:
OPTIONS="--hub bentrevett/multi30k --training train --validation validation --test test
--source-column en --target-column de".

command   make multi30k   (train --resume RUN goes on)
          make multi30k OPTIONS="--lowercase --num-subwords 9700", as published
machine   two cores of an AMD EPYC with AVX-512, the last 3,400 updates of an Intel Xeon with AMX;
          lower-cased: the Xeon
time      3 h 19 min of updates beside other work; lower-cased 3 h 36 min, partly so
result    `tlite evaluate RUN --split test --checkpoint average`, beam 5, with the length penalty
          1.4, which validation prefers: BLEU 40.31 lower-cased, 39.88 cased; 41.08 by the
          lower-cased run (published: 41.02)
"""

from tlite.data import ParallelText
from tlite.experiment import PairSubwords, TranslatorExperiment
from tlite.models import Attention, FeedForward, Seq2SeqConfig
from tlite.training import AdamW, CrossEntropy, TrainingConfig


def files(part: str) -> tuple[str, str]:
    return f"multi30k/{part}.en.gz", f"multi30k/{part}.de.gz"


experiment = TranslatorExperiment(
    name="multi30k",
    data=ParallelText(
        training=files("train"), validation=files("val"), test=files("test_2016_flickr")
    ),
    tokenizer=PairSubwords(num_subwords=8000),
    model=Seq2SeqConfig(
        context=80,
        width=128,
        num_heads=4,
        num_blocks=4,
        feed_forward=FeedForward(mlp_dim=256),
        dropout=0.3,
        attention=Attention(qkv_bias=True),
    ),
    length_penalty=1.4,  # chosen on the validation part
    training=TrainingConfig(
        steps=8000,
        batch_size=4096,
        gradient_accumulation_steps=2,
        learning_rate=5e-3,
        schedule="inverse_sqrt",
        warmup_steps=2000,
        optimizer=AdamW(b2=0.98),
        loss=CrossEntropy(label_smoothing=0.1),
        best_metric="bleu",
        precision="auto",
        evaluate_every=100,
        max_to_keep=10,
    ),
)
