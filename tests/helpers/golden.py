"""Compute the numbers that tests/golden/expected.json pins.

`tests/golden/make.py` writes them, `tests/test_golden.py` compares them. Each case names the commit
that computed it.

Training starts from parameters that depend only on their names and shapes (`fill`), so a change of
the initialisation changes only the fields "initial" and "initial logits". Three cases have dropout:
a change of its keys leaves the other cases unchanged.
"""

import dataclasses
import json
import re
import zlib
from functools import lru_cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.corpora import write_corpus
from tests.helpers.runs import varied
from tlite import data as D
from tlite import experiment as E
from tlite import functional as F
from tlite import models as M
from tlite.data.corpus import Corpus
from tlite.decoding import generate
from tlite.models.parameters import from_named_arrays, named_arrays, stack_blocks, unstack_blocks
from tlite.runs import Run
from tlite.runs.experiment_files import find_experiments, load_variants
from tlite.training import AdamW, CrossEntropy, Muon, Trainer, TrainingConfig
from tlite.training.metrics import read_metrics
from tlite.training.step import BATCH, fold_in

FOLDER = Path(__file__).parents[1] / "golden"
STEPS, GENERATED_TOKENS = 30, 60

ORIGINAL_NAMES = {r"\bcustom\b": "own", r"\btoken_types\b": "segments"}
"""Regular expressions of today's parameter names -> the names in the file, those of eac086c."""

SIZES = {"width": 8, "num_heads": 2, "context": 16, "num_blocks": 1, "dropout": 0.0}
TRAINING = TrainingConfig(
    steps=STEPS,
    batch_size=4,
    learning_rate=3e-3,
    optimizer=AdamW(eps=1e-5),  # some gradients are 0 up to rounding, which Adam would magnify
    clip_norm=1.0,
    precision="float32",
    seed=3,
)
GENERATOR = E.GeneratorExperiment(
    "golden",
    D.TextFile(str(FOLDER / "text.txt"), validation_fraction=0.1),
    M.GeneratorConfig(**SIZES, block="pre_norm", positions="rotary"),
    TRAINING,
    prompt="The",
)
CLASSIFIER = E.ClassifierExperiment(
    "golden",
    D.SyntheticReviews(reviews=60),
    E.Words(min_document_frequency=1),
    M.ClassifierConfig(**SIZES, embedding=M.Embedding(scale=True)),
    TRAINING,
)
TRANSLATOR = E.TranslatorExperiment(
    "golden",
    D.ParallelText(
        str(FOLDER / "pairs.tsv"),
        source_column="english",
        target_column="german",
        validation_fraction=0.25,
    ),
    E.PairSubwords(num_subwords=80),
    M.Seq2SeqConfig(**SIZES, feed_forward=M.FeedForward(dropout=0.0)),
    dataclasses.replace(TRAINING, batch_size=64),
    buckets=2,
    bleu_sentences=4,
)


def table(column: str) -> D.LabelledText:
    path = str(FOLDER / "table.csv")
    columns = {"text_column": "review", "label_column": column}
    return D.LabelledText(path, split_by="row", **columns)  # the default of eac086c


