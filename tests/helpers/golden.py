"""Golden cases: what version 0.2.0 (3bb2909) wrote, and how today's code is asked for the same.

The files were made once, through the functions here (by `tests/golden/make.py`, until 70061da in
the history). A later design adapts the functions, never the files.
"""

import contextlib
import dataclasses
import hashlib
import io
import json
import re
import shlex
import tarfile
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tlite import functional as F
from tlite.cli import main
from tlite.data import draw_windows, places
from tlite.experiment import Pretrained
from tlite.recipes import open_recipe, start
from tlite.training.feed import Streamed
from tlite.training.loop import validate
from tlite.training.metrics import read_metrics
from tlite.training.precision import choose_products
from tlite.training.step import BATCH, fold_in

FOLDER = Path(__file__).parents[1] / "golden"
DATA = FOLDER / "data"
DATA_MARK = "@data@"
"""What stands in kept JSON for the folder of the data, wherever the checkout is."""

STEPS, MORE = 20, 40  # of a kept run, and after it has gone on
COURSE = 30  # steps of a new run
SIZES = "--width 8 --num-heads 2 --num-blocks 2 --context 16 --dropout 0.1"
TRAINING = (
    "--batch-size 4 --learning-rate 0.01 --schedule constant --precision float32 --seed 3 "
    "--evaluate-every 10 --select loss --warmup-steps 0"
)
TEXT = f"text --path {{data}}/text.txt --prompt The {SIZES} {TRAINING} --validation-fraction 0.1"
TABLE = f"classify --path {{data}}/table.csv --word-dropout 0.1 {SIZES} {TRAINING}"
PAIRS = "translate --path {data}/pairs.tsv --source-column english --target-column german "
PAIRS += "--pieces 80 --buckets 2 --validation-fraction 0.25 --bleu-sentences 4 "
PAIRS += f"{SIZES} {TRAINING} --num-blocks 1 --batch-size 64"
SPAWNED = "launch -n 2 --devices-each 1"


class Case(NamedTuple):
    """A kept run: how it was trained, and what it is asked."""

    train: str
    ask: tuple[str, ...]
    """The commands whose output is kept."""
    how: str = "to its end"
    """Otherwise "by a signal", "killed" or "by two processes"."""
    devices: tuple[int, ...] = (1, 2)
    """On how many a new run with its config is trained."""


WRITE = (
    "generate {run} --greedy --tokens 60 --prompt The",
    "generate {run} --seed 5 --temperature 0.9 --top-k 20 --tokens 60 --prompt The",
)
CLASSIFY = ("classify {run} 'The red lamp is good.' 'It was a bad radio, not a good one.'",)
CASES = {
    "characters": Case(f"train {TEXT}", WRITE),
    "subwords": Case(f"train {TEXT} --tokenizer bpe:300", WRITE, devices=(1,)),
    "corpus": Case(
        f"train gpt2 --folder {{data}}/corpus --vocabulary-size 260 --examples-per-device 0 "
        f"{SIZES} {TRAINING} --prompt The --accumulate 2",
        WRITE,
    ),
    "logistic": Case(f"train {{data}}/logistic.py --reviews 60 --context 16 {TRAINING}", CLASSIFY),
    "pretraining": Case(
        f"train {{data}}/pretraining.py --reviews 60 {SIZES} {TRAINING}", CLASSIFY, devices=(1,)
    ),
    "words": Case(
        f"train reviews_demo --reviews 60 --word-dropout 0.1 {SIZES} {TRAINING}", CLASSIFY
    ),
    "n-grams": Case(f"train {TABLE} --label-column stars", CLASSIFY),
    "binary": Case(
        f"train {TABLE} --label-column good --word-ngrams 0 --sentences 2 --label-smoothing 0.1",
        CLASSIFY,
    ),
    "translator": Case(
        f"train {PAIRS}",
        (
            "translate {run} 'two red birds' 'four small lamps' --beam 1",
            "translate {run} 'two red birds' --beam 3 --n-best 3",
        ),
    ),
    "two seeds": Case(f"train {TEXT} --seeds 2", (*WRITE, WRITE[0] + " --member 1")),
    "study": Case(
        f"train {TEXT} --vary norm layer rms --steps {MORE}", ("compare {run}",), "killed", ()
    ),
    "own function": Case(
        f"train {{data}}/own.py --path {{data}}/text.txt {TRAINING}", WRITE, devices=(1,)
    ),
    "signal": Case(f"train {TEXT} --steps {MORE}", WRITE, "by a signal", ()),
    "two processes": Case(f"{SPAWNED} train {TEXT}", WRITE, "by two processes", ()),
}


