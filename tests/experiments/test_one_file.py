"""The generator in one file learns, and its run folder is compared with others."""

import dataclasses
import json
import shutil
import sys

import jax
import pytest

from experiments import one_file
from experiments.demo import experiment as demo
from tlite.comparison import compare
from tlite.models import make_model

TEXT = "the quick brown fox jumps over the lazy dog. " * 60


@dataclasses.dataclass
class Text:
    validation_fraction: float = 0.1

    def load(self):
        return TEXT


SMALL = {
    "CONTEXT": 8, "WIDTH": 16, "HEADS": 2, "BLOCKS": 1, "BATCH": 8, "SAMPLE_LENGTH": 2,
    "TEXT": Text(),
}  # fmt: skip


def run(monkeypatch, folder, *options):
    monkeypatch.setattr(sys, "argv", ["one_file.py", str(folder), *options])
    one_file.main()


def test_the_model_has_the_shapes_of_the_demo():
    config = dataclasses.replace(demo.model, vocabulary_size=100)
    models = (
        jax.eval_shape(lambda rng: make_model(config, rng=rng), jax.random.key(0)),
        jax.eval_shape(lambda rng: one_file.init_model(rng, 100), jax.random.key(0)),
    )
    shapes = [sorted(leaf.shape for leaf in jax.tree.leaves(model)) for model in models]
    assert shapes[0] == shapes[1]


def test_the_run_learns_and_is_compared(tmp_path, monkeypatch, capsys):
    for name, value in SMALL.items():
        monkeypatch.setattr(one_file, name, value)
    run(monkeypatch, tmp_path / "a", "--steps", "50", "--seeds", "2")
    lines = [json.loads(line) for line in (tmp_path / "a" / "metrics.jsonl").open()]
    assert lines[-1]["loss"] < lines[0]["loss"] - 0.5
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    capsys.readouterr()
    compare([tmp_path / "a", tmp_path / "b"], tmp_path / "comparison", "json")
    first, second = json.loads(capsys.readouterr().out)["runs"]
    assert first["finished"]
    assert second["difference"] == 0
    with pytest.raises(SystemExit):  # the folder exists
        run(monkeypatch, tmp_path / "a")
