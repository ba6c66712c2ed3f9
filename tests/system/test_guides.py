"""The Python blocks of the guides run, with small sizes; test_documents.py checks the commands."""

import os
import re
import subprocess
import sys

from tests.documents import GUIDES, ROOT

BLOCK = re.compile(r"^```python\n(?:# (\w+\.py)\n)?(.*?)^```", flags=re.S | re.M)
START = """
import jax
import tlite
from pathlib import Path
from tests.helpers.tokenizers import words
from tlite.models import (
    Attention, CausalLM, Embedding, FeedForward, GeneratorConfig, LMHead, MaskedConfig, MaskedLM,
)

load_experiment = tlite.load_experiment
SMALL = {"model.context": 16, "model.width": 16, "model.num_blocks": 1}
SHORT = {
    "training.steps": 4, "training.evaluate_every": 4, "training.batch_size": 4,
    "training.warmup_steps": 0, "training.precision": "float32",
}
tlite.load_experiment = lambda name: tlite.override(load_experiment(name), SMALL | SHORT)


def train_file(name):
    experiment = load_experiment(name)
    sizes = {} if experiment.init_from else SMALL
    run = tlite.Run.create(tlite.override(experiment, sizes | SHORT), f"runs/{Path(name).stem}")
    run.train(report=False)


config = GeneratorConfig(
    vocabulary_size=257, context=32, width=16, num_blocks=1, block="pre_norm",
    head=LMHead(tied=True),
)
model = CausalLM(config, rng=jax.random.key(0))  # in place of the one on the hub
tlite.pretrained.save_pretrained("openai-community/gpt2", model, tlite.text.ByteTokenizer())
names = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
roles = dict(zip(("pad", "unk", "cls", "sep", "mask"), names, strict=True))
vocabulary = {word: index for index, word in enumerate([*names, "good", "bad", "film"])}
tokenizer = words(vocabulary, "[UNK]", ("[CLS]", "[SEP]"), **roles)
config = MaskedConfig(
    vocabulary_size=len(vocabulary), context=128, width=8, num_heads=2, num_blocks=1,
    feed_forward=FeedForward(activation="gelu_exact"), attention=Attention(qkv_bias=True),
    embedding=Embedding(norm=True, type_vocab_size=2),
)
model = MaskedLM(config, rng=jax.random.key(0))
tlite.pretrained.save_pretrained("google-bert/bert-base-uncased", model, tokenizer)
"""
"""Makes experiments small, and local folders with a generator and an encoder."""
REVIEWS = "review,stars\n" + "".join(f"good film {i},5\nbad film {i},1\n" for i in range(30))


def test_python_blocks_run(tmp_path):
    sentence = "To be, or not to be, that is the question.\n"
    (tmp_path / "my_texts").mkdir()
    files = {"my.txt": sentence * 100, "my_texts/a.txt": sentence * 100, "reviews.csv": REVIEWS}
    files["start.py"] = START
    texts = {guide.stem: guide.read_text(encoding="utf-8") for guide in GUIDES}
    for guide, text in texts.items():
        script = ["from start import train_file"]
        for name, code in BLOCK.findall(text):
            files |= {name: code} if name else {}  # an experiment's file
            script.append(f"train_file({name!r})" if name else code)
        files[f"{guide}.py"] = "\n".join(script)
    files["all.py"] = "\n".join(f"import {guide}" for guide in texts)
    for name, content in files.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "all.py"], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", timeout=1200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
