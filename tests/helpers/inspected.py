"""Tiny runs of each kind for `inspect`, and the content of their pages."""

import dataclasses
import json
import re
import tempfile
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.helpers.runs import SMALL, TEXTS, TRANSFORMER, TRANSLATOR, labelled, train
from tlite import pictures
from tlite.data.sources import TextFile
from tlite.experiment import GeneratorExperiment
from tlite.models import GeneratorConfig
from tlite.report import models, runs
from tlite.report.page import MASKED, PICTURES, Page
from tlite.training import TrainingConfig

FOLDER = tempfile.TemporaryDirectory()
TRAINING = TrainingConfig(
    steps=2, batch_size=4, learning_rate=1e-2, evaluate_every=1, seeds=2, precision="float32"
)


GENERATOR = [
    *("embedding", "next-token", "logit-lens"),
    *("head-previous", "head-duplicate", "head-induction", "ablation", "patching"),
]
SEQ2SEQ = [
    *("embedding", "next-token", "logit-lens", "ablation-encoder-attention"),
    *("ablation-decoder-attention", "ablation-decoder-cross_attention"),
]
TABLE = {
    name: [f"positions-{name}", f"similarity-{name}"]
    for name in ("learned", "sinusoidal", "split_sinusoidal")
} | {"rotary": ["angles-rotary", "similarity-rotary"]}
"""Names of pictures of positions by kind of positions."""

TEXT = "The <b>quick</b> & $fox$ jumps;\n\nover </script> a dog.\n" * 20


def experiment(kind, folder):
    if kind == "learned":
        (folder / "text.txt").write_text(TEXT)
        data = TextFile(str(folder / "text.txt"), validation_fraction=0.2)
        config = GeneratorConfig(context=16, positions="learned", num_blocks=1, **SMALL)
        return GeneratorExperiment("tiny", data, config, TRAINING, prompt="The ")
    if kind == "classifier":
        data = labelled(folder / "texts.jsonl", 4 * TEXTS)
        return dataclasses.replace(TRANSFORMER, data=data, training=TRAINING)
    training = dataclasses.replace(TRAINING, batch_size=128)
    return dataclasses.replace(TRANSLATOR, training=training)


@cache
def trained(kind):
    """Train a run: "learned" (a generator with learned positions), classifier, translator."""
    folder = Path(FOLDER.name, kind)
    folder.mkdir()
    return train(experiment(kind, folder), folder / "run")


def groups_of(page: Path) -> list[dict]:
    """Return the data of the head view."""
    content = page.read_text(encoding="utf-8")
    (view,) = re.findall(r'<script type="application/json">(.*?)</script>', content)
    return json.loads(view)


def facts_of(page: Path) -> dict[str, str]:
    """Return the facts at the beginning of a page, as HTML."""
    content = page.read_text(encoding="utf-8")
    return dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", content, re.S))


def weights_of(group: dict) -> np.ndarray:
    """Return the attention weights of a group; masked ones are NaN."""
    weights = np.array(group["weights"], float)
    return np.where(weights == MASKED, np.nan, weights / 1000)


def undrawn(patch: pytest.MonkeyPatch) -> dict:
    """Record pictures instead of drawing them; return (caption, drawing function) by name.

    The files of the pictures are empty.
    """
    drawn, captions = {}, {k: v for topic in PICTURES.values() for k, v in topic.items()}

    def draw(page, picture, function, **fields):
        name = picture.format(**fields).replace(" ", "-")
        (page.folder / f"{name}.png").touch()
        drawn[name] = captions[picture].format(**fields), function

    patch.setattr(Page, "draw", draw)
    names = vars(pictures)
    deferred = {n: partial(partial, f) for n, f in names.items() if n[:5] in ("plot_", "heat_")}
    for module in (models, runs):  # but not in pictures themselves
        patch.setattr(module, "pictures", SimpleNamespace(**names | deferred))
    return drawn