COURSES = {
    "generator": varied(GENERATOR, learning_rate=0.01),  # so that the text is learned
    "generator, dropout": varied(GENERATOR, dropout=0.2, feed_forward=M.FeedForward(dropout=0.1)),
    "generator, Muon": varied(
        GENERATOR,
        optimizer=Muon(eps=1e-5),
        weight_decay=0.1,
        norm="rms",
        attention=M.Attention(num_kv_heads=1, query_key_norm=True),
        feed_forward=M.FeedForward(activation="silu", gated=True),
        head=M.LMHead(tied=True),
    ),
    "generator, two seeds": varied(
        GENERATOR, seeds=2, tokenizer=E.BPE(300), positions="relative", schedule="cosine"
    ),
    "corpus": varied(
        GENERATOR,
        data=Corpus("corpus"),  # a folder that `course` writes
        vocabulary_size=260,
        batch_size=2,
        gradient_accumulation_steps=2,
    ),
    "words": varied(CLASSIFIER, loss=CrossEntropy(label_smoothing=0.1)),
    "words, dropout": varied(
        CLASSIFIER,
        dropout=0.2,
        embedding=M.Embedding(scale=True, word_dropout=0.1),
        pool=M.Pool("mean"),
    ),
    "subwords": varied(
        CLASSIFIER, tokenizer=E.Subwords(num_subwords=100), pool=M.Pool("attention")
    ),
    "n-grams": varied(
        CLASSIFIER, data=table("stars"), tokenizer=E.Words(1, word_ngrams=2, character_ngrams=3)
    ),
    "binary": varied(CLASSIFIER, data=table("good"), sentences=2, learning_rate=1e-3),
    "logistic": varied(CLASSIFIER, model=M.LogisticConfig(context=16, bigrams=50), clip_norm=None),
    "pre-training": varied(
        CLASSIFIER,
        block="pre_norm",
        positions="learned",
        embedding=M.Embedding(),
        pretraining=E.Pretraining(STEPS, pretraining_batch_size=4, pretraining_dropout=0.0),
    ),
    "translator": TRANSLATOR,
    "translator, dropout": varied(
        TRANSLATOR,
        buckets=1,
        dropout=0.2,
        feed_forward=M.FeedForward(dropout=0.1),
        schedule="inverse_sqrt",
        loss=CrossEntropy(label_smoothing=0.1),
    ),
}


def original_name(name: str) -> str:
    """Return the name that a parameter had in eac086c."""
    for today, original in ORIGINAL_NAMES.items():
        name = re.sub(today, original, name)
    return name


def fill(shapes: dict) -> dict[str, np.ndarray]:
    """Return noise for parameters of these names and shapes, around 1 for scales of norms."""
    by_block = jax.eval_shape(unstack_blocks, shapes)
    arrays = {name: values_for(original_name(name), a.shape) for name, a in by_block.items()}
    return arrays if by_block.keys() == shapes.keys() else stack_blocks(arrays)


def values_for(name: str, shape: tuple[int, ...]) -> np.ndarray:
    noise = np.random.default_rng(zlib.crc32(name.encode())).normal(size=shape)
    scale = 0.1 if len(shape) < 2 else min(shape) ** -0.5
    return np.float32(scale * noise + name.endswith("scale"))


def moments(parameters: dict) -> dict[str, list]:
    """Return shape, mean and root mean square of each array by its name in eac086c."""
    parameters = unstack_blocks(parameters)
    arrays = {original_name(n): np.asarray(a, np.float64) for n, a in parameters.items()}
    return {
        name: [list(a.shape), *rounded([a.mean(), np.sqrt(np.square(a).mean())])]
        for name, a in arrays.items()
    }


def rounded(numbers) -> list:
    """Return lists of floats rounded to nine digits, which identify a float32."""
    return [float(f"{x:.9g}") if np.ndim(x) == 0 else rounded(x) for x in numbers]


def course(name: str, folder: Path) -> dict:
    """Return losses and the first batch of a case, and of one a greedy text, on one device."""
    numbers: dict[str, list | dict | str] = {}
    first_devices, init = jax.devices()[:1], Trainer.init
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "devices", lambda *_: first_devices)
        patch.setattr(Trainer, "init", lambda t, a=None: init(t, fill(t.shapes) | dict(a or {})))
        patch.chdir(write_corpus(folder / "corpus").parent)
        run = Run.create(COURSES[name], folder / "run")
        state, losses = run.init_state(), []
        while len(losses) < STEPS:
            steps = min(STEPS - len(losses), run.trainer.loader.max_steps_per_call)
            state, means = run.trainer.train(state, len(losses), steps)
            losses += means["loss"].tolist()
    numbers["losses"] = rounded(losses)
    if (before := folder / "run/pretraining/metrics.jsonl").is_file():
        lines = [line["loss"] for line in read_metrics(before) if line["split"] == "training"]
        numbers["pretraining losses"] = rounded(lines)
    numbers["first batch"] = first_batch(run.trainer)
    if name == "generator":
        numbers["initial"] = moments(run.trainer.init().parameters)
        numbers["greedy text"] = greedy_text(run, state)
    return numbers


