"""Load, score and export models of runs or Hugging Face folders, without data or trainer."""

import math
import os
import sys
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

import tlite.functional as F
from tlite.data import contiguous_windows
from tlite.data.reading import read_text
from tlite.errors import UserError, disk_errors, printable
from tlite.experiment import Experiment, GeneratorExperiment
from tlite.models import Ensemble, make_model
from tlite.models.low_rank import init_low_rank, merge_low_rank
from tlite.models.parameters import from_named_arrays, named_arrays
from tlite.pretrained import PretrainedTokenizer, is_pretrained, load_pretrained, save_pretrained
from tlite.runs.run import finite_models, read_parameters, run_class
from tlite.training import generator_task
from tlite.training.run_dir import RunDir, find_run, open_run
from tlite.training.tasks import in_batches

MAX_WINDOW = 1024  # tokens in which a text is scored
MAX_LOGITS = 2**26  # elements in memory at a time
UNSUPPORTED_GENERATION_FIELDS = {
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "repetition_penalty": 1.0,
    "min_length": 0,
    "min_new_tokens": 0,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
}
"""Generation settings of a Hugging Face folder that are ignored, with their neutral values."""


def load(
    run: Any,
    *,
    checkpoint: str | int = "best",
    replica: int | Literal["all"] = 0,
    trust: bool = False,
) -> tuple[Any, Any]:
    """Return the model and the tokenizer of a run, a Hugging Face folder, or a name on its hub.

    Args:
        run: a `Run`, its folder, or a folder of runs, of which the newest is taken; "latest" is
            the newest in ./runs.
        checkpoint: best, last, average (of the last checkpoints), ema, or a step.
        replica: index of the model among those trained side by side; "all": an `Ensemble`.
        trust: execute the run's copy of user code, even if this user has not trained with it.

    Raises:
        UserError: there is no such folder, or it can't be read.
    """
    folder = find_run(getattr(run, "dir", run).path if hasattr(run, "dir") else run)
    if is_pretrained(folder):
        return load_pretrained(folder)[:2]
    return load_run(open_run(folder, Experiment, trust=trust), str(checkpoint), replica)


def load_run(
    run_dir: RunDir, checkpoint: str = "best", replica: int | Literal["all"] = 0
) -> tuple[Any, Any]:
    """Return one of a run's models, or all as an `Ensemble`, and the tokenizer."""
    config, number = run_dir.experiment.model, run_dir.experiment.training.seeds
    replica = 0 if number == 1 and replica == "all" else replica
    if replica != "all":
        check_replica(replica, number)
    shapes = jax.eval_shape(lambda: make_model(config, rng=jax.random.key(0)))
    arrays, low_rank = named_arrays(shapes), run_dir.experiment.training.low_rank
    if low_rank:
        arrays |= jax.eval_shape(partial(init_low_rank, low_rank), arrays, jax.random.key(0))
    try:
        device = jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX_PLATFORMS=cuda
        device = jax.local_devices()[0]
    sharding = jax.sharding.SingleDeviceSharding(device)
    abstract = {
        name: jax.ShapeDtypeStruct((number, *a.shape), a.dtype, sharding=sharding)
        for name, a in arrays.items()
    }
    parameters, _ = read_parameters(run_dir, checkpoint, abstract)
    index = slice(None) if replica == "all" else replica
    arrays = {name: jnp.asarray(np.asarray(a)[index]) for name, a in parameters.items()}
    arrays = merge_low_rank(low_rank, arrays)
    model = from_named_arrays(shapes)(finite_models(arrays) if replica == "all" else arrays)
    tokenizer = run_class(run_dir.experiment).load_tokenizer(run_dir)
    return Ensemble(model) if replica == "all" else model, tokenizer


def open_model(
    folder: str | Path,
    experiment_type: Any,
    checkpoint: str = "best",
    replica: int | Literal["all"] = 0,
) -> tuple[Any, Any, Any]:
    """Return model and tokenizer, and the `RunDir` or the description of a Hugging Face folder.

    Args:
        experiment_type: a class of experiments whose model the folder must have, or a union.
    """
    if is_pretrained(folder):
        if checkpoint != "best" or replica:
            raise UserError("--checkpoint and --replica are for runs: this folder has one model")
        model, tokenizer, source = load_pretrained(folder)
    else:
        source = open_run(Path(folder), experiment_type)
        model, tokenizer = load_run(source, checkpoint, replica)
    if isinstance(experiment_type, type):
        single = model.models if isinstance(model, Ensemble) else model
        expected = run_class(object.__new__(experiment_type)).model_type
        if not isinstance(single, expected):
            names = f"{type(single).__name__}, not {expected.__name__}"
            raise UserError(f"{folder} has another kind of model: {names}")
    if tokenizer is None:
        raise UserError(source.no_tokenizer)
    return model, tokenizer, source


