"""The kinds of runs there are: how one is started, opened with its data, or loaded without.

Where a model alone is asked for, a Hugging Face folder stands beside a run's.
"""

import contextlib
import dataclasses
import math
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from tlite import distributed
from tlite import functional as F
from tlite.config import to_dict
from tlite.data import every_window
from tlite.data.corpus import NAME, Corpus
from tlite.data.reading import decoded, locate
from tlite.errors import UserError, disk_errors
from tlite.experiment import Experiment, GeneratorExperiment, Pretrained, Pretraining
from tlite.models import Ensemble, make_model
from tlite.models.parameters import from_named_arrays, named_arrays
from tlite.pretrained import is_pretrained, load_pretrained, save_pretrained
from tlite.runs.classifier import ClassifierRun
from tlite.runs.generator import GeneratorRun, scores_line, warn_of_unknown
from tlite.runs.run import (
    Run,
    check_replica,
    first_difference,
    read_parameters,
    same_everywhere,
    tell_what_is_read,
)
from tlite.runs.translator import TranslatorRun
from tlite.terminal import printable
from tlite.training import generator_task
from tlite.training.checkpoints import Checkpoints
from tlite.training.metrics import MetricsFile
from tlite.training.precision import attention_of_all, choose_precision, choose_products
from tlite.training.run_dir import (
    ROOT,
    RUN,
    UNREADABLE,
    RunDir,
    create_run,
    find_run,
    find_runs,
    kept,
    new_folder,
    open_run,
    read_config,
    replace_file,
)
from tlite.training.tasks import in_batches
from tlite.user_code import name_files

RUN_TYPES = {kind.experiment_type: kind for kind in (GeneratorRun, ClassifierRun, TranslatorRun)}
"""The one table of them: its run has a kind's experiment, model and word."""
MULTIPLE = 128  # of rows, which some devices multiply faster
LONGEST = 1024  # tokens of a window that a text is scored in
MOST_LOGITS = 2**26  # numbers, in memory at a time
UNHEEDED = {
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "repetition_penalty": 1.0,
    "min_length": 0,
    "min_new_tokens": 0,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
}
"""What a folder may ask of generation beside its model, and what asks for nothing."""


def run_type(experiment: Experiment) -> type[Run]:
    """The class of an experiment's runs.

    Raises:
        UserError: there is none, as for an experiment of a class of the user's.
    """
    if type(experiment) not in RUN_TYPES:
        names = ", ".join(kind.__name__ for kind in RUN_TYPES)
        raise UserError(f"a {type(experiment).__name__} can't be trained: make one of {names}")
    return RUN_TYPES[type(experiment)]


def start(experiment: Experiment, folder: Path | None = None, *, resume: bool = False) -> Run:
    """Create a run of an experiment in `folder`, or in a new one of its name.

    Args:
        resume: open the run of this experiment instead, if there is one.
    """
    (experiment,) = find_data([experiment])
    experiment, *of_data = run_type(experiment).prepare(experiment)
    same = partial(find_same, experiment.name, folder, RUN, partial(_saved_and_new, experiment))
    if resume and (found := distributed.broadcast_from_process0(same)):
        return open_run_with_data(Path(found))
    path = distributed.broadcast_from_process0(lambda: str(new_folder(experiment.name, folder)))
    (experiment,) = in_one_precision([experiment])
    return begin(experiment, *of_data, Path(path), exactly=folder is not None)


def find_same(
    name: str, folder: Path | None, config: str, read: Callable[[Path], tuple[dict, dict]]
) -> str:
    """Return the newest folder, or `folder`, that a new run or study of this name equals, or "".

    Args:
        config: name of the config file of such a folder.
        read: folder -> what it has, and what the new one would have there.

    Raises:
        UserError: `folder` has another experiment.
    """
    earlier = [
        run_dir.folder for run_dir in find_runs(ROOT / name, depth=1) if run_dir.kind != "damaged"
    ]
    for path in [folder] if folder else earlier:
        with contextlib.suppress(*UNREADABLE):
            saved, new = read(path) if (path / config).is_file() else (None, None)
            if saved and saved == new:
                return str(path)
            if saved and folder:
                raise UserError(f"{path} has another experiment: {first_difference(saved, new)}")
    return ""