def command(line: str, **names: Path) -> list[str]:
    """The words of a line, with the places of data and run filled in."""
    return [word.format(data=DATA, **names) for word in shlex.split(line)]


def unpack(name: str, folder: Path) -> Path:
    """A copy of a kept run or study, whose data is where it is here."""
    with tarfile.open(FOLDER / "runs" / f"{file_name(name)}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    run = folder / file_name(name)
    for path in run.rglob("*.json"):
        content = path.read_text(encoding="utf-8").replace(DATA_MARK, str(DATA))
        before, now = (hashlib.sha256(own.encode()).hexdigest() for own in own_texts())
        path.write_text(content.replace(before, now), encoding="utf-8")
    return run


def own_texts() -> tuple[str, str]:
    """The file with functions of the user's: as it was kept, and with today's parts around them.

    A file must be run for its functions, and this one has a config too.
    """
    kept = (DATA / "own.py").read_text(encoding="utf-8")
    parts = {
        "    activation=softened,": "    feed_forward=FeedForward(activation=softened),",
        "\nfrom experiments.text": "\nfrom tlite.models import FeedForward\nfrom experiments.text",
    }
    now = kept
    for before, after in parts.items():
        assert now.count(before) == 1
        now = now.replace(before, after)
    return kept, now


def own_file(folder: Path) -> Path:
    """The file that the user would name."""
    path = folder / "own.py"
    path.write_text(own_texts()[1], encoding="utf-8")
    return path


def file_name(name: str) -> str:
    return name.replace(" ", "-")


def said(line: str, **names: Path) -> str:
    """What a command prints that ends well, without the places it reads from."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main(command(line, **names)) == 0
    lines = printed.getvalue().splitlines()
    if line.startswith("compare"):  # not the table, which has times
        return "\n".join(line for line in lines if "better" in line)
    return "\n".join(line for line in lines if str(DATA) not in line)


def run_of(folder: Path, how: str = "") -> Path:
    """The run that is asked for numbers: of a study the one that was killed."""
    return folder / "rms" if how == "killed" else folder


@contextlib.contextmanager
def devices(number: int):
    """Training is on so many of the devices."""
    these = jax.devices()[:number]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "devices", lambda *_: these)
        yield


def gone_on(run: Path) -> tuple[dict[str, list[float]], list[list[float]]]:
    """The means over the validation part at the best checkpoint, of each member; and the losses of
    the run, by step and member, once it has gone on to step `MORE`."""
    with devices(1):
        recipe = open_recipe(run, MORE)
        parameters, _ = recipe.parameters("best")
        means = validate(recipe.trainer, parameters, recipe.validation())
        recipe.train(report=False)
    return {name: values.tolist() for name, values in means.items()}, losses_of(run)


def course(run: Path, folder: Path, number: int, **changes) -> tuple[list, list[list[float]]]:
    """The first batch and the losses of a new run with another's config, on so many devices."""
    with devices(number):
        experiment = open_recipe(run).experiment
        training = dataclasses.replace(experiment.training, steps=COURSE, **changes)
        recipe = start(dataclasses.replace(experiment, training=training), folder)
        first = first_batch(recipe)
        recipe.train(report=False)
    return first, losses_of(folder)


def losses_of(run: Path) -> list[list[float]]:
    """Training losses in order; of each step those of all members."""
    lines = [line for line in read_metrics(run / "metrics.jsonl") if line["split"] == "training"]
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1))
    return [line.get("loss_members", [line["loss"]]) for line in lines]