def check_replica(replica: int, number: int) -> None:
    """Raise a `UserError` if a run of `number` models has no such replica."""
    if not 0 <= replica < number:
        raise UserError(f"there is no replica {replica}: the run has {number}, counted from 0")


def warn_unsupported_generation(source: Any) -> None:
    """Warn of generation settings of a Hugging Face folder that are ignored."""
    neutral = UNSUPPORTED_GENERATION_FIELDS
    values = {name: source.fields.get(name) for name in neutral} | source.generation
    if ignored := [n for n, value in neutral.items() if values.get(n) not in (None, [], value)]:
        warning = f"warning: {source.folder} sets {', '.join(ignored)}: ignored"
        print(printable(warning), file=sys.stderr)


def evaluate_text(
    folder: str | Path,
    path: str | Path,
    checkpoint: str = "best",
    replica: int | Literal["all"] = 0,
) -> None:
    """Print how well a generator, of a run or a Hugging Face folder, predicts a text."""
    from tlite.runs.generator import scores_line, warn_of_unknown

    model, tokenizer, _ = open_model(folder, GeneratorExperiment, checkpoint, replica)
    text, config, bos = read_text(path), model.config, tokenizer.bos_id
    tokens, has_bos = tokenizer.encode(text), False
    if isinstance(tokenizer, PretrainedTokenizer):
        has_bos = bos is not None and tokens[:1].tolist() == [bos]
        tokens = tokenizer.encode(text, add_special_tokens=False)
    if len(tokens) < 2:
        raise UserError(f"{path} is too short: it has {len(tokens)} tokens")
    warn_of_unknown(tokenizer, tokens)
    length = min(config.context, MAX_WINDOW, len(tokens) - 1)
    inputs, targets, weights = contiguous_windows(np.r_[bos, tokens] if has_bos else tokens, length)
    if has_bos:  # every window begins with it
        inputs = np.concatenate([np.full((len(inputs), 1), bos), inputs[:, 1:]], axis=1)
    size = min(len(inputs), max(1, MAX_LOGITS // (length * config.vocabulary_size)))
    score, totals = jax.jit(F.float32_products(generator_task(config).evaluate)), Counter()
    for batch in zip(*in_batches((inputs, targets, weights), size), strict=True):
        sums = score(model, batch)
        totals.update({n: np.asarray(a, np.float64).sum() for n, a in sums.items()})
    means = {name: np.array([total / totals["count"]]) for name, total in totals.items()}
    # Without a start symbol the first token is not predicted, and its bytes do not count.
    num_bytes = len(text.encode()) - (0 if has_bos else len(tokenizer.decode(tokens[:1]).encode()))
    means["bits_per_byte"] = np.array([totals["loss"] / math.log(2) / max(num_bytes, 1)])
    line = scores_line(f"{path}:", means, tokenizer.unit)
    print(f"{line}, {totals['count']:,.0f} {tokenizer.unit}s in windows of {length:,}")


def export(
    folder: str | Path,
    to: Path,
    *,
    checkpoint: str = "best",
    replica: int = 0,
    family: str | None = None,
) -> str:
    """Write a run's model to a new folder that `transformers` opens; return its family.

    Raises:
        UserError: the folder exists, or `transformers` has no such model.
    """
    if os.path.lexists(to):
        raise UserError(f"{to} exists already: name another folder")
    labels = original = None
    if is_pretrained(folder):
        model, tokenizer, original = open_model(folder, Experiment, checkpoint, replica)
    else:
        model, tokenizer, run = open_model(folder, Experiment, checkpoint, replica)
        labels = getattr(run.experiment.data, "classes", None)
        if getattr(run.experiment, "sentences", 0):
            raise UserError("transformers has no model that joins the scores of sentences")
        if not family and (init_from := getattr(run.experiment, "init_from", None)):
            classes = getattr(model.config, "num_classes", None)
            try:
                original = load_pretrained(init_from.folder, num_classes=classes)[2]
            except UserError as error:
                raise UserError(f"{error}; name a --family to export without it") from error
    with disk_errors(to):
        to.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{to.name}.", dir=to.parent) as temporary:
            path, settings = Path(temporary) / to.name, {"labels": labels, "original": original}
            family = save_pretrained(path, model, tokenizer, family=family, **settings)
            path.rename(to)
    return family
