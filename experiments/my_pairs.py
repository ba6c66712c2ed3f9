"""Translate with your own pairs of sentences: a table with two columns.

TSV, CSV, JSON Lines, Parquet, or a folder of `save_to_disk`. Columns called source and target, or
en and de, say, are known; of two others the first is the source; else they are named
(--source-column, --target-column; --columns, if the first line is a row). A twentieth of the pairs
is kept for validation unless there is a part for it (--validation FILE). Two text files with a
sentence a line: --training a.en a.de

command   tlite train my_pairs --path pairs.tsv
time      about a step a second of pairs as long as Multi30k's, beside much other work
result    not measured to the end; experiments/multi30k.py is the larger one that was
"""

from tlite.data import ParallelText
from tlite.experiment import PairSubwords, TranslatorExperiment
from tlite.models import FeedForward, Seq2SeqConfig
from tlite.training import AdamW, CrossEntropy, TrainingConfig

experiment = TranslatorExperiment(
    name="my_pairs",
    data=ParallelText(split_by="text"),
    tokenizer=PairSubwords(num_subwords=4000),
    model=Seq2SeqConfig(
        context=80,
        width=128,
        num_heads=4,
        num_blocks=2,
        feed_forward=FeedForward(mlp_dim=256),
        dropout=0.3,
    ),
    truncate=True,
    length_penalty=1.0,
    bleu_sentences=200,
    training=TrainingConfig(
        steps=2000,
        batch_size=4096,
        learning_rate=5e-3,
        schedule="inverse_sqrt",
        warmup_steps=400,
        optimizer=AdamW(b2=0.98),
        loss=CrossEntropy(label_smoothing=0.1),
        precision="auto",
        evaluate_every=250,
    ),
)
