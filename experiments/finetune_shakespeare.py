"""Tiny Shakespeare from a pre-trained generator.

Any GPT-like folder or name on the Hugging Face hub will do: `--init-from PATH`. The hub was out of
reach of the machines this was written on: with real weights it has not been run.

command   make finetune-shakespeare   (OPTIONS="--init-from PATH" for another model)
result    not measured
"""

from tlite.data import TinyShakespeare
from tlite.experiment import GeneratorExperiment, Pretrained
from tlite.models import GeneratorConfig
from tlite.training import TrainingConfig

experiment = GeneratorExperiment(
    name="finetune_shakespeare",
    data=TinyShakespeare(),
    init_from=Pretrained("distilbert/distilgpt2"),
    model=GeneratorConfig(context=128, dropout=0.1),
    training=TrainingConfig(
        steps=600,  # two epochs
        batch_size=8,
        learning_rate=5e-5,
        schedule="cosine",
        warmup_steps=60,
        weight_decay=0.01,
        clip_norm=1.0,
        precision="auto",
        evaluate_every=100,
    ),
    prompt="ROMEO:\n",
)
