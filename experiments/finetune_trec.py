"""Question classification (TREC) from a pre-trained model, of all arrays or by LoRA.

Any BERT-like folder or name on the Hugging Face hub will do: `--init-from PATH`. LoRA trains
low-rank updates of the matrices of a pattern, and the new head:
OPTIONS='--low-rank "*.attention.*" --learning-rate 1e-3'.

command   make finetune-trec   (OPTIONS="--init-from PATH" for another model)
memory    at BERT-base's size, by `tlite plan finetune_trec --init-from PATH --precision float32`:
          3.24 GiB, with LoRA 1.54 GiB; measured in two steps, resident memory above that of the
          process before its arrays: 3.28 GiB, with LoRA 1.73 GiB (in all 4.39 and 2.64 GiB)
result    from all-MiniLM-L6-v2, 22.5M parameters, test accuracy of three seeds: all arrays 93.5 %
          (SD 0.4), LoRA 92.4 % (SD 1.2), 150,000 trained; from scratch 88.4 % (SD 0.6, five
          seeds of experiments/trec.py). One epoch, no setting was tuned: --context 24 --steps 154
          --warmup-steps 15 --evaluate-every 154 --precision float32 --seed 0, 1 or 2. The model
          is a sentence encoder, trained further on sentence pairs: a plain BERT may gain less.
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
