"""GPT-2 small (124M) on OpenWebText or FineWeb-Edu: nanoGPT's setting.

data      tlite prepare Skylion007/openwebtext corpora/openwebtext
          tlite prepare HuggingFaceFW/fineweb-edu corpora/fineweb --subset sample-10BT
command   tlite train gpt2 --folder corpora/openwebtext
          tlite launch -n 8 train gpt2 --folder corpora/openwebtext   (a process for each GPU)
plan      tlite plan gpt2 --devices 8 --hardware a100
result    not trained here. nanoGPT states a validation loss of about 2.85 after 600,000 updates,
          about 5 days on 8 A100 (github.com/karpathy/nanoGPT).

An update is 480 windows of 1,024 tokens, half a million, on whatever devices: each computes at most
12 at a time, and the rest is accumulated. On a sample: --steps 100 --warmup-steps 10 ...
"""

from tlite.data.corpus import Corpus
from tlite.experiment import GeneratorExperiment
from tlite.models import FeedForward, GeneratorConfig, LMHead, Loop
from tlite.training import AdamW, TrainingConfig

experiment = GeneratorExperiment(
    name="gpt2",
    data=Corpus(folder="corpora/openwebtext"),
    model=GeneratorConfig(
        vocabulary_size=50304,  # GPT-2's 50,257, filled up to a multiple of 128
        context=1024,
        width=768,
        num_blocks=12,
        num_heads=12,
        block="pre_norm",
        feed_forward=FeedForward(activation="gelu"),
        bias=False,
        head=LMHead(tied=True),
        dropout=0.0,
        loop=Loop(scan=True, remat=True),
    ),
    training=TrainingConfig(
        steps=600_000,
        batch_size=480,
        per_device_batch_size=12,
        learning_rate=6e-4,
        schedule="cosine",
        warmup_steps=2000,
        final_learning_rate_fraction=0.1,
        optimizer=AdamW(b2=0.95),
        weight_decay=0.1,
        clip_norm=1.0,
        precision="auto",
        evaluate_every=1000,
    ),
    prompt="\n",
)
