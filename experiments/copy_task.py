"""Copy a sequence of letters, or write it backwards (`--reverse`); nothing to download.

command   make copy
time      2 min 18 s, while other work ran
result    100.0 % of 1,000 held-out sequences are copied without an error
"""

from tlite.data import CopyTask
from tlite.experiment import PairSubwords, TranslatorExperiment
from tlite.models import Seq2SeqConfig
from tlite.training import AdamW, TrainingConfig

experiment = TranslatorExperiment(
    name="copy_task",
    data=CopyTask(),
    tokenizer=PairSubwords(num_subwords=100),
    model=Seq2SeqConfig(context=24, width=64, num_heads=4, num_blocks=2, dropout=0.0),
    training=TrainingConfig(
        steps=2500,
        batch_size=1024,
        learning_rate=2e-3,
        schedule="cosine",
        warmup_steps=200,
        optimizer=AdamW(b2=0.98),
        best_metric="exact_match",
        precision="auto",
        evaluate_every=500,
    ),
    buckets=2,
)