def _saved_and_new(experiment: Experiment, run_dir: Path) -> tuple[dict, dict]:
    saved, precision = read_config(run_dir / RUN)["experiment"], experiment.training.precision
    if precision == "auto":  # a run keeps its choice on another machine
        precision = saved["training"]["precision"]
    training = dataclasses.replace(experiment.training, precision=precision)
    model = choose_products(experiment.model, precision)
    return saved, kept(dataclasses.replace(experiment, training=training, model=model))


def begin(experiment: Experiment, tokenizer, data, folder: Path, *, exactly: bool) -> Run:
    """The run of an experiment, compiled: what can't fit is told before it is written.

    Its precision must have been chosen.

    Args:
        exactly: not under the next number, if something has appeared in `folder` meanwhile.
    """
    kind, precision = run_type(experiment), experiment.training.precision
    model = choose_products(experiment.model, precision)
    experiment = dataclasses.replace(experiment, model=model)
    fingerprint = kind.fingerprint(data)
    same_everywhere({"experiment": to_dict(experiment), "data": fingerprint})
    run = kind(RunDir(folder, experiment, fingerprint), tokenizer, data)
    run.trainer.compile()
    made = folder, experiment, fingerprint, tokenizer
    folder = Path(
        distributed.broadcast_from_process0(lambda: str(create_run(*made, exactly=exactly).path))
    )
    run.dir = dataclasses.replace(run.dir, path=folder)
    return run


def open_run_with_data(folder: Path, steps: int | None = None) -> Run:
    """The run in a folder with the data it was trained on, whatever it is a run of.

    Args:
        steps: it has so many from now on, unless None.

    Raises:
        UserError: the data can't be read, or has changed; or the steps can't be.
    """
    run_dir = open_run(folder, Experiment)
    experiment = run_dir.experiment if steps is None else with_steps(run_dir, steps)
    experiment = locate_data(experiment, moved=True)  # the fingerprint below decides
    run_dir = dataclasses.replace(run_dir, experiment=experiment)
    kind = run_type(experiment)
    tell_what_is_read(experiment)
    data = kind.load_data(experiment)
    then, now = run_dir.data, kind.fingerprint(data)
    if changed := [name for name in [*then, *now] if then.get(name) != now.get(name)]:
        raise UserError(
            f"the data of {run_dir.path} has changed since the run began: {changed[0]}: "
            f"{then.get(changed[0])} then, {now.get(changed[0])} now"
        )
    where = str(run_dir.path.resolve())
    same_everywhere({"experiment": to_dict(experiment), "data": now, "folder": where})
    run = kind(run_dir, kind.load_tokenizer(run_dir), data)
    if steps is not None and distributed.is_process0():
        path = run_dir.path / RUN
        with MetricsFile(run_dir.metrics):  # while this process has them, no other trains
            replace_file(path, read_config(path) | {"experiment": kept(experiment)})
    return run


def with_steps(run_dir: RunDir, steps: int) -> Experiment:
    """A run's experiment with so many steps in all, as if it had always had them.

    Raises:
        UserError: the steps before would have been others, or more are done.
    """
    training = run_dir.experiment.training
    if training.schedule == "cosine" and steps != training.steps:
        raise UserError(
            f"--steps can't be {steps:,} where a run has {training.steps:,} with a cosine: that "
            "would have had another learning rate at every step before; only a constant or an "
            "inverse_sqrt schedule can go on"
        )
    if steps < (done := max(Checkpoints(run_dir.checkpoints).steps(), default=0)):
        raise UserError(f"--steps must be at least {done:,}: {run_dir.path} has done as many")
    try:
        training = dataclasses.replace(training, steps=steps)
    except ValueError as error:
        raise UserError(f"--{error}") from error
    return dataclasses.replace(run_dir.experiment, training=training)


