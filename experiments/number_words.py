"""English number words to German ones, up to a million; nothing to download.

"three hundred and forty-two" becomes "dreihundertzweiundvierzig"; numbers of training, validation
and test are disjoint, the words come from the package num2words.

command   make number-words
time      2 min 35 s, beside other work
result    100.0 % of 1,000 held-out numbers to the letter
"""

from tlite.data import NumberWords
from tlite.experiment import PairSubwords, TranslatorExperiment
from tlite.models import FeedForward, Seq2SeqConfig
from tlite.training import AdamW, TrainingConfig

experiment = TranslatorExperiment(
    name="number_words",
    data=NumberWords(),
    tokenizer=PairSubwords(num_subwords=150),
    model=Seq2SeqConfig(
        context=64,
        width=96,
        num_heads=4,
        num_blocks=2,
        dropout=0.05,
        feed_forward=FeedForward(dropout=0.0),
    ),
    training=TrainingConfig(
        steps=1200,
        batch_size=2048,
        learning_rate=2e-3,
        schedule="cosine",
        warmup_steps=200,
        optimizer=AdamW(b2=0.98),
        best_metric="exact_match",
        precision="auto",
        evaluate_every=200,
    ),
    buckets=3,
)
