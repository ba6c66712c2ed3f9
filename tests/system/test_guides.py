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
from tlite.models import CausalLM, GeneratorConfig, LMHead

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
    tlite.Run.create(tlite.override(experiment, sizes | SHORT)).train(report=False)


config = GeneratorConfig(
    vocabulary_size=257, context=32, width=16, num_blocks=1, block="pre_norm",
    head=LMHead(tied=True),
)
model = CausalLM(config, rng=jax.random.key(0))  # in place of the one on the hub
tlite.pretrained.save_pretrained("openai-community/gpt2", model, tlite.text.ByteTokenizer())
"""
"""Makes experiments small, and a local folder with a model."""


def test_python_blocks_run(tmp_path):
    sentence = "To be, or not to be, that is the question.\n"
    (tmp_path / "my_texts").mkdir()
    files = {"my.txt": sentence * 100, "my_texts/a.txt": sentence * 100, "start.py": START}
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