def find_data(experiments: Iterable[Experiment]) -> list[Experiment]:
    """Experiments with absolute paths, and with the columns and classes that their tables have.

    So their runs can be used from any folder, and find the same again. Data that several have is
    found once; what is found is printed.

    Raises:
        UserError: a file is not there, it can't be told which column is what, or a class of the
            user's lacks something.
    """
    changed, known = [], {}
    for experiment in map(locate_data, experiments):
        check_data(experiment)
        data, name = experiment.data, repr(experiment.data)
        if name not in known:
            known[name] = data.found() if hasattr(data, "found") else data
        changed.append(dataclasses.replace(experiment, data=known[name]))
    return changed


def check_data(experiment: Experiment) -> None:
    """Raise a `UserError` if the data, which may be of a class of the user's, lacks something."""
    data, kind = experiment.data, RUN_TYPES[type(experiment)]
    needs = () if isinstance(data, Corpus) else kind.data_needs
    if missing := [need for need in needs if not hasattr(data, need)]:
        raise UserError(
            f"{type(data).__name__} has no {' and no '.join(missing)}: the data of a {kind.kind} "
            f"needs {' and '.join(needs)}"
        )


def in_one_precision(experiments: Iterable[Experiment]) -> list[Experiment]:
    """Experiments with "auto" decided, by the first of all processes; it is printed, and why.

    The choice is kept with a run, so that a resumed one computes as it began.
    """
    changed, known = [], {}
    for experiment in experiments:
        if (asked := experiment.training.precision) not in known:
            known[asked], reason = distributed.broadcast_from_process0(
                partial(choose_precision, asked)
            )
            print(f"precision: {reason}")
        training = dataclasses.replace(experiment.training, precision=known[asked])
        changed.append(dataclasses.replace(experiment, training=training))
    return changed


def with_one_attention(experiments: list[Experiment]) -> list[Experiment]:
    """Return experiments of a study with one choice for "auto" attention in each precision.

    The choice for mixed precision is printed.
    """
    by_precision: dict[Any, list] = {}
    for experiment in experiments:
        by_precision.setdefault(experiment.training.precision, []).append(experiment.model)
    fastest = {p: attention_of_all(models, p) for p, models in by_precision.items()}
    if "mixed" in fastest:
        print(f'attention of all variants where it is "auto": {fastest["mixed"]}')
    changed = []
    for experiment in experiments:
        precision = experiment.training.precision
        model = choose_products(experiment.model, precision, fastest[precision])
        changed.append(dataclasses.replace(experiment, model=model))
    return changed


def locate_data(experiment: Experiment, moved: bool = False) -> Experiment:
    """The experiment with absolute paths of what it reads.

    Args:
        moved: search the data folder for what has moved since a run began; the caller must compare
            fingerprints.
    """
    changed: dict[str, Any] = {}
    if hasattr(experiment.data, "located"):
        changed["data"] = experiment.data.located(moved)
    before = getattr(experiment, "pretraining", None)
    if isinstance(before, Pretraining) and not getattr(experiment.data, "hub", ""):
        unlabelled = tuple(map(locate, before.unlabelled))
        changed["pretraining"] = dataclasses.replace(before, unlabelled=unlabelled)
    if isinstance(before, Pretrained):
        place = locate(before.folder, in_data=False)
        changed["pretraining"] = dataclasses.replace(before, folder=place)
    return dataclasses.replace(experiment, **changed)