def first_batch(recipe) -> list:
    """The integers of the first member's first batch: tokens, and labels or targets."""
    trainer = recipe.trainer
    config, task, data = trainer.config, trainer.task, trainer.feed.at(0, 1)
    key = fold_in(jax.random.key(config.seed), BATCH)
    if isinstance(data, Streamed):
        batch = data.batches[0, 0, 0]
    elif task.buckets:
        number = jnp.int32(0)
        bucket = int(task.buckets.choose(data, key, number))
        batch = task.buckets.draws[bucket](data, key, number)
    else:
        batch = task.draw(data, key, 0, config.batch_size)
    return [np.asarray(leaf).tolist() for leaf in jax.tree.leaves(batch)]


def read(name: str):
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))


SAID_OF_GONE = r"^model: convolution is no part of a model any more: tlite 0\.2\.0 opens this run$"


def has_gone(model: dict) -> bool:
    """Whether a kept config has parts that models have no more."""
    return bool(model.get("convolution") or model.get("value_residual"))


def settled(experiment):
    """An experiment whose embedding says what version 0.2.0 said, its scale and its deviation, and
    whose attention is what mixed precision makes of it ("auto" was not the default).

    Of one that starts from a folder the embedding's are the folder's.
    """
    model = experiment.model
    if not hasattr(model, "embedding"):
        return experiment
    embedding, factor = model.embedding, model.embedding.factor(model)
    deviation = embedding.deviation or (0.02 if factor == 1 else 1 / factor)
    deviation = float(np.float32(deviation))
    embedding = dataclasses.replace(embedding, scale=factor != 1, deviation=deviation)
    if isinstance(getattr(experiment, "pretraining", None), Pretrained):
        embedding = dataclasses.replace(embedding, scale=None, deviation=None)
    attention = choose_products(model, "mixed").attention
    model = dataclasses.replace(model, embedding=embedding, attention=attention)
    return dataclasses.replace(experiment, model=model)


def convolved(parameters: dict[str, list[int]]) -> dict[str, list[int]]:
    """The kept parameters of a model with convolutions, by their names in the layer around."""
    found = {}
    for name, shape in parameters.items():
        if not name.endswith("value_mix"):
            name = re.sub(r"\.(attention|feed_forward)_convolution$", r".\1.taps", name)
            inside = re.sub(r"\.(attention|feed_forward)\.(?!taps)", r".\1.layer.", name)
            found[inside] = shape
    return found


def randomness() -> dict[str, list]:
    """Of the functions that every run's noise and order come from."""
    key = jax.random.key(7)
    keys = jax.random.split(key, 2)
    ones = jnp.ones((2, 3, 8))
    tokens = jnp.arange(1000)
    found = {
        "random_bits": F.random_bits(key, (3, 4)),
        "random_bits of keys": F.random_bits(keys, (2,)),
        "shuffled 1": F.shuffled(key, jnp.arange(1), 1),
        "shuffled 100": F.shuffled(key, jnp.arange(100), 100),
        "shuffled 2,000,000": F.shuffled(key, jnp.arange(20), 2_000_000),
        "fold_in": jax.random.key_data(F.fold_in(keys, 5)),
        "dropout": F.dropout(keys, ones, 0.3),
        "windows of a text": draw_windows(key, tokens, 8, 4)[0],
        "places in a corpus": places(7, 3, 10, 10**12, stream=1, first=5),
    }
    return {name: np.asarray(numbers).tolist() for name, numbers in found.items()}
