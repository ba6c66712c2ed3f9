"""Question classification (TREC) from a pre-trained model.

Any BERT-like folder or name on the Hugging Face hub will do: `--init-from PATH`. The hub was out of
reach of the machines this was written on: with real weights it has not been run.

command   make finetune-trec   (OPTIONS="--init-from PATH" for another model)
result    not measured; from scratch 88.4 % (SD 0.6) (experiments/trec.py)
"""

from experiments.trec import data
from tlite.experiment import ClassifierExperiment, Pretrained
from tlite.models import ClassifierConfig
from tlite.training import TrainingConfig

experiment = ClassifierExperiment(
    name="finetune_trec",
    data=data,
    init_from=Pretrained("distilbert/distilbert-base-uncased"),
    model=ClassifierConfig(context=40, dropout=0.1),
    training=TrainingConfig(
        steps=460,  # three epochs
        batch_size=32,
        learning_rate=5e-5,
        schedule="cosine",
        warmup_steps=46,
        weight_decay=0.01,
        clip_norm=1.0,
        precision="auto",
        evaluate_every=115,
    ),
)
