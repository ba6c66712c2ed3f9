"""The kinds of runs there are, and how one is started, opened, and given other steps."""

import contextlib
import dataclasses
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from tlite.config import to_dict
from tlite.data.corpus import NAME as MANIFEST
from tlite.data.corpus import Corpus
from tlite.data.reading import locate
from tlite.errors import UserError, disk_errors
from tlite.experiment import Experiment, Pretrained, Pretraining
from tlite.parallel import processes
from tlite.recipes.classifier import ClassifierRecipe
from tlite.recipes.generator import GeneratorRecipe
from tlite.recipes.recipe import Prepared, Recipe, same_everywhere, say_what_is_read
from tlite.recipes.translator import TranslatorRecipe
from tlite.terminal import printable
from tlite.training.checkpoints import Checkpoints
from tlite.training.metrics import MetricsFile
from tlite.training.precision import choose_precision, choose_products
from tlite.training.runs import (
    Run,
    create_run,
    kept,
    new_folder,
    open_run,
    read_config,
    replace_file,
)

RECIPES = {
    kind.experiment_type: kind for kind in (GeneratorRecipe, ClassifierRecipe, TranslatorRecipe)
}
"""The one table of them: its recipe has a kind's experiment, model and word."""
MULTIPLE = 128  # of rows, which some devices multiply faster


def start(experiment: Experiment, folder: Path | None = None) -> Recipe:
    """A new run of an experiment, in `folder` or the next of its name."""
    (experiment,) = find_data([experiment])
    prepared = RECIPES[type(experiment)].prepare(experiment)
    path = processes.of_first(lambda: str(new_folder(experiment.name, folder)))
    (experiment,) = in_one_precision([prepared.experiment])
    return begin(prepared._replace(experiment=experiment), Path(path), exactly=folder is not None)


def begin(prepared: Prepared, folder: Path, *, exactly: bool) -> Recipe:
    """The run of an experiment, compiled: what can't fit is told before it is written.

    Its precision must have been chosen.

    Args:
        exactly: not under the next number, if something has appeared in `folder` meanwhile.
    """
    experiment, tokenizer, data = prepared
    kind, precision = RECIPES[type(experiment)], experiment.training.precision
    model = choose_products(experiment.model, precision)
    experiment = dataclasses.replace(experiment, model=model)
    fingerprint = kind.fingerprint(data)
    same_everywhere({"experiment": to_dict(experiment), "data": fingerprint})
    recipe = kind(Run(folder, experiment, fingerprint), tokenizer, data)
    recipe.trainer.compile()
    made = folder, experiment, fingerprint, tokenizer
    folder = Path(processes.of_first(lambda: str(create_run(*made, exactly=exactly).folder)))
    recipe.run = dataclasses.replace(recipe.run, folder=folder)
    return recipe


def open_recipe(folder: Path, steps: int | None = None) -> Recipe:
    """The run in a folder with the data it was trained on, whatever it is a run of.

    Args:
        steps: it has so many from now on, unless None.

    Raises:
        UserError: the data can't be read, or has changed; or the steps can't be.
    """
    run = open_run(folder, Experiment)
    experiment = locate_data(run.experiment if steps is None else with_steps(run, steps))
    run = dataclasses.replace(run, experiment=experiment)
    kind = RECIPES[type(experiment)]
    say_what_is_read(experiment)
    data = kind.load_data(experiment)
    then, now = run.data, kind.fingerprint(data)
    if changed := [name for name in [*then, *now] if then.get(name) != now.get(name)]:
        raise UserError(
            f"the data of {run.folder} has changed since the run began: {changed[0]}: "
            f"{then.get(changed[0])} then, {now.get(changed[0])} now"
        )
    where = str(run.folder.resolve())
    same_everywhere({"experiment": to_dict(experiment), "data": now, "folder": where})
    recipe = kind(run, kind.load_tokenizer(run), data)
    if steps is not None and processes.is_first():
        # While this process has the metrics, no other trains.
        alone = MetricsFile(run.metrics) if run.metrics.exists() else contextlib.nullcontext()
        with alone, disk_errors(run.folder):
            path = run.folder / "config.json"
            replace_file(path, read_config(path) | {"experiment": kept(experiment)})
    return recipe


def with_steps(run: Run, steps: int) -> Experiment:
    """A run's experiment with so many steps in all, as if it had always had them.

    Raises:
        UserError: the steps before would have been others, or more are done.
    """
    training = run.experiment.training
    if training.schedule == "cosine" and steps != training.steps:
        raise UserError(
            f"--steps can't be {steps:,} where a run has {training.steps:,} with a cosine: that "
            "would have had another learning rate at every step before; only a constant or an "
            "inverse_sqrt schedule can go on"
        )
    if steps < (done := max(Checkpoints(run.checkpoints).steps(), default=0)):
        raise UserError(f"--steps must be at least {done:,}: {run.folder} has done as many")
    try:
        return with_training(run.experiment, steps=steps)
    except ValueError as error:
        raise UserError(f"--{error}") from error


def with_training(experiment: Experiment, **changes: Any) -> Experiment:
    """The experiment with other fields of its training."""
    training = dataclasses.replace(experiment.training, **changes)
    return dataclasses.replace(experiment, training=training)


def find_data(experiments: Iterable[Experiment]) -> list[Experiment]:
    """Experiments with absolute paths, and with the columns and classes that their tables have.

    So their runs can be used from any folder, and find the same again. Data that several have is
    found once; what is found is printed.

    Raises:
        UserError: a file is not there, or it can't be told which column is what.
    """
    changed, known = [], []
    for experiment in map(locate_data, experiments):
        data = next((found for before, found in known if before == experiment.data), None)
        if data is None:
            data = experiment.data.found() if hasattr(experiment.data, "found") else experiment.data
            known.append((experiment.data, data))
        changed.append(dataclasses.replace(experiment, data=data))
    return changed


def in_one_precision(experiments: Iterable[Experiment]) -> list[Experiment]:
    """Experiments with "auto" decided, by the first of all processes; it is printed, and why.

    The choice is kept with a run, so that a resumed one computes as it began.
    """
    changed, known = [], {}
    for experiment in experiments:
        if (asked := experiment.training.precision) not in known:
            known[asked], reason = processes.of_first(partial(choose_precision, asked))
            print(f"precision: {reason}")
        changed.append(with_training(experiment, precision=known[asked]))
    return changed


def locate_data(experiment: Experiment) -> Experiment:
    """The experiment with absolute paths of what it reads."""
    changed: dict[str, Any] = {}
    if hasattr(experiment.data, "located"):
        changed["data"] = experiment.data.located()
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
    if not isinstance(experiment.data, Corpus) or experiment.pretraining:
        return experiment
    data, model = experiment.data.located(), experiment.model
    if not model.vocabulary_size or not Path(data.folder, MANIFEST).is_file():
        return experiment
    tokens, rows = data.manifest().vocabulary_size, model.vocabulary_size
    if 0 <= rows - tokens < MULTIPLE:
        return experiment
    told = f"the corpus has {tokens:,} tokens: the model has so many rows, not {rows:,}"
    print(printable(f"{told} (--vocabulary-size says otherwise)"), flush=True)
    return dataclasses.replace(experiment, model=dataclasses.replace(model, vocabulary_size=tokens))
