"""Tiny runs of each kind that are looked into, and what the page of one holds or would."""

import dataclasses
import json
import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.helpers.recipes import TEXTS, TRANSFORMER, labelled
from tlite import pictures
from tlite.data import CopyTask
from tlite.data.sources import TextFile
from tlite.experiment import GeneratorExperiment, PairSubwords, TranslatorExperiment
from tlite.models import GeneratorConfig, Seq2SeqConfig
from tlite.report.page import MASKED, Page
from tlite.training import TrainingConfig

TRAINING = TrainingConfig(
    steps=2, batch_size=4, learning_rate=1e-2, evaluate_every=1, seeds=2, precision="float32"
)
SMALL = {"width": 8, "num_heads": 2, "num_blocks": 1}
TEXT = "The <b>quick</b> & $fox$ jumps;\n\nover </script> a dog.\n" * 20


def generator(folder, **fields) -> GeneratorExperiment:
    (folder / "text.txt").write_text(TEXT)
    data = TextFile(str(folder / "text.txt"), validation_fraction=0.2)
    config = GeneratorConfig(context=16, **SMALL | fields)
    return GeneratorExperiment("tiny", data, config, TRAINING, prompt="The ")


def experiment(kind, folder):
    if kind in ("learned", "rotary"):
        return generator(
            folder, positions=kind, block="pre_norm" if kind == "rotary" else "post_norm"
        )
    if kind == "classifier":
        data = labelled(folder / "texts.jsonl", 4 * TEXTS)
        return dataclasses.replace(TRANSFORMER, data=data, training=TRAINING)
    return TranslatorExperiment(
        "tiny",
        CopyTask(letters=4, longest=5, sequences=40),
        PairSubwords(pieces=20),
        Seq2SeqConfig(context=8, **SMALL),
        dataclasses.replace(TRAINING, batch_size=128),
        buckets=1,
        beam=2,
        bleu_sentences=2,
    )


def groups_of(page: Path) -> list[dict]:
    """The data of the head view."""
    content = page.read_text(encoding="utf-8")
    (view,) = re.findall(r'<script type="application/json">(.*?)</script>', content)
    return json.loads(view)


def weights_of(group: dict) -> np.ndarray:
    """What is masked is NaN."""
    found = np.array(group["weights"], float)
    return np.where(found == MASKED, np.nan, found / 1000)


def undrawn(patch: pytest.MonkeyPatch) -> dict:
    """By name what a page would draw, without the time that it takes: (caption, what draws it).

    The files of the pictures are empty.
    """
    found = {}

    def draw(page, topic, drawn):
        for name, caption, plot in drawn:
            (page.folder / f"{name}.png").touch()
            page.add(topic, "", caption)
            found[name] = caption, plot

    def later(plot):
        return lambda *given, **settings: SimpleNamespace(figure=partial(plot, *given, **settings))

    patch.setattr(Page, "draw", draw)
    for name in [n for n in vars(pictures) if n.startswith("plot_") or n == "heat_map"]:
        patch.setattr(pictures, name, later(getattr(pictures, name)))
    return found