def fit_to_corpus(experiment: Experiment) -> Experiment:
    """The experiment with as many rows in its embedding as its corpus has tokens, unless it has
    these filled up to a multiple, as gpt2's 50,304 are of 50,257; what has changed is printed."""
    data, model = experiment.data, experiment.model
    if not isinstance(data, Corpus) or experiment.pretraining or not model.vocabulary_size:
        return experiment
    if not Path((data := data.located()).folder, NAME).is_file():
        return experiment
    tokens, rows = data.manifest().vocabulary_size, model.vocabulary_size
    if 0 <= rows - tokens < MULTIPLE:
        return experiment
    told = f"the corpus has {tokens:,} tokens: the model has so many rows, not {rows:,}"
    print(printable(f"{told} (--vocabulary-size says otherwise)"), flush=True)
    return dataclasses.replace(experiment, model=dataclasses.replace(model, vocabulary_size=tokens))


# Models alone, without data and a trainer


def load(
    folder: str | Path,
    *,
    checkpoint: str | int = "best",
    replica: int | Literal["all"] = 0,
    code: str | Path | Iterable[str | Path] = (),
) -> tuple[Any, Any]:
    """The model and the tokenizer of a run's folder, a Hugging Face folder, or a hub name.

    Of a folder of runs the newest is taken; "latest" is the newest in ./runs.

    Args:
        checkpoint: of a run: best, last, average (of the last that are kept), or a step.
        replica: of a run: which of the models that were trained side by side; "all": an `Ensemble`.
        code: the files with your own functions that a run was made with.

    Raises:
        UserError: it is no such folder, or can't be read.
    """
    if is_pretrained(folder := find_run(folder)):
        return load_pretrained(folder)[:2]
    name_files(map(Path, [code] if isinstance(code, str | Path) else code))
    return load_run(open_run(folder, Experiment), str(checkpoint), replica)


def load_run(
    run_dir: RunDir, checkpoint: str = "best", replica: int | Literal["all"] = 0
) -> tuple[Any, Any]:
    """One of a run's models, or all where there are several; and the tokenizer.

    Raises:
        UserError: there is no such checkpoint or replica.
    """
    config, number = run_dir.experiment.model, run_dir.experiment.training.seeds
    replica = 0 if number == 1 and replica == "all" else replica
    if replica != "all":
        check_replica(replica, number)
    shapes = jax.eval_shape(lambda: make_model(config, rng=jax.random.key(0)))
    host = jax.sharding.SingleDeviceSharding(host_device())
    on_host = partial(jax.ShapeDtypeStruct, sharding=host)
    wanted = {
        name: on_host((number, *a.shape), a.dtype) for name, a in named_arrays(shapes).items()
    }
    parameters, _ = read_parameters(run_dir, checkpoint, wanted)
    chosen = slice(None) if replica == "all" else replica
    arrays = {name: jnp.asarray(np.asarray(a)[chosen]) for name, a in parameters.items()}
    model = from_named_arrays(shapes)(arrays)
    tokenizer = run_type(run_dir.experiment).load_tokenizer(run_dir)
    return Ensemble(model) if replica == "all" else model, tokenizer