def greedy_text(run, replicas) -> str:
    model = run.trainer.models(replicas.parameters)[0]
    prompt = jnp.asarray(run.tokenizer.encode("The"))
    settings = {"num_tokens": GENERATED_TOKENS, "sampler": F.greedy, "slide": 8}
    return run.tokenizer.decode(generate(model, prompt, rng=jax.random.key(0), **settings))


def first_batch(trainer) -> list:
    """Return the first batch of the first seed: tokens, and labels or targets."""
    config, task, data = trainer.config, trainer.task, trainer.loader.batches(0, 1)
    key, number = fold_in(jax.random.key(config.seed), BATCH), jnp.int32(0)
    if trainer.loader.seed_axis == 0:
        batch = data[0, 0, 0]
    elif task.buckets:
        bucket = int(task.buckets.choose(data, key, number))
        batch = task.buckets.draws[bucket](data, key, number)
    else:
        batch = task.draw(data, key, number, config.batch_size)
    return [np.asarray(leaf).tolist() for leaf in jax.tree.leaves(batch)]


SMALL = {
    "vocabulary_size": 11, "source_vocabulary_size": 11, "num_classes": 3, "context": 8,
    "width": 8, "num_heads": 2, "num_blocks": 2, "bigrams": 20,
}  # fmt: skip


def shrink(config):
    """Return the config and its components with small sizes and exact attention."""
    changes = {}
    for field in dataclasses.fields(config):
        value, name = getattr(config, field.name), field.name
        if name in SMALL and (value or name != "bigrams"):
            changes[name] = SMALL[name]
        elif name == "function" and value in ("mixed", "auto"):
            changes[name] = "exact"  # rounding to bfloat16 depends on the machine
        elif dataclasses.is_dataclass(value):
            changes[name] = shrink(value)
    return dataclasses.replace(config, **changes)


def shipped_model(name: str) -> dict:
    """Return initial parameters of a small shipped model, and its logits with these and `fill`."""
    return logits_of(shrink(load_variants(name)[0].model))


@lru_cache
def logits_of(config) -> dict:
    tokens = np.random.default_rng(0).integers(0, SMALL["vocabulary_size"], (2, 6))
    inputs = (tokens, tokens[:, 1:]) if isinstance(config, M.Seq2SeqConfig) else (tokens,)
    if isinstance(config, M.ClassifierConfig):
        tokens[1, 4:] = -1  # padding
    model = M.make_model(config, rng=jax.random.key(1))
    parameters, inputs = named_arrays(model), jax.tree.map(jnp.asarray, inputs)
    logits = jax.jit(lambda arrays: from_named_arrays(model)(arrays)(*inputs))
    return {
        "initial": moments(parameters),
        "initial logits": rounded(np.asarray(logits(parameters))),
        "logits": rounded(np.asarray(logits(fill(parameters)))),
    }


def random_numbers() -> dict[str, list]:
    """Return results of the functions that all noise and shuffling is computed by."""
    key = jax.random.key(7)
    keys = jax.random.split(key, 2)
    numbers = {
        "random_bits": F.random_bits(key, (3, 4)),
        "random_bits of keys": F.random_bits(keys, (2,)),
        "shuffled 1": F.permuted_index(key, jnp.arange(1), 1),
        "shuffled 100": F.permuted_index(key, jnp.arange(100), 100),
        "shuffled 2,000,000": F.permuted_index(key, jnp.arange(20), 2_000_000),
        "fold_in": jax.random.key_data(F.fold_in(keys, 5)),
        "dropout": F.dropout(keys, jnp.ones((2, 3, 8)), 0.3),
        "windows of a text": D.sample_windows(key, jnp.arange(1000), 8, 4)[0],
        "positions in a corpus": D.sample_positions(7, 3, 10, 10**12, stream=1, first=5),
    }
    return {name: np.asarray(values).tolist() for name, values in numbers.items()}


def read() -> dict[str, dict]:
    """Return the pinned numbers by case."""
    return json.loads((FOLDER / "expected.json").read_text(encoding="utf-8"))


def cases() -> list[str]:
    courses = [f"course: {name}" for name in COURSES]
    models = [f"model: {name}" for name in find_experiments()]
    return [*courses, *models, "random numbers"]
