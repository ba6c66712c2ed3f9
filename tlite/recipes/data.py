"""Where an experiment's data lies: found when a run starts, found again from anywhere, and told."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path

from tlite.data.corpus import Corpus
from tlite.data.files import locate
from tlite.data.manifest import NAME
from tlite.data.tables import Part
from tlite.experiment import Experiment, Pretrained, Pretraining
from tlite.terminal import printable

MULTIPLE = 128  # of rows, which some devices multiply faster


def find_data(experiment: Experiment) -> Experiment:
    """The experiment with absolute paths, and with the columns and classes that its tables have.

    So its run can be used from any folder, and finds the same again; what is found is printed.

    Raises:
        UserError: a file is not there, or it can't be told which column is what.
    """
    experiment = locate_data(experiment)
    data = experiment.data
    return dataclasses.replace(experiment, data=data.found() if hasattr(data, "found") else data)


def find_data_of_all(experiments: dict[str, Experiment]) -> dict[str, Experiment]:
    """The same of several experiments, which mostly have the same data: that is read once."""
    found: list[Experiment] = []  # before and after
    known: list[tuple[object, object]] = []
    for experiment in experiments.values():
        located = locate_data(experiment)
        data = next((after for before, after in known if before == located.data), None)
        if data is None:
            data = find_data(experiment).data
            known.append((located.data, data))
        found.append(dataclasses.replace(located, data=data))
    return dict(zip(experiments, found, strict=True))


def locate_data(experiment: Experiment) -> Experiment:
    """The experiment with absolute paths of what it reads."""
    changed = {}
    if hasattr(experiment.data, "located"):
        changed["data"] = experiment.data.located()
    before = getattr(experiment, "pretraining", None)
    if isinstance(before, Pretraining) and not getattr(experiment.data, "hub", ""):
        changed["pretraining"] = dataclasses.replace(
            before, unlabelled=tuple(map(locate, before.unlabelled))
        )
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
    if not (Path(data.folder) / NAME).is_file():
        return experiment
    tokens, rows = data.manifest().vocabulary_size, model.vocabulary_size
    if not rows or 0 <= rows - tokens < MULTIPLE:
        return experiment
    told = f"the corpus has {tokens:,} tokens: the model has so many rows, not {rows:,}"
    print(printable(f"{told} (--vocabulary-size says otherwise)"), flush=True)
    return dataclasses.replace(experiment, model=dataclasses.replace(model, vocabulary_size=tokens))


def say_what_is_read(
    experiment: Experiment, parts: Iterable[Part] = ("training", "validation")
) -> None:
    """Print it, before it is read: a run of somebody else's may name anything."""
    if line := describe_sources(experiment, parts):
        print(line, flush=True)


def describe_sources(
    experiment: Experiment, parts: Iterable[Part] = ("training", "validation")
) -> str:
    """What is read for the parts of an experiment's data, in one line; "" if nothing is.

    Raises:
        UserError: something is no regular file.
    """
    if not hasattr(experiment.data, "reads"):  # made up, or a part of Python
        return ""
    found = [place for part in parts for place in experiment.data.reads(part)]
    pretraining = getattr(experiment, "pretraining", None)
    if isinstance(pretraining, Pretraining) and "training" in parts:
        unlabelled = pretraining.unlabelled if pretraining.pretraining_steps else ()
        found += experiment.data.reads("training", unlabelled) if unlabelled else []
    if isinstance(pretraining, Pretrained) and "training" in parts:
        found.append(pretraining.folder)
    return printable(f"the run reads: {', '.join(dict.fromkeys(found))}") if found else ""