def host_device() -> jax.Device:
    """Return a CPU device, or with JAX_PLATFORMS=cuda, where JAX has none, the first device."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return jax.local_devices()[0]


def open_model(
    folder: str | Path, kind: Any, checkpoint: str = "best", replica: int | Literal["all"] = 0
) -> tuple[Any, Any, Any]:
    """The model and the tokenizer as `load` gives them, and the run, or what a folder says.

    Args:
        kind: the type of a run's experiment, or a union of types; a Hugging Face folder must have
            the model that it trains.

    Raises:
        UserError: it is no such folder, or of another kind of model.
    """
    if not is_pretrained(folder):
        run_dir = open_run(Path(folder), kind)
        return *load_run(run_dir, checkpoint, replica), run_dir
    if checkpoint != "best" or replica:
        raise UserError("--checkpoint and --replica are for runs: this folder has one model")
    model, tokenizer, told = load_pretrained(folder)
    if kind in RUN_TYPES and not isinstance(model, RUN_TYPES[kind].model_type):
        raise UserError(f"{folder} has a {told.family} {told.kind}: that is another kind of model")
    if tokenizer is None:
        raise UserError(told.no_tokenizer)
    return model, tokenizer, told


def warn_of_unheeded(told) -> None:
    """Say what a Hugging Face folder asks of generation, and does not get."""
    asked = {name: told.fields.get(name) for name in UNHEEDED} | told.generation
    if unheeded := [n for n, plain in UNHEEDED.items() if asked.get(n) not in (None, [], plain)]:
        warning = f"warning: {told.folder} asks for {', '.join(unheeded)}: not heeded"
        print(printable(warning), file=sys.stderr)


def evaluate_text(folder: str | Path, path: Path | None) -> None:
    """Print how well a generator of a Hugging Face folder predicts each token of a text."""
    if path is None:
        raise UserError(f"{folder} has no data of its own: name a text, --path FILE")
    model, tokenizer, _ = open_model(folder, GeneratorExperiment)
    text = "".join(decoded(path))
    tokens, bos, config = (
        tokenizer.encode(text, add_special_tokens=False),
        tokenizer.bos_id,
        model.config,
    )
    begun = bos is not None and tokenizer.encode(text)[:1].tolist() == [bos]
    if len(tokens) < 2:
        raise UserError(f"{path} is too short: it has {len(tokens)} tokens")
    warn_of_unknown(tokenizer, tokens)
    length = min(config.context, LONGEST, len(tokens) - 1)
    inputs, *others = every_window(np.r_[bos, tokens] if begun else tokens, length)
    if begun:  # each of the windows is
        inputs = np.concatenate([np.full((len(inputs), 1), bos), inputs[:, 1:]], axis=1)
    size = max(1, MOST_LOGITS // (length * config.vocabulary_size))
    score, totals = jax.jit(F.float32_products(generator_task(config).evaluate)), Counter()
    for batch in zip(*in_batches((inputs, *others), size), strict=True):
        sums = score(model, batch)
        totals.update({n: np.asarray(a, np.float64).sum() for n, a in sums.items()})
    means = {name: np.array([total / totals["count"]]) for name, total in totals.items()}
    # Without a mark before it the first token is not predicted, and its bytes do not count.
    size = len(text.encode()) - (0 if begun else len(tokenizer.decode(tokens[:1]).encode()))
    means["bits_per_byte"] = np.array([totals["loss"] / math.log(2) / max(size, 1)])
    told = scores_line(f"{path}:", means, "token")
    print(f"{told}, {totals['count']:,.0f} tokens in windows of {length:,}")


def export(
    folder: str | Path,
    to: Path,
    *,
    checkpoint: str = "best",
    replica: int = 0,
    family: str | None = None,
) -> str:
    """Write a run's model to a new folder that `transformers` opens; returns its family.

    Raises:
        UserError: the folder exists, or there is no counterpart; the reason is told.
    """
    if os.path.lexists(to):
        raise UserError(f"{to} exists already: name another folder")
    settings: dict[str, Any] = {"family": family}
    if is_pretrained(folder):
        model, tokenizer, settings["original"] = load_pretrained(folder)
    else:
        model, tokenizer, run_dir = open_model(folder, Experiment, checkpoint, replica)
        settings["labels"] = getattr(run_dir.experiment.data, "classes", None)
        if getattr(run_dir.experiment, "sentences", 0):
            raise UserError("a text's class is joined from sentences': transformers has no such")
        source = getattr(run_dir.experiment, "pretraining", None)
        if isinstance(source, Pretrained) and not family:
            classes = getattr(model.config, "num_classes", None)
            try:
                settings["original"] = load_pretrained(source.folder, num_classes=classes)[2]
            except UserError as error:
                told = "without what the run started from name a --family"
                raise UserError(f"{error}; {told}") from error
    with disk_errors(to):
        to.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{to.name}.", dir=to.parent) as place:
            beside = Path(place) / to.name
            family = save_pretrained(beside, model, tokenizer, **settings)
            beside.rename(to)
    return family
